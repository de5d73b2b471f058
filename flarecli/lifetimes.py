"""Registry of process-wide state: connections, threads, open files, caches of versions.

Each owner registers a function that closes its state; `flare.close()` calls all of them. Later use
opens the state again. Forked children do not inherit open state: each owner handles that with
`os.register_at_fork`.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["close_all", "register"]

_closers: dict[str, Callable[[], None]] = {}


def register(name: str, close: Callable[[], None]) -> None:
    """Register a function that closes shared state. It replaces an earlier one of the same name.

    name   name of the state, such as `connections`; unique in the process
    close  may be called any number of times, from any thread; the state can be opened again
    """
    _closers[name] = close


def close_all() -> None:
    """Close all registered state, the latest first. The first error is raised after all calls."""
    first: BaseException | None = None
    for close in reversed([*_closers.values()]):
        try:
            close()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
