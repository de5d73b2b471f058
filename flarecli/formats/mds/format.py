"""MDS: the binary shards of MosaicML Streaming, samples after one table of offsets.

Little-endian, n samples (source: files written by mosaicml-streaming 0.13.0):

    0             uint32       n
    4             uint32[n+1]  start of each sample in the file; the last is the file's size
    4 + 4(n+1)    bytes        config, JSON with sorted keys, up to the first sample
    start[0]      bytes        samples, back to back

A sample is a uint32 length for each column of variable size, then the bytes of every column.
Columns are sorted by the code points of their names. A compressed shard is the whole file in one
frame, with the suffix of the compression.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import sub
from typing import ClassVar

from flarecli import compress, encodings
from flarecli.encodings import lookup
from flarecli.errors import FormatError, ValueFitError
from flarecli.expansion import check_rows
from flarecli.formats import byte_ranges as spans
from flarecli.formats.base import LISTED_PICTURES, Substitutes
from flarecli.formats.lines import base as lines
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds import read as mds_read
from flarecli.formats.mds.index import name_of, present, store
from flarecli.formats.mds.write import bodies
from flarecli.lazy import np, pa
from flarecli.model import (
    BoolArray,
    ByteArray,
    Chunk,
    Column,
    Columns,
    Finding,
    IntArray,
    Row,
    Settings,
    Shard,
    UInt32Array,
)
from flarecli.storage import Location

__all__ = ["MDS"]

_MAX_CONFIG_BYTES = 1 << 24  # enough for thousands of columns
_MAX_ROWS_WITHOUT_NUMPY = 256  # rows in a run that `verify_shard` checks one by one
_HEAD_BYTES = 1 << 16  # first read of a remote shard whose row count is unknown


class MDS(lines.MosaicFormat):
    """The binary shards of MosaicML Streaming."""

    name = "mds"
    suffixes = (".mds", *(f".mds.{name}" for name in compress.SUFFIXES))
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
    read_columns = staticmethod(mds_read.find_columns)

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads one sample."""
        return mds_read.row_reader(shard, columns) or super().row_reader(shard, columns)

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the table and the config, but no samples.

        columns  the columns that an index lists; the shard's config must agree
        raises   FormatError if the table does not fit the file or the config is invalid
        """
        chunk = present(chunk)
        at, view = chunk.at, spans.whole(chunk)
        size = len(view) if view is not None else spans.stored_size(chunk)
        guess = min(
            size, 8 + 4 * (chunk.rows + 1) + 2048 if chunk.rows is not None else _HEAD_BYTES
        )
        head = view if view is not None else memoryview(at.read(0, guess))
        if size < 8:
            raise FormatError(f"file is {size} bytes; an empty table needs 8", where=at)
        rows = int.from_bytes(head[:4], "little")
        end = 8 + 4 * rows
        if end > size:
            raise FormatError(
                f"file is {size} bytes; its table of {rows} samples needs {end}", where=at
            )
        if chunk.rows is not None and rows != chunk.rows:
            raise FormatError(f"contains {rows} samples; {chunk.rows} are listed", where=at)
        if spans.suffix(chunk):
            check_rows(rows, 1, spans.stored_size(chunk), at)
        if len(head) < end:
            head = memoryview(bytes(head) + at.read(len(head), end))
        starts = lines.read_starts(head, rows, copy=bool(spans.suffix(chunk)))
        first, last = int(starts[0]), int(starts[-1])
        if not end <= first <= size or last != size or lines.first_decrease(starts) is not None:
            raise FormatError(
                _table_fault(starts, end, size),
                where=at,
                hint="The file was damaged or cut short; fetch or pack it again.",
            )
        if first - end > _MAX_CONFIG_BYTES:
            raise FormatError(
                f"config is {first - end} bytes; at most {_MAX_CONFIG_BYTES} are read", where=at
            )
        if len(head) < first:
            head = memoryview(bytes(head) + at.read(len(head), first))
        own = mds_config.agreed(
            mds_config.own_columns(bytes(head[end:first]), self.name, at), columns, self.name, at
        )
        if spans.suffix(chunk):
            check_rows(rows, len(own), spans.stored_size(chunk), at)
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

        raises  FormatError naming a row whose lengths do not add up; ValueFitError for text that is
                not UTF-8
        """
        data, places = _fields(shard, start, stop)
        by_name = {column.name: column for column in shard.columns}
        cut = lines.cut(data, places, views)

        def raw(name: str) -> pa.Array:
            one = by_name[name]
            if one.size is None or lookup(one.encoding).arrow.equals(encodings.BINARY):
                return cut(name)
            packed = data[places[name][0][:, None] + np.arange(one.size)]
            return pa.Array.from_buffers(
                pa.binary(one.size), stop - start, [None, pa.py_buffer(packed)]
            )

        return lines.assembled(shard, start, stop, columns, raw)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return columns as MDS stores them, sorted by the code points of their names.

        raises  UsageError for duplicate names, no columns, or one that MDS cannot store
        """
        return lines.arranged(tuple(self.held(column) for column in columns))

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the size of an empty shard and of each row with its table entry: int64 [rows].

        raises  ValueFitError for a row that does not fit any shard
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
        """Write all rows as one shard, `shard.00000.mds`, and the suffix of its compression.

        The rows of a shard stay in memory: the table before them needs their sizes.

        raises  ValueFitError if the shard would exceed 4 GiB
        """
        name, config = name_of(number, self.name), _config(columns, settings)
        sizes = [_weights(columns, batch, 8 + len(config)) for batch in batches]
        rows = sum(map(len, sizes))
        starts = np.full(rows + 1, 8 + 4 * rows + len(config), np.int64)
        starts[1:] += np.cumsum(np.concatenate([*sizes, np.zeros(0, np.int64)]) - 4)
        size = int(starts[-1])
        if size > lines.LIMIT:
            raise ValueFitError(
                f"shard would have {size} bytes; MDS allows {lines.LIMIT}",
                where=at / name,
                hint="Choose a smaller --shard-size.",
            )
        head = struct.pack("<I", rows) + starts.astype("<u4").tobytes() + config
        to, file = store(
            at, name, itertools.chain((head,), bodies(columns, batches)), size, settings
        )
        return Chunk(to, rows, (file,), self.name)

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check that the lengths of every row add up and, with `values`, every value."""
        lengths = struct.Struct(f"<{sum(column.size is None for column in shard.columns)}I")
        fixed = lengths.size + sum(column.size or 0 for column in shard.columns)

        def check(start: int, stop: int) -> None:
            if values:
                self.read_batch(shard, start, stop)
            elif stop - start > _MAX_ROWS_WITHOUT_NUMPY or not _fit(
                shard, start, stop, lengths, fixed
            ):
                _fields(shard, start, stop)  # raises with the row

        return lines.checked(shard, check)


def _table_fault(starts: UInt32Array, end: int, size: int) -> str:
    if starts[0] < end:
        return f"sample 0 starts at byte {starts[0]}, inside the table"
    row = lines.first_decrease(starts)
    if row is not None:
        return f"sample {row} starts at byte {starts[row]} and ends at byte {starts[row + 1]}"
    if size < starts[-1]:
        return f"file is {size} bytes; its table needs {starts[-1]}"
    return f"{size - int(starts[-1])} bytes follow the last sample"


def _fields(
    shard: Shard, start: int, stop: int
) -> tuple[ByteArray, dict[str, tuple[IntArray, IntArray]]]:
    """Return the bytes of rows start..stop and the place of each column in them.

    return  uint8 [bytes]; name -> (starts, lengths), int64 [rows] each
    """
    starts = np.array(shard.layout["starts"][start : stop + 1], np.int64)
    (part,) = spans.read(shard.chunk, [(int(starts[0]), int(starts[-1]))])
    data = np.frombuffer(part, np.uint8)
    starts -= starts[0]
    rows, ends = stop - start, starts[1:]
    variable = sum(column.size is None for column in shard.columns)
    at = starts[:-1] + 4 * variable
    _refuse(shard, start, at > ends, "bytes are too few for its lengths")
    # Checked before the arrays below are made: a hostile config may name a million columns.
    fixed = sum(column.size or 0 for column in shard.columns)
    _refuse(shard, start, at + fixed > ends, "bytes do not match its lengths")
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
    _refuse(shard, start, at != ends, "bytes do not match its lengths")
    return data, places


def _refuse(shard: Shard, start: int, wrong: BoolArray, fault: str) -> None:
    if wrong.any():
        row = start + int(np.flatnonzero(wrong)[0])
        starts = shard.layout["starts"]
        raise FormatError(
            f"{int(starts[row + 1]) - int(starts[row])} {fault}", where=shard.chunk.at, row=row
        )


@functools.lru_cache(maxsize=8)
def _config(columns: Columns, settings: Settings) -> bytes:
    return mds_config.dumped(mds_config.config(MDS.name, columns, settings))


def _weights(columns: Columns, batch: pa.RecordBatch, base: int) -> IntArray:
    fixed = 4 + sum([4 if column.size is None else column.size for column in columns])
    return lines.weights(columns, batch, fixed, base, MDS.name)


def _fit(shard: Shard, start: int, stop: int, lengths: struct.Struct, fixed: int) -> bool:
    """Return whether the lengths of rows start..stop add up, without loading numpy.

    fixed  bytes of a row that do not depend on its lengths
    """
    bounds = shard.layout["starts"][start : stop + 1].tolist()
    (part,) = spans.read(shard.chunk, [(bounds[0], bounds[-1])])
    sizes = [*map(sub, bounds[1:], bounds)]
    if min(sizes) < lengths.size:
        return False
    words = map(lengths.unpack_from, itertools.repeat(part), [at - bounds[0] for at in bounds[:-1]])
    return [*map(sum, words)] == [size - fixed for size in sizes]
