"""What a condition says of a column by itself: `aes > 4 AND lang = 'en'` bounds `aes` from below, and `lang` on both sides.

Row groups whose smallest and largest values lie outside need not be read. DuckDB's own parser takes the expression apart;
only comparisons of a column with a literal, joined by AND, become bounds, and what is not understood gives none.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from flarecli.sql.connection import STATEMENT, connected

__all__ = ["Bound", "Literal", "bounds", "columns_of", "parsed"]

Literal: TypeAlias = "int | decimal.Decimal | str | datetime.date | datetime.datetime"
_SIGNS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison that every row kept fulfils: `column sign value`; with `=`, any of the values."""

    column: str
    sign: str
    values: tuple[Literal, ...]


def bounds(expression: str, names: Sequence[str]) -> tuple[Bound, ...]:
    """Give what every row that an expression uses fulfils; nothing if that cannot be told.

    names  of the columns; SQL does not tell upper case from lower
    """
    node = parsed(expression)
    if (
        node is None
        or _kind(node.get("from_table")) != "BASE_TABLE"
        or node.get("sample")
        or node["from_table"].get("sample")
    ):
        return ()
    table = node["from_table"]
    if (
        str(table.get("table_name", "")).lower() != "dataframe"
        or table.get("column_name_alias")
        or (node.get("cte_map") or {}).get("map")
    ):
        return ()
    known = {name.lower(): name for name in names}
    return tuple(_bounds(node.get("where_clause"), known)) if len(known) == len(names) else ()


def columns_of(expression: str, names: Sequence[str]) -> list[str]:
    """Give the columns that an expression may look at, in their order; all of them if that cannot be told."""
    node = parsed(expression)
    if node is None:
        return list(names)
    used: set[str] = set()
    waiting: list[Any] = [node]
    if not STATEMENT.match(expression):
        waiting = [node.get("where_clause")]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            if one.get("class") == "STAR" or _kind(one) == "STAR":
                return list(names)
            if one.get("class") == "COLUMN_REF":
                used.update(str(name).lower() for name in one.get("column_names", ()))
            waiting += one.values()
    return [name for name in names if name.lower() in used]


def parsed(expression: str) -> dict[str, Any] | None:
    """Take an expression apart; None if it is not one SELECT."""
    import duckdb

    query = (
        expression
        if STATEMENT.match(expression)
        else f"SELECT 1 FROM dataframe WHERE (\n{expression}\n)"
    )
    try:
        with connected() as con:
            found = con.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
        statements = json.loads(found[0]).get("statements", []) if found else []
    except (duckdb.Error, ValueError, RecursionError):
        return None
    node = statements[0].get("node") if len(statements) == 1 else None
    return node if isinstance(node, dict) and _kind(node) == "SELECT_NODE" else None


def _kind(node: Any) -> str:
    return str(node.get("type", "")) if isinstance(node, dict) else ""


def _bounds(node: Any, known: dict[str, str]) -> Iterator[Bound]:
    """Give the bounds in a condition: of both sides of an AND, of nothing else that is joined."""
    if not isinstance(node, dict):
        return
    kind = _kind(node)
    if kind == "CONJUNCTION_AND":
        for child in node.get("children", ()):
            yield from _bounds(child, known)
    elif kind in _SIGNS:
        left, right, sign = node.get("left"), node.get("right"), _SIGNS[kind]
        yield from _bound(left, sign, [right], known)
        yield from _bound(right, _TURNED[sign], [left], known)
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
    values = [_value(one) for one in literals]
    if name is not None and values and None not in values:
        yield Bound(name, sign, tuple(value for value in values if value is not None))


def _value(node: Any) -> Literal | None:
    """Give a literal's value: an integer, a number with a point or an exponent, text, a date or a time; None for anything else."""
    if not isinstance(node, dict):
        return None
    if _kind(node) == "OPERATOR_CAST" and not node.get("try_cast"):
        text, name = (
            _value(node.get("child")),
            str((node.get("type_expr") or {}).get("type_name", "")).upper(),
        )
        return _moment(text, name) if isinstance(text, str) else None
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


def _moment(text: str, kind: str) -> Literal | None:
    try:
        if kind == "DATE":
            return datetime.date.fromisoformat(text) if len(text) == 10 else None
        if kind in ("TIMESTAMP", "DATETIME"):
            found = datetime.datetime.fromisoformat(text)
            return found if found.tzinfo is None else None
    except ValueError:
        pass
    return None
