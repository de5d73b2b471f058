"""Locks on files, which save work and never decide what is right."""

from __future__ import annotations

import fcntl
import time

__all__ = ["locked_within"]

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
