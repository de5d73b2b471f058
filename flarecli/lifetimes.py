"""Close the files of one object at the end of a `with` block, or all resources of the process.

The resources of the process are connections, threads, open files and cached data, which all
datasets share. Each module with such resources registers a function that closes them, and
`flare.close()` calls all of these functions. A closed resource is opened again when it is needed.
With `after_fork`, a module ensures that a forked child does not use the resources of its parent.
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
    """Register a function that closes shared resources; replace a function of the same name.

    name   name of the resources, such as `http connections`; unique in the process
    close  function that any thread may call any number of times
    """
    _closers[name] = close


def after_fork(reset: Callable[[], None]) -> None:
    """Register a function that each forked child calls first. Windows cannot fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def close_all() -> None:
    """Call all registered functions, the newest first. Raises the first error after all calls."""
    first: BaseException | None = None
    for close in reversed([*_closers.values()]):
        try:
            close()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
