"""Locations as seekable files for Arrow's readers; errors of reading are raised unchanged."""

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

__all__ = ["OnRead", "ObservedFile", "LocationFile", "arrow_errors", "check_columns", "native"]

# called with the position and the bytes of each read; the memory is reused after the call
OnRead = Callable[[int, memoryview], None]
PIECE_BYTES = 1 << 18  # small enough to stay in the CPU's cache
BUFFER_BYTES = 2 << 20  # large enough for most pages
_FAILED_ALLOCATION = re.compile(r"of size (\d+) failed")  # in Arrow's messages
_idle: list[bytearray] = []  # buffers to reuse, because new memory is slow


class LocationFile(io.RawIOBase):
    """Bytes of a Location as a file; `error` is the first FlareError of a read."""

    def __init__(self, at: Location) -> None:
        self.at, self.size, self._position = at, at.size(), 0
        self.held: tuple[int, int] | None = (
            None  # device and inode of the file that `native` opened
        )
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

    def current_size(self) -> int:
        """Return the current size of the file; the original size if it was deleted or replaced."""
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


class ObservedFile(LocationFile):
    """A local file, held open; `on_read` is called for all reads after it is set."""

    def __init__(self, at: Location, fd: int) -> None:
        super().__init__(at)
        self._fd = fd
        try:
            self._memory = _idle.pop()
        except IndexError:
            self._memory = bytearray(BUFFER_BYTES)
        self.on_read: OnRead | None = None

    def read(self, size: int | None = -1) -> Any:
        """Return bytes, fewer if the file was truncated, in a buffer that is reused when it is
        released.
        """
        start = self._position
        wanted = (self.size if size is None or size < 0 else min(start + size, self.size)) - start
        if wanted <= 0:
            return b""
        data = self._space(wanted)
        while self._position - start < wanted:
            piece = data[self._position - start :][:PIECE_BYTES]
            read = os.preadv(self._fd, [piece], self._position)
            if not read:
                break
            if self.on_read is not None:
                self._notify(self._position, piece[:read])
            self._position += read
        return data[: self._position - start]

    def current_size(self) -> int:
        return os.fstat(self._fd).st_size

    def _space(self, size: int) -> memoryview:
        if self._is_in_use:
            self._memory = bytearray(BUFFER_BYTES)
        return memoryview(self._memory if size <= BUFFER_BYTES else bytearray(size))[:size]

    @property
    def _is_in_use(self) -> bool:
        """Whether the buffer is referenced; then it cannot be resized."""
        try:
            self._memory.append(0)
            del self._memory[-1:]
        except BufferError:
            return True
        return False

    def close(self) -> None:
        """Close the file and keep the buffer for reuse."""
        if not self.closed and not self._is_in_use and not _idle:
            _idle.append(self._memory)
            self._memory = bytearray()
        super().close()

    def _notify(self, start: int, data: memoryview) -> None:
        try:
            if self.on_read is not None:
                self.on_read(start, data)
        except FlareError as error:
            self.error = error
            raise


def native(file: LocationFile) -> pa.NativeFile:
    """Return the file for Arrow; local files are read by Arrow itself, which is faster."""
    store = file.at.store
    if isinstance(store, LocalStore) and not isinstance(file, ObservedFile):
        # /dev/fd does not exist on all systems
        with store.opened(file.at.path) as fd, suppress(OSError):
            opened, stat = pa.OSFile(f"/dev/fd/{fd}"), os.fstat(fd)
            file.held = stat.st_dev, stat.st_ino
            return opened
    return pa.PythonFile(file, mode="r")


@contextmanager
def arrow_errors(at: Location, file: LocationFile, what: str) -> Iterator[None]:
    """Convert Arrow's errors for invalid data to a FormatError."""
    try:
        yield
    except FlareError:
        raise
    except MemoryError as error:
        wanted = _FAILED_ALLOCATION.search(str(error))
        if wanted is None or int(wanted[1]) <= expansion.decompressed_limit(file.size):
            raise
        # the file declares more than it can contain
        raise FormatError(f"not valid {what}: {str(error).splitlines()[0]}", where=at) from None
    except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
        if file.error is not None:
            raise file.error from None
        if isinstance(error, OSError) and error.errno:  # an error of the disk, not of the data
            check_exhausted(error)
            raise ReachError(os.strerror(error.errno).lower(), where=at) from None
        size = file.current_size()
        if size < file.size:
            raise FormatError(
                f"file is {size} bytes; it was {file.size} when it was opened",
                where=at,
                hint="Another process truncated it.",
            ) from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise FormatError(
            f"not valid {what}: {redact_text(lines[0] if lines else type(error).__name__)[:200]}",
            where=at,
        ) from None


def check_columns(names: Sequence[str], at: object) -> None:
    """Raise FormatError for duplicate columns, or if there are no columns."""
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
