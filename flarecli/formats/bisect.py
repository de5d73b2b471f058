"""Rows that are wrong, each named: what checks many at once stops at the first of them, so it is asked again for fewer and fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flarecli.errors import FlareError, FormatError
from flarecli.model import Finding, finding_of

__all__ = ["NAMED", "wrong_rows"]

NAMED = 1000  # rows of a shard: where all are wrong, to name each takes a hundred times as long as to say so


def wrong_rows(
    runs: Iterable[tuple[int, int]], check: Callable[[int, int], Any]
) -> Iterator[Finding]:
    """Check runs of rows; each row that is wrong is a finding, in order. Once NAMED are found, the first of each run that is left.

    runs   from, to
    check  raises a FlareError for rows from..to; a FormatError with a `row` is about that row alone
    """
    named = 0
    for run in runs:
        waiting = [run]
        while waiting:
            start, stop = waiting.pop()
            try:
                check(start, stop)
            except FlareError as error:
                if (
                    stop - start > 1
                    and named < NAMED
                    and isinstance(error, FormatError)
                    and error.row is not None
                ):
                    middle = (start + stop) // 2
                    waiting += [(middle, stop), (start, middle)]
                    continue
                named += 1
                yield finding_of(error)
