"""Add file and byte range to findings about rows."""

from __future__ import annotations

from dataclasses import replace

from flarecli import formats
from flarecli.model import Finding, Shard

__all__ = ["placed"]


def placed(found: Finding, shard: Shard) -> Finding:
    """Return a finding with the byte range of its row; if each column is a file, in the file of its
    column.
    """
    row = found.row
    if (
        found.start is not None
        or row is None
        or found.address != str(shard.chunk.at)
        or not row < shard.rows
    ):
        return found
    span = formats.facts(shard.chunk.format).row_span(shard, row, found.column)
    if span is None:
        return found
    at, start, stop = span
    return replace(found, address=str(at), start=start, stop=stop)
