"""Adds to a finding about a row the file and the bytes that hold it."""

from __future__ import annotations

from dataclasses import replace

from flarecli import formats
from flarecli.model import Finding, Shard

__all__ = ["placed"]


def placed(found: Finding, shard: Shard) -> Finding:
    """Return a finding with the bytes of its row; where each column is a file, with that of its column."""
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
