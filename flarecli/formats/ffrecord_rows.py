"""Records of an FFRecord file: one, or many in one go, each held against its CRC-32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np
from isal.isal_zlib import crc32

from flarecli.errors import IntegrityError
from flarecli.formats import spans
from flarecli.formats.ffrecord_table import Layout
from flarecli.model import IntArray, Row, Shard
from flarecli.storage import needs_read_ahead, read_ahead

__all__ = [
    "CHANGED",
    "crcs",
    "failure",
    "read_copies",
    "read_rows",
    "read_views",
    "ready",
    "refuse",
]

CHANGED = "It was changed after it was packed; fetch or pack it again."


def read_views(shard: Shard, rows: Sequence[int], check: bool = True) -> list[bytes | memoryview]:
    """Give the records themselves, in the order asked, without a copy where the file is mapped; near ones share a read.

    rows    each in [0, shard.rows)
    check   hold each against its CRC-32
    raises  IntegrityError naming the row that fails
    """
    layout = ready(shard)
    table, view = layout.table, layout.view
    if view is None:
        parts = spans.read(shard.chunk, [(table[row], table[row + 1]) for row in rows])
    else:
        _ask_ahead(layout, rows)
        parts = [view[table[row] : table[row + 1]] for row in rows]
    if check:
        sums = layout.sums
        for row, part in zip(rows, parts, strict=True):
            if crc32(part) != sums[row]:
                refuse(shard, row)
    return parts


def read_copies(shard: Shard, rows: Sequence[int], check: bool = True) -> list[memoryview]:
    """Give the records, in the order asked, as parts of one writable buffer: holding one holds all of them.

    Records of hundreds of kilobytes are twice as fast this way as one allocation each; see `read_views` for the rest.
    """
    table, parts = ready(shard).table, read_views(shard, rows, False)
    owned: IntArray = np.empty(sum(map(len, parts)) or 1, np.uint8)  # numpy asks for large pages
    buffer = memoryview(owned)
    sums, out, start = ready(shard).sums, [], 0
    for row, part in zip(rows, parts, strict=True):
        stop = start + table[row + 1] - table[row]
        copy = buffer[start:stop]
        copy[:] = part
        if check and crc32(copy) != sums[row]:
            refuse(shard, row)
        out.append(copy)
        start = stop
    return out


def read_rows(
    shard: Shard,
    rows: Sequence[int],
    columns: Sequence[str] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    check: bool = True,
) -> list[Row]:
    """Give the bytes of each record, in the order asked; see `read_views`."""
    name = shard.columns[0].name
    if columns is not None and name not in columns:
        return [{} for _ in rows]
    layout: Any = shard.layout  # a row of 1 KB takes 0.6 µs: calls count here
    if not layout.is_ready:
        ready(shard)
    table, source = layout.table, layout.source
    if source is None:
        return [{name: bytes(part)} for part in read_views(shard, rows, check)]
    if len(rows) > 1:
        _ask_ahead(layout, rows)
    if not check:
        return [{name: source[table[row] : table[row + 1]]} for row in rows]
    out: list[Row] = []
    for row in rows:
        data = source[table[row] : table[row + 1]]
        if crc32(data) != layout.sums[row]:
            refuse(shard, row)
        out.append({name: data})
    return out


def ready(shard: Shard) -> Layout:
    """Give the layout, its map made. Raises IntegrityError if the file has another size than when it was opened."""
    layout = cast(Layout, shard.layout)
    if not layout.is_ready:
        layout.prepare(shard.chunk.at)
    return layout


def _ask_ahead(layout: Layout, rows: Sequence[int]) -> None:
    table, view = layout.table, layout.view
    if view is not None and len(rows) > 1 and needs_read_ahead(view):
        read_ahead(view, [(table[row], table[row + 1]) for row in rows])


def refuse(shard: Shard, row: int) -> NoReturn:
    """Raise IntegrityError for a row that fails its sum."""
    raise failure(shard, row)


def failure(shard: Shard, row: int) -> IntegrityError:
    """Return the error of a row that fails its checksum."""
    table = shard.layout["offsets"]
    message = f"its {int(table[row + 1]) - int(table[row])} bytes fail their CRC-32"
    if row == shard.rows - 1:  # its end is no part of the table
        message += ", or the file was cut or lengthened"
    return IntegrityError(message, where=shard.chunk.at, row=row, hint=CHANGED)


def crcs(data: memoryview, bounds: IntArray) -> IntArray:
    """Sum records that lie back to back; the loop is in C, 0.2 µs a record.

    bounds  int64 [records + 1], rising, inside the data
    return  uint32 [records]
    """
    steady: IntArray = np.ascontiguousarray(bounds)
    ends = memoryview(steady)
    return np.fromiter(
        map(crc32, map(data.__getitem__, map(slice, ends, ends[1:]))), np.uint32, len(ends) - 1
    )
