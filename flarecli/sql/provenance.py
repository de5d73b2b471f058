"""Provenance of the rows of a SELECT: a hidden column with the source row of each result row.

Only a SELECT that returns source rows can have it: from `dataframe` alone, without grouping or
DISTINCT, and without an expression over all columns, which another column would change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from flarecli.sql.bounds import parsed
from flarecli.sql.connection import connect

__all__ = ["with_column"]

_ROW_PRESERVING = {
    "PROJECTION",
    "FILTER",
    "ORDER_BY",
    "TOP_N",
    "LIMIT",
    "STREAMING_LIMIT",
    "EMPTY_RESULT",
}


def with_column(expression: str, schema: pa.Schema, name: str, steps: list[str]) -> str | None:
    """Return the SELECT with another column of `dataframe` in its result; None if that may change
    it.

    schema  of `dataframe` without that column, which is the last there
    name    of the column
    steps   operators of the plan
    """
    node = parsed(expression)
    if node is None or not all(
        step in _ROW_PRESERVING or step.endswith("ARROW_SCAN") for step in steps
    ):
        return None
    table, chosen = node.get("from_table") or {}, node.get("select_list")
    if (
        table.get("type") != "BASE_TABLE"
        or table.get("column_name_alias")
        or not isinstance(chosen, list)
        or node.get("cte_map", {}).get("map")
    ):
        return None
    stars = [item for item in chosen if _is_plain_star(item)]
    known = {name.lower() for name in schema.names}
    inner = [node[part] for part in node if part not in ("from_table", "select_list")] + [
        item for item in chosen if not _is_plain_star(item)
    ]
    for child in _nodes(inner):
        if child.get("class") in ("STAR", "SUBQUERY") or (
            child.get("class") == "COLUMN_REF"
            and str(child.get("column_names", [""])[-1]).lower() not in known
        ):
            return None
    if len(stars) > 1:
        return None
    if not stars:
        chosen.append(
            {
                "class": "COLUMN_REF",
                "type": "COLUMN_REF",
                "alias": "",
                "query_location": 0,
                "column_names": [name],
            }
        )
    return _text(node)


def _is_plain_star(item: Any) -> bool:
    """Return whether an item of a SELECT list is `*` without modifiers."""
    return (
        isinstance(item, dict)
        and item.get("class") == "STAR"
        and not item.get("columns")
        and not item.get("expr")
    )


def _nodes(todo: list[Any]) -> Iterator[dict[str, Any]]:
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            yield item
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def _text(node: dict[str, Any]) -> str | None:
    """Return the SQL of a syntax tree, or None if DuckDB rejects it."""
    import duckdb

    try:
        with connect() as con:
            whole = json.dumps(
                {"error": False, "statements": [{"node": node, "named_param_map": []}]}
            )
            found = con.execute("SELECT json_deserialize_sql(?::JSON)", [whole]).fetchone()
    except duckdb.Error:
        return None
    return None if found is None else str(found[0])
