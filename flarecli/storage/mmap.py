"""Reading ahead: many cold runs of a local file cost one wait, not one each (measured: 5 to 15 times faster), hot ones next to nothing.

Whether they are cold is asked at a few of them: that costs a hot batch a microsecond or two.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flarecli.storage.spare import spare_memory

__all__ = ["ahead_of_file", "expect", "in_large_pages", "is_cold", "large_memory", "read_ahead"]

_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_LARGE = getattr(mmap, "MADV_HUGEPAGE", None)
_NOWAIT = getattr(os, "RWF_NOWAIT", None)


_LOOKS = 8  # places of a file that tell whether it is in memory
_large: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def expect(view: memoryview, together: int) -> None:
    """Say that all of a mapped file will be read, in whatever order, and others, so many bytes together.

    If memory has room for twice that, what is missing of it comes in pages as large as there are, of 2 MB. Measured: an epoch over pages
    of 4 KB takes 1.6 to 1.9 times as long, now and in each later process.
    """
    if (
        is_cold(view, range(0, len(view), len(view) // _LOOKS + 1))
        and 2 * together <= spare_memory()
    ):
        in_large_pages(view)


def in_large_pages(view: memoryview) -> None:
    """Ask for what is missing of a map in large pages, which come when they are touched."""
    map_ = view.obj
    if _LARGE is None or not isinstance(map_, mmap.mmap):
        return
    with contextlib.suppress(OSError):  # a system without
        map_.madvise(_LARGE)
        _large.add(map_)


def is_cold(view: memoryview, places: Sequence[int]) -> bool:
    """Say whether any of these bytes of a mapped file would have to come from the disk; False where that cannot be told.

    places  positions in the file
    """
    map_, asked = view.obj, _asked()
    if asked is None or not isinstance(map_, mmap.mmap):
        return False
    address_of, is_out = asked
    address, page = address_of(map_), mmap.PAGESIZE
    return any(
        0 <= place < len(map_) and is_out(address + place // page * page) for place in places
    )  # next to it lie other maps


@functools.cache
def _asked() -> tuple[Callable[[Any], int], Callable[[int], bool]] | None:
    """Give what tells the address of a map, and whether the page at an address is out of memory; None where neither is known."""
    import ctypes

    import pyarrow as pa

    try:
        mincore = ctypes.CDLL(None).mincore
        mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    except (OSError, AttributeError, TypeError):
        return None

    def is_out(address: int) -> bool:
        resident = ctypes.c_ubyte(1)
        return not mincore(address, 1, ctypes.byref(resident)) and not resident.value & 1

    return lambda map_: int(pa.py_buffer(map_).address), is_out


def read_ahead(view: memoryview, ranges: Iterable[tuple[int, int]]) -> None:
    """Ask the system for runs (start, stop) of a mapped file, without waiting for them."""
    map_, page = view.obj, mmap.PAGESIZE
    if (
        _WILLNEED is None or not isinstance(map_, mmap.mmap) or map_ in _large
    ):  # what is asked for so comes in small pages
        return
    for start, stop in ranges:
        if start < stop:
            first = start // page * page
            map_.madvise(_WILLNEED, first, stop - first)


def ahead_of_file(fd: int, size: int, ranges: Sequence[tuple[int, int]]) -> None:
    """Ask the system for runs of an open file, without waiting for them, if they are not in memory; a single one is just read.

    size    bytes of the file: what lies outside is not asked for
    """
    if (
        len(ranges) < 2
        or _NOWAIT is None
        or not any(_waits(fd, size, ranges[i][0]) for i in (0, len(ranges) // 2, -1))
    ):
        return
    for start, stop in ranges:
        if 0 <= start < stop <= size:
            os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_WILLNEED)


def _waits(fd: int, size: int, start: int) -> bool:
    if not 0 <= start < size:
        return False
    try:
        os.preadv(fd, [bytearray(1)], start, _NOWAIT or 0)
    except BlockingIOError:
        return True
    except OSError:  # a file system that cannot tell
        return False
    return False


def large_memory(size: int) -> mmap.mmap:
    """Give memory of this process alone, in large pages where the system has them: touching those for the first time costs a fraction."""
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    in_large_pages(memoryview(room))
    return room
