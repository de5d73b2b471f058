"""Samples of an MDS shard one by one: a look into the table, the lengths, then the fields as they lie there."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from flarecli.errors import FormatError
from flarecli.formats import spans
from flarecli.model import Row, Shard
from flarecli.storage import is_cold, read_ahead

__all__ = ["read_rows"]


class _Ready(NamedTuple):
    """What reading one more row takes: made once for each set of columns, and kept with the shard.

    table   where each sample starts, as Python's own integers
    view    the whole shard, where that is in memory; `source` is the same as what gives bytes when it is sliced: a map
    lengths of the columns of variable size; `head` bytes in all
    plan    name, size in bytes (None: as the lengths say) and whether it is wanted, of each column
    """

    table: memoryview
    view: memoryview | None
    source: Any
    lengths: Callable[..., tuple[Any, ...]]
    head: int
    plan: tuple[tuple[str, int | None, bool], ...]


def read_rows(
    shard: Shard, rows: Sequence[int], columns: Sequence[str] | None = None, ranges: Mapping[str, tuple[int, int]] | None = None
) -> list[Row]:
    """Give the stored bytes of each field, in the order asked; near rows share a read.

    raises  FormatError naming the row whose lengths do not add up
    """
    key = None if columns is None else tuple(columns)
    ready = shard.memo.get(key) or _made(shard, key)
    table, view, source, lengths, head, plan = ready
    if source is None:
        parts = spans.read(shard.chunk, [(table[row], table[row + 1]) for row in rows])
        return [_split(part, ready, shard, row) for part, row in zip(parts, rows, strict=True)]
    if view is not None and len(rows) > 1 and is_cold(view, [table[rows[i]] for i in (0, len(rows) // 2, -1)]):
        read_ahead(view, [(table[row], table[row + 1]) for row in rows])
    out: list[Row] = []
    for row in rows:
        start = table[row]
        try:
            sizes = iter(lengths(source, start))
        except struct.error:
            _refuse(source[start : table[row + 1]], ready, shard, row)
        at = start + head
        one: Row = {}
        for name, size, is_wanted in plan:
            stop = at + (next(sizes) if size is None else size)
            if is_wanted:
                one[name] = source[at:stop]
            at = stop
        if at != table[row + 1]:
            _refuse(source[start : table[row + 1]], ready, shard, row)
        out.append(one)
    return out


def _made(shard: Shard, columns: tuple[str, ...] | None) -> _Ready:
    wanted = frozenset(column.name for column in shard.columns) if columns is None else frozenset(columns)
    lengths = struct.Struct(f"<{sum(column.size is None for column in shard.columns)}I")
    view = spans.whole(shard.chunk)
    source = view.obj if view is not None and isinstance(view.obj, (bytes, mmap.mmap)) and len(view.obj) == len(view) else None
    plan = tuple((column.name, column.size, column.name in wanted) for column in shard.columns)
    ready = _Ready(memoryview(shard.layout["starts"]), view, source, lengths.unpack_from, lengths.size, plan)
    if not spans.suffix(shard.chunk):  # a decompressed shard is held elsewhere, and not for ever
        shard.memo[columns] = ready
    return ready


def _split(data: bytes | memoryview, ready: _Ready, shard: Shard, row: int) -> Row:
    at = ready.head
    if len(data) < at:
        _refuse(data, ready, shard, row)
    sizes = iter(ready.lengths(data))
    out: Row = {}
    for name, size, is_wanted in ready.plan:
        stop = at + (next(sizes) if size is None else size)
        if is_wanted:
            out[name] = bytes(data[at:stop])
        at = stop
    if at != len(data):
        _refuse(data, ready, shard, row)
    return out


def _refuse(data: bytes | memoryview, ready: _Ready, shard: Shard, row: int) -> NoReturn:
    where = f"{shard.chunk.at}[{row}]"
    if len(data) < ready.head:
        raise FormatError(f"{len(data)} bytes cannot hold {ready.head} bytes of lengths", where=where)
    sizes = ready.lengths(data)
    need = ready.head + sum(sizes) + sum(size or 0 for _, size, _ in ready.plan)
    raise FormatError(f"its fields take {need} bytes, the sample has {len(data)}", where=where)
