"""Where in its files a row of a shard lies, by the tables that the format read: what a finding says beside the row."""

from __future__ import annotations

from dataclasses import replace

from flarecli.errors import FlareError
from flarecli.model import Finding, Shard

__all__ = ["placed"]

Span = tuple[int, int] | tuple[None, None]
_UNKNOWN: Span = None, None


def placed(found: Finding, shard: Shard) -> Finding:
    """Add the bytes of its row to a finding that names one; where each column is a file, name that of the column."""
    row, column = found.row, found.column
    if (
        found.start is not None
        or row is None
        or found.address != str(shard.chunk.at)
        or not row < shard.rows
    ):
        return found
    if shard.chunk.format not in ("granular", "granular-refs"):
        start, stop = _bytes_of(shard, row)
        return replace(found, start=start, stop=stop)
    bag = next(
        (at for at in (shard.chunk.at, *shard.chunk.beside) if at.name == f"{column}.bag"), None
    )
    if bag is None or column not in [one.name for one in shard.columns]:
        return found
    start, stop = _record(shard, row, column or "")
    return replace(found, address=str(bag), start=start, stop=stop)


def _bytes_of(shard: Shard, row: int) -> Span:
    """Give the bytes of a row: one run, or all from the first member of a sample to the end of its last."""
    layout = shard.layout
    if "offsets" in layout:
        return int(layout["offsets"][row]), int(layout["offsets"][row + 1])
    if "sizes" in layout:
        held = layout["sizes"][:, row] >= 0
        starts, sizes = layout["starts"][held, row], layout["sizes"][held, row]
        return (int(starts.min()), int((starts + sizes).max())) if len(starts) else _UNKNOWN
    if "starts" in layout:
        return int(layout["starts"][row]), int(layout["starts"][row + 1])
    return _UNKNOWN


def _record(shard: Shard, row: int, column: str) -> Span:
    """Give the bytes of what a row takes of a column's bag."""
    from flarecli.formats import granular_columns  # of no use to other formats

    starts = shard.layout[column]
    try:
        places = granular_columns.taken(shard, row, row + 1)
    except FlareError:
        return _UNKNOWN  # which records it takes is what is wrong
    first, count = places[[one.name for one in shard.columns].index(column)]
    return int(starts[first[0]]), int(starts[first[0] + count[0]])
