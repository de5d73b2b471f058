"""Progress callbacks.

The functions in `flarecli.commands` do not print. They call the methods of a `Progress`
object, which do nothing by default.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "count_bytes", "counted"]


class Progress:
    """No-op progress callbacks, to override in a subclass.

    Worker threads may call `advance` and `written`; a single thread makes all other calls.
    """

    def start(
        self,
        task: str,
        rows: int | None,
        bytes: int | None = None,
        *,
        done: int = 0,
        unit: str = "row",
        write_share: float = 0.0,
    ) -> None:
        """Start a task.

        task         name such as `pack`
        rows, bytes  totals; None: unknown
        done         number of rows that an earlier run finished
        unit         singular noun for the counted items; the default is a row
        write_share  share of the work that `written` reports, from 0 to 1; `advance` reports the
                     rest
        """

    def advance(self, rows: int, bytes: int) -> None:
        """Report the rows and bytes that were received or processed since the last call."""

    def written(self, rows: float) -> None:
        """Report rows that were compressed and written since the last call.

        `rows` may be a fraction, because progress is reported several times per shard.
        """

    def failed(self, key: str, reason: str, rows: int = 1) -> None:
        """Report a failed row, or several rows with one reason, immediately.

        `key` and `reason` may contain control characters.
        """

    def note(self, text: str, verbose: bool = False) -> None:
        """Report a note. `verbose` is True for a detailed note."""

    def close(self) -> None:
        """End the task, even after an error."""


class _Counter(threading.local):
    """The function that `count_bytes` calls in this thread."""

    report: Callable[[int], None] | None = None


_counter = _Counter()


@contextmanager
def counted(report: Callable[[int], None]) -> Iterator[None]:
    """Call `report` with the size of each block of bytes that this thread passes to `count_bytes`.

    With this function, a format can report how much of a shard was written, and a check can report
    how much was read. The functions in the call chain need no parameter for a callback.
    """
    before, _counter.report = _counter.report, report
    try:
        yield
    finally:
        _counter.report = before


def count_bytes(size: int) -> None:
    """Report processed bytes to the innermost `counted` block of this thread, if there is one."""
    if _counter.report is not None:
        _counter.report(size)
