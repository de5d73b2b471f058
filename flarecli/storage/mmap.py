"""Memory maps: reading ahead, large pages, and how many files a process may map."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence

__all__ = [
    "expect",
    "files_limit",
    "large_memory",
    "needs_read_ahead",
    "read_ahead",
    "read_ahead_of_file",
    "use_large_pages",
]

_HANDLES_SHARE = 4  # maps may take one in this many of a process's file handles
_WILLNEED: int | None = mmap.MADV_WILLNEED if hasattr(mmap, "MADV_WILLNEED") else None
_HUGEPAGE: int | None = mmap.MADV_HUGEPAGE if hasattr(mmap, "MADV_HUGEPAGE") else None
_NOWAIT: int | None = os.RWF_NOWAIT if hasattr(os, "RWF_NOWAIT") else None
_in_large_pages: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_asked_bytes: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()


def files_limit(most: int) -> int:
    """Return how many files one kind of holder may have mapped at once: at least 8, at most `most`."""
    try:
        import resource
    except ImportError:  # another system, with another limit
        return most
    handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if handles == resource.RLIM_INFINITY:
        return most
    return max(8, min(most, handles // _HANDLES_SHARE))


def expect(view: memoryview, together: int) -> None:
    """Hint that all of a mapped file will be read, in any order, and `together` bytes with it (madvise).

    The file gets large pages if memory could hold `together` twice: an epoch over pages of 4 KB takes up to twice as
    long. Data of more than half of the memory would push out other large pages before they are read.
    """
    if 2 * together <= _memory_bytes():
        use_large_pages(view)


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # the system does not say
        return 0


def use_large_pages(view: memoryview) -> None:
    """Ask for large pages for what is not in memory yet of a map."""
    map_ = view.obj
    if _HUGEPAGE is None or not isinstance(map_, mmap.mmap):
        return
    with contextlib.suppress(OSError):  # a system without
        map_.madvise(_HUGEPAGE)
        _in_large_pages.add(map_)


def needs_read_ahead(view: memoryview) -> bool:
    """Return whether `read_ahead` may help: not once as many bytes were asked for as the map has.

    By then the file is in the page cache as far as memory allows, and asking would only cost a system call per range.
    """
    map_ = view.obj
    return (
        _WILLNEED is not None
        and isinstance(map_, mmap.mmap)
        and map_ not in _in_large_pages  # asking would bring small pages
        and _asked_bytes.get(map_, 0) < len(map_)
    )


def read_ahead(view: memoryview, ranges: Iterable[tuple[int, int]]) -> None:
    """Ask the system to read ranges (start, stop) of a mapped file in the background.

    A cold batch of many rows then takes one wait for the disk instead of one per row.
    """
    map_, page, asked = view.obj, mmap.PAGESIZE, 0
    if _WILLNEED is None or not isinstance(map_, mmap.mmap) or not needs_read_ahead(view):
        return
    for start, stop in ranges:
        if start < stop:
            first = start // page * page
            map_.madvise(_WILLNEED, first, stop - first)
            asked += stop - first
    _asked_bytes[map_] = _asked_bytes.get(map_, 0) + asked


def read_ahead_of_file(fd: int, size: int, ranges: Sequence[tuple[int, int]]) -> None:
    """Ask the system to read ranges of an open file in the background, if they are not in memory.

    size    bytes of the file; ranges outside of it are ignored
    """
    if (
        len(ranges) < 2
        or _NOWAIT is None
        or not any(_would_wait(fd, size, ranges[i][0]) for i in (0, len(ranges) // 2, -1))
    ):
        return
    for start, stop in ranges:
        if 0 <= start < stop <= size:
            os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_WILLNEED)


def _would_wait(fd: int, size: int, start: int) -> bool:
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
    """Return private memory, in large pages where the system has them: their first use costs a fraction."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_large_pages(memoryview(memory))
    return memory
