"""Read a local file once, from start to end, and check and hash its bytes in the same pass.

A memory buffer contains a window of the file, and is reused for the next file. The buffer stays in
the CPU cache while its bytes are hashed and checked.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from flarecli.errors import FlareError
from flarecli.hashes import Sums
from flarecli.progress import count_bytes
from flarecli.storage import descriptors
from flarecli.storage.base import Location, short_read
from flarecli.storage.local import LocalStore
from flarecli.storage.mmap import large_memory

__all__ = ["single_pass"]

_WINDOW_BYTES = 4 << 20  # minimum size of the read window
_MAX_KEPT_BYTES = 256 << 20  # a larger window is not reused for the next file
# Bytes per read and hash call: a large value, so that threads seldom wait for the interpreter lock.
_READ_BYTES = 4 << 20
_window = threading.local()


@contextlib.contextmanager
def single_pass(at: Location, size: int, sums: Sums) -> Iterator[Location]:
    """Yield a Location for reading a local file, and hash its first `size` bytes in the same pass.

    The Location reads the file through a memory buffer, which contains a window of the file. A
    range that starts before the window is read from the file a second time. If `read_many` is
    called with a single range, the result is a view of the buffer, which is valid until the next
    call. At the end of the `with` block, the remaining bytes are read and hashed.

    raises  ReachError with the offset of the first unreadable byte; FormatError if the file is
            shorter than `size`; both errors are raised by a read, or at the end of the `with` block
    """
    store = at.store
    if not isinstance(store, LocalStore):
        raise TypeError("expected a local file")
    with store.opened(at.path) as fd:
        single = _SinglePassStore(store, at.path, fd, size, sums)
        yield Location(single, at.path)
        single.finish()


class _SinglePassStore(LocalStore):
    """A store for the folder that contains the file of the single pass.

    `_memory` contains bytes `_start` to `_end` of the file. All bytes before `_end` are already
    hashed.
    """

    def __init__(self, store: LocalStore, path: str, fd: int, size: int, sums: Sums) -> None:
        super().__init__(store.root, store.shown, store.guard, maps=False)
        self._path, self._fd, self._size, self._sums = path, fd, size, sums
        self._memory = _window_memory(min(size, _WINDOW_BYTES))
        self._start = self._end = 0
        self._failed: FlareError | None = None

    def size(self, path: str) -> int:
        return self._size if path == self._path else super().size(path)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return bytes(super().read(path, start, stop))

    def read_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        if path != self._path:
            return super().read_many(path, ranges)
        parts = (self._part(start, self._size if stop < 0 else stop) for start, stop in ranges)
        return list(parts) if len(ranges) == 1 else [bytes(part) for part in parts]

    def _part(self, start: int, stop: int) -> memoryview:
        if max(start, stop) > self._size:
            raise short_read(self.show(self._path), 0, max(start, stop), self._size)
        if start < self._start or (self._failed is not None and stop > self._end):
            return memoryview(self.pread(self._fd, self._path, start, stop, self._size))
        if stop > self._end:
            self._move(start, stop)
        return self._memory[start - self._start : stop - self._start]

    def _move(self, start: int, stop: int) -> None:
        """Move the start of the window to `start`, and read until its end reaches `stop`."""
        self._skip(start)
        kept = bytes(self._memory[start - self._start : self._end - self._start])
        if stop - start > len(self._memory):
            self._memory = _window_memory(stop - start)
        self._memory[: len(kept)] = kept
        self._start = start
        while self._end < stop:
            self._read_on(stop)

    def _skip(self, stop: int) -> None:
        """Read and hash the unread bytes before `stop`."""
        while self._end < stop:
            self._start = self._end
            self._read_on(stop)

    def _read_on(self, stop: int) -> None:
        """Read and hash the next bytes after the window, at most _READ_BYTES and up to `stop`."""
        stop = min(self._end + _READ_BYTES, stop)
        piece = self._memory[self._end - self._start : stop - self._start]
        try:
            count = descriptors.pread_into(self._fd, piece, self._end)
        except OSError as error:
            self._failed = self.error(error, self._path, self._end)
            raise self._failed from None
        if not count:
            self._failed = short_read(self.show(self._path), 0, self._size, self._end)
            raise self._failed
        self._sums.update(piece[:count])
        self._end += count
        count_bytes(count)

    def finish(self) -> None:
        """Read and hash the remaining bytes of the file.

        If an earlier read failed, its error is raised again.
        """
        if self._failed is not None:
            raise self._failed
        self._skip(self._size)


def _window_memory(size: int) -> memoryview:
    """Return a buffer of at least `size` bytes. This thread reuses the buffer for the next file."""
    memory: mmap.mmap | None = getattr(_window, "memory", None)
    if memory is None or len(memory) < size:
        memory = large_memory(max(size, _WINDOW_BYTES))
        if size <= _MAX_KEPT_BYTES:
            _window.memory = memory
    return memoryview(memory)
