"""Find every invalid row with a check that raises at the first one: bisect each failing run of
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flarecli.errors import FlareError, FormatError
from flarecli.model import Finding, finding_of

__all__ = ["MAX_NAMED_ROWS", "wrong_rows"]

# Bisecting down to every row is slow if all rows of a shard are invalid.
MAX_NAMED_ROWS = 1000


def wrong_rows(
    runs: Iterable[tuple[int, int]], check: Callable[[int, int], Any]
) -> Iterator[Finding]:
    """Check runs of rows and yield a finding for each invalid row, in order.

    After MAX_NAMED_ROWS findings, only the first invalid row of each remaining run is reported.

    runs   (start, stop) of each run
    check  check rows start..stop; raise a FlareError, for a single row a FormatError with its `row`
    """
    named = 0
    for run in runs:
        pending = [run]
        while pending:
            start, stop = pending.pop()
            try:
                check(start, stop)
            except FlareError as error:
                if (
                    stop - start > 1
                    and named < MAX_NAMED_ROWS
                    and isinstance(error, FormatError)
                    and error.row is not None
                ):
                    middle = (start + stop) // 2
                    pending += [(middle, stop), (start, middle)]
                    continue
                named += 1
                yield finding_of(error)
