"""Bisection to find every invalid row, for checks that cover many rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from flarecli.errors import FlareError, FormatError
from flarecli.model import Finding, finding_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["failing_rows", "failing_values", "findings_of"]

_Failure = TypeVar("_Failure")

# Maximum number of invalid rows to find by bisection, which is slow if all rows are invalid.
MAX_NAMED_ROWS = 1000


def failing_rows(
    start: int,
    stop: int,
    check: Callable[[int, int], _Failure | None],
    concerns_one_row: Callable[[_Failure], bool] = lambda _: True,
) -> Iterator[tuple[int, _Failure]]:
    """Yield the number and the failure of each invalid row in start..stop, in order.

    check             function that checks a range of rows; it returns a failure, or None if all
                      rows of the range are valid
    concerns_one_row  function that returns whether a failure is caused by one row. Any other
                      failure is yielded once, with the first row of the checked range.
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


def failing_values(
    array: pa.Array,
    convert: Callable[[pa.Array], object],
    errors: type[Exception] | tuple[type[Exception], ...],
) -> Iterator[tuple[int, Exception]]:
    """Yield the position and the error of each value that cannot be converted, in order.

    convert  function that converts a slice of the array, or raises an error of the types `errors`
    """

    def failure(start: int, stop: int) -> Exception | None:
        try:
            convert(array.slice(start, stop - start))
        except errors as error:
            return error
        return None

    return failing_rows(0, len(array), failure)


def findings_of(
    runs: Iterable[tuple[int, int]], check: Callable[[int, int], Any]
) -> Iterator[Finding]:
    """Check ranges of rows and yield a finding for each invalid row, in order.

    After MAX_NAMED_ROWS findings, each remaining range that `check` rejects has one finding.

    runs   (start, stop) of each range
    check  function that raises a FlareError if rows start..stop are invalid. If one row is the
           cause, the error is a FormatError with a row number.
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
