"""What a long walk tells whoever watches: a command line draws it, a notebook may ignore it.

The commands print nothing; they call these methods, which do nothing here.
"""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """A watcher that looks away. Subclass it and override what you want to see; calls come from one thread."""

    def start(self, what: str, rows: int | None, bytes: int | None = None) -> None:
        """Begin: `what` is a verb such as `pack`; totals where they are known."""

    def advance(self, rows: int, bytes: int) -> None:
        """Report rows and bytes done since the last call."""

    def failed(self, key: str, reason: str) -> None:
        """Report one row that failed, as it happens. Neither text is escaped yet."""

    def note(self, text: str, verbose: bool = False) -> None:
        """Say something worth knowing; `verbose` ones are for those who asked for details."""

    def close(self) -> None:
        """End, whether it went well or not."""
