"""Selection of row groups by their minimum and maximum: those that a condition excludes are not
read.

Row groups are skipped only if certain. Numbers are compared with a tolerance for DuckDB's rounding.
DuckDB orders NaN above all numbers, and statistics omit NaN, so floats are never skipped for being
too small.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from flarecli.ingest.footers import sound_leaves
from flarecli.ingest.parquet import Parquet
from flarecli.sql import Bound

__all__ = ["is_excluded", "select_row_groups"]


def select_row_groups(
    part: Parquet, bounds: Sequence[Bound], start: int, stop: int
) -> list[tuple[int, range]]:
    """Return runs of row groups that may have rows within all bounds, with the number of their
    first row.
    """
    metadata = part.footer()
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    known = [
        (bound, paths.index(bound.column), part.schema.field(bound.column).type)
        for bound in bounds
        if paths.count(bound.column) == 1
        and not kinds.is_nested(part.schema.field(bound.column).type)
    ]
    if known:
        sound = sound_leaves(part.at, metadata)
        known = [item for item in known if item[1] in sound]
    runs: list[tuple[int, range]] = []
    row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        is_asked = row < stop and row + group.num_rows > start
        if (
            group.num_rows
            and is_asked
            and not any(_is_outside(group, leaf, bound, kind) for bound, leaf, kind in known)
        ):
            if runs and runs[-1][1].stop == number:
                runs[-1] = (runs[-1][0], range(runs[-1][1].start, number + 1))
            else:
                runs.append((row, range(number, number + 1)))
        row += group.num_rows
    return runs


def _is_outside(group: Any, leaf: int, bound: Bound, kind: pa.DataType) -> bool:
    try:
        found = group.column(leaf).statistics
        if found is None:
            return False
        if found.has_null_count and found.null_count == group.num_rows:
            return True  # comparisons with null are never true
        return bool(found.has_min_max) and is_excluded(bound, found.min, found.max, kind)
    except (pa.ArrowException, ValueError, OverflowError, OSError, NotImplementedError):
        return False  # invalid statistics


def is_excluded(bound: Bound, low: Any, high: Any, kind: pa.DataType) -> bool:
    """Return whether no value from `low` to `high` of a column of this type is within a bound."""
    return all(_misses(bound.sign, value, low, high, kind) for value in bound.values)


def _misses(sign: str, value: Any, low: Any, high: Any, kind: pa.DataType) -> bool:
    ranges = _comparable(value, low, high, kind)
    if ranges is None:
        return False
    (least, most), (low, high), has_nan = ranges
    below = high < least and not (has_nan and sign in (">", ">="))  # every value is smaller
    above = low > most
    if sign == "=":
        return bool(below or above)
    if sign in ("<", "<="):
        return bool(above or (sign == "<" and low >= most and least == most))
    return bool(below or (sign == ">" and high <= least and least == most and not has_nan))


def _comparable(
    value: Any, low: Any, high: Any, kind: pa.DataType
) -> tuple[tuple[Any, Any], tuple[Any, Any], bool] | None:
    """Return the value and the statistics as two ranges that compare as the rows do; None if
    uncertain.
    """
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        if not all(isinstance(item, str) for item in (value, low, high)):
            return None
        text = value.encode()
        return (text, text), (low.encode(), high.encode()), False
    if isinstance(value, int | decimal.Decimal):
        return _numbers(value, low, high, kind)
    return _compare_times(value, low, high, kind)


def _numbers(
    value: int | decimal.Decimal, low: Any, high: Any, kind: pa.DataType
) -> tuple[tuple[Any, Any], tuple[Any, Any], bool] | None:
    if kinds.is_integer(kind) and isinstance(value, int):
        return (value, value), (int(low), int(high)), False
    if not (kinds.is_integer(kind) or kinds.is_decimal(kind) or kinds.is_floating(kind)):
        return None
    low, high, number = float(low), float(high), float(value)
    if not all(math.isfinite(item) for item in (low, high, number)):
        return None
    narrow = (
        np.float16 if kind == pa.float16() else np.float32 if kind == pa.float32() else np.float64
    )
    if abs(number) > float(np.finfo(narrow).max):
        return None
    near = narrow(number)
    least, most = (
        float(np.nextafter(near, narrow(-np.inf))),
        float(np.nextafter(near, narrow(np.inf))),
    )
    return (
        (min(least, number), max(most, number)),
        (math.nextafter(low, -math.inf), math.nextafter(high, math.inf)),
        kinds.is_floating(kind),
    )


def _compare_times(
    value: Any, low: Any, high: Any, kind: pa.DataType
) -> tuple[tuple[Any, Any], tuple[Any, Any], bool] | None:
    if not (
        kinds.is_date32(kind)
        or (kinds.is_timestamp(kind) and kind.tz is None and kind.unit != "ns")
    ):
        return None
    times = [_as_datetime(item) for item in (value, low, high)]
    if None in times:
        return None
    return (times[0], times[0]), (times[1], times[2]), False


def _as_datetime(value: Any) -> datetime.datetime | None:
    if isinstance(value, str):
        value = _parse_datetime(value)
    if isinstance(value, datetime.datetime):
        return value if value.tzinfo is None else None
    return (
        datetime.datetime.combine(value, datetime.time())
        if isinstance(value, datetime.date)
        else None
    )


def _parse_datetime(text: str) -> datetime.datetime | None:
    """Parse a complete date or time; None for forms that DuckDB may parse differently."""
    for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S"):
        try:
            found = datetime.datetime.strptime(text, form)
        except ValueError:
            continue
        if found.strftime(form) == text:
            return found
    return None
