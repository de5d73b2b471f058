"""Bounds of single columns, derived from a condition: `aes > 4 AND lang = 'en'` has two bounds.

A row group is not read if a bound is false for all values between the minimum and the maximum of
the bound's column. DuckDB parses the condition. Only comparisons of a column with a literal become
bounds, and only if they are joined by AND. Numbers are compared with a tolerance, because DuckDB
may round them. In DuckDB, NaN is greater than all numbers, but the statistics of row groups omit
NaN. Therefore, a lower bound on a column of floats never excludes a row group.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from flarecli.sql.query import node_type, parse, reads_plain_table

__all__ = ["Bound", "Literal", "bounds"]

Literal: TypeAlias = "int | decimal.Decimal | str | datetime.date | datetime.datetime"
_SIGNS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison that is true for all selected rows: `column sign value`.

    Only a bound with the sign `=` can have several values. The column is equal to one of them.
    """

    column: str
    sign: str
    values: tuple[Literal, ...]

    def excludes(self, low: Any, high: Any, kind: pa.DataType) -> bool:
        """Return whether the comparison is false for every value from `low` to `high`.

        If this cannot be determined, the result is False.

        kind  Arrow type of the column
        """
        return all(_excludes(self.sign, value, low, high, kind) for value in self.values)


def bounds(expression: str, names: Sequence[str]) -> tuple[Bound, ...]:
    """Return the bounds that an expression implies. Every selected row satisfies all bounds.

    names  names of the columns; SQL ignores case
    """
    node = parse(expression)
    known = {name.lower(): name for name in names}
    if node is None or not reads_plain_table(node) or len(known) < len(names):
        return ()
    return tuple(_bounds(node.get("where_clause"), known))


def _bounds(node: Any, known: dict[str, str]) -> Iterator[Bound]:
    """Yield the bounds in a condition, or in each operand if the condition is an AND."""
    kind = node_type(node)
    if kind == "CONJUNCTION_AND":
        for child in node.get("children", ()):
            yield from _bounds(child, known)
    elif kind in _SIGNS:
        left, right, sign = node.get("left"), node.get("right"), _SIGNS[kind]
        yield from _bound(left, sign, [right], known)
        yield from _bound(right, _MIRRORED[sign], [left], known)
    elif kind == "COMPARE_BETWEEN":
        yield from _bound(node.get("input"), ">=", [node.get("lower")], known)
        yield from _bound(node.get("input"), "<=", [node.get("upper")], known)
    elif kind == "COMPARE_IN":
        children = node.get("children", ())
        yield from _bound(children[0], "=", children[1:], known)


def _bound(
    column: Any, sign: str, literals: Sequence[Any], known: dict[str, str]
) -> Iterator[Bound]:
    if (
        not isinstance(column, dict)
        or column.get("class") != "COLUMN_REF"
        or len(column.get("column_names", ())) != 1
    ):
        return
    name = known.get(str(column["column_names"][0]).lower())
    values = [_value(literal) for literal in literals]
    if name is not None and values and None not in values:
        yield Bound(name, sign, tuple(value for value in values if value is not None))


def _value(node: Any) -> Literal | None:
    """Return the value of an integer, decimal, text, date or timestamp literal; otherwise None."""
    if not isinstance(node, dict):
        return None
    if node_type(node) == "OPERATOR_CAST" and not node.get("try_cast"):
        text = _value(node.get("child"))
        name = str((node.get("type_expr") or {}).get("type_name", ""))
        return _parse_cast(text, name.upper()) if isinstance(text, str) else None
    literal = node.get("literal")
    if node.get("class") != "CONSTANT" or not isinstance(literal, dict):
        return None
    text = literal.get("text")
    if literal.get("kind") == "STRING" and isinstance(text, str):
        return text
    if literal.get("kind") not in ("INTEGER", "NUMERIC"):
        return None
    try:
        number = decimal.Decimal(str(text))
    except decimal.InvalidOperation:
        return None
    if not number.is_finite():
        return None
    return int(number) if literal["kind"] == "INTEGER" else number


def _parse_cast(text: str, kind: str) -> Literal | None:
    try:
        if kind == "DATE":
            return datetime.date.fromisoformat(text) if len(text) == 10 else None
        if kind in ("TIMESTAMP", "DATETIME"):
            found = datetime.datetime.fromisoformat(text)
            return found if found.tzinfo is None else None
    except ValueError:
        pass
    return None


# -- comparison with statistics


_Range: TypeAlias = tuple[Any, Any]  # smallest and largest possible value


def _excludes(sign: str, value: Literal, low: Any, high: Any, kind: pa.DataType) -> bool:
    ranges = _ranges(value, low, high, kind)
    if ranges is None:
        return False
    (least, most), (low, high) = ranges
    is_above = low > most
    if sign == "=":
        return bool(high < least or is_above)
    if sign in ("<", "<="):
        return bool(is_above or (sign == "<" and low >= most and least == most))
    if kinds.is_floating(kind):  # the column may contain NaN
        return False
    return bool(high < least or (sign == ">" and high <= least and least == most))


def _ranges(value: Literal, low: Any, high: Any, kind: pa.DataType) -> tuple[_Range, _Range] | None:
    """Return the range of the literal and the range of the column.

    DuckDB may round numbers, so ranges of numbers are widened by the possible error. The result is
    None if it is not certain that DuckDB compares the values as this module does.

    value      the literal
    low, high  minimum and maximum of the column
    kind       Arrow type of the column
    """
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        if not (isinstance(value, str) and isinstance(low, str) and isinstance(high, str)):
            return None
        text = value.encode()
        return (text, text), (low.encode(), high.encode())
    if isinstance(value, int | decimal.Decimal):
        return _number_ranges(value, low, high, kind)
    if kinds.is_date32(kind) or (
        kinds.is_timestamp(kind) and kind.tz is None and kind.unit != "ns"
    ):
        time, start, end = _as_datetime(value), _as_datetime(low), _as_datetime(high)
        if time is not None and start is not None and end is not None:
            return (time, time), (start, end)
    return None


def _number_ranges(
    value: int | decimal.Decimal, low: Any, high: Any, kind: pa.DataType
) -> tuple[_Range, _Range] | None:
    if kinds.is_integer(kind) and isinstance(value, int):
        return (value, value), (int(low), int(high))
    if not (kinds.is_integer(kind) or kinds.is_decimal(kind) or kinds.is_floating(kind)):
        return None
    low, high, number = float(low), float(high), float(value)
    if not all(math.isfinite(item) for item in (low, high, number)):
        return None
    narrow = np.dtype(kind.to_pandas_dtype() if kinds.is_floating(kind) else np.float64).type
    if abs(number) > float(np.finfo(narrow).max):
        return None
    near = narrow(number)
    least = min(number, float(np.nextafter(near, narrow(-np.inf))))
    most = max(number, float(np.nextafter(near, narrow(np.inf))))
    return (least, most), (math.nextafter(low, -math.inf), math.nextafter(high, math.inf))


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
    """Parse `YYYY-MM-DD` or `YYYY-MM-DD hh:mm:ss`.

    Return None for any other text, because DuckDB and Python may parse such text differently.
    """
    for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S"):
        try:
            found = datetime.datetime.strptime(text, form)
        except ValueError:
            continue
        if found.strftime(form) == text:
            return found
    return None
