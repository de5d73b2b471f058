"""MDS: the binary shards of MosaicML Streaming, with samples after one table of offsets.

Little-endian, n samples (source: files written by mosaicml-streaming 0.13.0):

    0             uint32       n
    4             uint32[n+1]  start of each sample in the file, and the size of the file
    4 + 4(n+1)    bytes        config, JSON with sorted keys, up to the first sample
    start[0]      bytes        samples, back to back

A sample is a uint32 length for each column of variable size, followed by the bytes of every column.
Columns are sorted by the code points of their names. A compressed shard is the complete file in one
compression frame; its name ends with the suffix of the compression.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from flarecli import compress, encodings
from flarecli.bisect import findings_of
from flarecli.encodings import lookup
from flarecli.errors import FormatError, ValueFitError
from flarecli.expansion import check_rows
from flarecli.formats import byte_ranges
from flarecli.formats.base import LISTED_PICTURES, Format, Span, Substitutes, check_names
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds import index as mds_index
from flarecli.formats.mds import read as mds_read
from flarecli.formats.mds import repair_index
from flarecli.formats.mds.index import name_of, present
from flarecli.formats.registry import INDEX
from flarecli.formats.shard_files import DAMAGED, check_row_count, write_file
from flarecli.lazy import np, pa, pc
from flarecli.model import (
    BoolArray,
    ByteArray,
    Chunk,
    Column,
    Columns,
    File,
    Finding,
    IntArray,
    Row,
    Settings,
    Shard,
    UInt32Array,
)
from flarecli.storage import Location

__all__ = [
    "MAX_CONFIG_BYTES",
    "MDS",
    "MosaicFormat",
    "check_config_size",
    "check_shard_size",
    "lengths",
    "read_starts",
    "row_count",
    "runs_of_rows",
    "samples",
    "step_of",
    "weights",
]

MAX_SHARD_BYTES = (1 << 32) - 1  # limited, because the table stores offsets as uint32
MAX_CONFIG_BYTES = 1 << 24  # sufficient for thousands of columns
_STEP_ROWS, _STEP_BYTES = 8192, 4 << 20  # limits for the rows of one step, to fit in the CPU cache
# In each call, Arrow joins the values of about 1 MiB of rows. With more than 1,024 columns, a call
# joins about 1 KiB per column instead, because each column adds to the cost of the call.
_JOIN_BYTES, _JOIN_BYTES_PER_COLUMN = 1 << 20, 1 << 10
_HEAD_BYTES = 1 << 16  # bytes to read first if the row count is unknown


class MosaicFormat(Format):
    """Base class for the formats of MosaicML Streaming, whose shards are listed in `index.json`.

    A shard or its `.meta` file begins with a table: the number of samples, and the sample offsets.
    """

    index_files = (INDEX,)
    version_index = INDEX
    checks_forward = True

    open_dataset = staticmethod(mds_index.open_dataset)
    merge_indexes = staticmethod(repair_index.merge)
    write_version_index = staticmethod(repair_index.write_version)
    # This assignment is last, because the attribute hides the module of the same name.
    repair_index = staticmethod(repair_index.rebuild)

    def written_by(self, listed_by: str) -> str | None:
        """Return the version of MDS if an `index.json` lists the dataset; otherwise None."""
        return "MDS version 2" if listed_by == INDEX else None

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span:
        """Return the byte range of a row."""
        starts = shard.layout["starts"]
        return shard.chunk.at, int(starts[row]), int(starts[row + 1])

    def write_index(
        self, at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings
    ) -> dict[str, File]:
        """Write `index.json` with the same bytes as MosaicML Streaming; return name -> File."""
        return mds_index.write_index(at, chunks, columns, settings, self.name)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return columns as the format stores them, sorted by the code points of their names.

        raises  UsageError for a column that the format cannot store, for duplicate names, or if
                there are no columns
        """
        out = tuple(sorted(map(self.stored_column, columns), key=lambda one: one.name))
        check_names(out, "a shard needs at least one column")
        return out


class MDS(MosaicFormat):
    """MDS shards, the binary format of MosaicML Streaming."""

    name = "mds"
    suffixes = (".mds", *(f".mds.{name}" for name in compress.SUFFIXES))
    readers = "MosaicML readers"
    substitutes: ClassVar[Substitutes] = {
        "mp4": "bytes",
        "webm": "bytes",
        "varint": "int",
        "msgpack_float": "float64",
        "array": "ndarray",
        "msgpack": "json",
        "tree": "json",
        "json_str": "str",
        "json_json": "json",
        "json_int": "int",
        "json_float": "float64",
        **LISTED_PICTURES,
        "bytes[]": None,
        "ndarray[]": "json",
        "*[]": "json",
    }

    read_rows = staticmethod(mds_read.read_rows)
    gather_columns = staticmethod(mds_read.gather_columns)
    large_values = staticmethod(mds_read.large_values)

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads the sample in one row."""
        return mds_read.row_reader(shard, columns) or super().row_reader(shard, columns)

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the table and the config, without the samples.

        columns  the columns that an index lists; they must match the shard's config
        raises   FormatError if the table does not match the file, or if the config is invalid
        """
        chunk = present(chunk)
        at, view = chunk.at, byte_ranges.whole(chunk)
        size = len(view) if view is not None else byte_ranges.stored_size(chunk)
        guess = min(
            size, 8 + 4 * (chunk.rows + 1) + 2048 if chunk.rows is not None else _HEAD_BYTES
        )
        head = view if view is not None else memoryview(at.read(0, guess))
        rows = row_count(head, size, chunk, at)
        end = 8 + 4 * rows
        if byte_ranges.suffix(chunk):
            check_rows(rows, 1, byte_ranges.stored_size(chunk), at)
        if len(head) < end:
            head = memoryview(bytes(head) + at.read(len(head), end))
        starts = read_starts(head, rows, copy=bool(byte_ranges.suffix(chunk)))
        first, last = int(starts[0]), int(starts[-1])
        row = byte_ranges.first_decrease(starts)
        if not end <= first <= size or last != size or row is not None:
            raise FormatError(_table_fault(starts, row, end, size), where=at, hint=DAMAGED)
        check_config_size(first - end, at)
        if len(head) < first:
            head = memoryview(bytes(head) + at.read(len(head), first))
        _, own = mds_config.parse_config(bytes(head[end:first]), self.name, at)
        own = mds_config.agreed(own, columns, self.name, at)
        if byte_ranges.suffix(chunk):
            check_rows(rows, len(own), byte_ranges.stored_size(chunk), at)
        return Shard(chunk, own, rows, {"starts": starts})

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Return rows start..stop as typed columns, in the order of `columns`.

        raises  FormatError for a row whose lengths do not match its size; ValueFitError for text
                that is not UTF-8
        """
        if columns is not None and stop - start == 1 and mds_read.is_large(shard, start):
            (row,) = self.read_rows(shard, [start], columns)
            return byte_ranges.typed_batch(
                shard, start, stop, columns, lambda one: pa.array([row[one.name]], encodings.BINARY)
            )
        data, places = _fields(shard, start, stop)

        def raw(one: Column) -> pa.Array:
            starts, lengths = places[one.name]
            if one.size is None or lookup(one.encoding).arrow.equals(encodings.BINARY):
                return byte_ranges.values_at(data, starts, lengths, views)
            packed = data[starts[:, None] + np.arange(one.size)]
            return pa.Array.from_buffers(
                pa.binary(one.size), stop - start, [None, pa.py_buffer(packed)]
            )

        return byte_ranges.typed_batch(shard, start, stop, columns, raw)

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the size of an empty shard, and the bytes that each row adds: int64 [rows].

        The bytes of a row are its sample and its table entry.

        raises  ValueFitError for a row that is too large for a shard
        """
        base = 8 + len(_config(columns, settings))
        return base, _weights(columns, batch, base)

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write all rows as one shard such as `shard.00000.mds` or `shard.00000.mds.zstd`.

        All rows remain in memory, because the table precedes the samples and contains all offsets.

        raises  ValueFitError if the shard would exceed 4 GiB
        """
        name, config = name_of(number, self.name), _config(columns, settings)
        rows = sum(batch.num_rows for batch in batches)
        # If rows are small, the table is a large part of the shard, so the table is not copied.
        table = np.empty(rows + 1, "<u4")
        table[0] = size = 8 + 4 * rows + len(config)
        row = 1
        for batch in batches:
            ends = size + np.cumsum(_weights(columns, batch, 8 + len(config)) - 4)
            table[row : row + len(ends)] = ends
            row, size = row + len(ends), int(ends[-1]) if len(ends) else size
        check_shard_size(size, self.name, at / name)
        head = (struct.pack("<I", rows), table.view(np.uint8).data, config)
        parts = itertools.chain(head, samples(columns, batches))
        to, file = write_file(at, name, parts, size, settings)
        return Chunk(to, rows, (file,), self.name)

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check that the lengths in every row match the size of the row.

        values  also check every value
        """
        check = self.read_batch if values else _fields
        return findings_of(runs_of_rows(shard), functools.partial(check, shard))


# -- tables and rows, for all formats of MosaicML Streaming


def row_count(head: memoryview, size: int, chunk: Chunk, where: Location) -> int:
    """Return the number of samples in a table. The number is checked before the table is read.

    head    the first bytes of the file; at least 4, unless the file is shorter
    size    size of the decompressed file in bytes
    raises  FormatError if the table does not fit in the file, or if the number of samples differs
            from the number in the playlist or index
    """
    if size < 8:
        raise FormatError(f"file is {size} bytes; an empty table needs 8", where=where)
    rows = int.from_bytes(head[:4], "little")
    if 8 + 4 * rows > size:
        raise FormatError(
            f"file is {size} bytes; its table of {rows} samples needs {8 + 4 * rows}", where=where
        )
    check_row_count(chunk, rows, "samples", where)
    return rows


def read_starts(data: memoryview, rows: int, *, copy: bool) -> UInt32Array:
    """Return the start of each row in a table, and the end of the last row: uint32 [rows + 1].

    copy  True: copy the table. False: return a view of `data` if the table is aligned
    """
    starts = np.frombuffer(data, "<u4", rows + 1, 4)
    return np.require(starts, np.uint32, ["ALIGNED", "OWNDATA"] if copy else ["ALIGNED"])


def check_config_size(size: int, where: Location) -> None:
    """Raise FormatError if a config is larger than MAX_CONFIG_BYTES."""
    if size > MAX_CONFIG_BYTES:
        raise FormatError(f"config is {size} bytes; the maximum is {MAX_CONFIG_BYTES}", where=where)


def check_shard_size(size: int, form: str, where: Location) -> None:
    """Raise ValueFitError if a shard is too large for the uint32 offsets in its table."""
    if size > MAX_SHARD_BYTES:
        raise ValueFitError(
            f"shard would have {size} bytes; the maximum for {form} is {MAX_SHARD_BYTES}",
            where=where,
            hint="Choose a smaller --shard-size.",
        )


def runs_of_rows(shard: Shard) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive row ranges; each range is checked in one step."""
    return byte_ranges.runs(shard.layout["starts"], _STEP_ROWS, _STEP_BYTES)


def weights(columns: Columns, batch: pa.RecordBatch, fixed: int, base: int, form: str) -> IntArray:
    """Return the size of each row: int64 [rows].

    fixed   bytes of a row without its columns of variable size
    base    size of an empty shard in bytes
    raises  ValueFitError with the row and its largest column if a row is too large for a shard
    """
    variable = [one.name for one in columns if one.size is None]
    sizes = (
        np.full(batch.num_rows, fixed, np.int64)
        if not variable
        else lengths(batch.column(variable[0])) + fixed
    )
    for name in variable[1:]:
        sizes += lengths(batch.column(name))
    if len(sizes) and base + int(sizes.max()) > MAX_SHARD_BYTES:
        row = int(np.argmax(sizes > MAX_SHARD_BYTES - base))
        name = max(variable, key=lambda one: int(lengths(batch.column(one).slice(row, 1))[0]))
        message = f"column {name!r}: row has {sizes[row]} bytes; a {form} shard has at most 4 GiB"
        raise ValueFitError(message, row=row, column=name)
    return sizes


def lengths(array: pa.Array) -> IntArray:
    """Return the size of each value in a bytes or text column, 0 for a null: int64 [rows]."""
    if not array.null_count and array.type in (encodings.BINARY, encodings.TEXT):
        bounds = byte_ranges.value_offsets(array)
        return bounds[1:] - bounds[:-1]  # faster than Arrow
    lengths = pc.fill_null(pc.binary_length(array), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def step_of(rows: int, size: int, columns: int) -> int:
    """Return the number of rows to join at once.

    size  total size of all rows in bytes
    """
    target = max(_JOIN_BYTES, columns * _JOIN_BYTES_PER_COLUMN)
    return int(max(1, min(_STEP_ROWS, target * max(1, rows) // max(1, size))))


# -- reading samples


def _table_fault(starts: UInt32Array, row: int | None, end: int, size: int) -> str:
    """Return the message for an invalid table.

    row  the first row that ends before it starts, or None
    """
    if starts[0] < end:
        return f"sample 0 starts at byte {starts[0]}, inside the table"
    if row is not None:
        return f"sample {row} starts at byte {starts[row]} but ends at byte {starts[row + 1]}"
    if size < starts[-1]:
        return f"file is {size} bytes; its offset table requires {starts[-1]}"
    return f"{size - int(starts[-1])} bytes follow the last sample"


def _fields(
    shard: Shard, start: int, stop: int
) -> tuple[ByteArray, dict[str, tuple[IntArray, IntArray]]]:
    """Return the bytes of rows start..stop, and the location of each value in these bytes.

    return  uint8 [bytes]; column name -> (starts, lengths) of the values, int64 [rows] each
    """
    starts = np.array(shard.layout["starts"][start : stop + 1], np.int64)
    (part,) = byte_ranges.read(shard.chunk, [(int(starts[0]), int(starts[-1]))])
    data = np.frombuffer(part, np.uint8)
    starts -= starts[0]
    rows, ends = stop - start, starts[1:]
    variable = sum(column.size is None for column in shard.columns)
    at = starts[:-1] + 4 * variable
    _refuse(shard, start, at > ends, "too few for its lengths")
    # The size is checked before the arrays below are allocated, because a hostile config may list a
    # million columns.
    fixed = sum(column.size or 0 for column in shard.columns)
    _refuse(shard, start, at + fixed > ends, "which do not match its lengths")
    words = (
        data[starts[:-1, None] + np.arange(4 * variable)].view("<u4").astype(np.int64)
        if variable and rows
        else np.zeros((rows, variable), np.int64)
    )
    places, word = {}, 0
    for column in shard.columns:
        if column.size is None:
            lengths, word = words[:, word], word + 1
        else:
            lengths = np.full(rows, column.size, np.int64)
        places[column.name] = (at, lengths)
        at = at + lengths
    _refuse(shard, start, at != ends, "which do not match its lengths")
    return data, places


def _refuse(shard: Shard, start: int, wrong: BoolArray, fault: str) -> None:
    if wrong.any():
        row = start + int(np.flatnonzero(wrong)[0])
        starts = shard.layout["starts"]
        raise FormatError(
            f"sample has {int(starts[row + 1]) - int(starts[row])} bytes, {fault}",
            where=shard.chunk.at,
            row=row,
        )


@functools.lru_cache(maxsize=8)
def _config(columns: Columns, settings: Settings) -> bytes:
    return mds_config.dumped(mds_config.config(MDS.name, columns, settings))


def _weights(columns: Columns, batch: pa.RecordBatch, base: int) -> IntArray:
    fixed = 4 + sum([4 if column.size is None else column.size for column in columns])
    return weights(columns, batch, fixed, base, MDS.name)


# -- writing samples
#
# numpy first joins adjacent fields of fixed size (lengths, numbers) for thousands of rows at once.
# Arrow then joins them with the fields of variable size.


def samples(columns: Columns, batches: Sequence[pa.RecordBatch]) -> Iterator[memoryview]:
    """Yield the bytes of the samples in order, in pieces that fit in the CPU cache.

    raises  ValueFitError for a null, or for a field of the wrong size
    """
    for batch in batches:
        for start in range(0, batch.num_rows, _STEP_ROWS):
            yield from _join_samples(columns, batch.slice(start, _STEP_ROWS))


def _join_samples(columns: Columns, batch: pa.RecordBatch) -> Iterator[memoryview]:
    pieces = _pieces(columns, batch)
    size = sum(len(byte_ranges.value_bytes(piece)) for piece in pieces)
    step = step_of(batch.num_rows, size, len(pieces))
    for start in range(0, batch.num_rows, step):
        fields = [piece.slice(start, step) for piece in pieces]
        body = (
            fields[0]
            if len(fields) == 1
            else pc.binary_join_element_wise(*fields, pa.scalar(b"", encodings.BINARY))
        )
        yield byte_ranges.value_bytes(body)


def _pieces(columns: Columns, batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the fields of the samples in stored order: large_binary [rows] each.

    Adjacent fields of fixed size are joined into one field.
    """
    fields = []
    for column in columns:
        array = batch.column(column.name)
        if array.null_count:  # Arrow would silently drop a row that contains a null
            raise ValueFitError(
                f"column {column.name!r} is null; mds cannot store nulls", column=column.name
            )
        fields.append(
            encodings.stored(array, lookup(column.encoding))
            if column.size is None
            else _fixed(array, column)
        )
    head = _lengths([field for field in fields if isinstance(field, pa.Array)], batch.num_rows)
    pieces: list[pa.Array] = []
    for is_fixed, group in itertools.groupby([head, *fields], _is_fixed):
        run = list(group)
        pieces += [_joined(run)] if is_fixed else run
    return pieces


def _is_fixed(field: ByteArray | pa.Array) -> bool:
    """Return whether a field has a fixed size.

    Such a field is a numpy array, uint8 [rows, size]; any other field is an Arrow array.
    """
    return isinstance(field, np.ndarray)


def _fixed(array: pa.Array, column: Column) -> ByteArray:
    """Return the stored bytes of a column of fixed size: uint8 [rows, size]."""
    encoding, size = lookup(column.encoding), column.size or 0
    if encoding.arrow.equals(encodings.BINARY):
        raw = encodings.stored(array, encoding)
        offsets, data = byte_ranges.value_offsets(raw), raw.buffers()[2]
        if (np.diff(offsets) != size).any():
            raise ValueFitError(
                f"column {column.name!r}: expected values of {size} bytes", column=column.name
            )
        first = int(offsets[0])
    else:
        data, first = array.buffers()[1], array.offset * size
    return np.frombuffer(
        data if data is not None else b"", np.uint8, len(array) * size, first
    ).reshape(len(array), size)


def _lengths(fields: Sequence[pa.Array], rows: int) -> ByteArray:
    """Return the lengths of fields of variable size as uint32 bytes: uint8 [rows, 4 * fields]."""
    words = np.empty((rows, len(fields)), "<u4")
    for i, field in enumerate(fields):
        words[:, i] = lengths(field)
    return words.view(np.uint8)


def _joined(run: Sequence[ByteArray]) -> pa.Array:
    """Join columns of fixed size into one large_binary array."""
    rows, size = len(run[0]), sum(field.shape[1] for field in run)
    # Without `out`, numpy returns an array in column order if all fields have at most one byte.
    data = np.concatenate(run, axis=1, out=np.empty((rows, size), np.uint8))
    return byte_ranges.rows_by_offsets(data, np.arange(rows + 1, dtype=np.int64) * size)
