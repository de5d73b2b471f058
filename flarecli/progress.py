"""Progress callbacks.

The commands print nothing. They call these methods, which do nothing by default.
"""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """No-op progress callbacks. Override the methods in a subclass; one thread makes all calls."""

    def start(self, task: str, rows: int | None, bytes: int | None = None) -> None:
        """Start a task. `task` is its name, such as `pack`; rows and bytes are totals or None."""

    def advance(self, rows: int, bytes: int) -> None:
        """Report rows and bytes done since the last call."""

    def failed(self, key: str, reason: str) -> None:
        """Report one failed row at once. Both texts may contain control characters."""

    def note(self, text: str, verbose: bool = False) -> None:
        """Report a note. A `verbose` note is a detail."""

    def close(self) -> None:
        """End the task. This is called after an error too."""
