"""Names that are no files and that nothing may be renamed over: devices, pipes, sockets, and whatever lies in /dev.

A file takes its name by a rename, which replaces what has it. For root that is `/dev/null` as much as any other.
"""

from __future__ import annotations

import contextlib
import os
import stat

__all__ = ["is_special"]


def is_special(name: str, folder: int) -> bool:
    """Say whether a name in an open folder is a device, a pipe or a socket, or lies where the system keeps its devices."""
    with contextlib.suppress(OSError):
        place = os.fstat(folder).st_dev
        if (
            place == os.stat("/dev").st_dev != os.stat("/").st_dev
        ):  # /dev/shm is another file system
            return True
        mode = os.stat(name, dir_fd=folder).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False
