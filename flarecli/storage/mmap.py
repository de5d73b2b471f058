"""Memory-mapped files and large buffers: read-ahead, large pages, limits, and freed memory."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import sys
from collections.abc import Iterable, Sequence

__all__ = [
    "expect",
    "files_limit",
    "keep_freed",
    "large_memory",
    "map_file",
    "needs_read_ahead",
    "read_ahead",
    "read_ahead_of_file",
]

_HANDLES_SHARE = 4  # the maps of one store may use 1 / _HANDLES_SHARE of the process's file handles
_TRIM_BLOCK_BYTES = 1 << 24
_GAP_BYTES = 16_384  # a gap up to this size is also read, which costs less than a system call
_WILLNEED: int | None = mmap.MADV_WILLNEED if hasattr(mmap, "MADV_WILLNEED") else None
_HUGEPAGE: int | None = mmap.MADV_HUGEPAGE if hasattr(mmap, "MADV_HUGEPAGE") else None


class FileMap(mmap.mmap):
    """A memory-mapped file.

    in_large_pages  True if large pages were requested
    requested       number of bytes for which read-ahead was requested
    """

    in_large_pages = False
    requested = 0


def map_file(fd: int, size: int) -> FileMap:
    """Map the first `size` bytes of an open file, which the caller may then close.

    Before Python 3.13, each map keeps a file handle.

    raises  OSError if the file cannot be mapped
    """
    if sys.version_info >= (3, 13) and sys.platform != "win32":
        return FileMap(fd, size, access=mmap.ACCESS_READ, trackfd=False)
    return FileMap(fd, size, access=mmap.ACCESS_READ)


def files_limit(most: int) -> int:
    """Return the maximum number of files that one store or cache may map at a time.

    The number is between 8 and `most`. If maps keep file handles, the number depends on the limit
    of open files.
    """
    if sys.version_info >= (3, 13) or sys.platform == "win32":
        return most
    import resource

    handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if handles == resource.RLIM_INFINITY:
        return most
    return max(8, min(most, handles // _HANDLES_SHARE))


def expect(view: memoryview, together: int) -> None:
    """Hint that all bytes of a mapped file will be read in random order (madvise).

    Large pages speed up random reads. Large pages are used only if `together` is at most half of
    the machine's memory. Otherwise, the system would evict large pages before all of their bytes
    are read.

    together  total bytes of the files that are read in random order, including this file
    """
    if 2 * together <= _memory_bytes():
        use_large_pages(view)


def _memory_bytes() -> int:
    if sys.platform == "win32":
        return 0
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not supported by this operating system
        return 0


def use_large_pages(view: memoryview) -> None:
    """Request large pages for the parts of a map that are not in memory yet."""
    map_ = view.obj
    if sys.platform == "win32" or _HUGEPAGE is None or not isinstance(map_, mmap.mmap):
        return
    with contextlib.suppress(OSError):  # raised if the kernel does not support large pages
        map_.madvise(_HUGEPAGE)
        if isinstance(map_, FileMap):
            map_.in_large_pages = True


def needs_read_ahead(view: memoryview) -> bool:
    """Return whether `read_ahead` may be useful for a map.

    After read-ahead was requested for all bytes of a map, the page cache contains all bytes that
    fit into memory, and another request would only cost system calls.
    """
    map_ = view.obj
    return (
        _WILLNEED is not None
        and isinstance(map_, FileMap)
        and not map_.in_large_pages  # read-ahead would use small pages
        and map_.requested < len(map_)
    )


def read_ahead(view: memoryview, ranges: Iterable[tuple[int, int]]) -> None:
    """Hint that ranges (start, stop) of a mapped file are about to be read (madvise).

    A batch of rows that are not in the page cache then waits for the disk once, instead of once per
    row. Ranges share a system call if each range begins at most `_GAP_BYTES` after the end of the
    previous range.
    """
    map_, page, requested = view.obj, mmap.PAGESIZE, 0
    if sys.platform == "win32" or _WILLNEED is None:
        return
    if not isinstance(map_, FileMap) or not needs_read_ahead(view):
        return
    joined = list[tuple[int, int]]()
    for start, stop in ranges:
        # A range may begin after the end of the map if another process has changed the file.
        if start < min(stop, len(map_)):
            if joined and joined[-1][0] <= start <= joined[-1][1] + _GAP_BYTES:
                joined[-1] = joined[-1][0], max(joined[-1][1], stop)
            else:
                joined.append((start // page * page, stop))
    for first, stop in joined:
        map_.madvise(_WILLNEED, first, stop - first)
        requested += stop - first
    map_.requested += requested


def read_ahead_of_file(fd: int, size: int, ranges: Sequence[tuple[int, int]]) -> None:
    """Hint that ranges of an open file are about to be read (fadvise).

    size  size of the file in bytes; ranges that are not completely in the file are ignored
    """
    if sys.platform != "linux" or len(ranges) < 2:
        return
    for start, stop in ranges:
        if 0 <= start < stop <= size:
            os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_WILLNEED)


def large_memory(size: int) -> mmap.mmap:
    """Return private memory, in large pages if the system supports them, to reduce page faults."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_large_pages(memoryview(memory))
    return memory


@functools.cache
def keep_freed() -> None:
    """Make glibc keep freed memory for the next batch. Only the first call has an effect.

    By default, glibc returns free memory at the top of its heap to the system if this memory
    exceeds 128 KB. Every batch would then cause page faults. Therefore, this function allocates and
    frees one large block. As a result, glibc raises M_MMAP_THRESHOLD to the size of the block, and
    M_TRIM_THRESHOLD to twice this size (source: mallopt(3)). The block is never written, so it uses
    no physical memory.
    """
    bytes(_TRIM_BLOCK_BYTES)
