"""SQL over batches: selection of rows, and bounds that exclude files and row groups."""

from __future__ import annotations

from flarecli.sql.bounds import Bound, bounds
from flarecli.sql.query import columns_of, is_row_by_row, is_statement, select

__all__ = ["Bound", "bounds", "columns_of", "is_row_by_row", "is_statement", "select"]
