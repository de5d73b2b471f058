"""Memory maps: read-ahead, large pages, and the number of files that a process may map."""

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

_HANDLES_SHARE = 4  # maps may use 1 / _HANDLES_SHARE of the file handles of a process
_WILLNEED: int | None = mmap.MADV_WILLNEED if hasattr(mmap, "MADV_WILLNEED") else None
_HUGEPAGE: int | None = mmap.MADV_HUGEPAGE if hasattr(mmap, "MADV_HUGEPAGE") else None
_NOWAIT: int | None = os.RWF_NOWAIT if hasattr(os, "RWF_NOWAIT") else None
_in_large_pages: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_requested_bytes: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()


def files_limit(most: int) -> int:
    """Return how many files one kind of owner may have open as maps: at least 8, at most `most`."""
    try:
        import resource
    except ImportError:  # not on this operating system
        return most
    handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if handles == resource.RLIM_INFINITY:
        return most
    return max(8, min(most, handles // _HANDLES_SHARE))


def expect(view: memoryview, together: int) -> None:
    """Hint that all of a mapped file will be read at random (madvise).

    together  bytes of all files that are read at random with this one. The file gets large pages, which speed up an
              epoch, if `together` is at most half of the memory; else large pages would be evicted before they are read
    """
    if 2 * together <= _memory_bytes():
        use_large_pages(view)


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # unknown on this operating system
        return 0


def use_large_pages(view: memoryview) -> None:
    """Request large pages for the parts of a map that are not in memory yet."""
    map_ = view.obj
    if _HUGEPAGE is None or not isinstance(map_, mmap.mmap):
        return
    with contextlib.suppress(OSError):  # not supported
        map_.madvise(_HUGEPAGE)
        _in_large_pages.add(map_)


def needs_read_ahead(view: memoryview) -> bool:
    """Return whether `read_ahead` may help: not after it was called for as many bytes as the map has.

    Then the page cache has as much of the file as memory allows, and a call would only cost system calls.
    """
    map_ = view.obj
    return (
        _WILLNEED is not None
        and isinstance(map_, mmap.mmap)
        and map_ not in _in_large_pages  # read-ahead would use small pages
        and _requested_bytes.get(map_, 0) < len(map_)
    )


def read_ahead(view: memoryview, ranges: Iterable[tuple[int, int]]) -> None:
    """Hint that ranges (start, stop) of a mapped file are about to be read (madvise).

    Then a batch of rows that are not in the page cache waits for the disk once, and not once per row.
    """
    map_, page, requested = view.obj, mmap.PAGESIZE, 0
    if _WILLNEED is None or not isinstance(map_, mmap.mmap) or not needs_read_ahead(view):
        return
    for start, stop in ranges:
        if start < stop:
            first = start // page * page
            map_.madvise(_WILLNEED, first, stop - first)
            requested += stop - first
    _requested_bytes[map_] = _requested_bytes.get(map_, 0) + requested


def read_ahead_of_file(fd: int, size: int, ranges: Sequence[tuple[int, int]]) -> None:
    """Hint that ranges of an open file are about to be read, if they are not in the page cache (fadvise).

    size  bytes of the file; ranges outside of it are ignored
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
    """Return whether reading a byte would wait for the disk."""
    if not 0 <= start < size:
        return False
    try:
        os.preadv(fd, [bytearray(1)], start, _NOWAIT or 0)
    except BlockingIOError:
        return True
    except OSError:  # the file system does not support the flag
        return False
    return False


def large_memory(size: int) -> mmap.mmap:
    """Return private memory, in large pages where the system has them: these cause fewer page faults."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_large_pages(memoryview(memory))
    return memory
