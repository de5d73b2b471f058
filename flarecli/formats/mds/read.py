"""Read the samples in an MDS shard, row by row or as columns."""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flarecli.errors import FormatError, Place
from flarecli.formats import byte_ranges
from flarecli.formats.base import LargeValue
from flarecli.model import ByteArray, Column, Columns, IntArray, Row, Shard
from flarecli.storage import needs_read_ahead, read_ahead

__all__ = ["gather_columns", "is_large", "large_values", "read_rows", "row_reader"]

# Maximum size of a column in the head of a sample; see `Ready`. It bounds the memory use, because a
# hostile config may declare large columns.
_MAX_HEAD_COLUMN_BYTES = 1 << 12
# In `gather_columns`, the head of a row contains the lengths, and the columns before the first
# column that has a variable size or would not fit in this size: one cache line.
_MAX_HEAD_BYTES = 64
# Number of bytes that are copied from the table for each row: the minimum size of a copied range. A
# smaller range would be extended to bytes before the range, which the first row does not have.
_BOUNDS_BYTES = byte_ranges.MAX_INLINE_BYTES + 1
_MEMORY = "memory"  # key in `Shard.memo`
MAX_WHOLE_ROW_BYTES = 16 << 20  # for larger rows, only the requested columns are read


class Ready(NamedTuple):
    """Data for reading rows, created once per selection of columns and stored with the shard.

    The head of a sample contains the lengths, and the values of the columns before the first column
    that has a variable size or more than `_MAX_HEAD_COLUMN_BYTES`.

    table  memoryview of the sample offsets; indexing returns Python integers
    head   function that returns the lengths and the selected values in the head of a sample
    size   size of the head in bytes
    first  number of lengths in the head
    lead   names of the selected columns in the head
    sizes  sizes of the fixed-size columns after the head; readers append them to the result of
           `head`, so that the result contains the size of every column after the head
    rest   (name, index of the size in that result) for each column after the head; the name is None
           if the column is not selected
    view   memoryview of the mapped shard; None if the shard is not mapped
    read   function that reads one row of the mapped shard; None if the shard is not mapped
    """

    table: memoryview
    head: Callable[..., tuple[Any, ...]]
    size: int
    first: int
    lead: tuple[str, ...]
    sizes: tuple[int, ...]
    rest: tuple[tuple[str | None, int], ...]
    view: memoryview | None = None
    read: Callable[[int], Row] | None = None

    @property
    def names(self) -> list[str]:
        """Names of the selected columns."""
        return [*self.lead, *(name for name, _ in self.rest if name is not None)]


def read_rows(
    shard: Shard,
    rows: Sequence[int],
    columns: Sequence[str] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> list[Row]:
    """Return the stored bytes of each value, with rows in the requested order.

    Nearby rows are read together.

    raises  FormatError for a row whose lengths do not match the size of the row
    """
    # Look up `shard.memo` here: for small rows, calling `prepared` would take 5 % of the read time.
    key = None if columns is None else tuple(columns)
    ready: Ready = shard.memo.get(key) or prepared(shard, columns)
    table, view = ready.table, ready.view
    if ready.read is None or view is None:
        if len(rows) == 1 and columns is not None and is_large(shard, rows[0]):
            return [_read_columns(shard, rows[0], ready)]
        parts = byte_ranges.read(shard.chunk, [(table[row], table[row + 1]) for row in rows])
        return [_split(part, ready, shard, row) for part, row in zip(parts, rows, strict=True)]
    if len(rows) > 1 and needs_read_ahead(view):
        read_ahead(view, [(table[row], table[row + 1]) for row in rows])
    return list(map(ready.read, rows))


def row_reader(shard: Shard, columns: Sequence[str] | None) -> Callable[[int], Row] | None:
    """Return a function that reads one row.

    return  None if the shard is not mapped, or if the requested columns are not in stored order
    """
    ready = prepared(shard, columns)
    return ready.read if columns is None or ready.names == [*columns] else None


def prepared(shard: Shard, columns: Sequence[str] | None) -> Ready:
    """Return the `Ready` of a shard and a selection of columns; create it on first use."""
    key = None if columns is None else tuple(columns)
    ready: Ready | None = shard.memo.get(key)
    if ready is None:
        ready = shard.memo[key] = _prepare(shard, key)
    return ready


def _prepare(shard: Shard, columns: tuple[str, ...] | None) -> Ready:
    selected = (
        frozenset(column.name for column in shard.columns)
        if columns is None
        else frozenset(columns)
    )
    lead = list(
        itertools.takewhile(
            lambda column: column.size is not None and column.size <= _MAX_HEAD_COLUMN_BYTES,
            shard.columns,
        )
    )
    lengths = sum(column.size is None for column in shard.columns)
    head = struct.Struct(
        f"<{lengths}I"
        + "".join(f"{column.size}{'s' if column.name in selected else 'x'}" for column in lead)
    )
    names = tuple(column.name for column in lead if column.name in selected)
    following = shard.columns[len(lead) :]
    sizes = tuple(column.size for column in following if column.size is not None)
    of_one_size, variable = itertools.count(lengths + len(names)), itertools.count()
    rest = tuple(
        (
            column.name if column.name in selected else None,
            next(variable if column.size is None else of_one_size),
        )
        for column in following
    )
    table = memoryview(shard.layout["starts"])
    ready = Ready(table, head.unpack_from, head.size, lengths, names, sizes, rest)
    view = byte_ranges.whole(shard.chunk)
    source = byte_ranges.sliceable(view)  # None for a decompressed shard, which a cache may evict
    if source is None:
        return ready
    return ready._replace(view=view, read=_mapped_reader(source, ready, shard))


def _mapped_reader(source: bytes | mmap.mmap, ready: Ready, shard: Shard) -> Callable[[int], Row]:
    table, head, size, first, lead, sizes, rest = ready[:7]
    # The shard refers to `read`. To avoid a reference cycle, `read` does not refer to the shard.
    columns, at_file = shard.columns, shard.chunk.at

    def read(row: int) -> Row:
        start = table[row]
        try:
            values = head(source, start) + sizes
        except struct.error:
            raise _fault(source[start : table[row + 1]], columns, Place(at_file, row)) from None
        out: Row = {}
        i = first
        for name in lead:
            out[name] = values[i]
            i += 1
        at = start + size
        for other, i in rest:
            stop = at + values[i]
            if other is not None:
                out[other] = source[at:stop]
            at = stop
        if at != table[row + 1]:
            raise _fault(source[start : table[row + 1]], columns, Place(at_file, row))
        return out

    return read


def is_large(shard: Shard, row: int) -> bool:
    """Return whether a row is so large that only the requested columns are read.

    The result is False for a shard in memory.
    """
    starts = shard.layout["starts"]
    size = int(starts[row + 1]) - int(starts[row])
    return size > MAX_WHOLE_ROW_BYTES and byte_ranges.whole(shard.chunk) is None


def _read_columns(shard: Shard, row: int, ready: Ready) -> Row:
    """Read the lengths and the selected columns of a row; the other columns are not read."""
    start, stop = ready.table[row], ready.table[row + 1]
    (head,) = byte_ranges.read(shard.chunk, [(start, min(start + ready.size, stop))])
    if len(head) < ready.size:
        raise _fault(head, shard.columns, Place(shard.chunk.at, row))
    values = ready.head(head)
    out: Row = dict(zip(ready.lead, values[ready.first :], strict=True))
    ranges, at, values = {}, start + ready.size, values + ready.sizes
    for name, i in ready.rest:
        if name is not None:
            ranges[name] = at, at + values[i]
        at += values[i]
    if at != stop:
        raise _fault(head, shard.columns, Place(shard.chunk.at, row), stop - start)
    parts = byte_ranges.read(shard.chunk, [*ranges.values()])
    return out | dict(zip(ranges, map(bytes, parts), strict=True))


def large_values(shard: Shard, max_bytes: int) -> list[LargeValue]:
    """Return the row, column and size of each value that is larger than `max_bytes`.

    Only the lengths in large rows are read, not the values.

    A row whose lengths do not match the size of the row is omitted, because reading such a row
    raises an error.
    """
    starts = shard.layout["starts"].astype(np.int64)
    names = [column.name for column in shard.columns if column.size is None]
    fixed = {column.name: column.size for column in shard.columns if column.size is not None}
    lengths = struct.Struct(f"<{len(names)}I")
    sizes = np.diff(starts)
    rows = np.flatnonzero((sizes > max_bytes) & (sizes >= lengths.size)).tolist()
    ranges = [(int(starts[row]), int(starts[row]) + lengths.size) for row in rows]
    out = []
    for row, head in zip(rows, byte_ranges.read(shard.chunk, ranges), strict=True):
        values = dict(zip(names, lengths.unpack(head), strict=True)) | fixed
        if lengths.size + sum(values.values()) == sizes[row]:
            out += [LargeValue(row, *one) for one in values.items() if one[1] > max_bytes]
    return out


def _split(data: bytes | memoryview, ready: Ready, shard: Shard, row: int) -> Row:
    if len(data) < ready.size:
        raise _fault(data, shard.columns, Place(shard.chunk.at, row))
    head = ready.head(data)
    out: Row = dict(zip(ready.lead, head[ready.first :], strict=True))
    at, values = ready.size, head + ready.sizes
    for name, i in ready.rest:
        stop = at + values[i]
        if name is not None:
            out[name] = bytes(data[at:stop])
        at = stop
    if at != len(data):
        raise _fault(data, shard.columns, Place(shard.chunk.at, row))
    return out


def _fault(
    data: bytes | memoryview, columns: Columns, where: Place, size: int | None = None
) -> FormatError:
    """Return the error for a row whose lengths do not match the size of the row.

    data  the bytes of the row, or only its first bytes
    size  size of the row in bytes; None if `data` is the complete row
    """
    size = len(data) if size is None else size
    lengths = struct.Struct(f"<{sum(column.size is None for column in columns)}I")
    if len(data) < lengths.size:
        return FormatError(
            f"sample has {size} bytes; its length fields need {lengths.size}", where=where
        )
    need = (
        lengths.size + sum(lengths.unpack_from(data)) + sum(column.size or 0 for column in columns)
    )
    return FormatError(f"sample has {size} bytes; its fields need {need}", where=where)


# -- columns


def gather_columns(
    shards: Sequence[Shard],
    rows: IntArray,
    edges: Sequence[int],
    columns: Sequence[str] | None = None,
    order: IntArray | slice = slice(None),
) -> byte_ranges.GatheredColumns | None:
    """Return stored values of several shards in memory; see `Format.gather_columns`.

    Each step processes the rows of all shards at once, because a numpy call per shard would be slow
    if each shard has only a few of the rows.

    return  None if a shard is not in memory, if a value is too large for Arrow's views, or if the
            lengths in a row do not match the size of the row. The caller then calls `read_rows`,
            which raises an error with the row number
    """
    stored, memories = shards[0].columns, list[byte_ranges.ShardMemory]()
    for shard in shards:
        memory = _memory(shard) if shard.columns == stored else None
        if memory is None:
            return None
        memories.append(memory)
    sources = np.repeat(np.arange(len(shards)), np.diff(edges))
    # at byte 4 + 4 * row, the table contains the start and the end of the row (uint32)
    bounds = byte_ranges.gathered_bytes(memories, sources, 4 * rows, _BOUNDS_BYTES)[:, 4:12]
    starts, ends = np.array(bounds.copy().view("<u4").T, np.int64)
    for memory, start, stop in zip(memories, edges, edges[1:], strict=False):
        if len(rows) > 1 and needs_read_ahead(memory.view):
            ranges = zip(starts[start:stop].tolist(), ends[start:stop].tolist(), strict=True)
            read_ahead(memory.view, ranges)
    sizes = np.array([len(memory.view) for memory in memories])[sources]
    first = head = 4 * sum(column.size is None for column in stored)
    in_head = dict[str, slice]()
    for column in stored:
        if column.size is None or head + column.size > _MAX_HEAD_BYTES:
            break
        in_head[column.name] = slice(head, head + column.size)
        head += column.size
    # A file may have changed after its table was checked.
    if (
        (starts <= byte_ranges.MAX_INLINE_BYTES).any()
        or (ends > sizes).any()
        or (starts + head > ends).any()
    ):
        return None
    heads = byte_ranges.gathered_bytes(memories, sources, starts, head)
    lengths = iter(heads[:, :first].copy().view("<u4").T)
    at, places = starts + first, list[tuple[Column, IntArray, Any]]()
    for column in stored:
        size = next(lengths) if column.size is None else column.size
        places.append((column, at, size))
        at = at + size
    if np.count_nonzero(at != ends):
        return None
    selected = frozenset(column.name for column in stored) if columns is None else {*columns}
    out, ordered = dict[str, Any](), sources[order]
    for column, at, size in places:
        name = column.name
        if name not in selected:
            continue
        if column.size is None:
            out[name] = byte_ranges.gathered(memories, ordered, at[order], size[order])
        elif name in in_head:
            out[name] = _joined(heads[:, in_head[name]], order)
        elif column.size < byte_ranges.VIEW_LIMIT:
            out[name] = _joined(byte_ranges.gathered_bytes(memories, ordered, at[order], size))
        else:
            return None
    return out


def _joined(values: ByteArray, order: IntArray | slice = slice(None)) -> Any:
    """Return the values at `order`, of uint8 [rows, size], as a contiguous numpy void array."""
    return np.ascontiguousarray(values.view(f"V{values.shape[1]}")[order, 0])


def _memory(shard: Shard) -> byte_ranges.ShardMemory | None:
    """Return the memory of a shard; None if the shard is not in memory, or has too few bytes."""
    memory: byte_ranges.ShardMemory | None = shard.memo.get(_MEMORY)
    if memory is not None:
        return memory
    view = byte_ranges.whole(shard.chunk)
    if view is None or 4 * shard.rows + _BOUNDS_BYTES > len(view):
        return None
    memory = byte_ranges.ShardMemory.of(view)
    # A stored view would keep a decompressed shard in memory after its eviction from the cache.
    if not byte_ranges.suffix(shard.chunk):
        shard.memo[_MEMORY] = memory
    return memory
