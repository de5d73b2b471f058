"""SQL over batches: which rows a condition keeps, and what it says of whole files before they are read."""

from __future__ import annotations

from flarecli.where.bounds import Bound, bounds, columns_of
from flarecli.where.rows import is_row_by_row, select
from flarecli.where.settings import STATEMENT

__all__ = ["Bound", "bounds", "columns_of", "is_row_by_row", "is_statement", "select"]


def is_statement(expression: str) -> bool:
    """Say whether an expression is a whole SELECT, and no bare condition."""
    return bool(STATEMENT.match(expression))
