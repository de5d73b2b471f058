"""How many of the process's file handles mapped files may take: each holds one for as long as it is mapped."""

from __future__ import annotations

__all__ = ["files_limit"]

_SHARE = 4  # of the handles that a process may have, one in so many


def files_limit(most: int) -> int:
    """Say how many files one kind of holder may have mapped at once: at least 8, at most `most`."""
    try:
        import resource
    except ImportError:  # another system, with another limit
        return most
    handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if handles == resource.RLIM_INFINITY else max(8, min(most, handles // _SHARE))
