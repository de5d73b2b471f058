"""Locks on files, which save work and never decide what is right."""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
from collections.abc import Iterator

__all__ = ["Turns", "locked_within"]

_PAUSE_S = 0.004  # between two looks, at most


def locked_within(fd: int, seconds: float) -> bool:
    """Lock an open file, for which so long is waited; False if it is not locked."""
    deadline, pause = time.monotonic() + seconds, 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_S)
        except OSError:
            return False


class Turns:
    """Turns of a process's threads, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[str, tuple[threading.Lock, int]] = {}  # and how many threads have it or wait for it

    @contextlib.contextmanager
    def turn(self, key: str, seconds: float) -> Iterator[None]:
        """Wait so long for the threads that asked before, then go on in any case."""
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
