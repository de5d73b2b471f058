"""Which processes use a cache's folder: each holds a locked file below it.

FOLDER/flare-1/here/of.HOST.PID.N.here
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import time

from flarecli.cache.left import is_left

__all__ = ["Present"]

_HERE = "here"
_ALONE_S = 0.25  # how long it is believed that nobody else is there
_number = itertools.count()


class Present:
    """The processes at one folder, as this one sees them. `host` is what `left.host` gives."""

    def __init__(self, host: str) -> None:
        self._host, self._fd, self._others, self._looked = host, -1, 0, 0.0

    def arrive(self, folder: int) -> None:
        """Note that this process is here, as long as it lives. `folder` is open."""
        if self._fd >= 0:  # the folder was removed, and this one is new
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(_HERE, 0o700, dir_fd=folder)
            name = f"{_HERE}/of.{self._host}.{os.getpid()}.{next(_number)}.here"
            self._fd = os.open(
                name,
                os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=folder,
            )
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_alone(self, folder: int) -> bool:
        """Say whether no other process that lives is here; never where this one could not be noted."""
        now = time.monotonic()
        if now - self._looked > _ALONE_S:
            self._others, self._looked = self._count(folder), now
        return self._fd >= 0 and not self._others

    def _count(self, folder: int) -> int:
        others = 0
        try:
            fd = os.open(
                _HERE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
            )
        except OSError:
            return 1
        try:
            for name in os.listdir(fd):
                if name.startswith(f"of.{self._host}.{os.getpid()}."):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if is_left(
                        fd, name, os.stat(name, dir_fd=fd, follow_symlinks=False), self._host
                    ):
                        os.unlink(name, dir_fd=fd)
                    else:
                        others += 1
        except OSError:
            return 1
        finally:
            os.close(fd)
        return others
