"""A Location as the seekable file that Arrow's readers want; what reading raises comes out again as it was."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from flarecli import expansion
from flarecli.errors import FlareError, FormatError, ReachError, check_exhausted
from flarecli.redact import redact_text
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = ["Heard", "HeardFile", "LocationFile", "arrow_errors", "check_columns", "native"]

Heard = Callable[
    [int, memoryview], None
]  # takes where bytes began that were read, and the bytes; they are others when it is called again
_PIECE = 1 << 18  # bytes that are still in the nearest cache when they are heard
_MEMORY = 2 << 20  # bytes that most pages fit
_WANTED = re.compile(r"of size (\d+) failed")  # how Arrow says what it could not allocate
_idle: list[bytearray] = []  # memory that was touched before is the cheaper one


class LocationFile(io.RawIOBase):
    """Bytes of a Location, read by ranges; `error` is the first FlareError that a read met."""

    def __init__(self, at: Location) -> None:
        self.at, self.size, self._position = at, at.size(), 0
        self.held: tuple[int, int] | None = None  # what `native` holds open: device and inode
        self.error: FlareError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        stop = self.size if size is None or size < 0 else min(self._position + size, self.size)
        if stop <= self._position:
            return b""
        try:
            data = self.at.read(self._position, stop)
        except FlareError as error:
            self.error = error
            raise
        self._position = stop
        return data

    def left(self) -> int:
        """Give how many bytes there are by now of what was opened; what has lost its name, or has given it to another, is taken for whole."""
        store = self.at.store
        if isinstance(store, LocalStore):
            with suppress(FlareError), store.opened(self.at.path) as fd:
                now = store.status(fd, self.at.path)
                return now.st_size if self.held in (None, (now.st_dev, now.st_ino)) else self.size
        return self.size

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class HeardFile(LocationFile):
    """A file on a disk, held open; `heard` takes all that is read of it once it is set, while it is still in the cache."""

    def __init__(self, at: Location, fd: int) -> None:
        super().__init__(at)
        self._fd = fd
        try:
            self._memory = _idle.pop()
        except IndexError:
            self._memory = bytearray(_MEMORY)
        self.heard: Heard | None = None

    def read(self, size: int | None = -1) -> Any:
        """Give bytes, or less of a file that was cut meanwhile, in memory that serves again once whoever asked has let go of it."""
        start = self._position
        wanted = (self.size if size is None or size < 0 else min(start + size, self.size)) - start
        if wanted <= 0:
            return b""
        data = self._space(wanted)
        while self._position - start < wanted:
            piece = data[self._position - start :][:_PIECE]
            read = os.preadv(self._fd, [piece], self._position)
            if not read:
                break
            if self.heard is not None:
                self._tell(self._position, piece[:read])
            self._position += read
        return data[: self._position - start]

    def left(self) -> int:
        return os.fstat(self._fd).st_size

    def _space(self, size: int) -> memoryview:
        if self._is_held:
            self._memory = bytearray(_MEMORY)
        return memoryview(self._memory if size <= _MEMORY else bytearray(size))[:size]

    @property
    def _is_held(self) -> bool:
        """Whether somebody has a view of the memory: then its size cannot change."""
        try:
            self._memory.append(0)
            del self._memory[-1:]
        except BufferError:
            return True
        return False

    def close(self) -> None:
        """Let the memory go to the next one."""
        if not self.closed and not self._is_held and not _idle:
            _idle.append(self._memory)
            self._memory = bytearray()
        super().close()

    def _tell(self, start: int, data: memoryview) -> None:
        try:
            if self.heard is not None:
                self.heard(start, data)
        except FlareError as error:
            self.error = error
            raise


def native(file: LocationFile) -> pa.NativeFile:
    """Give the file as Arrow's own: what lies on a disk is read without Python in between (a twentieth of what packing text takes)."""
    store = file.at.store
    if isinstance(store, LocalStore) and not isinstance(file, HeardFile):
        with (
            store.opened(file.at.path) as fd,
            suppress(OSError),
        ):  # a system may have no names for open files
            opened, stat = pa.OSFile(f"/dev/fd/{fd}"), os.fstat(fd)
            file.held = stat.st_dev, stat.st_ino
            return opened
    return pa.PythonFile(file, mode="r")


@contextmanager
def arrow_errors(at: Location, file: LocationFile, what: str) -> Iterator[None]:
    """Turn what Arrow says of bad bytes into a FormatError of one line."""
    try:
        yield
    except FlareError:
        raise
    except MemoryError as error:
        wanted = _WANTED.search(str(error))
        if wanted is None or int(wanted[1]) <= expansion.decompressed_limit(file.size):
            raise
        raise FormatError(
            f"not valid {what}: {str(error).splitlines()[0]}", where=at
        ) from None  # what the file says, and not what it holds
    except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
        if file.error is not None:
            raise file.error from None
        if isinstance(error, OSError) and error.errno:  # of the disk, not of what lies on it
            check_exhausted(error)
            raise ReachError(os.strerror(error.errno).lower(), where=at) from None
        left = file.left()
        if left < file.size:
            raise FormatError(
                f"ends at byte {left}, it had {file.size} when it was opened",
                where=at,
                hint="Another process cut it.",
            ) from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise FormatError(
            f"not valid {what}: {redact_text(lines[0] if lines else type(error).__name__)[:200]}",
            where=at,
        ) from None


def check_columns(names: Sequence[str], at: object) -> None:
    """Raise FormatError if two columns have one name, or if there is no column."""
    if not names:
        raise FormatError("the index has no columns", where=at)
    expansion.check_columns(len(names), at)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FormatError(
                f"duplicate column {name!r}",
                where=at,
                hint="Rename one of them in the index.",
                column=name,
            )
        seen.add(name)
