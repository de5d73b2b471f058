"""Advisory locks (`flock`), with a clear error where a file system has none, as some network file systems do."""

from __future__ import annotations

import errno
import fcntl
import os

from flarecli.errors import ReachError

__all__ = ["flock"]

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)


def flock(fd: int, operation: int, where: str, hint: str) -> None:
    """Lock an open file or folder.

    operation  as `fcntl.flock` takes it
    hint       what to do where there are no locks
    raises     BlockingIOError if LOCK_NB is given and another process has the lock; ReachError if it cannot be locked
    """
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        what = os.strerror(error.errno or 0).lower()
        if error.errno in _NO_LOCKS:
            raise ReachError(
                f"cannot lock: the file system has no locks ({what})", where=where, hint=hint
            ) from None
        raise ReachError(f"cannot lock: {what}", where=where) from None
