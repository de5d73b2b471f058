"""Rows of an MDS shard as columns: what `read_rows` gives, turned, with no dict for each row."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flarecli.formats.mds_rows import prepared, read_rows
from flarecli.model import Shard
from flarecli.storage import is_cold, read_ahead

__all__ = ["at_hand", "read_columns"]


def read_columns(shard: Shard, rows: Sequence[int], columns: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Give the stored bytes of each column, row by row in the order asked.

    raises  FormatError naming the row whose lengths do not add up
    """
    table, view, source, head, size, first, lead, sizes, rest = ready = prepared(shard, columns)
    out: dict[str, list[Any]] = {name: [] for name in ready.names}
    if source is None:
        return _turned(shard, rows, columns, out)
    if len(rows) > 1 and view is not None and is_cold(view, [table[rows[len(rows) // 2]]]):
        read_ahead(view, [(table[row], table[row + 1]) for row in rows])
    leads: list[Callable[[Any], None]] = [out[name].append for name in lead]
    steps = [(None if name is None else out[name].append, i) for name, i in rest]
    for row in rows:  # the whole of a row, then the next: its bytes are in the nearest cache but once
        start = table[row]
        try:
            values = head(source, start) + sizes
        except struct.error:
            return _turned(shard, rows, columns, out)
        if leads:
            for append, value in zip(leads, values[first:], strict=False):
                append(value)
        at = start + size
        for keep, i in steps:
            stop = at + values[i]
            if keep is not None:
                keep(source[at:stop])
            at = stop
        if at != table[row + 1]:
            return _turned(shard, rows, columns, out)
    if source is view:  # slices of it are views
        out.update({name: list(map(bytes, out[name])) for name, _ in rest if name is not None})
    return out


def at_hand(shard: Shard, rows: Sequence[int], columns: Sequence[str] | None = None) -> bool:
    """Say whether these rows lie in memory, in a mapped file: `read_columns` copies them, and waits for nothing. Of no row: whether it maps them."""
    ready = prepared(shard, columns)
    view = ready.view
    return view is not None and isinstance(view.obj, mmap.mmap) and not is_cold(view, [ready.table[row] for row in rows])


def _turned(shard: Shard, rows: Sequence[int], columns: Sequence[str] | None, names: Iterable[str]) -> dict[str, list[Any]]:
    read = read_rows(shard, rows, columns)  # which says what is wrong with which row
    return {name: [row[name] for row in read] for name in names}
