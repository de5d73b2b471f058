"""Progress callbacks.

The functions in `flarecli.commands` do not print. They call the methods of a `Progress`
object, which do nothing by default.
"""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """No-op progress callbacks, to override in a subclass. A single thread makes all calls."""

    def start(self, task: str, rows: int | None, bytes: int | None = None) -> None:
        """Start a task. `task` is a name such as `pack`; `rows` and `bytes` are totals or None."""

    def advance(self, rows: int, bytes: int) -> None:
        """Report the rows and bytes processed since the last call."""

    def failed(self, key: str, reason: str) -> None:
        """Report a failed row immediately. `key` and `reason` may contain control characters."""

    def note(self, text: str, verbose: bool = False) -> None:
        """Report a note. `verbose` is True for a detailed note."""

    def close(self) -> None:
        """End the task, even after an error."""
