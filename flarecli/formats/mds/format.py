"""MDS: samples behind one table of offsets, the binary shard of MosaicML Streaming.

Little-endian, n samples (source: files written by mosaicml-streaming 0.13.0):

    0             uint32       n
    4             uint32[n+1]  start of each sample in the file; the last is the file's size
    4 + 4(n+1)    bytes        config, JSON with sorted keys, up to where the first sample starts
    start[0]      bytes        samples, back to back

A sample is a uint32 length for each column of variable size, then the bytes of every column; columns are sorted
by name, by code point. A compressed shard is the whole file in one frame, with the suffix of the compression.
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

_CONFIG_LIMIT = 1 << 24  # bytes of JSON; thousands of columns take less
_FEW = 256  # rows in a run of a bounded number of bytes that are checked one by one
_HEAD = 1 << 16  # bytes of a remote shard that are asked for before its row count is known


class MDS(lines.MosaicFormat):
    """MosaicML Streaming's binary shards."""

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
        """Read the table and the config, and touch none of the samples.

        columns  what an index says they are; the shard's own config must agree
        raises   FormatError if the table does not fit the file or the config is not one
        """
        chunk = present(chunk)
        at, view = chunk.at, spans.whole(chunk)
        size = len(view) if view is not None else spans.stored_size(chunk)
        guess = min(size, 8 + 4 * (chunk.rows + 1) + 2048 if chunk.rows is not None else _HEAD)
        head = view if view is not None else memoryview(at.read(0, guess))
        if size < 8:
            raise FormatError(f"{size} bytes is less than the 8 of an empty table", where=at)
        rows = int.from_bytes(head[:4], "little")
        end = 8 + 4 * rows
        if end > size:
            raise FormatError(f"{size} bytes cannot hold a table of {rows} samples", where=at)
        if chunk.rows is not None and rows != chunk.rows:
            raise FormatError(f"holds {rows} samples, {chunk.rows} are listed", where=at)
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
                hint="It was damaged or cut short; fetch or pack it again.",
            )
        if first - end > _CONFIG_LIMIT:
            raise FormatError(f"its config takes {first - end} bytes", where=at)
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
        """Give rows start..stop as typed columns, in the order of `columns`.

        raises  FormatError naming a row whose lengths do not add up, one that is too short before others; ValueFitError for text that is not UTF-8
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
        """Sort columns by name, by code point, each as MDS holds it. Raises UsageError for two of one name, none at all, or one that it cannot hold."""
        return lines.arranged(tuple(self.held(column) for column in columns))

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Weigh an empty shard and each row of a batch: lengths, fields and the row's own word in the table; int64 [rows].

        raises  ValueFitError for a row that no shard holds
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
        """Write all rows as one shard: the table needs their sizes, so they wait in memory (one shard's worth).

        Its name is the original's, `shard.00000.mds`: five digits, more past 99,999; a compressed one adds its suffix.

        raises  ValueFitError if it would pass 4 GiB
        """
        name, config = name_of(number, self.name), _config(columns, settings)
        sizes = [_weights(columns, batch, 8 + len(config)) for batch in batches]
        rows = sum(map(len, sizes))
        starts = np.full(rows + 1, 8 + 4 * rows + len(config), np.int64)
        starts[1:] += np.cumsum(np.concatenate([*sizes, np.zeros(0, np.int64)]) - 4)
        size = int(starts[-1])
        if size > lines.LIMIT:
            raise ValueFitError(
                f"{size} bytes do not fit one MDS shard",
                where=at / name,
                hint="Give a smaller --shard-size.",
            )
        head = struct.pack("<I", rows) + starts.astype("<u4").tobytes() + config
        to, file = store(
            at, name, itertools.chain((head,), bodies(columns, batches)), size, settings
        )
        return Chunk(to, rows, (file,), self.name)

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check that every row's lengths add up, and, if asked, that every value is what its encoding says."""
        lengths = struct.Struct(f"<{sum(column.size is None for column in shard.columns)}I")
        fixed = lengths.size + sum(column.size or 0 for column in shard.columns)

        def check(start: int, stop: int) -> None:
            if values:
                self.read_batch(shard, start, stop)
            elif stop - start > _FEW or not _fit(shard, start, stop, lengths, fixed):
                _fields(shard, start, stop)  # which says what is wrong

        return lines.checked(shard, check)


def _table_fault(starts: UInt32Array, end: int, size: int) -> str:
    if starts[0] < end:
        return f"sample 0 starts at byte {starts[0]}, inside the table"
    fall = lines.first_decrease(starts)
    if fall is not None:
        return f"sample {fall} starts at byte {starts[fall]} and ends at byte {starts[fall + 1]}"
    if size < starts[-1]:
        return f"ends at byte {size}, its table needs {starts[-1]}"
    return f"{size - int(starts[-1])} bytes follow its last sample"


def _fields(
    shard: Shard, start: int, stop: int
) -> tuple[IntArray, dict[str, tuple[IntArray, IntArray]]]:
    """Give the bytes of rows start..stop, and where each column lies in them: name -> (starts, lengths), int64 [rows]."""
    starts = np.array(shard.layout["starts"][start : stop + 1], np.int64)
    (part,) = spans.read(shard.chunk, [(int(starts[0]), int(starts[-1]))])
    data = np.frombuffer(part, np.uint8)
    starts -= starts[0]
    rows, ends = stop - start, starts[1:]
    variable = sum(column.size is None for column in shard.columns)
    at = starts[:-1] + 4 * variable
    _refuse(shard, start, at > ends, "bytes cannot hold its lengths")
    fixed = sum(
        column.size or 0 for column in shard.columns
    )  # a config may name a million columns: a place for each of them is made below
    _refuse(shard, start, at + fixed > ends, "bytes are not what its lengths say")
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
    _refuse(shard, start, at != ends, "bytes are not what its lengths say")
    return data, places


def _refuse(shard: Shard, start: int, wrong: IntArray, what: str) -> None:
    if wrong.any():
        row = start + int(np.flatnonzero(wrong)[0])
        starts = shard.layout["starts"]
        raise FormatError(
            f"{int(starts[row + 1]) - int(starts[row])} {what}", where=shard.chunk.at, row=row
        )


@functools.lru_cache(maxsize=8)
def _config(columns: Columns, settings: Settings) -> bytes:
    return mds_config.dumped(mds_config.config(MDS.name, columns, settings))


def _weights(columns: Columns, batch: pa.RecordBatch, base: int) -> IntArray:
    fixed = 4 + sum([4 if column.size is None else column.size for column in columns])
    return lines.weights(columns, batch, fixed, base, MDS.name)


def _fit(shard: Shard, start: int, stop: int, lengths: struct.Struct, fixed: int) -> bool:
    """Say whether the lengths of rows start..stop add up, `fixed` bytes of each in any case: of rows so few, and large, before numpy is loaded."""
    bounds = shard.layout["starts"][start : stop + 1].tolist()
    (part,) = spans.read(shard.chunk, [(bounds[0], bounds[-1])])
    sizes = [*map(sub, bounds[1:], bounds)]
    if min(sizes) < lengths.size:
        return False
    words = map(lengths.unpack_from, itertools.repeat(part), [at - bounds[0] for at in bounds[:-1]])
    return [*map(sum, words)] == [size - fixed for size in sizes]
