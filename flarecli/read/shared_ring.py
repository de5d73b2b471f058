"""A ring buffer in shared memory that carries columns of bytes from a worker to its parent.

A pipe carries 64 KB at a time, and each write wakes a process. The memory is anonymous (memfd): it
is freed when both processes have ended, even if they are killed.
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

_HEADER_BYTES = mmap.PAGESIZE  # before the ring: uint64, the number of bytes read so far
_MIN_BYTES = 1 << 16  # less goes through the pipe
_MAX_RING_BYTES = 1 << 24  # of each worker, until it ends
_RING_BATCHES = 4  # batches that fit into a ring
_MAX_PIECES = 1024  # of one pwritev call (IOV_MAX)


class Passed(NamedTuple):
    """The position of columns of bytes in a ring.

    ring    id of the ring
    size    bytes of the ring
    handle  file descriptor of the ring, when it is sent for the first time
    start   first byte, counted from the creation of the ring
    sizes   column -> bytes of each value
    """

    ring: bytes
    size: int
    handle: Any
    start: int
    sizes: dict[str, list[int]]


class _Ring:
    """The ring that this process writes; `end` counts all bytes written so far."""

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("flare", os.MFD_CLOEXEC)
        self.process, self.size, self.end, self.is_told = os.getpid(), size, 0, False
        self.name = self.process.to_bytes(8, "little") + os.urandom(8)
        os.ftruncate(self.fd, _HEADER_BYTES + size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # memfd_create failed
            os.close(self.fd)

    def write(self, pieces: Sequence[bytes], total: int) -> int | None:
        """Write pieces one after another and return their start, or None if the ring is full."""
        start = (
            self.end
            if self.end % self.size + total <= self.size
            else -(-self.end // self.size) * self.size
        )
        free = int.from_bytes(os.pread(self.fd, 8, 0), "little")  # all bytes before it were read
        if free != self.end and start + total - free > self.size:
            return None
        at = first = _HEADER_BYTES + start % self.size
        for k in range(0, len(pieces), _MAX_PIECES):
            at += os.pwritev(self.fd, pieces[k : k + _MAX_PIECES], at)
        if at - first != total:  # out of memory
            return None
        self.end = start + total
        return start


_own: _Ring | None = None
_maps: dict[bytes, mmap.mmap] = {}


def passed(columns: Mapping[str, Sequence[bytes]]) -> Passed | None:
    """Write columns into the ring; return None if they must go through the pipe.

    Every result must reach one `taken` call, in order.
    """
    global _own
    sizes = {name: list(map(len, pieces)) for name, pieces in columns.items()}
    total = sum(map(sum, sizes.values()))
    if not _MIN_BYTES <= total <= _MAX_RING_BYTES or not hasattr(os, "memfd_create"):
        return None
    try:
        if (
            _own is None
            or _own.process != os.getpid()
            or (2 * total > _own.size and _own.size < _MAX_RING_BYTES)
        ):
            _own = _Ring(min(_MAX_RING_BYTES, _RING_BATCHES * total))
        start = _own.write(list(chain.from_iterable(columns.values())), total)
    except OSError:
        return None
    if start is None:
        return None
    handle, _own.is_told = None if _own.is_told else DupFd(_own.fd), True
    return Passed(_own.name, _own.size, handle, start, sizes)


def taken(place: Passed) -> dict[str, list[bytes]]:
    """Read columns out of the ring, and free their space."""
    map_ = _maps.get(place.ring) or _mapped(place)
    out = dict[str, list[bytes]]()
    at = first = _HEADER_BYTES + place.start % place.size
    for name, sizes in place.sizes.items():
        out[name] = pieces = []
        for size in sizes:
            pieces.append(map_[at : at + size])
            at += size
    map_[:8] = (place.start + at - first).to_bytes(8, "little")
    return out


def _mapped(place: Passed) -> mmap.mmap:
    keep_freed()
    for other in list(_maps):  # unmap the smaller ring of the worker, and rings of ended workers
        if other[:8] == place.ring[:8] or not os.path.exists(
            f"/proc/{int.from_bytes(other[:8], 'little')}"
        ):
            del _maps[other]
    fd = place.handle.detach()
    try:
        map_ = _maps[place.ring] = mmap.mmap(fd, _HEADER_BYTES + place.size)
    finally:
        os.close(fd)
    return map_
