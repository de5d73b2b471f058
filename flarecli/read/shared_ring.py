"""Bytes handed to the process that takes a worker's batches, through memory that both map.

A pipe carries 64 KB at a time, and each of them wakes a process. The memory has no name: it is gone when both have ended, however they end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

from flarecli.read.shards import keep_freed

__all__ = ["Passed", "passed", "taken"]

_HEAD = mmap.PAGESIZE  # bytes before the ring: how many were taken from it so far
_LEAST = 1 << 16  # bytes that go through a pipe at once
_MOST = 1 << 24  # bytes of a ring: each worker has one, and they stay until it ends
_BATCHES = 4  # that a ring has room for
_PIECES = 1024  # written at once, which is what systems allow


class Passed(NamedTuple):
    """Where columns of bytes lie: the ring, its bytes, its handle when it is told for the first time, the first byte, the size of each piece."""

    ring: bytes
    size: int
    handle: Any
    start: int
    sizes: dict[str, list[int]]


class _Ring:
    """Where this process writes; `end` counts all bytes written so far."""

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("flare", os.MFD_CLOEXEC)
        self.process, self.size, self.end, self.is_told = os.getpid(), size, 0, False
        self.name = self.process.to_bytes(8, "little") + os.urandom(8)
        os.ftruncate(self.fd, _HEAD + size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was refused
            os.close(self.fd)

    def write(self, pieces: Sequence[bytes], total: int) -> int | None:
        """Write pieces behind one another; give where they begin, or None if there is no room until others are taken."""
        start = (
            self.end
            if self.end % self.size + total <= self.size
            else -(-self.end // self.size) * self.size
        )
        free = int.from_bytes(
            os.pread(self.fd, 8, 0), "little"
        )  # all bytes before this one were taken
        if free != self.end and start + total - free > self.size:
            return None
        at = first = _HEAD + start % self.size
        for k in range(0, len(pieces), _PIECES):
            at += os.pwritev(self.fd, pieces[k : k + _PIECES], at)
        if at - first != total:  # the system had no memory
            return None
        self.end = start + total
        return start


_own: _Ring | None = None
_maps: dict[bytes, mmap.mmap] = {}


def passed(columns: Mapping[str, Sequence[bytes]]) -> Passed | None:
    """Put pieces where the other process finds them; None if they had better be sent. What is given has to get to one `taken`, in order."""
    global _own
    sizes = {name: list(map(len, pieces)) for name, pieces in columns.items()}
    total = sum(map(sum, sizes.values()))
    if not _LEAST <= total <= _MOST or not hasattr(os, "memfd_create"):
        return None
    try:
        if (
            _own is None
            or _own.process != os.getpid()
            or (2 * total > _own.size and _own.size < _MOST)
        ):
            _own = _Ring(min(_MOST, _BATCHES * total))
        start = _own.write(list(chain.from_iterable(columns.values())), total)
    except OSError:
        return None
    if start is None:
        return None
    handle, _own.is_told = None if _own.is_told else DupFd(_own.fd), True
    return Passed(_own.name, _own.size, handle, start, sizes)


def taken(place: Passed) -> dict[str, list[bytes]]:
    """Take columns; their room is free again."""
    map_ = _maps.get(place.ring) or _mapped(place)
    out = dict[str, list[bytes]]()
    at = first = _HEAD + place.start % place.size
    for name, sizes in place.sizes.items():
        out[name] = pieces = []
        for size in sizes:
            pieces.append(map_[at : at + size])
            at += size
    map_[:8] = (place.start + at - first).to_bytes(8, "little")
    return out


def _mapped(place: Passed) -> mmap.mmap:
    keep_freed()
    for other in list(
        _maps
    ):  # of this process, which has a larger one now, or of one that has ended
        if other[:8] == place.ring[:8] or not os.path.exists(
            f"/proc/{int.from_bytes(other[:8], 'little')}"
        ):
            del _maps[other]
    fd = place.handle.detach()
    try:
        map_ = _maps[place.ring] = mmap.mmap(fd, _HEAD + place.size)
    finally:
        os.close(fd)
    return map_
