"""SQL over batches: which rows a condition keeps, and what it says of whole files before they are read."""

from __future__ import annotations

from flarecli.sql.bounds import Bound, bounds, columns_of
from flarecli.sql.connection import STATEMENT
from flarecli.sql.query import is_row_by_row, select

__all__ = ["Bound", "bounds", "columns_of", "is_row_by_row", "is_statement", "select"]


def is_statement(expression: str) -> bool:
    """Say whether an expression is a whole SELECT, and no bare condition."""
    return bool(STATEMENT.match(expression))
