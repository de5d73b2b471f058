"""How DuckDB is set up wherever an expression of the user's runs: it reaches nothing but what it is given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from flarecli.names import whole_path

if TYPE_CHECKING:
    import duckdb

__all__ = ["STATEMENT", "connected"]

STATEMENT = re.compile(
    r"\s*(?:select|with|from)\b", re.IGNORECASE
)  # anything else is a bare condition
_SETTINGS: dict[str, Any] = {
    "threads": "1",  # more would read further ahead, and give rows in another order
    "memory_limit": "1GB",
    "enable_external_access": "false",  # no file, no URL, no extension out of a condition
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no table out of a caller's variables
}


def connected() -> duckdb.DuckDBPyConnection:
    """Open a database of its own in memory. Raises MissingError where the working folder is gone: DuckDB would end the process."""
    import duckdb

    whole_path("")
    con = duckdb.connect(":memory:", config=_SETTINGS)
    con.execute(
        "SELECT setseed(0)"
    )  # a pack that is resumed asks random() again, and has to be told the same
    con.execute("SET TimeZone = 'UTC'")  # else a time without a zone would be one of this machine's
    return con
