"""The table of an FFRecord file, checked before anything is allocated for it; and its records, each compared with its CRC-32."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from mmap import mmap
from typing import Any, NoReturn, cast

import numpy as np
from isal.isal_zlib import crc32

from flarecli.encodings import column
from flarecli.errors import FormatError, IntegrityError, UnfinishedError
from flarecli.formats import byte_ranges as spans
from flarecli.model import Chunk, Columns, IntArray, Row, Shard
from flarecli.storage import Location, needs_read_ahead, read_ahead

__all__ = [
    "CHANGED",
    "COLUMNS",
    "HEAD",
    "Layout",
    "NAME",
    "crcs",
    "failure",
    "open_shard",
    "packed_table",
    "read_copies",
    "read_rows",
    "read_views",
    "ready",
    "refuse",
    "table_sum",
]

NAME = "ffrecord"
HEAD = struct.Struct("<Iq")  # CRC-32 of what follows up to the first record, N
COLUMNS: Columns = (column("data", "bytes"),)
_FIRST = 1 << 16  # bytes that are asked for before N is known
_BLOCK = 1 << 20  # bytes of a table in memory beside the table itself
_DAMAGED = "It was damaged or cut short; fetch or pack it again."
CHANGED = "It was changed after it was packed; fetch or pack it again."


class Layout(dict[str, IntArray]):
    """The arrays by name, and what rows are read by, made at the first of them: that takes longer than reading one.

    source  what gives the bytes of a run when it is sliced; None where runs have to be read
    view    the mapped file
    table   the offsets; sums: the sums; as memoryviews, whose items are Python integers

    Those are no part of a pickle: another process makes its own.
    """

    __slots__ = ("is_ready", "source", "sums", "table", "view")

    def __init__(self, arrays: Mapping[str, IntArray]) -> None:
        super().__init__(arrays)
        self.is_ready = False

    def __reduce__(self) -> tuple[object, ...]:
        return Layout, (dict(self),)

    def prepare(self, at: Location) -> None:
        """Map the file. Raises IntegrityError if it has another size than when it was opened."""
        self.table, self.sums = memoryview(self["offsets"]), memoryview(self["sums"])
        view, size = at.map(), self.table[-1]
        if view is not None and len(view) != size:
            raise IntegrityError(
                f"is {len(view)} bytes, was {size} when it was opened",
                where=at,
                hint="It was changed; open it anew.",
            )
        # slicing the map itself gives bytes in half the time of a view and its copy
        self.view, self.source = (
            view,
            view.obj
            if view is not None and isinstance(view.obj, (mmap, bytes)) and len(view.obj) == size
            else None,
        )
        self.is_ready = True


def open_shard(chunk: Chunk, columns: Columns | None = None, check: bool = True) -> Shard:
    """Read the table, 12 + 12 N bytes, and touch none of the records.

    columns  what a listing says the one column is; the file itself does not
    check    hold the table against its CRC-32, unless that is 0
    return   layout: `sum` uint32 [1] of the table as stored; `sums` uint32 [rows]; `offsets` int64 [rows + 1], the last is the size
    raises   FormatError if the table does not fit the file; IntegrityError if it fails its sum; UnfinishedError if it was never written
    """
    at, size = chunk.at, spans.stored_size(chunk)
    if columns is not None and len(columns) != 1:
        raise FormatError(f"{len(columns)} columns are listed, a record is one", where=at)
    if size < HEAD.size:
        raise FormatError(
            f"{size} bytes is less than the {HEAD.size} of an empty table", where=at, hint=_DAMAGED
        )
    head = at.read(
        0,
        min(
            size, _FIRST if chunk.rows is None else min(HEAD.size + 12 * max(0, chunk.rows), _BLOCK)
        ),
    )
    total, rows = HEAD.unpack_from(head)
    end = HEAD.size + 12 * rows
    if not total and not rows and size > end:
        raise UnfinishedError(
            f"its table was never written, {size - end} bytes follow",
            where=at,
            hint="Its writer died; write it again.",
        )
    if rows < 0 or end > size:
        raise FormatError(
            f"{size} bytes cannot hold a table of {rows} records", where=at, hint=_DAMAGED
        )
    if chunk.rows is not None and rows != chunk.rows:
        raise FormatError(f"holds {rows} records, {chunk.rows} are listed", where=at)
    if not rows and size > end:
        raise FormatError(
            f"{size - end} bytes follow its table of no records", where=at, hint=_DAMAGED
        )
    sums, offsets = np.empty(rows, np.uint32), np.full(rows + 1, size, np.int64)
    _fill(at, head, [(HEAD.size, sums), (HEAD.size + 4 * rows, offsets[:rows])])
    shard = Shard(
        chunk,
        columns or COLUMNS,
        rows,
        Layout({"sum": np.array([total], np.uint32), "sums": sums, "offsets": offsets}),
    )
    if check and total and total != table_sum(shard):
        raise IntegrityError("its table fails its CRC-32", where=at, hint=_DAMAGED)
    if int(offsets[0]) < end or (offsets[1:] < offsets[:-1]).any():
        raise FormatError(_fault(offsets, end, size), where=at, hint=_DAMAGED)
    return shard


def _fill(at: Location, head: bytes, targets: list[tuple[int, IntArray]]) -> None:
    """Read each array from its place in the file: a block at a time where that is cheap, so that no second table is held."""
    ranges, places = [], []
    for place, array in targets:
        raw = array.view(np.uint8)
        step = _BLOCK if at.is_local else max(1, len(raw))
        for start in range(0, len(raw), step):
            stop = min(start + step, len(raw))
            if place + stop <= len(head):
                raw[start:stop] = np.frombuffer(head, np.uint8, stop - start, place + start)
            else:
                ranges.append((place + start, place + stop))
                places.append(raw[start:stop])
    for target, data in zip(places, _read(at, ranges), strict=True):
        target[:] = np.frombuffer(data, np.uint8)


def _read(at: Location, ranges: list[tuple[int, int]]) -> Iterator[bytes]:
    yield from (
        (at.read(start, stop) for start, stop in ranges) if at.is_local else at.read_many(ranges)
    )


def _fault(offsets: IntArray, end: int, size: int) -> str:
    if int(offsets[0]) < end:
        return f"record 0 starts at byte {offsets[0]}, inside the table"
    row = int(np.flatnonzero(offsets[1:] < offsets[:-1])[0])
    if int(offsets[row]) > size:
        return f"record {row} starts at byte {offsets[row]}, the file ends at byte {size}"
    return f"record {row} starts at byte {offsets[row]} and ends at byte {offsets[row + 1]}"


def table_sum(shard: Shard) -> int:
    """Give the CRC-32 that the table of a shard has: N, the sums, then the offsets."""
    offsets = shard.layout["offsets"][:-1]
    return int(
        crc32(
            offsets.view(np.uint8),
            crc32(shard.layout["sums"].view(np.uint8), crc32(struct.pack("<q", shard.rows))),
        )
    )


def packed_table(sums: IntArray, sizes: IntArray) -> bytes:
    """Give a table as it is stored: sums uint32 [rows], sizes of the records int64 [rows]."""
    starts = np.full(len(sizes), HEAD.size + 12 * len(sizes), np.int64)
    np.add(starts[1:], np.cumsum(sizes[:-1]), out=starts[1:])
    table = b"".join(
        (
            struct.pack("<q", len(sums)),
            sums.astype("<u4", copy=False).tobytes(),
            starts.astype("<i8", copy=False).tobytes(),
        )
    )
    return struct.pack("<I", crc32(table)) + table


# -- records


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
