"""Read the samples in an MDS shard, row by row or as columns."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from flarecli.errors import FormatError, Place
from flarecli.formats import byte_ranges
from flarecli.formats.base import LargeValue
from flarecli.model import IntArray, Row, Shard
from flarecli.storage import needs_read_ahead, read_ahead

__all__ = ["find_columns", "is_large", "large_values", "read_rows", "row_reader"]

# A hostile config may declare many or large columns; the next two limits bound the memory use.
_MAX_HEAD_COLUMN_BYTES = 1 << 12  # maximum size of a column that is unpacked with the lengths
_MAX_LENGTH_BYTES = 1 << 12  # if the lengths of a row are larger, the row size is checked first
MAX_WHOLE_ROW_BYTES = 16 << 20  # for larger rows, only the requested columns are read


class Ready(NamedTuple):
    """The state for reading rows, created once per selection of columns and stored with the shard.

    The head of a sample contains the lengths, and the values of the columns before the first column
    that has a variable size or more than `_MAX_HEAD_COLUMN_BYTES`.

    table    memoryview of the sample offsets; indexing returns Python integers
    view     memoryview of the decompressed shard; None if the shard is not in memory
    source   the mmap or bytes object of `view`, whose slices are bytes; `view` if there is none
    head     function that returns the lengths and the selected values in the head of a sample
    size     size of the head in bytes
    first    number of lengths in the head
    lead     names of the selected columns in the head
    sizes    sizes of the fixed-size columns after the head; readers append them to the result of
             `head`, so that the result contains the size of every column after the head
    rest     (name, index of the size in that result) for each column after the head; the name is
             None if the column is not selected
    """

    table: memoryview
    view: memoryview | None
    source: Any
    head: Callable[..., tuple[Any, ...]]
    size: int
    first: int
    lead: tuple[str, ...]
    sizes: tuple[int, ...]
    rest: tuple[tuple[str | None, int], ...]

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

    Nearby rows share a read.

    raises  FormatError for a row whose lengths do not match the size of the row
    """
    ready: Ready = shard.memo.get(None if columns is None else tuple(columns)) or prepared(
        shard, columns
    )
    table, view, source, head, size, first, lead, sizes, rest = ready
    if source is None:
        if len(rows) == 1 and columns is not None and is_large(shard, rows[0]):
            return [_read_columns(shard, rows[0], ready)]
        parts = byte_ranges.read(shard.chunk, [(table[row], table[row + 1]) for row in rows])
        return [_split(part, ready, shard, row) for part, row in zip(parts, rows, strict=True)]
    if len(rows) > 1 and view is not None and needs_read_ahead(view):
        read_ahead(view, [(table[row], table[row + 1]) for row in rows])
    out: list[Row] = []
    for row in rows:
        start = table[row]
        try:
            values = head(source, start) + sizes
        except struct.error:
            _refuse(source[start : table[row + 1]], shard, row)
        one: Row = {}
        i = first
        for name in lead:
            one[name] = values[i]
            i += 1
        at = start + size
        for other, i in rest:
            stop = at + values[i]
            if other is not None:
                one[other] = source[at:stop]
            at = stop
        if at != table[row + 1]:
            _refuse(source[start : table[row + 1]], shard, row)
        out.append(one)
    if source is view:  # slices of `source` are views, so copy their bytes
        for cut in cast("list[dict[str, Any]]", out):
            cut.update({name: bytes(cut[name]) for name, _ in rest if name is not None})
    return out


def row_reader(shard: Shard, columns: Sequence[str] | None) -> Callable[[int], Row] | None:
    """Return a function that reads one row.

    return  None if the shard is not in memory, or if the requested columns are not in stored order
    """
    ready = prepared(shard, columns)
    table, view, source, head, size, first, lead, sizes, rest = ready
    if source is None or source is view or (columns is not None and ready.names != [*columns]):
        return None

    def read(row: int) -> Row:
        start = table[row]
        values = head(source, start) + sizes
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
            _refuse(source[start : table[row + 1]], shard, row)
        return out

    return read


def prepared(shard: Shard, columns: Sequence[str] | None) -> Ready:
    """Return the state for reading rows of a shard; create the state on first use."""
    key = None if columns is None else tuple(columns)
    ready: Ready | None = shard.memo.get(key)
    return ready or _prepare(shard, key)


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
    view = byte_ranges.whole(shard.chunk)
    source = byte_ranges.sliceable(view) or view
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
    ready = Ready(
        memoryview(shard.layout["starts"]),
        view,
        source,
        head.unpack_from,
        head.size,
        lengths,
        names,
        sizes,
        rest,
    )
    # A stored view would keep a decompressed shard in memory after its eviction from the cache.
    if not byte_ranges.suffix(shard.chunk):
        shard.memo[columns] = ready
    return ready


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
        _refuse(head, shard, row)
    values = ready.head(head)
    out: Row = dict(zip(ready.lead, values[ready.first :], strict=True))
    ranges, at, values = {}, start + ready.size, values + ready.sizes
    for name, i in ready.rest:
        if name is not None:
            ranges[name] = at, at + values[i]
        at += values[i]
    if at != stop:
        _refuse(head, shard, row, stop - start)
    parts = byte_ranges.read(shard.chunk, [*ranges.values()])
    return out | dict(zip(ranges, map(bytes, parts), strict=True))


def large_values(shard: Shard, max_bytes: int) -> list[LargeValue]:
    """Return the values larger than `max_bytes`. Of large rows, only the lengths are read.

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
        _refuse(data, shard, row)
    head = ready.head(data)
    out: Row = dict(zip(ready.lead, head[ready.first :], strict=True))
    at, values = ready.size, head + ready.sizes
    for name, i in ready.rest:
        stop = at + values[i]
        if name is not None:
            out[name] = bytes(data[at:stop])
        at = stop
    if at != len(data):
        _refuse(data, shard, row)
    return out


def _refuse(data: bytes | memoryview, shard: Shard, row: int, size: int | None = None) -> NoReturn:
    """Raise FormatError for a row whose lengths do not match the size of the row.

    data  the bytes of the row, or only its first bytes
    size  size of the row in bytes; None for the size of `data`
    """
    where, size = Place(shard.chunk.at, row), len(data) if size is None else size
    lengths = struct.Struct(f"<{sum(column.size is None for column in shard.columns)}I")
    if len(data) < lengths.size:
        raise FormatError(f"sample has {size} bytes; its lengths need {lengths.size}", where=where)
    need = (
        lengths.size
        + sum(lengths.unpack_from(data))
        + sum(column.size or 0 for column in shard.columns)
    )
    raise FormatError(f"sample has {size} bytes; its fields need {need}", where=where)


# -- columns


class _ColumnLayout(NamedTuple):
    """The state for locating columns in memory, stored with the shard.

    ready    state for reading rows
    view     memoryview of the decompressed shard
    starts   start of each row, from the shard's table: uint32 [rows + 1]
    words    number of bytes at the start of each row that contain the lengths of its values
    lengths  numpy void array; item i consists of the `words` bytes from offset i of the shard
    steps    for each column of fixed size: (name, size, void array of that item size); for each
             other column: (name, None, index of its length). The name is None if the column is not
             selected
    """

    ready: Ready
    view: memoryview
    starts: IntArray
    words: int
    lengths: IntArray
    steps: tuple[tuple[str | None, int | None, Any], ...]


def find_columns(
    shard: Shard, rows: Sequence[int] | IntArray, columns: Sequence[str] | None = None
) -> byte_ranges.LocatedRows | None:
    """Locate the stored bytes of each value, with rows in the requested order.

    numpy copies the values of fixed size for all rows at once. In a compressed shard, all values
    are copied.

    return  None if the shard is not in memory, or if the lengths in a row do not match the size of
            the row. The caller then calls `read_rows`, which raises an error with the row number
    """
    layout = _column_layout(shard, columns)
    if layout is None:
        return None
    ready, view, starts, words, windows, steps = layout
    indices = np.asarray(rows, np.int64)
    if len(indices) > 1 and needs_read_ahead(view):
        read_ahead(view, zip(starts[indices].tolist(), starts[indices + 1].tolist(), strict=True))
    at, ends = starts[indices].astype(np.int64), starts[indices + 1]
    if words > _MAX_LENGTH_BYTES and (at + words > ends).any():
        return None
    try:
        lengths = windows[at].view("<u4").reshape(len(indices), words // 4) if words else windows
    except IndexError:
        return None
    at += words
    places: list[tuple[str, Any, IntArray, IntArray]] = []
    for name, size, where in steps:
        stop = at + (lengths[:, where] if size is None else size)
        if name is not None:
            places.append((name, where if size else None, at, stop))
        at = stop
    if np.count_nonzero(at != ends):
        return None
    located = byte_ranges.LocatedRows(
        ready.source,
        {
            name: (at, stop) if windows is None else windows[at]
            for name, windows, at, stop in places
        },
    )
    # Views would keep a decompressed shard in memory after its eviction from the cache.
    return located.copied() if byte_ranges.suffix(shard.chunk) else located


def _column_layout(shard: Shard, columns: Sequence[str] | None) -> _ColumnLayout | None:
    """Return the state for locating columns.

    return  None if the shard is not in memory, or is too short for a single row
    """
    selection = None if columns is None else tuple(columns)
    key = (0, selection)
    layout: _ColumnLayout | None = shard.memo.get(key)
    if layout is not None:
        return layout
    ready = prepared(shard, columns)
    view = ready.view
    if view is None or sum(
        4 if column.size is None else column.size for column in shard.columns
    ) > len(view):
        return None
    selected, steps, words = set(ready.names), list[tuple[str | None, int | None, Any]](), 0
    for column in shard.columns:
        is_selected = column.name in selected
        where = (
            words
            if column.size is None
            else _windows(view, column.size)
            if is_selected and column.size
            else None
        )
        steps.append((column.name if is_selected else None, column.size, where))
        words += column.size is None
    layout = _ColumnLayout(
        ready,
        view,
        shard.layout["starts"],
        4 * words,
        _windows(view, 4 * words),
        tuple(steps),
    )
    if shard.memo.get(selection) is ready:
        shard.memo[key] = layout
    return layout


def _windows(view: memoryview, size: int) -> IntArray:
    """Return a void array without a copy; item i is the `size` bytes at offset i of `view`."""
    return np.ndarray((len(view) - size + 1,), f"V{size}", view, 0, (1,))
