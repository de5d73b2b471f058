"""Memory of a batch that is used again for the next ones."""

from __future__ import annotations

import functools

__all__ = ["keep_freed"]

_BLOCK = 1 << 24  # bytes


@functools.cache
def keep_freed() -> None:
    """Let the allocator keep what is given back, for the next batch. Once a process is enough.

    glibc gives the end of its heap back to the system as soon as 128 KB of it are free, and a batch of small rows is ten times that: most
    would come in fresh pages, which is a third of what reading rows of 20 KB costs, and five sixths in a virtual machine (measured). A large
    block that is freed tells it what sizes come and go: from then on it keeps twice as much. No page of this one is touched. Other
    allocators do as they did.
    """
    bytes(_BLOCK)
