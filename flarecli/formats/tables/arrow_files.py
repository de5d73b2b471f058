"""Seekable file objects through which Arrow reads a `Location`.

Read errors are raised unchanged.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from flarecli import expansion
from flarecli.errors import FlareError, FormatError, ReachError, check_exhausted
from flarecli.redact import redact_text
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = ["LocationFile", "arrow_errors", "open_native"]

_FAILED_ALLOCATION = re.compile(r"of size (\d+) failed")  # matches an error message from Arrow


class LocationFile(io.RawIOBase):
    """A `Location` as a binary file object.

    error   FlareError that a read raised; Arrow's own error has only the message
    opened  device and inode of the file that `open_native` opened
    """

    def __init__(self, at: Location) -> None:
        self.at, self.size, self._position = at, at.size(), 0
        self.opened: tuple[int, int] | None = None
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
        # Hostile data may declare any size, and `RawIOBase.read` would allocate it.
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
        """Return the file size, or the original size if the file was deleted or replaced."""
        store = self.at.store
        if isinstance(store, LocalStore):
            with suppress(FlareError), store.opened(self.at.path) as fd:
                now = store.status(fd, self.at.path)
                if self.opened in (None, (now.st_dev, now.st_ino)):
                    return now.st_size
        return self.size

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def open_native(file: LocationFile) -> pa.NativeFile:
    """Open a file for Arrow. Arrow reads local files directly, because this is faster."""
    store = file.at.store
    if isinstance(store, LocalStore):
        # if the system has no /dev/fd, Arrow reads through `LocationFile`
        with store.opened(file.at.path) as fd, suppress(OSError):
            opened, stat = pa.OSFile(f"/dev/fd/{fd}"), os.fstat(fd)
            file.opened = stat.st_dev, stat.st_ino
            return opened
    return pa.PythonFile(file, mode="r")


@contextmanager
def arrow_errors(at: Location, file: LocationFile, kind: str) -> Iterator[None]:
    """Convert Arrow's errors for invalid data to FormatError.

    kind  name of the file format, for the message
    """
    try:
        yield
    except FlareError:
        raise
    except MemoryError as error:
        match = _FAILED_ALLOCATION.search(str(error))
        if match is None or int(match[1]) <= expansion.decompressed_limit(file.size):
            raise
        # the file declares more data than a file of its size can contain
        raise FormatError(f"not valid {kind}: {str(error).splitlines()[0]}", where=at) from None
    except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
        if file.error is not None:
            raise file.error from None
        if isinstance(error, OSError) and error.errno:  # a disk error, not invalid data
            check_exhausted(error)
            raise ReachError(os.strerror(error.errno).lower(), where=at) from None
        size = file.current_size()
        if size < file.size:
            raise FormatError(
                f"file is {size} bytes; it was {file.size} bytes when it was opened",
                where=at,
                hint="Another process truncated the file; open it again.",
            ) from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = redact_text(lines[0] if lines else type(error).__name__)[:200]
        raise FormatError(f"not valid {kind}: {reason}", where=at) from None
