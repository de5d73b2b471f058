"""Advisory locks that save work; correctness never depends on them.

FOLDER/turns/KIND.NNN   locked while a process fetches a key of that kind; the key's last hex digits
                        choose the file

The files are empty and stay: creating one costs as much as fetching 0.5 MB. Two keys that share a
file wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Turns", "held", "holder", "locked_within"]

_PAUSE_S = 0.004  # maximum delay between two attempts
_TURNS, _DIGITS = "turns", 3
NOTICE_AFTER_S = 10.0  # a longer wait is reported


def locked_within(fd: int, seconds: float, notice: Callable[[int], object] | None = None) -> bool:
    """Lock an open file, waiting up to `seconds`; return False if it is not locked.

    notice  called once with `fd` if the wait takes longer than NOTICE_AFTER_S
    """
    begun, pause = time.monotonic(), 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    """Name the process that has locked an open file, as far as the system tells (proc(5):
    /proc/locks).
    """
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
    """Locks by key, for the threads of this process and all processes that use a folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Key -> lock and the number of threads that hold it or wait for it.
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
        """Hold the lock of a key; after `seconds`, continue without it.

        folder     file descriptor; -1: lock only against threads of this process
        key        ends in hex digits
        kind       one letter; nested locks need different letters
        meanwhile  called once if another process holds the lock
        notice     called once with the locked file if another process holds the lock for long
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
        """Wait for this process's own threads: they need not ask the file system again and again
        whose turn it is.
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
    """Unlock and close a file at the end of the block; closing alone is not enough if a forked
    child has it open too.
    """
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


@contextlib.contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    for _ in range(2):
        try:
            fd = os.open(
                f"{_TURNS}/{name}",
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=folder,
            )
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                os.mkdir(_TURNS, 0o700, dir_fd=folder)
        except OSError:
            break
        else:
            with held(fd):
                yield fd
            return
    yield -1
