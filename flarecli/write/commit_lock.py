"""The lock that a commit holds on a dataset for a moment: `flock` in a folder, a lease in a bucket."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import time
from types import TracebackType
from typing import TYPE_CHECKING

from flarecli.errors import BusyError, FlareError
from flarecli.read.version_lists import COMMIT_LOCK
from flarecli.storage import Location
from flarecli.storage.local import LocalStore, flock

if TYPE_CHECKING:
    from flarecli.write.bucket_target import Lease

__all__ = ["CommitLock"]

MAX_WAIT_S = 600.0
_POLL_S = 0.02, 1.0  # shortest and longest wait between two attempts


class CommitLock:
    """A context manager that waits for the lock.

    raises  BusyError if another process holds the lock for MAX_WAIT_S; ReachError if the file system
            supports no locks
    """

    def __init__(self, at: Location) -> None:
        self._at = at
        self._fd = -1
        self._lease: Lease | None = None

    def __enter__(self) -> CommitLock:
        stop, wait = time.monotonic() + MAX_WAIT_S, _POLL_S[0]
        while True:
            try:
                self._acquire()
                return self
            except BusyError:
                if time.monotonic() > stop:
                    raise
            time.sleep(wait * (0.5 + random.random()))  # so that waiting processes do not collide
            wait = min(wait * 1.5, _POLL_S[1])

    def _acquire(self) -> None:
        store = self._at.store
        if not isinstance(store, LocalStore):
            # imported late, because the imported module loads a bucket client
            from flarecli.write.bucket_target import Lease

            self._lease = Lease(self._at / COMMIT_LOCK, str(self._at), waits=True)
            return
        path = os.path.join(store.root, self._at.path, COMMIT_LOCK)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise store.error(error, COMMIT_LOCK) from None
        try:
            flock(
                fd,
                fcntl.LOCK_EX | fcntl.LOCK_NB,
                str(self._at),
                "Use a file system with locks, or a bucket.",
            )
        except BlockingIOError:
            os.close(fd)
            raise BusyError(
                "another process is changing this dataset",
                where=self._at,
                hint="Wait until the other process ends.",
            ) from None
        except FlareError:
            os.close(fd)
            raise
        self._fd = fd

    def check(self) -> None:
        """Raise BusyError if this process has lost the lock."""
        if self._lease is not None:
            self._lease.check(now=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lease is not None:
            with contextlib.suppress(FlareError):
                self._lease.release()
            self._lease = None
