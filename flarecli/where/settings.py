"""How DuckDB is set up wherever an expression of the user's runs: it reaches nothing but what it is given."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["SETTINGS", "STATEMENT"]

STATEMENT = re.compile(r"\s*(?:select|with|from)\b", re.IGNORECASE)  # anything else is a bare condition
SETTINGS: dict[str, Any] = {
    "threads": "1",  # more would read further ahead, and give rows in another order
    "memory_limit": "1GB",
    "enable_external_access": "false",  # no file, no URL, no extension out of a condition
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no table out of a caller's variables
}
