"""Read the table and the records of an FFRecord file.

The table is checked before memory is allocated for it. Each record is compared with its CRC-32.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from flarecli.encodings import column
from flarecli.errors import FormatError, IntegrityError, UnfinishedError
from flarecli.formats import byte_ranges
from flarecli.formats.shard_files import DAMAGED, check_row_count
from flarecli.model import ByteArray, Chunk, Columns, IntArray, Row, Shard, UInt32Array
from flarecli.storage import Location, needs_read_ahead, read_ahead

__all__ = [
    "CHANGED",
    "COLUMNS",
    "HEAD",
    "NAME",
    "crcs",
    "failure",
    "open_shard",
    "packed_table",
    "read_copies",
    "read_rows",
    "read_views",
    "ready",
    "table_sum",
]

NAME = "ffrecord"
HEAD = struct.Struct("<Iq")  # CRC-32 of the rest of the table; N, the number of records
COLUMNS: Columns = (column("data", "bytes"),)
_HEAD_BYTES = 1 << 16  # bytes to read first if the row count is unknown
_MAX_HEAD_BYTES = 1 << 20  # maximum bytes to read first if the row count is known
_BLOCK_BYTES = 1 << 20  # bytes per read of a local table; a single read would double the memory use
CHANGED = "The file was changed after it was packed; fetch or pack it again."


class Ready(NamedTuple):
    """Views for reading rows, created once and stored with the shard.

    table   memoryview of the record offsets; indexing returns Python integers
    sums    memoryview of the CRC-32s of the records
    view    memoryview of the mapped file; None if the file is not mapped
    source  the mmap or bytes object whose slices are records; None if there is no such object
    """

    table: memoryview
    sums: memoryview
    view: memoryview | None
    source: bytes | mmap.mmap | None


def open_shard(chunk: Chunk, columns: Columns | None = None, check: bool = True) -> Shard:
    """Read the table of 12 + 12 N bytes, without the records.

    columns  the column that a playlist lists; the file does not declare its column
    check    compare the table with its stored CRC-32; a stored value of 0 is not compared
    return   a shard with three arrays in its layout. `sum`, uint32 [1], is the stored CRC-32 of the
             table. `sums`, uint32 [rows], is the CRC-32 of each record. `offsets`, int64
             [rows + 1], is the start of each record, and the file size
    raises   FormatError if the table does not match the file; IntegrityError if the CRC-32 of the
             table is wrong; UnfinishedError if the table was not written
    """
    at, size = chunk.at, byte_ranges.stored_size(chunk)
    if columns is not None and len(columns) != 1:
        raise FormatError(
            f"the playlist lists {len(columns)} columns; ffrecord has one column", where=at
        )
    if size < HEAD.size:
        raise FormatError(
            f"file is {size} bytes; an empty table needs {HEAD.size}", where=at, hint=DAMAGED
        )
    guess = _HEAD_BYTES
    if chunk.rows is not None:
        guess = min(HEAD.size + 12 * max(0, chunk.rows), _MAX_HEAD_BYTES)
    head = at.read(0, min(size, guess))
    total, rows = HEAD.unpack_from(head)
    end = HEAD.size + 12 * rows
    if not total and not rows and size > end:
        raise UnfinishedError(
            f"table is empty, but {size - end} bytes of records follow it",
            where=at,
            hint="The writer was interrupted; pack the file again.",
        )
    if rows < 0 or end > size:
        raise FormatError(
            f"file is {size} bytes; it is too small for a table of {rows} records",
            where=at,
            hint=DAMAGED,
        )
    check_row_count(chunk, rows, "records")
    if not rows and size > end:
        raise FormatError(
            f"table has 0 records, but {size - end} bytes follow it", where=at, hint=DAMAGED
        )
    sums, offsets = np.empty(rows, np.uint32), np.full(rows + 1, size, np.int64)
    _fill(at, head, [(HEAD.size, sums), (HEAD.size + 4 * rows, offsets[:rows])])
    shard = Shard(
        chunk,
        columns or COLUMNS,
        rows,
        {"sum": np.array([total], np.uint32), "sums": sums, "offsets": offsets},
    )
    if check and total and total != table_sum(shard):
        raise IntegrityError("checksum mismatch: CRC-32 of the table", where=at, hint=DAMAGED)
    row = byte_ranges.first_decrease(offsets)
    if int(offsets[0]) < end or row is not None:
        raise FormatError(_fault(offsets, row or 0, end, size), where=at, hint=DAMAGED)
    return shard


def _fill(at: Location, head: bytes, targets: list[tuple[int, IntArray]]) -> None:
    """Read arrays from the file. A local file is read in blocks.

    head     the first bytes of the file, which are not read again
    targets  (offset in the file, array to fill) for each array
    """
    ranges, blocks = [], []
    for offset, array in targets:
        raw = array.view(np.uint8)
        step = _BLOCK_BYTES if at.is_local else max(1, len(raw))
        for start in range(0, len(raw), step):
            stop = min(start + step, len(raw))
            if offset + stop <= len(head):
                raw[start:stop] = np.frombuffer(head, np.uint8, stop - start, offset + start)
            else:
                ranges.append((offset + start, offset + stop))
                blocks.append(raw[start:stop])
    parts = (at.read(*one) for one in ranges) if at.is_local else at.read_many(ranges)
    for block, data in zip(blocks, parts, strict=True):
        block[:] = np.frombuffer(data, np.uint8)


def _fault(offsets: IntArray, row: int, end: int, size: int) -> str:
    """Return the message for invalid offsets; `row` is the first record with a negative size."""
    if int(offsets[0]) < end:
        return f"record 0 starts at byte {offsets[0]}, inside the table"
    if int(offsets[row]) > size:
        return f"record {row} starts at byte {offsets[row]}; the file ends at byte {size}"
    return f"record {row} starts at byte {offsets[row]} but ends at byte {offsets[row + 1]}"


def table_sum(shard: Shard) -> int:
    """Compute the CRC-32 of a shard's table: N, the CRC-32s of the records, and the offsets."""
    offsets = shard.layout["offsets"][:-1]
    return int(
        crc32(
            offsets.view(np.uint8),
            crc32(shard.layout["sums"].view(np.uint8), crc32(struct.pack("<q", shard.rows))),
        )
    )


def packed_table(sums: UInt32Array, sizes: IntArray) -> bytes:
    """Return the bytes of an FFRecord table.

    sums   CRC-32 of each record: uint32 [rows]
    sizes  size of each record: int64 [rows]
    """
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
    """Return records in the requested order, as views if the file is mapped.

    Nearby records are read together.

    rows    row numbers between 0 and shard.rows - 1
    check   compare each record with its CRC-32
    raises  IntegrityError with the row whose CRC-32 is wrong
    """
    layout = ready(shard)
    table, sums, view = layout.table, layout.sums, layout.view
    if view is None:
        parts = byte_ranges.read(shard.chunk, [(table[row], table[row + 1]) for row in rows])
    else:
        _read_ahead(layout, rows)
        parts = [view[table[row] : table[row + 1]] for row in rows]
    if check:
        for row, part in zip(rows, parts, strict=True):
            if crc32(part) != sums[row]:
                raise failure(shard, row)
    return parts


def read_copies(shard: Shard, rows: Sequence[int], check: bool = True) -> list[memoryview]:
    """Return records in the requested order, as slices of one writable buffer.

    A reference to one record keeps the whole buffer in memory. For large records, one buffer is
    faster than one allocation per record. See `read_views` for the arguments.
    """
    layout = ready(shard)
    table, sums = layout.table, layout.sums
    parts = read_views(shard, rows, False)
    # A numpy array is faster than a bytearray here, because numpy uses huge pages for large arrays.
    owned: ByteArray = np.empty(sum(map(len, parts)) or 1, np.uint8)
    buffer = owned.data
    out, start = [], 0
    for row, part in zip(rows, parts, strict=True):
        stop = start + table[row + 1] - table[row]
        copy = buffer[start:stop]
        copy[:] = part
        if check and crc32(copy) != sums[row]:
            raise failure(shard, row)
        out.append(copy)
        start = stop
    return out


def read_rows(
    shard: Shard,
    rows: Sequence[int],
    columns: Sequence[str] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> list[Row]:
    """Return the bytes of each record in the requested order; see `read_views`."""
    name = shard.columns[0].name
    if columns is not None and name not in columns:
        return [{} for _ in rows]
    # Look up `shard.memo` here: for small records, calling `ready` would take 5 % of the read time.
    layout: Ready = shard.memo.get("ready") or ready(shard)
    table, sums, _, source = layout
    if source is None:
        return [{name: bytes(part)} for part in read_views(shard, rows)]
    if len(rows) > 1:
        _read_ahead(layout, rows)
    out: list[Row] = []
    for row in rows:
        data = source[table[row] : table[row + 1]]
        if crc32(data) != sums[row]:
            raise failure(shard, row)
        out.append({name: data})
    return out


def ready(shard: Shard) -> Ready:
    """Return the views for reading rows; map the file on first use.

    raises  IntegrityError if the file size changed after the shard was opened
    """
    found: Ready | None = shard.memo.get("ready")
    if found is not None:
        return found
    at, table, view = shard.chunk.at, shard.layout["offsets"].data, shard.chunk.at.map()
    if view is not None and len(view) != table[-1]:
        raise IntegrityError(
            f"file is {len(view)} bytes; it was {table[-1]} bytes when it was opened",
            where=at,
            hint="The file was changed; open it again.",
        )
    found = Ready(table, shard.layout["sums"].data, view, byte_ranges.sliceable(view))
    shard.memo["ready"] = found
    return found


def _read_ahead(layout: Ready, rows: Sequence[int]) -> None:
    table, view = layout.table, layout.view
    if view is not None and len(rows) > 1 and needs_read_ahead(view):
        read_ahead(view, [(table[row], table[row + 1]) for row in rows])


def failure(shard: Shard, row: int) -> IntegrityError:
    """Return the error for a row with a wrong CRC-32."""
    table = shard.layout["offsets"]
    message = f"checksum mismatch: CRC-32 of {int(table[row + 1]) - int(table[row])} bytes"
    if row == shard.rows - 1:  # the table does not store the end of the last record
        message += "; the size of the file may have changed"
    return IntegrityError(message, where=shard.chunk.at, row=row, hint=CHANGED)


def crcs(data: memoryview, bounds: IntArray) -> IntArray:
    """Return the CRC-32s of consecutive records: uint32 [records].

    data    bytes of the records
    bounds  record boundaries in `data`, in increasing order: int64 [records + 1]
    """
    ends = np.ascontiguousarray(bounds).data
    return np.fromiter(
        map(crc32, map(data.__getitem__, map(slice, ends, ends[1:]))), np.uint32, len(ends) - 1
    )
