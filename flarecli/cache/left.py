"""What processes that have ended left behind in a cache's folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import time

__all__ = ["host", "is_left"]

_YOUNG_S, _OLD_S = (
    5.0,
    3600.0,
)  # a part whose lock is free is left alone so long; one whose lock says nothing, so long


def host() -> str:
    """Tell this machine, boot and process namespace from others: only here does a process id mean a process."""
    words = [socket.gethostname()]
    with contextlib.suppress(OSError):
        words.append(os.readlink("/proc/self/ns/pid"))
    with (
        contextlib.suppress(OSError),
        open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file,
    ):
        words.append(file.read())
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def is_left(folder: int, name: str, found: os.stat_result, own: str) -> bool:
    """Say whether the process that made a part, or took room, is gone. `folder` is open, `own` what `host` gives."""
    words = name.split(".")
    if len(words) >= 4 and words[-4] == own and words[-3].isdecimal():
        try:
            os.kill(int(words[-3]), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # the number is another user's process by now: the lock tells
            pass
    age = abs(time.time() - found.st_mtime)  # a clock may jump
    if age < _YOUNG_S:
        return False
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # locks say nothing here
        return age > _OLD_S
    finally:
        os.close(fd)
    return True
