"""What one process shares: connections, threads, open files, caches of versions.

Each owner registers a function that closes what it shares; `flare.close()` calls all of them. Whatever is used
afterwards opens again. Forked children do not inherit open state: each owner handles that with `os.register_at_fork`.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["close_all", "register"]

_closers: dict[str, Callable[[], None]] = {}


def register(name: str, close: Callable[[], None]) -> None:
    """Register a function that closes shared state; the same name again replaces the earlier function.

    name   what is closed, such as `connections`; unique in the process
    close  may be called any number of times, from any thread, and leaves the state ready to be opened again
    """
    _closers[name] = close


def close_all() -> None:
    """Close everything that is registered, the latest first; the first error is raised after all were called."""
    first: BaseException | None = None
    for close in reversed([*_closers.values()]):
        try:
            close()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
