"""SQL over batches: which rows a condition keeps, and what it says of whole files before they are read."""

from __future__ import annotations

from flarecli.where.bounds import Bound, bounds, columns_of
from flarecli.where.rows import select

__all__ = ["Bound", "bounds", "columns_of", "select"]
