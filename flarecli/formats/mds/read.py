"""Read samples of an MDS shard: one by one as rows, or many at once as columns."""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from flarecli.errors import FormatError, Place
from flarecli.formats import byte_ranges as spans
from flarecli.model import IntArray, Row, Shard
from flarecli.storage import needs_read_ahead, read_ahead

__all__ = ["find_columns", "read_rows", "row_reader"]


_LEAD = (
    1 << 12
)  # bytes of a column that is read in one go with the lengths: a hostile config may name any size


class Ready(NamedTuple):
    """What reading one more row takes: made once for each set of columns, and kept with the shard.

    table    where each sample starts, as Python's own integers
    view     the whole shard, where that is in memory; `source` is the same as what gives bytes when it is sliced, a map, if it can be
    head     gives what a sample begins with: the lengths, `first` of them, then the small columns before the first of variable size
             that are wanted, `lead` by name; `size` bytes in all
    sizes    bytes of the columns behind those that are of one size; what is laid behind what `head` gives
    rest     name (None: it is not wanted) and the place of its length in `head` and `sizes`, of each column behind those
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
        """The columns that are wanted."""
        return [*self.lead, *(name for name, _ in self.rest if name is not None)]


def read_rows(
    shard: Shard,
    rows: Sequence[int],
    columns: Sequence[str] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> list[Row]:
    """Give the stored bytes of each field, in the order asked; near rows share a read.

    raises  FormatError naming the row whose lengths do not add up
    """
    ready: Ready = shard.memo.get(None if columns is None else tuple(columns)) or prepared(
        shard, columns
    )  # a call is a tenth of a row
    table, view, source, head, size, first, lead, sizes, rest = ready
    if source is None:
        parts = spans.read(shard.chunk, [(table[row], table[row + 1]) for row in rows])
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
    if source is view:  # slices of it are views
        for cut in cast("list[dict[str, Any]]", out):
            cut.update({name: bytes(cut[name]) for name, _ in rest if name is not None})
    return out


def row_reader(shard: Shard, columns: Sequence[str] | None) -> Callable[[int], Row] | None:
    """Return a function that reads one row; None unless the shard is mapped and keeps the columns in this order."""
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
    """Give what reading rows of a shard takes."""
    key = None if columns is None else tuple(columns)
    ready: Ready | None = shard.memo.get(key)
    return ready or _made(shard, key)


def _made(shard: Shard, columns: tuple[str, ...] | None) -> Ready:
    wanted = (
        frozenset(column.name for column in shard.columns)
        if columns is None
        else frozenset(columns)
    )
    lead = list(
        itertools.takewhile(
            lambda column: column.size is not None and column.size <= _LEAD, shard.columns
        )
    )
    lengths = sum(column.size is None for column in shard.columns)
    head = struct.Struct(
        f"<{lengths}I"
        + "".join(f"{column.size}{'s' if column.name in wanted else 'x'}" for column in lead)
    )
    view = spans.whole(shard.chunk)
    source = (
        view.obj
        if view is not None
        and isinstance(view.obj, (bytes, mmap.mmap))
        and len(view.obj) == len(view)
        else view
    )
    names = tuple(column.name for column in lead if column.name in wanted)
    behind = shard.columns[len(lead) :]
    sizes = tuple(column.size for column in behind if column.size is not None)
    of_one_size, variable = itertools.count(lengths + len(names)), itertools.count()
    rest = tuple(
        (
            column.name if column.name in wanted else None,
            next(variable if column.size is None else of_one_size),
        )
        for column in behind
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
    if not spans.suffix(shard.chunk):  # a decompressed shard is held elsewhere, and not for ever
        shard.memo[columns] = ready
    return ready


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


def _refuse(data: bytes | memoryview, shard: Shard, row: int) -> NoReturn:
    where = Place(shard.chunk.at, row)
    lengths = struct.Struct(f"<{sum(column.size is None for column in shard.columns)}I")
    if len(data) < lengths.size:
        raise FormatError(
            f"{len(data)} bytes cannot hold {lengths.size} bytes of lengths", where=where
        )
    need = (
        lengths.size
        + sum(lengths.unpack_from(data))
        + sum(column.size or 0 for column in shard.columns)
    )
    raise FormatError(f"its fields take {need} bytes, the sample has {len(data)}", where=where)


# -- many rows at once

_MANY = (
    1 << 12
)  # bytes of lengths that are gathered for a row before it is known to have so many: a hostile config may name any


class _Laid(NamedTuple):
    """How the rows of a shard lie in memory.

    ready   what reading them one by one takes
    view    the whole shard
    starts  uint32 [rows + 1]: where each row begins, as the shard has it
    words   bytes of lengths in front of each row; `lengths` are as many bytes from each byte of the shard on, as voids
    steps   each column in its order: the name (None: it is not wanted), its bytes and as many from each byte of the shard on, or None and
            the place of its length
    """

    ready: Ready
    view: memoryview
    starts: IntArray
    words: int
    lengths: IntArray
    steps: tuple[tuple[str | None, int | None, Any], ...]


def find_columns(
    shard: Shard, rows: Sequence[int] | IntArray, columns: Sequence[str] | None = None
) -> spans.Lying | None:
    """Find the stored bytes of each column, row by row in the order asked; what is of one size is copied, and all of a compressed shard.

    return  None where they do not lie in memory, or the lengths of a row do not add up: reading the rows says of which
    """
    laid = _laid(shard, columns)
    if laid is None:
        return None
    ready, view, starts, words, every, steps = laid
    own = np.asarray(rows, np.int64)
    if len(own) > 1 and needs_read_ahead(view):
        read_ahead(view, zip(starts[own].tolist(), starts[own + 1].tolist(), strict=True))
    at, ends = starts[own].astype(np.int64), starts[own + 1]
    if words > _MANY and (at + words > ends).any():
        return None
    try:
        lengths = every[at].view("<u4").reshape(len(own), words // 4) if words else every
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
    lying = spans.Lying(
        ready.source,
        {name: (at, stop) if every is None else every[at] for name, every, at, stop in places},
    )
    return (
        lying.apart() if spans.suffix(shard.chunk) else lying
    )  # a decompressed shard is held elsewhere, and not for ever


def _laid(shard: Shard, columns: Sequence[str] | None) -> _Laid | None:
    """Say how rows lie; None where they do not lie in memory, or none can. Kept with the shard, as what reading them one by one takes is."""
    of = None if columns is None else tuple(columns)
    key = (0, of)
    laid: _Laid | None = shard.memo.get(key)
    if laid is not None:
        return laid
    ready = prepared(shard, columns)
    view = ready.view
    if view is None or sum(
        4 if column.size is None else column.size for column in shard.columns
    ) > len(view):
        return None
    wanted, steps, words = set(ready.names), list[tuple[str | None, int | None, Any]](), 0
    for column in shard.columns:
        is_wanted = column.name in wanted
        where = (
            words
            if column.size is None
            else _every(view, column.size)
            if is_wanted and column.size
            else None
        )
        steps.append((column.name if is_wanted else None, column.size, where))
        words += column.size is None
    laid = _Laid(
        ready,
        view,
        shard.layout["starts"],
        4 * words,
        _every(view, 4 * words),
        tuple(steps),
    )
    if shard.memo.get(of) is ready:
        shard.memo[key] = laid
    return laid


def _every(view: memoryview, size: int) -> IntArray:
    """Give `size` bytes from each byte on, as voids; numpy copies those that it is asked for."""
    return np.ndarray((len(view) - size + 1,), f"V{size}", view, 0, (1,))
