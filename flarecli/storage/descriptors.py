"""Operations on file descriptors that differ between Linux, macOS and Windows.

Other modules use these functions and flags instead of `fcntl`, `os.fsync` and `os.pread`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from typing import TypeAlias

from flarecli.errors import ReachError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "CREATE",
    "FILE",
    "FOLDER",
    "HAS_OPENAT",
    "NO_FOLLOW",
    "NO_WAIT",
    "OpenFolder",
    "lock",
    "in_folder",
    "lock_or_fail",
    "memory_file",
    "open_lock",
    "pread",
    "pread_into",
    "pwrite",
    "set_direct",
    "sync",
    "sync_folder",
    "unlock",
]

# Whether files can be opened relative to an open folder (openat). Windows supports neither open
# folders nor openat.
HAS_OPENAT = os.open in os.supports_dir_fd
# The file descriptor of a folder, or the path of the folder on a system without openat.
OpenFolder: TypeAlias = int | str

# Flags of `os.open`; flags that a system lacks are 0. Without O_BINARY, Windows would translate
# newlines.
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_BINARY: int = getattr(os, "O_BINARY", 0)
FOLDER: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NO_FOLLOW
FILE: int = NO_FOLLOW | _BINARY
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)  # opening a pipe does not wait for its other end
CREATE: int = os.O_CREAT | os.O_EXCL | FILE

_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
_NO_LOCKS = (errno.ENOLCK, *_UNSUPPORTED)
# `F_FULLFSYNC` fails with one of these errors on file systems that do not support it, such as SMB.
_NO_FULL_SYNC = (errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
# Windows locks ranges of bytes, and a locked byte cannot be read. This byte is after the end of
# every locked file.
_LOCKED_BYTE = (1 << 31) - 2
_POLL_S = 0.01
_position_lock = threading.Lock()


def in_folder(folder: OpenFolder, name: str) -> tuple[str, int | None]:
    """Return the arguments `path` and `dir_fd` of `os` functions for a name in an open folder."""
    return (os.path.join(folder, name), None) if isinstance(folder, str) else (name, folder)


# -- locks


def open_lock(folder: str, file: str) -> int:
    """Open a folder for `lock`. On Windows, open the file `file` instead.

    raises  OSError
    """
    if HAS_OPENAT:
        return os.open(folder, FOLDER)
    return os.open(file, os.O_RDWR | os.O_CREAT | FILE)


def lock(fd: int, wait: bool = False) -> None:
    """Lock an open file or folder until it is unlocked or closed.

    On Windows, a folder cannot be locked.

    wait    whether to wait while another process has locked the file
    raises  BlockingIOError if another process has locked the file; OSError if the file cannot be
            locked
    """
    if sys.platform == "win32":
        while not _lock_byte(fd):
            if not wait:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            time.sleep(_POLL_S)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_or_fail(fd: int, where: str, hint: str, wait: bool = False) -> None:
    """Lock an open file or folder with `lock`, and convert an OSError to a ReachError.

    hint    hint of the ReachError if the file system does not support locks
    raises  BlockingIOError if another process has locked the file; ReachError for any other error
    """
    try:
        lock(fd, wait)
    except BlockingIOError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        if error.errno in _NO_LOCKS:
            raise ReachError(
                f"cannot lock: the file system does not support locks ({reason})",
                where=where,
                hint=hint,
            ) from None
        raise ReachError(f"cannot lock: {reason}", where=where) from None


def unlock(fd: int) -> None:
    """Unlock an open file or folder. Raises OSError."""
    if sys.platform == "win32":
        _seek_and_lock(fd, msvcrt.LK_UNLCK)
    else:
        fcntl.flock(fd, fcntl.LOCK_UN)


if sys.platform == "win32":

    def _lock_byte(fd: int) -> bool:
        try:
            _seek_and_lock(fd, msvcrt.LK_NBLCK)
        except PermissionError:  # another process has locked the byte
            return False
        return True

    def _seek_and_lock(fd: int, mode: int) -> None:
        with _position_lock:
            before = os.lseek(fd, 0, os.SEEK_CUR)
            os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(fd, mode, 1)
            finally:
                os.lseek(fd, before, os.SEEK_SET)


# -- writing


def sync(fd: int) -> None:
    """Sync an open file or folder, so that its content survives a power loss. Raises OSError.

    On macOS, only `F_FULLFSYNC` also flushes the cache of the disk (source: fsync(2) of macOS).
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(fd)


def sync_folder(folder: OpenFolder) -> None:
    """Sync an open folder, so that new file names in it survive a power loss.

    Errors are ignored on file systems that can sync only files (some network and FUSE file
    systems). On Windows, this function does nothing, because the journal of the file system records
    the names.
    """
    if isinstance(folder, str):
        return
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def set_direct(fd: int, on: bool) -> bool:
    """Enable or disable direct I/O for a file.

    return  False if the file does not support direct I/O
    """
    flag: int = getattr(os, "O_DIRECT", 0)
    if sys.platform != "win32" and flag:
        with contextlib.suppress(OSError):
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
            return True
    return False


# -- reading and writing at an offset


def _pread(fd: int, size: int, start: int) -> bytes:
    with _position_lock:
        os.lseek(fd, start, os.SEEK_SET)
        return os.read(fd, size)


# Read at most `size` bytes at an offset; the arguments are (fd, size, start).
pread = os.pread if hasattr(os, "pread") else _pread


def pread_into(fd: int, buffer: memoryview, start: int) -> int:
    """Read bytes at an offset into a buffer (uint8 [n]), and return the number of bytes read.

    Raises OSError.
    """
    if sys.platform != "win32":
        return os.preadv(fd, [buffer], start)
    data = pread(fd, len(buffer), start)
    buffer[: len(data)] = data
    return len(data)


def pwrite(fd: int, data: memoryview, start: int) -> int:
    """Write bytes at an offset, and return the number of bytes written. Raises OSError."""
    if sys.platform != "win32":
        return os.pwrite(fd, data, start)
    with _position_lock:
        os.lseek(fd, start, os.SEEK_SET)
        return os.write(fd, data)


# -- files in memory


def memory_file(name: str) -> int:
    """Create a file in memory, and return its file descriptor.

    Raises OSError on a system other than Linux, or if there is not enough memory.
    """
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
