"""Advisory locks that prevent duplicate work, and registration of the processes that use a folder.

FOLDER/turns/KIND.NNN           locked while a process fetches the data of a key; KIND is a letter,
                                and NNN are the last digits of the key
FOLDER/here/of.HOST.PID.N.here  locked as long as a process uses the folder

The cache is correct even if locks do not work. All lock files are empty. The files in `turns` are
never removed, because creating a file takes as long as fetching 0.5 MB. Two keys with the same last
digits share a file, so a process that fetches the data of one key waits for a process that fetches
the data of the other key.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from flarecli.storage import descriptors

__all__ = [
    "Presence",
    "Turns",
    "held",
    "holder",
    "host",
    "is_abandoned",
    "locked_within",
]

_PAUSE_S = 0.004  # maximum delay between two attempts to lock a file
_TURNS, _DIGITS = "turns", 3
NOTICE_AFTER_S = 10.0  # the user is notified of a longer wait for a lock
# A file counts as in use until it is _YOUNG_S seconds old, because the process that created it may
# still be running. An older file counts as in use if it is locked. On a file system that does not
# support locks, a file counts as in use until it is _OLD_S seconds old.
_YOUNG_S = 5.0
_OLD_S = 3600.0
_HERE = "here"
_ALONE_S = 0.25  # time after which the other processes are counted again
_number = itertools.count()


def locked_within(fd: int, seconds: float, notice: Callable[[int], object] | None = None) -> bool:
    """Lock an open file within `seconds`; return False if the file could not be locked.

    notice  function that is called once with `fd` if the wait takes longer than NOTICE_AFTER_S
    """
    begun, pause = time.monotonic(), 0.0005
    while True:
        try:
            descriptors.lock(fd)
            return True
        except BlockingIOError:
            waited = time.monotonic() - begun
            if waited >= seconds:
                return False
            if notice is not None and waited >= NOTICE_AFTER_S:
                notice(fd)
                notice = None
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_S)
        except OSError:
            return False


def holder(fd: int) -> str:
    """Return the name of the process that has locked an open file, for messages.

    Source: proc(5), /proc/locks.
    """
    if sys.platform != "linux":
        return "another process"
    own = os.fstat(fd)
    place = f"{os.major(own.st_dev):02x}:{os.minor(own.st_dev):02x}:{own.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
                    return f"process {fields[4]}"
    except (OSError, ValueError, IndexError):
        pass
    return "another process"


class Turns:
    """One lock per key, for all threads of this process and all processes that use the folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Key -> (lock, number of threads that have locked the key or wait for its lock).
        self._taken: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def turn(
        self,
        folder: int,
        key: str,
        kind: str,
        seconds: float,
        meanwhile: Callable[[], object] | None = None,
        notice: Callable[[int], object] | None = None,
    ) -> Iterator[None]:
        """Lock a key for the duration of the block.

        If the key cannot be locked within `seconds`, the block runs without the lock.

        folder     file descriptor of the folder, or -1 to lock only against other threads of this
                   process
        key        string that ends in hexadecimal digits
        kind       one letter; nested locks need different letters
        meanwhile  function that is called once if another process has locked the key
        notice     function that is called once with the descriptor of the lock file if the wait
                   takes longer than NOTICE_AFTER_S
        """
        with self._of_threads(kind + key, seconds):
            if folder < 0:
                yield
                return
            with _opened(folder, f"{kind}.{key[-_DIGITS:]}") as fd:
                if fd >= 0 and (meanwhile is None or not locked_within(fd, 0.0)):
                    if meanwhile is not None:
                        meanwhile()
                    locked_within(fd, seconds, notice)
                yield

    @contextlib.contextmanager
    def _of_threads(self, key: str, seconds: float) -> Iterator[None]:
        """Lock a key against other threads of this process.

        As a result, only one thread polls the lock file.
        """
        self._count(key, 1)
        is_mine = self._taken[key][0].acquire(timeout=seconds)
        try:
            yield
        finally:
            if is_mine:
                self._taken[key][0].release()
            self._count(key, -1)

    def _count(self, key: str, more: int) -> None:
        with self._lock:
            lock, threads = self._taken.get(key) or (threading.Lock(), 0)
            self._taken[key] = lock, threads + more
            if threads + more == 0:
                del self._taken[key]


@contextlib.contextmanager
def held(fd: int) -> Iterator[None]:
    """Unlock and close a file at the end of the block.

    Closing the file would not unlock it if a forked child also has the file open.
    """
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            descriptors.unlock(fd)
        os.close(fd)


@contextlib.contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(_TURNS, 0o700, dir_fd=folder)
        flags = os.O_RDWR | os.O_CREAT | descriptors.FILE
        fd = os.open(f"{_TURNS}/{name}", flags, 0o600, dir_fd=folder)
    except OSError:
        yield -1
        return
    with held(fd):
        yield fd


@functools.cache
def host() -> str:
    """Return an identifier for this machine, boot and process namespace.

    Running processes with the same identifier have different process ids.
    """
    words = [socket.gethostname()]
    with contextlib.suppress(OSError):
        words.append(os.readlink("/proc/self/ns/pid"))
    with (
        contextlib.suppress(OSError),
        open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file,
    ):
        words.append(file.read())
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def is_abandoned(folder: int, name: str, status: os.stat_result) -> bool:
    """Return whether the process that created a `.part`, `.room` or `.here` file has ended.

    folder  file descriptor of the folder
    """
    words = name.split(".")
    if len(words) >= 4 and words[-4] == host() and words[-3].isdecimal():
        try:
            os.kill(int(words[-3]), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # a process of another user now has the id, so the lock is checked below
            pass
    age = abs(time.time() - status.st_mtime)  # a clock change may cause a negative difference
    if age < _YOUNG_S:
        return False
    try:
        fd = os.open(name, os.O_RDWR | descriptors.NO_WAIT | descriptors.FILE, dir_fd=folder)
    except OSError:
        return False
    try:
        descriptors.lock(fd)
    except BlockingIOError:
        return False
    except OSError:  # the file system does not support locks
        return age > _OLD_S
    finally:
        os.close(fd)
    return True


class Presence:
    """The running processes that use a folder, each with a locked file in `here/`."""

    def __init__(self) -> None:
        self._fd, self._others, self._counted = -1, 0, 0.0

    def register(self, folder: int) -> None:
        """Register this process until `unregister` is called or the process ends.

        folder  file descriptor of the cache folder
        """
        self.unregister()  # needed if the folder was removed and created again
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(_HERE, 0o700, dir_fd=folder)
            name = f"{_HERE}/of.{host()}.{os.getpid()}.{next(_number)}.here"
            self._fd = os.open(name, os.O_RDWR | descriptors.CREATE, 0o600, dir_fd=folder)
            descriptors.lock(self._fd)

    def unregister(self) -> None:
        """Unregister this process."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def is_alone(self, folder: int) -> bool:
        """Return whether this is the only process that uses the folder.

        The result is False if this process is not registered.
        """
        now = time.monotonic()
        if now - self._counted > _ALONE_S:
            self._others, self._counted = self._count(folder), now
        return self._fd >= 0 and not self._others

    def _count(self, folder: int) -> int:
        """Return the number of other processes that use the folder, or 1 if it is unknown."""
        others = 0
        try:
            fd = os.open(_HERE, descriptors.FOLDER, dir_fd=folder)
        except OSError:
            return 1
        try:
            for name in os.listdir(fd):
                if name.startswith(f"of.{host()}.{os.getpid()}."):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if is_abandoned(fd, name, status):
                        os.unlink(name, dir_fd=fd)
                    else:
                        others += 1
        except OSError:
            return 1
        finally:
            os.close(fd)
        return others
