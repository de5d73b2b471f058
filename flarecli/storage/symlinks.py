"""What stands in a folder, with symbolic links among it: whether a name is one, and whether one that was met only leads back to itself."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

__all__ = ["is_link", "leads_back", "looked_at"]

_LINKS = 40  # that Linux follows on one way before it gives up


def is_link(name: str, folder: int) -> bool:
    """Say whether a name in an open folder is a symbolic link."""
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def leads_back(root: str, path: str, follows: bool) -> bool:
    """Say whether the link that stopped the way to a path below the root ends nowhere but at itself.

    The root is the user's own word. Below it nothing outside is looked at, unless links are followed anyway: there only a link that leads
    back through names of its own folder is known for one.
    """
    if _ends_nowhere(root) or (follows and _ends_nowhere(os.path.join(root, path))):
        return True
    at = root
    for part in path.split("/"):
        at = os.path.join(at, part)
        if os.path.islink(at):
            break
    for _ in range(_LINKS):
        try:
            target = os.readlink(at)
        except OSError:
            return False
        folder, name = os.path.split(target[:-1] if target.endswith("/") else target)
        if folder not in ("", ".", os.path.dirname(at)) or name in ("", ".", ".."):
            return False
        at = os.path.join(os.path.dirname(at), name)
    return True


def _ends_nowhere(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def looked_at(entry: os.DirEntry[str]) -> tuple[str, bool, int | None]:
    """Give the name of what stands in a folder, whether that is a folder, and its bytes if it is a regular file; what else it is opening tells."""
    size = None
    with contextlib.suppress(OSError):  # it went
        size = (
            entry.stat(follow_symlinks=False).st_size
            if entry.is_file(follow_symlinks=False)
            else None
        )
    return entry.name, entry.is_dir(follow_symlinks=False), size
