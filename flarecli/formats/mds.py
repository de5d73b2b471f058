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

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli import compress
from flarecli.encodings import BINARY, field, held, lookup, stored, typed
from flarecli.errors import FlareError, FormatError, IntegrityError, UsageError, ValueFitError
from flarecli.formats import spans
from flarecli.formats.mds_index import open_dataset, parse_columns, write_index
from flarecli.formats.mds_rows import read_rows
from flarecli.hashes import DEFAULT, Sums
from flarecli.model import Chunk, Column, Columns, File, Finding, IntArray, Settings, Shard
from flarecli.storage import Location

__all__ = [
    "NAME",
    "SUFFIXES",
    "arrange",
    "open_dataset",
    "open_shard",
    "read_batch",
    "read_rows",
    "row_sizes",
    "sniff",
    "verify_shard",
    "write_index",
    "write_shard",
]

NAME, SUFFIXES = "mds", (".mds", *(f".mds.{name}" for name in compress.SUFFIXES))
_FILE_LIMIT = (1 << 32) - 1  # offsets are uint32
_CONFIG_LIMIT = 1 << 24  # bytes of JSON; thousands of columns take less
_HEAD = 1 << 16  # bytes of a remote shard that are asked for before its row count is known
_JOINED = 1 << 20  # bytes joined at once, about: small enough to stay in the cache, and in memory that is used again
_STEP = 8192  # rows joined or checked at once: they stay in the cache
_STEP_BYTES = 64 << 20  # and no more than that, or a single row
_NOTHING = pa.scalar(b"", BINARY)


def sniff(name: str, head: bytes) -> bool:
    """The format has no magic number: only the name can tell."""
    return name.endswith(SUFFIXES)


def open_shard(chunk: Chunk, columns: Columns | None = None) -> Shard:
    """Read the table and the config, and touch none of the samples.

    columns  what an index says they are; the shard's own config must agree
    raises   FormatError if the table does not fit the file or the config is not one
    """
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
    if len(head) < end:
        head = memoryview(bytes(head) + at.read(len(head), end))
    starts = np.frombuffer(head, "<u4", rows + 1, 4)
    first = int(starts[0])
    if not end <= first <= size or int(starts[-1]) != size or (starts[1:] < starts[:-1]).any():
        raise FormatError(_table_fault(starts, end, size), where=at, hint="It was damaged or cut short; fetch or pack it again.")
    if first - end > _CONFIG_LIMIT:
        raise FormatError(f"its config takes {first - end} bytes", where=at)
    if len(head) < first:
        head = memoryview(bytes(head) + at.read(len(head), first))
    own = parse_columns(bytes(head[end:first]), at)
    if columns is not None and own != columns:
        raise IntegrityError("its config names other columns than the index", where=at, hint="Find out which of the two was changed.")
    return Shard(chunk, own, rows, {"starts": starts if view is None else starts.copy()})


def _table_fault(starts: IntArray, end: int, size: int) -> str:
    if int(starts[0]) < end:
        return f"sample 0 starts at byte {starts[0]}, inside the table"
    falls = np.flatnonzero(starts[1:] < starts[:-1])
    if len(falls):
        return f"sample {int(falls[0])} starts at byte {starts[falls[0]]} and ends at byte {starts[falls[0] + 1]}"
    if size < int(starts[-1]):
        return f"ends at byte {size}, its table needs {starts[-1]}"
    return f"{size - int(starts[-1])} bytes follow its last sample"


def read_batch(shard: Shard, start: int, stop: int, columns: Sequence[str] | None = None, views: bool = False) -> pa.RecordBatch:
    """Give rows start..stop as typed columns, in the order of `columns`.

    raises  FormatError naming the first row whose lengths do not add up; ValueFitError for text that is not UTF-8
    """
    data, places = _fields(shard, start, stop)
    by_name = {column.name: column for column in shard.columns}
    arrays, fields = [], []
    for name in by_name if columns is None else columns:
        column = by_name[name]
        encoding = lookup(column.encoding)
        at, lengths = places[name]
        if column.size is not None and not encoding.arrow.equals(BINARY):
            packed = data[at[:, None] + np.arange(column.size)]
            raw = pa.Array.from_buffers(pa.binary(column.size), stop - start, [None, pa.py_buffer(packed)])
        else:
            raw = spans.views(data, at, lengths) if views and len(data) < spans.VIEW_LIMIT else spans.ragged(data, at, lengths)
        try:
            arrays.append(spans.viewed(raw, encoding) if pa.types.is_binary_view(raw.type) else typed(raw, encoding))
        except ValueFitError as error:
            row = start + int(error.where[1:-1])
            raise ValueFitError(f"column {name!r}: {error.message}", where=f"{shard.chunk.at}[{row}]") from None
        fields.append(field(column).with_type(arrays[-1].type))
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * (stop - start), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _fields(shard: Shard, start: int, stop: int) -> tuple[IntArray, dict[str, tuple[IntArray, IntArray]]]:
    """Give the bytes of rows start..stop, and where each column lies in them: name -> (starts, lengths), int64 [rows]."""
    starts = shard.layout["starts"][start : stop + 1].astype(np.int64)
    (part,) = spans.read(shard.chunk, [(int(starts[0]), int(starts[-1]))])
    data = np.frombuffer(part, np.uint8)
    starts -= starts[0]
    rows, ends = stop - start, starts[1:]
    variable = sum(column.size is None for column in shard.columns)
    at = starts[:-1] + 4 * variable
    _refuse(shard, start, at > ends, "bytes cannot hold its lengths")
    words = (
        data[starts[:-1, None] + np.arange(4 * variable)].view("<u4").astype(np.int64) if variable and rows else np.zeros((rows, variable), np.int64)
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
        raise FormatError(f"{int(starts[row + 1]) - int(starts[row])} {what}", where=f"{shard.chunk.at}[{row}]")


def arrange(columns: Iterable[Column]) -> Columns:
    """Sort columns by name, by code point, each as MDS holds it. Raises UsageError for two of one name, none at all, or one that it cannot hold."""
    out = tuple(sorted((held(column, NAME) for column in columns), key=lambda column: column.name))
    if not out:
        raise UsageError("a shard without columns cannot be read back", hint="Name the columns to pack with -c.")
    for one, two in itertools.pairwise(out):
        if one.name == two.name:
            raise UsageError(f"two columns are named {one.name!r}")
    return out


def _config(columns: Columns, settings: Settings) -> bytes:
    return json.dumps(
        {
            "column_encodings": [column.encoding for column in columns],
            "column_names": [column.name for column in columns],
            "column_sizes": [column.size for column in columns],
            "compression": settings.compression,
            "format": NAME,
            "hashes": sorted(settings.hashes),
            "size_limit": settings.shard_bytes,
            "version": 2,
        },
        sort_keys=True,
    ).encode()


def row_sizes(columns: Columns, batch: pa.RecordBatch, settings: Settings) -> tuple[int, IntArray]:
    """Weigh an empty shard and each row of a batch: lengths, fields and the row's own word in the table; int64 [rows]."""
    fixed = 4 + sum(4 if column.size is None else column.size for column in columns)
    sizes = np.full(batch.num_rows, fixed, np.int64)
    for column in columns:
        if column.size is None:
            sizes += pc.binary_length(batch.column(column.name)).to_numpy(zero_copy_only=False)
    return 8 + len(_config(columns, settings)), sizes


def write_shard(at: Location, number: int, columns: Columns, batches: Sequence[pa.RecordBatch], settings: Settings) -> Chunk:
    """Write all rows as one shard: the table needs their sizes, so they wait in memory (one shard's worth).

    Its name is the original's, `shard.00000.mds`: five digits, more past 99,999; a compressed one adds its suffix.

    raises  ValueFitError if it would pass 4 GiB
    """
    name, config = f"shard.{number:05d}.mds", _config(columns, settings)
    to = at / name
    sizes = [row_sizes(columns, batch, settings)[1] for batch in batches]
    rows = sum(map(len, sizes))
    starts = np.full(rows + 1, 8 + 4 * rows + len(config), np.int64)
    np.cumsum(np.concatenate(sizes) - 4, out=(ends := np.empty(rows, np.int64)))
    starts[1:] += ends
    size = int(starts[-1])
    if size > _FILE_LIMIT:
        raise ValueFitError(f"{size} bytes do not fit one MDS shard", where=to, hint="Give a smaller --shard-size.")
    head = struct.pack("<I", rows) + starts.astype("<u4").tobytes() + config
    parts = _parts(head, columns, batches)
    if settings.compression is None:
        written = to.write(parts, {DEFAULT, *settings.hashes})
        return Chunk(to, rows, (File(name, written.size, written.hashes),), NAME)
    raw = Sums({DEFAULT, *settings.hashes})
    to = at / f"{name}.{compress.suffix_of(settings.compression)}"
    written = to.write(compress.compressed(settings.compression, _summed(parts, raw), size), {DEFAULT, *settings.hashes})
    return Chunk(to, rows, (File(to.name, written.size, written.hashes, raw.size, raw.hex()),), NAME)


def _summed(parts: Iterable[Any], sums: Sums) -> Iterator[Any]:
    for part in parts:
        sums.update(part)
        yield part


def _parts(head: bytes, columns: Columns, batches: Sequence[pa.RecordBatch]) -> Iterator[bytes | memoryview]:
    """Give the shard's bytes: Arrow joins the fields of a few thousand rows at a time."""
    yield head
    for batch in batches:
        step = max(1, min(_STEP, _JOINED * max(1, batch.num_rows) // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, step):
            yield _body(batch.slice(start, step), columns)


def _body(batch: pa.RecordBatch, columns: Columns) -> memoryview:
    fields = [stored(batch.column(column.name), lookup(column.encoding)) for column in columns]
    lengths = [_words(array) for array, column in zip(fields, columns, strict=True) if column.size is None]
    if any(array.null_count for array in fields):  # Arrow would drop the whole row without a word
        raise ValueFitError("a null reached the shard")
    pieces = [*lengths, *fields]
    body = pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, _NOTHING)
    offsets = np.frombuffer(body.buffers()[1], np.int64, len(body) + 1, body.offset * 8)
    return memoryview(body.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])]


def _words(array: pa.Array) -> pa.Array:
    return pc.binary_length(array).cast(pa.uint32()).view(pa.binary(4)).cast(BINARY)


def verify_shard(shard: Shard, values: bool = False) -> Iterator[Finding]:
    """Check that every row's lengths add up, and, if asked, that every value is what its encoding says."""
    starts, start, stop = shard.layout["starts"], 0, 0
    while (start := stop) < shard.rows:
        near = np.uint32(min(int(starts[start]) + _STEP_BYTES, _FILE_LIMIT))
        stop = max(start + 1, min(start + _STEP, shard.rows, int(np.searchsorted(starts, near, "right")) - 1))
        try:
            if values:
                read_batch(shard, start, stop)
            else:
                _fields(shard, start, stop)
        except FlareError as error:
            yield Finding(error.where, error.kind, error.message, error.hint)
