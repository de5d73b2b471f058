"""Where in its files a row of a shard lies, by the tables that the format read: what a finding says beside the row."""

from __future__ import annotations

from flarecli.errors import FlareError
from flarecli.model import Finding, Shard
from flarecli.records import replace

__all__ = ["Span", "placed"]

Span = tuple[int, int]


def placed(found: Finding, shard: Shard) -> Finding:
    """Add the bytes of its row to a finding that names one; where each column is a file, name that of the column."""
    head, bracket, row = found.where.removesuffix("]").rpartition("[")
    if (
        found.span is not None
        or not bracket
        or head != str(shard.chunk.at)
        or not row.isdecimal()
        or not int(row) < shard.rows
    ):
        return found
    if shard.chunk.format not in ("granular", "granular-refs"):
        return replace(found, span=_span(shard, int(row)))
    column = next(
        (one.name for one in shard.columns if found.message.startswith(f"column {one.name!r}")),
        None,
    )
    bag = next(
        (at for at in (shard.chunk.at, *shard.chunk.beside) if at.name == f"{column}.bag"), None
    )
    if column is None or bag is None:
        return found
    return replace(found, where=f"{bag}[{row}]", span=_record(shard, int(row), column))


def _span(shard: Shard, row: int) -> Span | None:
    """Give the bytes of a row: one run, or all from the first member of a sample to the end of its last."""
    layout = shard.layout
    if "offsets" in layout:
        return int(layout["offsets"][row]), int(layout["offsets"][row + 1])
    if "sizes" in layout:
        held = layout["sizes"][:, row] >= 0
        starts, sizes = layout["starts"][held, row], layout["sizes"][held, row]
        return (int(starts.min()), int((starts + sizes).max())) if len(starts) else None
    return (
        (int(layout["starts"][row]), int(layout["starts"][row + 1])) if "starts" in layout else None
    )


def _record(shard: Shard, row: int, column: str) -> Span | None:
    """Give the bytes of what a row takes of a column's bag."""
    from flarecli.formats import granular_columns  # of no use to other formats

    starts = shard.layout[column]
    try:
        places = granular_columns.taken(shard, row, row + 1)
    except FlareError:
        return None  # which records it takes is what is wrong
    first, count = places[[one.name for one in shard.columns].index(column)]
    return int(starts[first[0]]), int(starts[first[0] + count[0]])
