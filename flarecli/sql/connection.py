"""DuckDB connections for user expressions, without access to files, network or extensions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flarecli.names import whole_path

if TYPE_CHECKING:
    import duckdb

__all__ = ["connect", "columns_of", "is_statement", "node_type", "parse", "to_sql"]

_STATEMENT = re.compile(r"\s*(?:select|with|from)\b", re.IGNORECASE)
_SETTINGS: dict[str, Any] = {
    "threads": "1",  # several threads would read ahead and change the order of rows
    "memory_limit": "1GB",
    "enable_external_access": "false",  # blocks files, URLs and extensions
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # blocks Python variables as tables
}


def connect() -> duckdb.DuckDBPyConnection:
    """Open an in-memory database.

    raises  MissingError if the current folder was deleted, because DuckDB would otherwise end the
            process
    """
    import duckdb

    whole_path("")
    con = duckdb.connect(":memory:", config=_SETTINGS)
    con.execute("SELECT setseed(0)")  # random() must return the same values when a pack is resumed
    con.execute("SET TimeZone = 'UTC'")  # the default depends on the machine
    return con


def is_statement(expression: str) -> bool:
    """Return whether an expression is a SELECT statement rather than a condition."""
    return bool(_STATEMENT.match(expression))


# -- syntax trees


def parse(expression: str) -> dict[str, Any] | None:
    """Return DuckDB's syntax tree for an expression, or None if it is not exactly one SELECT."""
    import duckdb

    if not is_statement(expression):
        expression = f"SELECT 1 FROM dataframe WHERE (\n{expression}\n)"
    try:
        with connect() as con:
            row = con.execute("SELECT json_serialize_sql(?::VARCHAR)", [expression]).fetchone()
        statements = json.loads(row[0]).get("statements", []) if row else []
    except (duckdb.Error, ValueError, RecursionError):
        return None
    node = statements[0].get("node") if len(statements) == 1 else None
    return node if node_type(node) == "SELECT_NODE" else None


def to_sql(node: dict[str, Any]) -> str | None:
    """Convert a syntax tree to SQL. The result is None if DuckDB rejects the tree."""
    import duckdb

    tree = {"error": False, "statements": [{"node": node, "named_param_map": []}]}
    try:
        with connect() as con:
            row = con.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchone()
    except duckdb.Error:
        return None
    return None if row is None else str(row[0])


def node_type(node: Any) -> str:
    """Return the type of a syntax-tree node, or an empty string if `node` is not a node."""
    return str(node.get("type", "")) if isinstance(node, dict) else ""


def columns_of(expression: str, names: Sequence[str]) -> list[str]:
    """Return the columns that an expression may use, in the order of `names`.

    The result is `names` if the columns cannot be determined.
    """
    node = parse(expression)
    if node is None:
        return list(names)
    used: set[str] = set()
    todo: list[Any] = [node if is_statement(expression) else node.get("where_clause")]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            if "STAR" in (item.get("class"), node_type(item)):
                return list(names)
            if item.get("class") == "COLUMN_REF":
                used.update(str(name).lower() for name in item.get("column_names", ()))
            todo += item.values()
    return [name for name in names if name.lower() in used]
