"""Progress on a terminal: a bar, the first failures, counts of failures, and a summary line."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flarecli.cli.printer import Printer
from flarecli.progress import Progress
from flarecli.units import format_count, format_size

__all__ = ["Bar"]

FAILURES_SHOWN = 20


class Bar(Progress):
    """Draws on stderr if that is a terminal and the printer is neither quiet nor printing JSON."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._bar: Any = None
        self._began = time.monotonic()
        self._rows = self._bytes = self._failures = 0
        self._reasons: Counter[str] = Counter()

    def start(self, what: str, rows: int | None, bytes: int | None = None) -> None:
        """Draw the bar, if stderr is a terminal."""
        self.close()
        quiet = self._printer.quiet or self._printer.as_json
        if quiet or sys.stderr is None or not sys.stderr.isatty():
            return
        from tqdm import tqdm

        layout = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rows, {elapsed}<{remaining}{postfix}"
        if rows is None:
            layout = "{desc}: {n_fmt} rows, {elapsed}{postfix}"
        self._bar = tqdm(
            total=rows,
            desc=what,
            unit="row",
            file=sys.stderr,
            leave=False,
            dynamic_ncols=True,
            bar_format=layout,
            mininterval=0.2,
        )

    def advance(self, rows: int, bytes: int) -> None:
        """Count rows and bytes."""
        self._rows += rows
        self._bytes += bytes
        if self._bar is not None:
            rate = self._bytes / 1e6 / max(1e-3, time.monotonic() - self._began)
            failed = f", {self._failures:,} failed" if self._failures else ""
            self._bar.set_postfix_str(f"{rate:.1f} MB/s{failed}", refresh=False)
            self._bar.update(rows)

    def failed(self, key: str, reason: str) -> None:
        """Print the first failures as they happen; count all of them."""
        self._failures += 1
        self._reasons[reason] += 1
        if self._failures <= FAILURES_SHOWN:
            self.note(f"{key}: {reason}")

    def note(self, text: str, verbose: bool = False) -> None:
        """Print a note above the bar."""
        self.hide()
        self._printer.note(text, verbose)
        if self._bar is not None:
            self._bar.refresh()

    def hide(self) -> None:
        """Clear the bar before other output; the next update draws it again."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Clear the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def counts(self, reasons: Mapping[str, int]) -> None:
        """Print how often each failure occurred, the most frequent first."""
        for reason, number in sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[
            :FAILURES_SHOWN
        ]:
            self._printer.note(f"{format_count(number, 'row')} failed: {reason}")

    def sum_up(self, text: str) -> None:
        """Print one line with the totals and the rate."""
        self.close()
        seconds = max(1e-3, time.monotonic() - self._began)
        self._printer.note(
            f"{text} in {seconds:.1f} s ({format_size(int(self._bytes / seconds))}/s)"
        )
