"""Copies that a process has at hand, of all its stores together, checked already: those that were
used last.

A map holds a handle for as long as it lives: there are no more of them than a share of what the
system gives.

And objects that a run only passes through, which no file keeps: in memory until the run has passed
them.
"""

from __future__ import annotations

import mmap
import sys
import threading
import time
from collections.abc import Callable

from flarecli.cache.entry import PLACE
from flarecli.storage import files_limit, large_memory

__all__ = ["Views"]

_COPIES, _BYTES = 1024, 256 << 20
_PASSING = 384 << 20  # bytes of what runs pass through: two windows of three shards of 64 MiB
_LOOK_S = 1.0  # how often it is noted that a copy is in use, and found out that it is gone


class Views:
    """Views of copies by name.

    `touch` notes in the folder that a copy is used, and says whether it is still there.
    """

    def __init__(self, touch: Callable[[str], bool]) -> None:
        self._touch = touch
        self._held: dict[
            str, tuple[memoryview, float]
        ] = {}  # name -> bytes, and when it was last looked at; the coldest first
        self._bytes = self._maps = 0
        self._passing: dict[
            str, tuple[str, memoryview, int]
        ] = {}  # what a name begins with, whatever the version -> name, bytes, room for them
        self._passing_bytes = 0
        self._rooms: list[mmap.mmap] = []  # memory for it
        self._lock = threading.Lock()

    def get(self, name: str) -> memoryview | None:
        """Give a copy that is at hand, and not gone from the folder."""
        now = time.monotonic()
        with self._lock:
            held = self._held.pop(name, None)
            if held is None:
                known, passing, _ = self._passing.get(name[:PLACE], ("", None, 0))
                return passing if known == name else None
            view, looked = held
            is_due = now - looked >= _LOOK_S
            self._held[name] = view, now if is_due else looked
        if is_due and not self._touch(name):
            with self._lock:
                self._drop(name)  # its bytes are good, but they count for nobody's limit
            return None
        return view

    def put(self, name: str, view: memoryview) -> None:
        """Keep a copy at hand, in place of the coldest ones."""
        with self._lock:
            self._drop(name)
            self._held[name] = view, time.monotonic()
            self._bytes += len(view)
            self._maps += isinstance(view.obj, mmap.mmap)
            most = files_limit(_COPIES)
            while len(self._held) > 1 and (
                len(self._held) > _COPIES or self._maps > most or self._bytes > _BYTES
            ):
                self._drop(next(iter(self._held)))

    @property
    def most_passing(self) -> int:
        """Bytes that runs may have in memory."""
        return _PASSING

    def reserve(self, place: str, size: int) -> bool:
        """Take room for something of so many bytes that no file will keep, until it is held or
        passed; False if there is none.

        place  what `entries.place_of` gives
        """
        with self._lock:
            self._let_pass(place)
            if self._passing_bytes + size > _PASSING:
                return False
            self._passing[place] = "", memoryview(b""), size
            self._passing_bytes += size
        return True

    def room(self, size: int) -> memoryview:
        """Give so many bytes of memory to put something together that is then held; what it was
        used for before is over, if it was used.

        Fresh memory costs as much as what is fetched into it.
        """
        with self._lock:
            for room in self._rooms:
                if size <= len(room) <= 2 * size and _is_free(room):
                    return memoryview(room)[:size]
            room = large_memory(max(1, size))
            if sys.platform == "linux":  # elsewhere nothing tells that a map is free
                self._rooms.append(room)
            return memoryview(room)[:size]

    def hold(self, name: str, view: memoryview) -> None:
        """Have something at hand that no file keeps, until it is passed."""
        with self._lock:
            self._let_pass(name[:PLACE])
            self._passing[name[:PLACE]] = name, view, len(view)
            self._passing_bytes += len(view)

    def passed(self, place: str) -> None:
        """Let go of what no file keeps, of whatever version it is, and of room for it."""
        with self._lock:
            self._let_pass(place)

    def _let_pass(self, place: str) -> None:
        _, _, size = self._passing.pop(place, ("", b"", 0))
        self._passing_bytes -= size
        if not self._passing:
            self._rooms.clear()

    def clear(self) -> None:
        """Forget all copies; what is in memory for a run stays until the run has passed it."""
        with self._lock:
            for name in [*self._held]:
                self._drop(name)

    def drop(self, name: str) -> None:
        """Let go of a copy; whoever reads it goes on reading."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        view, _ = self._held.pop(name, (None, 0.0))
        if view is not None:
            self._bytes -= len(view)
            self._maps -= isinstance(view.obj, mmap.mmap)

    def forked(self) -> None:
        """In a child: another thread of the parent may have had the lock, or fetched what room was
        taken for.
        """
        self._lock = threading.Lock()
        self._passing = {place: one for place, one in self._passing.items() if one[0]}
        self._passing_bytes = sum(size for _, _, size in self._passing.values())


def _is_free(room: mmap.mmap) -> bool:
    """Whether nobody has a view of it: then its size could change."""
    try:
        room.resize(len(room))
    except (BufferError, OSError):
        return False
    return True
