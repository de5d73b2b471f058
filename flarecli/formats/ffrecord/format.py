"""FFRecord: byte records after one table of CRC-32s and offsets.

Little-endian, N records (source: files written by ffrecord 1.4.0):

    0         uint32     CRC-32 of bytes 4 .. 12+12N; 0 in files by old writers
    4         int64      N
    12        uint32[N]  CRC-32 of each record
    12+4N     int64[N]   offset of each record in the file; each record ends at the next offset
    12+12N    bytes      records, back to back, up to the end of the file

A record is a value of the only column. A playlist can list the encoding of the column; the default
is `bytes`. An interrupted writer leaves zeros in place of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from isal.isal_zlib import crc32

from flarecli import encodings
from flarecli.bisect import findings_of
from flarecli.encodings import lookup
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    UsageError,
    ValueFitError,
)
from flarecli.formats import byte_ranges, shard_files
from flarecli.formats.base import (
    LISTED_PICTURES,
    Format,
    LargeValue,
    OriginalValue,
    Span,
    Substitutes,
)
from flarecli.formats.ffrecord import packed_folder
from flarecli.formats.ffrecord import table as ffrecord_table
from flarecli.formats.ffrecord.table import (
    CHANGED,
    COLUMNS,
    HEAD,
    NAME,
    crcs,
    failure,
    packed_table,
    ready,
    table_sum,
)
from flarecli.hashes import DEFAULT
from flarecli.lazy import pa, pc
from flarecli.model import (
    Chunk,
    Column,
    Columns,
    File,
    Finding,
    IntArray,
    Row,
    Settings,
    Shard,
    Stream,
    finding_of,
)
from flarecli.storage import Location

__all__ = ["FFRecord"]

# Maximum rows and bytes that are checked in one step. A record with more bytes is read in blocks.
_STEP_ROWS, _STEP_BYTES = 8192, 4 << 20
_WRITE_BYTES = 1 << 20  # bytes per write; larger blocks would be hashed outside the CPU cache


class FFRecord(Format):
    """One column of byte records, each protected by a CRC-32."""

    name = NAME
    suffixes = (".ffr",)
    record_checksums = "crc32"
    max_columns = 1
    is_listed = True
    checks_forward = True
    readers = "FFRecord readers"
    substitutes: ClassVar[Substitutes] = {
        "json_str": "str",
        "json_json": "json",
        "json_int": "int",
        "json_float": "float64",
        **LISTED_PICTURES,
        "bytes[]": "msgpack",
        "ndarray[]": "tree",
        "*[]": "json",
    }

    def original_value(self, encoding: str) -> OriginalValue:
        """Return "bytes", because the ffrecord library returns each record as it is stored."""
        return "bytes"

    open_shard = staticmethod(ffrecord_table.open_shard)
    read_rows = staticmethod(ffrecord_table.read_rows)

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads one record and checks its CRC-32."""
        name, (table, sums, _, source) = shard.columns[0].name, ready(shard)
        if source is None or columns == ():
            return super().row_reader(shard, columns)

        def read(row: int) -> Row:
            data = source[table[row] : table[row + 1]]
            if crc32(data) != sums[row]:
                raise failure(shard, row)
            return {name: data}

        return read

    def open_dataset(self, at: Location) -> Stream:
        """List the `.ffr` files in a folder, including hidden files, sorted by name.

        Subfolders are not searched.

        raises  MissingError if the folder contains no `.ffr` files
        """
        return shard_files.list_shards(
            at, self.name, ".ffr", lambda name: name.endswith(self.suffixes), columns=COLUMNS
        )

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
        check: bool = True,
    ) -> pa.RecordBatch:
        """Return rows start..stop as one typed column.

        views   return views of text and bytes, without copying them
        check   compare each record with its CRC-32
        raises  IntegrityError with the first row whose CRC-32 is wrong; FormatError for a record
                whose size does not match the encoding; ValueFitError for text that is not UTF-8
        """
        (one,) = shard.columns
        if columns is not None and one.name not in columns:
            return byte_ranges.record_batch((), (), stop - start)
        table = shard.layout["offsets"]
        ready(shard)
        first, rows = int(table[start]), stop - start
        bounds = table[start : stop + 1] - first
        (part,) = byte_ranges.read(shard.chunk, [(first, int(table[stop]))])
        data = memoryview(part)
        if check:
            wrong = np.flatnonzero(crcs(data, bounds) != shard.layout["sums"][start:stop])
            if wrong.size:
                raise failure(shard, start + int(wrong[0]))
        sizes = np.diff(bounds)
        if one.size is not None and (sizes != one.size).any():
            row = int(np.argmax(sizes != one.size))
            raise FormatError(
                f"expected {one.size} bytes for {one.encoding}, got {sizes[row]}",
                where=shard.chunk.at,
                row=start + row,
            )
        if one.size is not None and not lookup(one.encoding).arrow.equals(encodings.BINARY):
            # Numbers are copied because they may be unaligned in the mapped file.
            buffers = [None, pa.py_buffer(bytes(data))]
            raw = pa.Array.from_buffers(pa.binary(one.size), rows, buffers)
        else:
            raw = byte_ranges.rows_by_offsets(data if views else bytes(data), bounds)
        array = byte_ranges.typed(raw, one, shard.chunk.at, start)
        return byte_ranges.record_batch((one,), (array,), rows)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return the only column as FFRecord stores it.

        raises  UsageError unless there is exactly one column
        """
        out = tuple(columns)
        if len(out) != 1:
            names = ", ".join(column.name for column in out)
            raise UsageError(
                f"ffrecord has one column, got {len(out)}" + f": {names}" * bool(out),
                hint="Select one column to pack with -c.",
            )
        return (self.stored_column(out[0]),)

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the size of a file without rows, and the bytes that each row adds: int64 [rows].

        A row adds its record and a table entry of 12 bytes.
        """
        (one,) = columns
        sizes = np.full(batch.num_rows, 12, np.int64)
        if one.size is not None:
            return HEAD.size, sizes + one.size
        return HEAD.size, sizes + pc.binary_length(
            encodings.stored(batch.column(one.name), lookup(one.encoding))
        ).to_numpy(zero_copy_only=False)

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write all rows as one file such as `00000.ffr`.

        The names sort in the order of the shards, because the ffrecord library reads the files of
        a folder in name order. All rows remain in memory, because the table precedes the records
        and contains the checksums of all records.

        raises  UsageError if a compression is set; ValueFitError for a null
        """
        if settings.compression is not None:
            raise UsageError(
                "ffrecord files cannot be compressed",
                hint="Omit --compress, or choose another --format.",
            )
        (one,) = columns
        runs = [
            _field(encodings.stored(batch.column(one.name), lookup(one.encoding)))
            for batch in batches
            if batch.num_rows
        ]
        # A number with six digits has the prefix `a`, one with seven digits `b`, and so on. Letters
        # sort after digits, so the names sort in the order of the shards.
        name = (
            f"{number:05d}.ffr"
            if number < 100_000
            else f"{chr(ord('a') + len(str(number)) - 6)}{number}.ffr"
        )
        # The empty arrays determine the dtypes of a shard without rows.
        sums = np.concatenate([np.empty(0, np.uint32), *(crcs(*run) for run in runs)])
        sizes = np.concatenate([np.empty(0, np.int64), *(np.diff(bounds) for _, bounds in runs)])
        parts = shard_files.count_parts(_parts(packed_table(sums, sizes), runs))
        written = (at / name).write(parts, {DEFAULT, *settings.hashes})
        return Chunk(at / name, len(sums), (File(name, written.size, written.hashes),), self.name)

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span:
        """Return the byte range of a record."""
        offsets = shard.layout["offsets"]
        return shard.chunk.at, int(offsets[row]), int(offsets[row + 1])

    def large_values(self, shard: Shard, max_bytes: int) -> list[LargeValue]:
        """Return the records larger than `max_bytes`; the table contains the sizes."""
        sizes = np.diff(shard.layout["offsets"])
        name = shard.columns[0].name
        rows = np.flatnonzero(sizes > max_bytes).tolist()
        return [LargeValue(row, name, int(sizes[row])) for row in rows]

    def packed_files(self, chunk: Chunk) -> list[tuple[str, int]] | None:
        """Return (path, row) of each file in a packed folder, in row order.

        return  None if the shard is not a packed folder
        """
        shard = self.open_shard(chunk)
        if not packed_folder.is_packed(shard):
            return None
        listed = packed_folder.files(packed_folder.directory(shard), shard.chunk.at)
        return sorted(listed, key=lambda one: one[1])

    def unprotected(self, shard: Shard) -> str:
        """Return a message if the table has no checksum; otherwise, an empty string."""
        if shard.layout["sum"][0]:
            return ""
        return (
            "the table has no checksum (written by an old version); only its structure was checked"
        )

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check the table, the CRC-32 of each record, and the file list of a packed folder.

        values  also check every value
        """
        at, table = shard.chunk.at, shard.layout["offsets"]
        # The table is checked here, because `open_shard` does not check it if `check` is False.
        if shard.layout["sum"][0] not in (0, table_sum(shard)):
            message = "checksum mismatch: CRC-32 of the table"
            yield Finding(str(at), IntegrityError.kind, message, CHANGED)
        if gap := int(table[0]) - HEAD.size - 12 * shard.rows:
            message = f"{gap} unused bytes between the table and the first record"
            yield Finding(str(at), FormatError.kind, message, CHANGED)
        for start, stop in byte_ranges.runs(table, _STEP_ROWS, _STEP_BYTES):
            wrong = np.flatnonzero(_sums(shard, start, stop) != shard.layout["sums"][start:stop])
            yield from (finding_of(failure(shard, start + int(i))) for i in wrong)
            if values and not wrong.size:
                yield from findings_of(
                    [(start, stop)], partial(self.read_batch, shard, check=False)
                )
        try:
            if packed_folder.is_packed(shard):
                packed_folder.directory(shard)
        except FlareError as error:
            yield finding_of(error)


def _field(array: pa.Array) -> tuple[memoryview, IntArray]:
    """Return the bytes of all values in an array, and the value offsets: int64 [rows + 1]."""
    if array.null_count:
        raise ValueFitError("value is null; ffrecord cannot store nulls")
    return memoryview(array.buffers()[2] or b"").cast("B"), byte_ranges.value_offsets(array)


def _parts(
    table: bytes, runs: Sequence[tuple[memoryview, IntArray]]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file: the table, and then all records, in blocks."""
    yield table
    for data, bounds in runs:
        end = int(bounds[-1])
        for start in range(int(bounds[0]), end, _WRITE_BYTES):
            yield data[start : min(start + _WRITE_BYTES, end)]


def _sums(shard: Shard, start: int, stop: int) -> IntArray:
    """Return the CRC-32s of rows start..stop. A single large record is read in blocks."""
    table = shard.layout["offsets"]
    first, end = int(table[start]), int(table[stop])
    if stop - start > 1 or end - first <= _STEP_BYTES:
        (part,) = byte_ranges.read(shard.chunk, [(first, end)])
        return crcs(memoryview(part), table[start : stop + 1] - first)
    total = 0
    for at in range(first, end, _STEP_BYTES):
        (part,) = byte_ranges.read(shard.chunk, [(at, min(at + _STEP_BYTES, end))])
        total = crc32(part, total)
    return np.array([total], np.uint32)
