"""A local file that is read once, from front to back, while whoever checks its structure asks for parts of it; each byte is summed on the way.

Only a window of it is in memory, in room that this thread's next file takes again: it stays in the processor's cache, where reading and
summing take half the time that they take through memory for a whole shard.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from flarecli.errors import FlareError
from flarecli.hashes import Sums
from flarecli.storage.base import Location, short_read
from flarecli.storage.local import LocalStore
from flarecli.storage.mmap import large_memory

__all__ = ["in_passing"]

_ROOM = 4 << 20  # bytes of the window, unless a part is larger
_KEPT = 256 << 20  # and no more of it is kept for the next file
_PIECE = (
    4 << 20
)  # bytes read, then summed, at once: still in the cache, and large enough that threads seldom wait for the interpreter
_OWN = threading.local()


@contextlib.contextmanager
def in_passing(at: Location, size: int, sums: Sums) -> Iterator[Location]:
    """Give the first `size` bytes of a local file as an address; at the end of the block what nobody asked for is read and summed too.

    What `read_many` gives for a single range lies in the window: it holds until the next call. Parts in the order of the file are read
    once, others again.

    raises  ReachError naming the byte at which the file could not be read, at the latest at the end of the block; FormatError if it is shorter
    """
    store = at.store
    if not isinstance(store, LocalStore):
        raise TypeError("only a local file is read in passing")
    with store.opened(at.path) as fd:
        one = _Passing(store, at.path, fd, size, sums)
        yield Location(one, at.path)
        one.finish()


class _Passing(LocalStore):
    """The folder of the one file. `_room` holds bytes `_start` to `_end` of that, and all before `_end` are in the sums."""

    def __init__(self, store: LocalStore, path: str, fd: int, size: int, sums: Sums) -> None:
        super().__init__(store.root, store.shown, store.guard, maps=False)
        self._path, self._fd, self._size, self._sums = path, fd, size, sums
        self._room = _room(min(size, _ROOM))
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
        return self._room[start - self._start : stop - self._start]

    def _move(self, start: int, stop: int) -> None:
        """Let the window begin at `start`, and reach up to `stop`."""
        self._pass(start)
        held = bytes(self._room[start - self._start : self._end - self._start])
        if stop - start > len(self._room):
            self._room = _room(stop - start)
        self._room[: len(held)] = held
        self._start = start
        while self._end < stop:
            self._take(min(self._end + _PIECE, stop))

    def _pass(self, stop: int) -> None:
        """Sum what lies before `stop`."""
        while self._end < stop:
            self._start = self._end
            self._take(min(self._end + _PIECE, stop))

    def _take(self, stop: int) -> None:
        """Read on, up to `stop` at most."""
        piece = self._room[self._end - self._start : stop - self._start]
        try:
            got = os.preadv(self._fd, [piece], self._end)
        except OSError as error:
            self._failed = self.error(error, self._path, self._end)
            raise self._failed from None
        if not got:
            self._failed = short_read(self.show(self._path), 0, self._size, self._end)
            raise self._failed
        self._sums.update(piece[:got])
        self._end += got

    def finish(self) -> None:
        """Sum the rest. Raises what kept it from being read."""
        if self._failed is not None:
            raise self._failed
        self._pass(self._size)


def _room(size: int) -> memoryview:
    """Give this thread's room."""
    room: mmap.mmap | None = getattr(_OWN, "room", None)
    if room is None or len(room) < size:
        room = large_memory(max(size, _ROOM))
        if size <= _KEPT:
            _OWN.room = room
    return memoryview(room)
