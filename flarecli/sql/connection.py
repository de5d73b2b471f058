"""DuckDB connections for expressions of the user, without access to files, network or extensions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from flarecli.names import whole_path

if TYPE_CHECKING:
    import duckdb

__all__ = ["STATEMENT", "connect"]

# anything else is a condition
STATEMENT = re.compile(r"\s*(?:select|with|from)\b", re.IGNORECASE)
_SETTINGS: dict[str, Any] = {
    "threads": "1",  # more threads would read ahead and change the order of rows
    "memory_limit": "1GB",
    "enable_external_access": "false",  # no files, URLs or extensions
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no tables from Python variables
}


def connect() -> duckdb.DuckDBPyConnection:
    """Open an in-memory database.

    raises  MissingError if the working folder was deleted, which would make DuckDB end the process
    """
    import duckdb

    whole_path("")
    con = duckdb.connect(":memory:", config=_SETTINGS)
    con.execute("SELECT setseed(0)")  # random() must return the same values when a pack is resumed
    con.execute("SET TimeZone = 'UTC'")  # the default is the time zone of the machine
    return con
