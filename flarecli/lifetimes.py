"""Closing of open state: one object in a `with` block, or all shared state of the process.

Shared state consists of connections, threads, open files and cached versions. Each module with such
state registers a function that closes the state; `flare.close()` calls all of these functions. The
next use opens the state again. Each module also calls `after_fork`, so that a forked child starts
without open state.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Self

__all__ = ["Closable", "after_fork", "close_all", "register"]


class Closable:
    """Base class of objects with `close()`, which the end of a `with` block calls.

    The next use of a closed object opens its files again.
    """

    def close(self) -> None:
        """Close all open files."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


_closers: dict[str, Callable[[], None]] = {}


def register(name: str, close: Callable[[], None]) -> None:
    """Register a function that closes shared state; replace any function with the same name.

    name   name of the state, such as `connections`; unique in the process
    close  function that any thread may call any number of times
    """
    _closers[name] = close


def after_fork(reset: Callable[[], None]) -> None:
    """Register a function that each forked child calls first. Windows cannot fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def close_all() -> None:
    """Close all registered state in reverse order. Raises the first error after all calls."""
    first: BaseException | None = None
    for close in reversed([*_closers.values()]):
        try:
            close()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
