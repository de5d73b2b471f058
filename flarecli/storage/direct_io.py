"""Direct I/O (O_DIRECT), which writes a large new file without the page cache.

A shard is written once, synced, and read much later. A write through the page cache would cost a
copy and evict data that other processes read. Direct I/O is used on file systems that report an
alignment (statx, STATX_DIOALIGN), such as ext4 and XFS, but not on network file systems, which
would serialize the writes.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Callable

from flarecli.storage.descriptors import set_direct
from flarecli.storage.mmap import large_memory

__all__ = ["FileWriter", "write_all"]

_BUFFER_BYTES = 4 << 20  # bytes per direct write; smaller files use the page cache
_ALIGNMENT = 4096  # alignment of the buffer and of direct writes, in bytes


class FileWriter:
    """A sequential writer for a new file.

    fd      descriptor of an empty file, open for writing
    direct  whether a large file may be written with direct I/O
    """

    def __init__(self, fd: int, direct: bool) -> None:
        self._fd = fd
        # The buffer for direct writes, or None to write through the page cache.
        self._memory: mmap.mmap | None = None
        if direct and 0 < _alignment(fd) <= _ALIGNMENT:
            self._memory = large_memory(_BUFFER_BYTES)
        self._held, self._is_direct = 0, False

    def write(self, data: memoryview) -> None:
        """Write bytes (uint8 [n]).

        raises  OSError from `os.write`, possibly for buffered bytes of an earlier call
        """
        while data and self._memory is not None:
            if self._held == _BUFFER_BYTES:
                self._is_direct = self._is_direct or set_direct(self._fd, True)
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
            set_direct(self._fd, False)  # the last block is incomplete and not aligned
        if self._memory is not None:
            write_all(self._fd, memoryview(self._memory)[: self._held])
            self._memory = None

    def _flush(self, size: int) -> None:
        """Write the first `size` buffered bytes.

        The remaining bytes do not fill a block, and stay in the buffer.
        """
        memory = memoryview(self._memory or b"")
        at = 0
        try:
            while at < size:
                at += os.write(self._fd, memory[at:size])
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            set_direct(self._fd, False)  # the reported alignment is wrong
            self._is_direct, self._memory = False, None
            write_all(self._fd, memory[at : self._held])
            return
        memory[: self._held - size] = memory[size : self._held]
        self._held -= size


def write_all(fd: int, data: memoryview) -> None:
    """Write all bytes (uint8 [n]) with as many system calls as needed."""
    while data:
        data = data[os.write(fd, data) :]


_AT_EMPTY_PATH, _STATX_DIOALIGN = 0x1000, 0x2000  # Linux constants
# struct statx: size of the struct, and offsets of the uint32 fields stx_mask, stx_dio_mem_align,
# stx_dio_offset_align
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
