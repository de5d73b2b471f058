"""Progress callbacks.

The commands print nothing; they call these methods, which do nothing by default.
"""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """No-op progress callbacks. Subclass it and override methods; all calls are made by one thread."""

    def start(self, what: str, rows: int | None, bytes: int | None = None) -> None:
        """Start a task: `what` is its name, such as `pack`; rows and bytes are totals, if known."""

    def advance(self, rows: int, bytes: int) -> None:
        """Report rows and bytes done since the last call."""

    def failed(self, key: str, reason: str) -> None:
        """Report one row that failed, as it happens. Neither text is escaped yet."""

    def note(self, text: str, verbose: bool = False) -> None:
        """Report a note; `verbose` notes are details."""

    def close(self) -> None:
        """End the task, also after an error."""
