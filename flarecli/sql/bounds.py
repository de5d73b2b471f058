"""Bounds that a condition implies for single columns: `aes > 4 AND lang = 'en'` bounds `aes` and
`lang`.

Row groups whose minimum and maximum are outside need not be read. DuckDB's parser parses the
expression; only comparisons of a column with a literal, joined by AND, become bounds.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from flarecli.sql.connection import STATEMENT, connect

__all__ = ["Bound", "Literal", "bounds", "columns_of", "parsed"]

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
    """A comparison that holds for all selected rows: `column sign value`; with `=`, any of the
    values.
    """

    column: str
    sign: str
    values: tuple[Literal, ...]


def bounds(expression: str, names: Sequence[str]) -> tuple[Bound, ...]:
    """Return comparisons that hold for every row that an expression uses; empty if unknown.

    names  of the columns; SQL ignores case
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
    """Return the columns that an expression may use, in their order; all of them if unknown."""
    node = parsed(expression)
    if node is None:
        return list(names)
    used: set[str] = set()
    todo: list[Any] = [node]
    if not STATEMENT.match(expression):
        todo = [node.get("where_clause")]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            if item.get("class") == "STAR" or _kind(item) == "STAR":
                return list(names)
            if item.get("class") == "COLUMN_REF":
                used.update(str(name).lower() for name in item.get("column_names", ()))
            todo += item.values()
    return [name for name in names if name.lower() in used]


def parsed(expression: str) -> dict[str, Any] | None:
    """Return the syntax tree of an expression as DuckDB's JSON, or None unless it is one SELECT."""
    import duckdb

    query = (
        expression
        if STATEMENT.match(expression)
        else f"SELECT 1 FROM dataframe WHERE (\n{expression}\n)"
    )
    try:
        with connect() as con:
            found = con.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
        statements = json.loads(found[0]).get("statements", []) if found else []
    except (duckdb.Error, ValueError, RecursionError):
        return None
    node = statements[0].get("node") if len(statements) == 1 else None
    return node if isinstance(node, dict) and _kind(node) == "SELECT_NODE" else None


def _kind(node: Any) -> str:
    return str(node.get("type", "")) if isinstance(node, dict) else ""


def _bounds(node: Any, known: dict[str, str]) -> Iterator[Bound]:
    """Yield the bounds in a condition, including both sides of an AND."""
    if not isinstance(node, dict):
        return
    kind = _kind(node)
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
    """Return the value of a literal: integer, decimal, text, date or timestamp; None for others."""
    if not isinstance(node, dict):
        return None
    if _kind(node) == "OPERATOR_CAST" and not node.get("try_cast"):
        text, name = (
            _value(node.get("child")),
            str((node.get("type_expr") or {}).get("type_name", "")).upper(),
        )
        return _parse_time(text, name) if isinstance(text, str) else None
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


def _parse_time(text: str, kind: str) -> Literal | None:
    try:
        if kind == "DATE":
            return datetime.date.fromisoformat(text) if len(text) == 10 else None
        if kind in ("TIMESTAMP", "DATETIME"):
            found = datetime.datetime.fromisoformat(text)
            return found if found.tzinfo is None else None
    except ValueError:
        pass
    return None
