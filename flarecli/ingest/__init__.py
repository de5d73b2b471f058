"""Indexes: anything that lists samples becomes batches of columns, in bounded memory whatever its size."""

from __future__ import annotations

from flarecli.ingest.index import Index, open_index
from flarecli.ingest.opening import is_index

__all__ = ["Index", "is_index", "open_index"]
