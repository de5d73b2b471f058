"""Which shards a process holds open: of all datasets together no more than the system gives it handles for.

A mapped file takes a handle as long as it is mapped. The shard that was opened first is closed first.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import Protocol

from flarecli import lifetimes
from flarecli.model import Shard
from flarecli.storage import files_limit

__all__ = ["Holder", "note"]

SHARDS = 512  # whose tables are kept
_FILES = 1024  # of them mapped, where the system gives handles for so many


class Holder(Protocol):
    """What opens shards by their position."""

    def let_go(self, i: int) -> None:
        """Close one."""


_lock = threading.Lock()
_order: deque[tuple[weakref.ref[Holder], int, int]] = (
    deque()
)  # who holds it, its position, its files; the first opened first
_files = 0


def note(holder: Holder, i: int, shard: Shard) -> None:
    """Note that a shard was opened, and close others until there is room."""
    global _files
    files = 1 + len(shard.chunk.beside) if shard.chunk.at.may_map else 0
    limit, over = files_limit(_FILES), []
    with _lock:
        _order.append((weakref.ref(holder), i, files))
        _files += files
        while len(_order) > 1 and (len(_order) > SHARDS or _files > limit):
            other, at, taken = _order.popleft()
            _files -= taken
            over.append((other(), at))
    for other_holder, at in over:
        if other_holder is not None:
            other_holder.let_go(at)


def close_shards() -> None:
    """Close the shards of all datasets."""
    global _files
    with _lock:
        closed, _files = list(_order), 0
        _order.clear()
    for holder, at, _ in closed:
        if (one := holder()) is not None:
            one.let_go(at)


def _forked() -> None:
    """In a child no other thread holds the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
lifetimes.register("open shards", close_shards)
