"""Bisection: find every invalid row with a check of many rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from flarecli.errors import FlareError, FormatError
from flarecli.model import Finding, finding_of

__all__ = ["MAX_NAMED_ROWS", "failing_rows", "findings_of"]

_Failure = TypeVar("_Failure")

# If all rows of a shard are invalid, finding each of them by bisection is slow.
MAX_NAMED_ROWS = 1000


def failing_rows(
    start: int,
    stop: int,
    check: Callable[[int, int], _Failure | None],
    concerns_one_row: Callable[[_Failure], bool] = lambda _: True,
) -> Iterator[tuple[int, _Failure]]:
    """Yield each failing row of start..stop with its failure, in order.

    check             returns a failure of rows first..last, or None
    concerns_one_row  returns False for a failure that is reported once for all rows checked
    """
    pending = [(start, stop)]
    while pending:
        first, last = pending.pop()
        failure = check(first, last)
        if failure is None:
            continue
        if last - first > 1 and concerns_one_row(failure):
            middle = (first + last) // 2
            pending += [(middle, last), (first, middle)]
        else:
            yield first, failure


def findings_of(
    runs: Iterable[tuple[int, int]], check: Callable[[int, int], Any]
) -> Iterator[Finding]:
    """Check runs of rows and yield a finding for each invalid row, in order.

    After MAX_NAMED_ROWS findings, only the first invalid row of each remaining run is reported.

    runs   (start, stop) of each run
    check  checks rows start..stop and raises a FlareError; for one row, a FormatError with its `row`
    """
    named = 0

    def error_of(start: int, stop: int) -> FlareError | None:
        try:
            check(start, stop)
        except FlareError as error:
            return error
        return None

    def concerns_one_row(error: FlareError) -> bool:
        return named < MAX_NAMED_ROWS and isinstance(error, FormatError) and error.row is not None

    for start, stop in runs:
        for _, error in failing_rows(start, stop, error_of, concerns_one_row):
            named += 1
            yield finding_of(error)
