"""Shards of lines of MosaicML Streaming: a data file, and a `.meta` file with the start of each
line.

Little-endian, n samples (source: files written by mosaicml-streaming 0.13.0):

    data    the header line of CSV, TSV and XSV; then lines, back to back, each with its newline

    .meta   0         uint32       n
            4         uint32[n+1]  start of each line in the data file; the last is that file's size
            4+4(n+1)  bytes        config, JSON with sorted keys, to the end

Each file may be compressed as a whole and then has the suffix of the compression: `x.json.gz` and
`x.json.meta.gz`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from flarecli import encodings
from flarecli.bisect import findings_of
from flarecli.encodings import lookup
from flarecli.errors import FormatError, UsageError, ValueFitError
from flarecli.expansion import check_rows
from flarecli.formats import byte_ranges as spans
from flarecli.formats.base import Format, Span
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds import index as mds_index
from flarecli.formats.mds import merge as mds_merge
from flarecli.formats.mds import repair_index as mds_reindex
from flarecli.formats.mds.index import name_of, present, raw_name, store
from flarecli.formats.registry import INDEX
from flarecli.lazy import np, pa, pc
from flarecli.model import (
    ByteArray,
    Chunk,
    Columns,
    File,
    Finding,
    IntArray,
    Settings,
    Shard,
    UInt32Array,
)
from flarecli.storage import Location

__all__ = [
    "LIMIT",
    "LineFormat",
    "MosaicFormat",
    "Places",
    "arranged",
    "assembled",
    "bodies",
    "bytes_of",
    "checked",
    "cut",
    "ends",
    "find_all",
    "first_decrease",
    "is_large",
    "joined",
    "lengths",
    "lines_of",
    "opened",
    "pieces",
    "read_starts",
    "row_parts",
    "step_of",
    "stored_columns",
    "weights",
    "write",
]

LIMIT = (1 << 32) - 1  # starts are uint32
_MAX_CONFIG_BYTES = 1 << 24  # enough for thousands of columns
_STEP_ROWS, _STEP_BYTES = 8192, 4 << 20  # rows checked or joined at once; they fit the CPU cache
# Arrow joins about 1 MiB at once, but at least 1 KiB per column, to outweigh the cost of the calls.
_JOIN_BYTES, _JOIN_BYTES_PER_COLUMN = 1 << 20, 1 << 10
_LARGE_ROW_BYTES, _SEARCH_BYTES = 16 << 20, 16 << 20
_HINT = "The file was damaged or cut short; fetch or pack it again."

Places = Mapping[
    str, tuple[IntArray, IntArray]
]  # column -> (starts, lengths) of its values, int64 [rows] each


class MosaicFormat(Format):
    """A format of MosaicML Streaming: an `index.json` lists its shards."""

    index_files = (INDEX,)
    checks_forward = True

    open_dataset = staticmethod(mds_index.open_dataset)
    merge_indexes = staticmethod(mds_merge.merge)
    repair_index = staticmethod(mds_reindex.rebuild)

    def written_by(self, listed_by: str) -> str | None:
        """Return the version of the index that lists a dataset."""
        return "MDS version 2" if listed_by == INDEX else None

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span:
        """Return the byte range of a row."""
        starts = shard.layout["starts"]
        return shard.chunk.at, int(starts[row]), int(starts[row + 1])

    def write_index(
        self, at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings
    ) -> dict[str, File]:
        """Write `index.json` as the original does."""
        return mds_index.write_index(at, chunks, columns, settings, self.name)


class LineFormat(MosaicFormat):
    """A format of lines of text, with a `.meta` file per data file."""

    is_multi_file = True
    sizes_are_exact = False  # as in the original, headers and `.meta` files do not count

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether a file has the original's name of a shard; other files end in `.json` too."""
        return name.endswith(self.suffixes) and name.rpartition("/")[2].startswith("shard.")


def opened(
    chunk: Chunk,
    columns: Columns | None,
    form: str,
    parse_layout: Callable[[Columns, Mapping[str, Any], object], Mapping[str, Any]],
) -> Shard:
    """Read the `.meta` of a shard and compare it with the size of the data, which is read only if
    compressed.

    columns        the columns that an index or a playlist lists
    parse_layout   (columns, config, where) -> further items of the layout, among them `header`: the
                   bytes before the first line
    raises         FormatError if the table does not fit the data; IntegrityError if the columns are
                   not the listed ones
    """
    chunk, meta = present(chunk), present(_companion(chunk))
    _check_listed(chunk, meta)
    view = spans.whole(meta)
    data = view if view is not None else memoryview(meta.at.read(0, spans.stored_size(meta)))
    if len(data) < 8:
        raise FormatError(f"file is {len(data)} bytes; an empty table needs 8", where=meta.at)
    rows = int.from_bytes(data[:4], "little")
    end = 8 + 4 * rows
    if end > len(data):
        raise FormatError(
            f"file is {len(data)} bytes; its table of {rows} samples needs {end}", where=meta.at
        )
    if chunk.rows is not None and rows != chunk.rows:
        raise FormatError(f"contains {rows} samples; {chunk.rows} are listed", where=meta.at)
    if len(data) - end > _MAX_CONFIG_BYTES:
        raise FormatError(
            f"config is {len(data) - end} bytes; at most {_MAX_CONFIG_BYTES} are read",
            where=meta.at,
        )
    stored = spans.stored_size(chunk) + spans.stored_size(meta)
    check_rows(rows, 1, stored, meta.at)
    config, own = mds_config.parse_config(bytes(data[end:]), form, meta.at)
    check_rows(rows, len(own), stored, meta.at)
    own = mds_config.agreed(own, columns, form, meta.at)
    layout = dict(parse_layout(own, config, meta.at))
    starts = read_starts(data, rows, copy=bool(spans.suffix(meta)))
    _check(starts, len(layout["header"]), _data_size(chunk), chunk, meta)
    files = (*(chunk.files[:1] or (File(chunk.at.name),)), *meta.files)
    return Shard(
        replace(chunk, files=files, beside=(meta.at,)), own, rows, {"starts": starts, **layout}
    )


def read_starts(data: memoryview, rows: int, *, copy: bool) -> UInt32Array:
    """Return the start of each row from a shard's table, and the end: uint32 [rows + 1].

    copy  False: the array is a view of `data` if that is aligned, and keeps it in memory
    """
    starts = np.frombuffer(data, "<u4", rows + 1, 4)
    return np.require(starts, np.uint32, ["ALIGNED", "OWNDATA"] if copy else ["ALIGNED"])


def first_decrease(starts: UInt32Array) -> int | None:
    """Return the first row that ends before it starts, or None."""
    decreases = starts[1:] < starts[:-1]
    return int(np.argmax(decreases)) if decreases.any() else None


def _check_listed(chunk: Chunk, meta: Chunk) -> None:
    """Raise FormatError if the listed size of the `.meta` is too large for its rows, before it is
    read.
    """
    listed = meta.files[0].size if meta.files[0].raw_size is None else meta.files[0].raw_size
    if (
        chunk.rows is not None
        and listed is not None
        and listed > 8 + 4 * chunk.rows + _MAX_CONFIG_BYTES
    ):
        raise FormatError(
            f"lists {listed} bytes, too many for a table of {chunk.rows} samples",
            where=meta.at,
        )


def _companion(chunk: Chunk) -> Chunk:
    """Return the `.meta` of a shard, as listed or by its name."""
    if chunk.beside:
        return spans.of(chunk.beside[0], chunk.files[1])
    at, name = chunk.at, chunk.files[0].name if chunk.files else chunk.at.name
    return spans.of(at.folder / _meta_name(at.name), File(_meta_name(name)))


def _meta_name(name: str) -> str:
    raw = raw_name(name)
    return f"{raw}.meta{name[len(raw) :]}"


def _data_size(chunk: Chunk) -> int:
    if not spans.suffix(chunk):
        return spans.stored_size(chunk)
    listed = chunk.files[0].raw_size if chunk.files else None
    if listed is not None:
        return listed  # checked when the data is decompressed
    view = spans.whole(chunk)
    return 0 if view is None else len(view)


def _check(starts: UInt32Array, header: int, size: int, chunk: Chunk, meta: Chunk) -> None:
    if int(starts[0]) != header:
        raise FormatError(
            f"expected the first line at byte {header} of the data, got {starts[0]}",
            where=meta.at,
            hint=_HINT,
        )
    row = first_decrease(starts)
    if row is not None:
        raise FormatError(
            f"line {row} starts at byte {starts[row]} and ends at byte {starts[row + 1]}",
            where=meta.at,
            hint=_HINT,
        )
    if int(starts[-1]) != size:
        raise FormatError(
            f"file is {size} bytes; its table needs {starts[-1]}", where=chunk.at, hint=_HINT
        )


def lines_of(shard: Shard, rows: Sequence[int]) -> list[bytes | memoryview]:
    """Return lines with their newline in the order asked; close lines share a read."""
    table = memoryview(shard.layout["starts"])  # its items are Python integers
    view: memoryview | None = shard.memo.get("view")
    # A decompressed shard must not outlive its cache.
    if view is None and not spans.suffix(shard.chunk):
        view = spans.whole(shard.chunk)
        if view is not None:
            shard.memo["view"] = view
    if view is not None and len(rows) == 1:
        return [view[table[rows[0]] : table[rows[0] + 1]]]
    return spans.read(shard.chunk, [(table[row], table[row + 1]) for row in rows])


def bytes_of(shard: Shard, start: int, stop: int) -> tuple[ByteArray, IntArray]:
    """Return the bytes of lines start..stop, uint8, and the start of each, int64 [rows + 1]."""
    starts = np.array(shard.layout["starts"][start : stop + 1], np.int64)
    (part,) = spans.read(shard.chunk, [(int(starts[0]), int(starts[-1]))])
    return np.frombuffer(part, np.uint8), starts - starts[0]


def find_all(data: ByteArray, text: bytes) -> IntArray:
    """Return the positions of a text in `data`, overlaps included, in increasing order: int64."""
    steps = range(0, len(data), _SEARCH_BYTES)  # bounds the memory of comparisons
    found = [i + np.flatnonzero(data[i : i + _SEARCH_BYTES] == text[0]) for i in steps]
    at = np.concatenate(found) if found else np.zeros(0, np.int64)
    if len(text) > 1:
        at = at[at <= len(data) - len(text)]
        for i in range(1, len(text)):
            at = at[data[at + i] == text[i]]
    return at


def cut(data: ByteArray, places: Places, views: bool) -> Callable[[str], pa.Array]:
    """Return a function that makes the array of a column's stored bytes; with `views`, without
    copying.
    """
    make = spans.views if views and len(data) < spans.VIEW_LIMIT else spans.ragged
    return lambda name: make(data, *places[name])


def assembled(
    shard: Shard, start: int, stop: int, names: Sequence[str] | None, raw: Callable[[str], pa.Array]
) -> pa.RecordBatch:
    """Return stored bytes as typed columns.

    raw     name -> large_binary, binary_view, or fixed-size binary [rows]
    raises  ValueFitError naming the row for text that is not UTF-8
    """
    by_name = {one.name: one for one in shard.columns}
    arrays, fields = [], []
    for name in by_name if names is None else names:
        encoding, array = lookup(by_name[name].encoding), raw(name)
        try:
            arrays.append(
                spans.viewed(array, encoding)
                if pa.types.is_binary_view(array.type)
                else encodings.typed(array, encoding)
            )
        except ValueFitError as error:
            raise error.at(shard.chunk.at, start).changed(
                message=f"column {name!r:.60}: {error.message}", column=name
            ) from None
        fields.append(encodings.field(by_name[name]).with_type(arrays[-1].type))
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * (stop - start), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def steps(shard: Shard) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of runs of rows with bounded bytes."""
    starts, start = memoryview(shard.layout["starts"]), 0
    while start < shard.rows:
        stop = max(
            start + 1,
            min(
                start + _STEP_ROWS,
                shard.rows,
                bisect_right(starts, starts[start] + _STEP_BYTES) - 1,
            ),
        )
        yield start, stop
        start = stop


def checked(shard: Shard, check: Callable[[int, int], Any]) -> Iterator[Finding]:
    """Check a shard run by run and yield a finding for each invalid row."""
    return findings_of(steps(shard), check)


# -- writing


def arranged(columns: Columns) -> Columns:
    """Return columns sorted by the code points of their names.

    raises  UsageError for duplicate names, or no columns
    """
    out = tuple(sorted(columns, key=lambda one: one.name))
    if not out:
        raise UsageError(
            "a shard needs at least one column", hint="Select the columns to pack with -c."
        )
    for one, two in pairwise(out):
        if one.name == two.name:
            raise UsageError(f"duplicate column name {one.name!r}")
    return out


def weights(columns: Columns, batch: pa.RecordBatch, fixed: int, base: int, form: str) -> IntArray:
    """Return the size of each row: int64 [rows].

    fixed   bytes of a row besides its columns of variable size
    base    bytes of an empty shard
    raises  ValueFitError naming the row and its largest column if it does not fit a shard, whose
            starts are uint32
    """
    variable = [one.name for one in columns if one.size is None]
    sizes = (
        np.full(batch.num_rows, fixed, np.int64)
        if not variable
        else lengths(batch.column(variable[0])) + fixed
    )
    for name in variable[1:]:
        sizes += lengths(batch.column(name))
    if len(sizes) and base + int(sizes.max()) > LIMIT:
        row = int(np.argmax(sizes > LIMIT - base))
        name = max(variable, key=lambda one: int(lengths(batch.column(one).slice(row, 1))[0]))
        message = f"column {name!r}: row has {sizes[row]} bytes; a {form} shard has at most 4 GiB"
        raise ValueFitError(message, row=row, column=name)
    return sizes


def lengths(array: pa.Array) -> IntArray:
    """Return the bytes of each value of a column of bytes or text, 0 for a null: int64 [rows]."""
    if not array.null_count and array.type in (encodings.BINARY, encodings.TEXT):
        bounds = ends(array)
        return bounds[1:] - bounds[:-1]  # faster than Arrow
    lengths = pc.fill_null(pc.binary_length(array), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def ends(array: pa.Array) -> IntArray:
    """Return the offsets of a large_binary or large_string array: int64 [rows + 1]."""
    return np.frombuffer(array.buffers()[1] or bytes(8), np.int64, len(array) + 1, array.offset * 8)


def step_of(rows: int, size: int, columns: int) -> int:
    """Return how many rows Arrow joins at once, of `rows` rows with `size` bytes."""
    target = max(_JOIN_BYTES, columns * _JOIN_BYTES_PER_COLUMN)
    return int(max(1, min(_STEP_ROWS, target * max(1, rows) // max(1, size))))


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch with `step_of` rows each."""
    step = step_of(batch.num_rows, batch.nbytes, batch.num_columns)
    return (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def bodies(
    batches: Iterable[pa.RecordBatch], body: Callable[[pa.RecordBatch], Sequence[memoryview]]
) -> Iterator[memoryview]:
    """Yield the lines of batches, as the buffers that `body` returns for each piece.

    raises  ValueFitError of `body`, with the row counted from the first batch
    """
    first = 0
    for batch in batches:
        for piece in pieces(batch):
            try:
                yield from body(piece)
            except ValueFitError as error:
                raise error.at("", first) from None
            first += piece.num_rows


def is_large(piece: pa.RecordBatch) -> bool:
    """Return whether a piece is one row that is written value by value, to copy none of them."""
    return bool(piece.num_rows == 1 and piece.nbytes > _LARGE_ROW_BYTES)


def row_parts(parts: Sequence[Any]) -> list[memoryview]:
    """Return the buffers of one row: `parts` as for `joined`."""
    return [
        memoryview((part if isinstance(part, bytes) else next(encodings.raw_values(part))) or b"")
        for part in parts
    ]


def stored_columns(columns: Columns, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the stored bytes of the columns: large_binary [rows] each. Raises ValueFitError for a
    null.
    """
    out = {
        one.name: encodings.stored(batch.column(one.name), lookup(one.encoding)) for one in columns
    }
    for name, array in out.items():
        if array.null_count:  # Arrow would silently drop the whole line
            row = pc.index(array.is_null(), True).as_py()
            message = f"column {name!r} is null; lines cannot store nulls"
            raise ValueFitError(message, row=row, column=name)
    return out


def joined(parts: Sequence[Any]) -> tuple[memoryview, IntArray]:
    """Join columns and constant texts row by row; return all bytes and the row offsets, int64 [rows
    + 1].

    parts  columns of bytes, large_binary [rows], or bytes that are the same in every row
    """
    body = pc.binary_join_element_wise(
        *(pa.scalar(part, encodings.BINARY) if isinstance(part, bytes) else part for part in parts),
        pa.scalar(b"", encodings.BINARY),
    )
    offsets = np.frombuffer(body.buffers()[1], np.int64, len(body) + 1, body.offset * 8)
    return memoryview(body.buffers()[2] or b"")[
        int(offsets[0]) : int(offsets[-1])
    ], offsets - offsets[0]


def write(
    at: Location,
    number: int,
    form: str,
    columns: Columns,
    settings: Settings,
    header: bytes,
    sizes: Sequence[IntArray],
    bodies: Iterator[Any],
) -> Chunk:
    """Write the data file and its `.meta`.

    sizes   sizes of the lines, batch by batch: int64 [rows]
    bodies  the same lines, joined
    raises  ValueFitError if the data would exceed 4 GiB
    """
    lengths = np.concatenate([*sizes, np.zeros(0, np.int64)])
    starts = np.full(len(lengths) + 1, len(header), np.int64)
    starts[1:] += np.cumsum(lengths)
    size, name = int(starts[-1]), name_of(number, form)
    if size > LIMIT:
        raise ValueFitError(
            f"shard would have {size} bytes; {form} allows {LIMIT}",
            where=at / name,
            hint="Choose a smaller --shard-size.",
        )
    table = b"".join(
        (
            len(lengths).to_bytes(4, "little"),
            starts.astype("<u4").tobytes(),
            mds_config.dumped(mds_config.config(form, columns, settings)),
        )
    )
    to, file = store(at, name, _joined(header, bodies), size, settings)
    companion, meta = store(at, f"{name}.meta", [table], len(table), settings)
    return Chunk(to, len(lengths), (file, meta), form, (companion,))


def _joined(header: bytes, bodies: Iterator[Any]) -> Iterator[Any]:
    if header:
        yield header
    yield from bodies
