"""Direct I/O (O_DIRECT): write a large new file without the page cache.

A shard is written once, synced, and read much later. The page cache would copy it and evict data that other processes
read. Direct I/O is used on file systems that report its alignment (statx, STATX_DIOALIGN), such as ext4 and XFS, and
not on network file systems, where writes would be serialized.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
from collections.abc import Callable

from flarecli import lifetimes
from flarecli.storage.mmap import large_memory

__all__ = ["FileWriter", "write_all"]

_BUFFER_BYTES = 4 << 20  # bytes per direct write; smaller files go through the page cache
_ALIGNMENT = 4096  # alignment of the buffer and its writes
_MAX_IDLE = 2  # buffers kept for reuse, which saves page faults
_idle: list[mmap.mmap] = []
lifetimes.register("write buffers", _idle.clear)


class FileWriter:
    """Write a new file front to back.

    fd      open for writing, the file empty
    direct  whether a large file may be written with direct I/O
    """

    def __init__(self, fd: int, direct: bool) -> None:
        self._fd = fd
        # None: write through the page cache.
        self._memory = _buffer() if direct and 0 < _alignment(fd) <= _ALIGNMENT else None
        self._held, self._is_direct = 0, False

    def write(self, data: memoryview) -> None:
        """Add bytes, uint8 [n]. Raises OSError as `os.write` does, perhaps for bytes of an earlier call."""
        while data and self._memory is not None:
            if self._held == _BUFFER_BYTES:
                self._is_direct = self._is_direct or _set_direct(self._fd, True)
                self._flush(_BUFFER_BYTES)
                continue
            count = min(len(data), _BUFFER_BYTES - self._held)
            self._memory[self._held : self._held + count] = data[:count]
            self._held, data = self._held + count, data[count:]
        write_all(self._fd, data)

    def finish(self) -> None:
        """Write the buffered bytes."""
        if self._memory is not None and self._is_direct:
            self._flush(self._held // _ALIGNMENT * _ALIGNMENT)
            _set_direct(self._fd, False)  # the last block is not complete
        memory, self._memory = self._memory, None
        if memory is not None:
            write_all(self._fd, memoryview(memory)[: self._held])
            if len(_idle) < _MAX_IDLE:
                _idle.append(memory)

    def _flush(self, size: int) -> None:
        """Write the first `size` buffered bytes; keep the rest, less than a block."""
        memory = memoryview(self._memory or b"")
        at = 0
        try:
            while at < size:
                at += os.write(self._fd, memory[at:size])
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            _set_direct(self._fd, False)  # the reported alignment is wrong
            self._is_direct, self._memory = False, None
            write_all(self._fd, memory[at : self._held])
            return
        memory[: self._held - size] = memory[size : self._held]
        self._held -= size


def _buffer() -> mmap.mmap:
    try:
        return _idle.pop()
    except IndexError:
        return large_memory(_BUFFER_BYTES)


def write_all(fd: int, data: memoryview) -> None:
    """Write all bytes, uint8 [n], with as many calls as needed."""
    while data:
        data = data[os.write(fd, data) :]


def _set_direct(fd: int, on: bool) -> bool:
    """Switch direct I/O of a file on or off; return False if that is not possible."""
    flag = getattr(os, "O_DIRECT", 0)
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
    except OSError:
        return False
    return bool(flag)


_AT_EMPTY_PATH, _STATX_DIOALIGN = 0x1000, 0x2000  # constants of Linux
# struct statx: size, and offsets of stx_mask, stx_dio_mem_align and stx_dio_offset_align, uint32 each
_STATX_BYTES, _MASK, _MEMORY_ALIGNMENT, _OFFSET_ALIGNMENT = 256, 0, 0x98, 0x9C


def _alignment(fd: int) -> int:
    """Return the alignment of direct writes in bytes; 0 if the file system does not report it."""
    statx = _statx()
    result = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, result):
        return 0
    mask, memory, offset = (
        int.from_bytes(result.raw[at : at + 4], "little")
        for at in (_MASK, _MEMORY_ALIGNMENT, _OFFSET_ALIGNMENT)
    )
    return max(memory, offset) if mask & _STATX_DIOALIGN else 0


@functools.cache
def _statx() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None).statx
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    )
    return function
