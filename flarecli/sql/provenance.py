"""A column that travels beside the rows of a SELECT and that nobody wrote into it: it says where each row comes from.

Only a SELECT that takes rows as they are can have it: of `dataframe` alone, with no grouping, no DISTINCT, and nothing that looks
at all columns at once, whose result one more column would change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from flarecli.sql.bounds import parsed
from flarecli.sql.connection import connected

__all__ = ["with_beside"]

_TAKEN_AS_THEY_ARE = {
    "PROJECTION",
    "FILTER",
    "ORDER_BY",
    "TOP_N",
    "LIMIT",
    "STREAMING_LIMIT",
    "EMPTY_RESULT",
}


def with_beside(expression: str, schema: pa.Schema, name: str, steps: list[str]) -> str | None:
    """Give a SELECT that has one more column of `dataframe` in its result, whatever else is in it; None if that cannot be told.

    schema  of `dataframe` without that column, which stands behind the others there
    name    of it
    steps   operators of the SELECT's plan
    """
    node = parsed(expression)
    if node is None or not all(
        step in _TAKEN_AS_THEY_ARE or step.endswith("ARROW_SCAN") for step in steps
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
    stars = [one for one in chosen if _is_whole(one)]
    known = {one.lower() for one in schema.names}
    inner = [node[part] for part in node if part not in ("from_table", "select_list")] + [
        one for one in chosen if not _is_whole(one)
    ]
    for one in _nodes(inner):
        if one.get("class") in ("STAR", "SUBQUERY") or (
            one.get("class") == "COLUMN_REF"
            and str(one.get("column_names", [""])[-1]).lower() not in known
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


def _is_whole(one: Any) -> bool:
    """Say whether an item of a SELECT is `*`, with nothing around it."""
    return (
        isinstance(one, dict)
        and one.get("class") == "STAR"
        and not one.get("columns")
        and not one.get("expr")
    )


def _nodes(waiting: list[Any]) -> Iterator[dict[str, Any]]:
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _text(node: dict[str, Any]) -> str | None:
    """Write a SELECT that was taken apart."""
    import duckdb

    try:
        with connected() as con:
            whole = json.dumps(
                {"error": False, "statements": [{"node": node, "named_param_map": []}]}
            )
            found = con.execute("SELECT json_deserialize_sql(?::JSON)", [whole]).fetchone()
    except duckdb.Error:
        return None
    return None if found is None else str(found[0])
