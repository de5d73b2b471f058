"""Line-based shards of MosaicML Streaming: a data file, and a `.meta` file of line offsets.

Little-endian, n samples (source: files written by mosaicml-streaming 0.13.0):

    data    the header line of CSV, TSV and XSV; then lines, back to back, each with its newline

    .meta   0         uint32       n
            4         uint32[n+1]  start of each line in the data file, and the size of that file
            4+4(n+1)  bytes        config, JSON with sorted keys, up to the end of the file

Each file may be compressed; its name then ends with the suffix of the compression: `x.json.gz` and
`x.json.meta.gz`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from flarecli import encodings
from flarecli.bisect import findings_of
from flarecli.encodings import lookup
from flarecli.errors import FormatError, ValueFitError
from flarecli.expansion import check_rows
from flarecli.formats import byte_ranges
from flarecli.formats.base import Ranges
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds.format import (
    MAX_CONFIG_BYTES,
    MosaicFormat,
    check_config_size,
    check_shard_size,
    read_starts,
    row_count,
    runs_of_rows,
    step_of,
    weights,
)
from flarecli.formats.mds.index import name_of, present, raw_name
from flarecli.formats.shard_files import DAMAGED, write_file
from flarecli.lazy import np, pa, pc
from flarecli.model import (
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
    "LineFormat",
    "LineWriter",
    "Places",
    "bytes_of",
    "find_all",
    "joined",
    "lines_of",
    "pieces",
    "stored_columns",
]

_LARGE_ROW_BYTES = 16 << 20  # the values of larger rows are written one by one
_SEARCH_BYTES = 16 << 20  # number of bytes that one step of a search compares

Places = Mapping[
    str, tuple[IntArray, IntArray]
]  # column -> (starts, lengths) of its values, int64 [rows] each


class LineWriter(NamedTuple):
    """The header and the functions with which a format writes lines.

    header       bytes before the first line
    fixed_bytes  number of bytes in a line besides the values, such as separators
    check        function that checks a batch. It raises ValueFitError for the first row that a
                 reader would not read back unchanged
    parts        function that returns the parts of the lines of a checked batch, in order. A part
                 is a column, large_binary [rows], or bytes that are the same in every line
    """

    header: bytes
    fixed_bytes: int
    check: Callable[[pa.RecordBatch], None]
    parts: Callable[[pa.RecordBatch], Sequence[Any]]


class LineFormat(MosaicFormat):
    """Base class for formats with one line of text per row, and a `.meta` file per data file."""

    is_multi_file = True
    sizes_are_exact = False  # the sizes omit headers, because MosaicML Streaming omits them

    def parse_layout(
        self, columns: Columns, config: Mapping[str, Any], where: object
    ) -> Mapping[str, Any]:
        """Return facts about the lines; the entry `header` contains the bytes before the lines."""
        raise NotImplementedError

    def line_writer(self, columns: Columns, settings: Settings) -> LineWriter:
        """Return the writer for lines of these columns.

        raises  UsageError if a reader could not split the lines
        """
        raise NotImplementedError

    def locate(self, shard: Shard, data: ByteArray, starts: IntArray) -> Places | None:
        """Locate each value in consecutive lines; None if the lines must be split one by one.

        data    bytes of the lines: uint8 [bytes]
        starts  start of each line in `data`, and the end of the last line: int64 [rows + 1]
        """
        raise NotImplementedError

    def split_line(self, shard: Shard, row: int, line: bytes) -> Row:
        """Return the stored value of each column in a line.

        raises  FormatError with the row of an invalid line
        """
        raise NotImplementedError

    def check_lines(self, shard: Shard, start: int, stop: int, values: bool) -> None:
        """Check lines start..stop and, with `values`, every value.

        raises  FormatError for the first invalid line; ValueFitError for the first invalid value
        """
        if values:
            self.read_batch(shard, start, stop)
        else:
            self._split(shard, start, stop)

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether a file is named like a shard, for example `shard.00000.json`.

        The suffix is not sufficient, because many other files end with `.json` or `.csv`.
        """
        return name.endswith(self.suffixes) and name.rpartition("/")[2].startswith("shard.")

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the `.meta` file and compare its table with the size of the data.

        The data file is read only if it is compressed and its decompressed size is not listed.

        columns  the columns that an index or a playlist lists
        raises   FormatError if the table does not match the data; IntegrityError if the columns
                 differ from the listed columns
        """
        chunk, meta = present(chunk), present(_companion(chunk))
        _check_listed(chunk, meta)
        data = byte_ranges.whole(meta)
        if data is None:
            data = memoryview(meta.at.read(0, byte_ranges.stored_size(meta)))
        rows = row_count(data, len(data), chunk, meta.at)
        end = 8 + 4 * rows
        check_config_size(len(data) - end, meta.at)
        stored = byte_ranges.stored_size(chunk) + byte_ranges.stored_size(meta)
        check_rows(rows, 1, stored, meta.at)
        config, own = mds_config.parse_config(bytes(data[end:]), self.name, meta.at)
        check_rows(rows, len(own), stored, meta.at)
        own = mds_config.agreed(own, columns, self.name, meta.at)
        layout = self.parse_layout(own, config, meta.at)
        starts = read_starts(data, rows, copy=bool(byte_ranges.suffix(meta)))
        _check_table(starts, len(layout["header"]), _data_size(chunk), chunk, meta)
        files = (*(chunk.files[:1] or (File(chunk.at.name),)), *meta.files)
        chunk = replace(chunk, files=files, companions=(meta.at,))
        return Shard(chunk, own, rows, {"starts": starts, **layout})

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Ranges | None = None,
    ) -> list[Row]:
        """Return the text of each value, with rows in the requested order.

        raises  FormatError with the row of an invalid line
        """
        out = [
            self.split_line(shard, row, bytes(line))
            for row, line in zip(rows, lines_of(shard, rows), strict=True)
        ]
        return out if columns is None else [{name: row[name] for name in columns} for row in out]

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Return rows start..stop, converted from text to the Arrow types of the columns.

        raises  FormatError with the row of the first invalid line; ValueFitError for text that is
                not UTF-8
        """
        data, places, rows = self._split(shard, start, stop)

        def stored(one: Column) -> pa.Array:
            if places is None:
                return pa.array([row[one.name] for row in rows], encodings.BINARY)
            return byte_ranges.values_at(data, *places[one.name], views)

        return byte_ranges.typed_batch(shard, start, stop, columns, stored)

    def _split(
        self, shard: Shard, start: int, stop: int
    ) -> tuple[ByteArray, Places | None, list[Row]]:
        """Split lines start..stop into values.

        return  (bytes of the lines, places of the values, empty list) if `locate` finds the places;
                otherwise (bytes of the lines, None, stored values of each row)
        """
        data, starts = bytes_of(shard, start, stop)
        places = self.locate(shard, data, starts)
        if places is not None:
            return data, places, []
        bounds, text = starts.data, data.tobytes()
        rows = [
            self.split_line(shard, start + i, text[bounds[i] : bounds[i + 1]])
            for i in range(stop - start)
        ]
        return data, None, rows

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return 0 (the size of an empty shard), and the size of each line: int64 [rows].

        As in MosaicML Streaming, headers and `.meta` files are not counted.

        raises  UsageError for column names or settings that lines cannot store; ValueFitError with
                the first row that a line cannot store
        """
        writer = self.line_writer(columns, settings)
        # Check the row sizes first, because `writer.check` needs much memory for an oversized row.
        sizes = weights(columns, batch, writer.fixed_bytes, 0, self.name)
        first = 0
        for piece in pieces(batch):
            try:
                writer.check(piece)
            except ValueFitError as error:
                raise error.at("", first) from None
            first += piece.num_rows
        return 0, sizes

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write all rows as a file such as `shard.00000.json`, and its `.meta` file.

        MosaicML Streaming writes the same bytes. The caller must first check the rows with
        `row_sizes`.

        raises  ValueFitError if the data would exceed 4 GiB
        """
        writer = self.line_writer(columns, settings)
        sizes = [weights(columns, one, writer.fixed_bytes, 0, self.name) for one in batches]
        lengths = np.concatenate([*sizes, np.zeros(0, np.int64)])
        starts = np.full(len(lengths) + 1, len(writer.header), np.int64)
        starts[1:] += np.cumsum(lengths)
        size, name = int(starts[-1]), name_of(number, self.name)
        check_shard_size(size, self.name, at / name)
        config = mds_config.dumped(mds_config.config(self.name, columns, settings))
        table = len(lengths).to_bytes(4, "little") + starts.astype("<u4").tobytes() + config
        header = [writer.header] if writer.header else []
        rows = (piece for batch in batches for piece in pieces(batch))
        joined_rows = (_joined_lines(piece, writer) for piece in rows)
        lines = itertools.chain(header, itertools.chain.from_iterable(joined_rows))
        to, file = write_file(at, name, lines, size, settings)
        meta_at, meta = write_file(at, f"{name}.meta", [table], len(table), settings)
        return Chunk(to, len(lengths), (file, meta), self.name, (meta_at,))

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check the header, every line and, with `values`, every value."""
        header = shard.layout["header"]
        data = byte_ranges.read(shard.chunk, [(0, len(header))])[0] if header else b""
        if data != header:
            yield Finding(
                str(shard.chunk.at),
                FormatError.kind,
                f"expected the header {header!r:.80}, got {bytes(data)!r:.80}",
                "Fetch or pack the shard again.",
            )
        yield from findings_of(
            runs_of_rows(shard), lambda start, stop: self.check_lines(shard, start, stop, values)
        )


def _check_listed(chunk: Chunk, meta: Chunk) -> None:
    """Raise FormatError if the listed size of a `.meta` file is too large for the row count.

    The listed size is checked before the file is read, because the file may be huge.
    """
    listed = meta.files[0].size if meta.files[0].raw_size is None else meta.files[0].raw_size
    if (
        chunk.rows is not None
        and listed is not None
        and listed > 8 + 4 * chunk.rows + MAX_CONFIG_BYTES
    ):
        raise FormatError(
            f"listed size is {listed} bytes, too large for a table of {chunk.rows} samples",
            where=meta.at,
        )


def _companion(chunk: Chunk) -> Chunk:
    """Return the `.meta` file of a shard: the listed file, or the file named after the shard."""
    if chunk.companions:
        return byte_ranges.single_file_chunk(chunk.companions[0], chunk.files[1])
    at, name = chunk.at, chunk.files[0].name if chunk.files else chunk.at.name
    return byte_ranges.single_file_chunk(at.folder / _meta_name(at.name), File(_meta_name(name)))


def _meta_name(name: str) -> str:
    raw = raw_name(name)
    return f"{raw}.meta{name[len(raw) :]}"


def _data_size(chunk: Chunk) -> int:
    if not byte_ranges.suffix(chunk):
        return byte_ranges.stored_size(chunk)
    listed = chunk.files[0].raw_size if chunk.files else None
    if listed is not None:
        return listed  # this size is checked when the data is decompressed
    view = byte_ranges.whole(chunk)
    return 0 if view is None else len(view)


def _check_table(starts: UInt32Array, header: int, size: int, chunk: Chunk, meta: Chunk) -> None:
    if int(starts[0]) != header:
        raise FormatError(
            f"expected the first line at byte {header} of the data, got {starts[0]}",
            where=meta.at,
            hint=DAMAGED,
        )
    row = byte_ranges.first_decrease(starts)
    if row is not None:
        raise FormatError(
            f"line {row} starts at byte {starts[row]} but ends at byte {starts[row + 1]}",
            where=meta.at,
            hint=DAMAGED,
        )
    if int(starts[-1]) != size:
        raise FormatError(
            f"file is {size} bytes; its offset table requires {starts[-1]}",
            where=chunk.at,
            hint=DAMAGED,
        )


def lines_of(shard: Shard, rows: Sequence[int]) -> list[bytes | memoryview]:
    """Return lines with their newlines, in the requested order. Nearby lines are read together."""
    table = memoryview(shard.layout["starts"])  # indexing returns Python integers
    view: memoryview | None = shard.memo.get("view")
    # A view would keep a decompressed shard in memory after its eviction from the cache.
    if view is None and not byte_ranges.suffix(shard.chunk):
        view = byte_ranges.whole(shard.chunk)
        if view is not None:
            shard.memo["view"] = view
    if view is not None and len(rows) == 1:
        return [view[table[rows[0]] : table[rows[0] + 1]]]
    return byte_ranges.read(shard.chunk, [(table[row], table[row + 1]) for row in rows])


def bytes_of(shard: Shard, start: int, stop: int) -> tuple[ByteArray, IntArray]:
    """Return the bytes of lines start..stop, and the offsets of the lines in these bytes.

    return  uint8 [bytes]; int64 [rows + 1]
    """
    starts = np.array(shard.layout["starts"][start : stop + 1], np.int64)
    (part,) = byte_ranges.read(shard.chunk, [(int(starts[0]), int(starts[-1]))])
    return np.frombuffer(part, np.uint8), starts - starts[0]


def find_all(data: ByteArray, text: bytes) -> IntArray:
    """Return the increasing offsets of all occurrences of `text`, including overlaps: int64."""
    steps = range(0, len(data), _SEARCH_BYTES)  # steps limit the memory for comparison results
    found = [i + np.flatnonzero(data[i : i + _SEARCH_BYTES] == text[0]) for i in steps]
    at = np.concatenate(found) if found else np.zeros(0, np.int64)
    if len(text) > 1:
        at = at[at <= len(data) - len(text)]
        for i in range(1, len(text)):
            at = at[data[at + i] == text[i]]
    return at


# -- writing


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield consecutive slices of a batch; `step_of` returns the number of rows in a slice."""
    step = step_of(batch.num_rows, batch.nbytes, batch.num_columns)
    return (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def _joined_lines(piece: pa.RecordBatch, writer: LineWriter) -> Iterator[memoryview]:
    """Yield the bytes of a batch's lines; the values of a large row are not copied."""
    parts = writer.parts(piece)
    if piece.num_rows == 1 and piece.nbytes > _LARGE_ROW_BYTES:
        for part in parts:
            value = part if isinstance(part, bytes) else next(encodings.raw_values(part))
            yield memoryview(value or b"")
    else:
        yield joined(parts)[0]


def stored_columns(columns: Columns, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the stored bytes of each column: name -> large_binary [rows].

    raises  ValueFitError for a null
    """
    out = {
        one.name: encodings.stored(batch.column(one.name), lookup(one.encoding)) for one in columns
    }
    for name, array in out.items():
        if array.null_count:  # Arrow would silently drop a line that contains a null
            row = pc.index(array.is_null(), True).as_py()
            message = f"column {name!r} is null; lines cannot store nulls"
            raise ValueFitError(message, row=row, column=name)
    return out


def joined(parts: Sequence[Any]) -> tuple[memoryview, IntArray]:
    """Join columns and constant bytes row by row; return all bytes and the row offsets.

    parts   columns of bytes, large_binary [rows], or bytes that are the same in every row
    return  a view of the bytes; int64 [rows + 1]
    """
    body = pc.binary_join_element_wise(
        *(pa.scalar(part, encodings.BINARY) if isinstance(part, bytes) else part for part in parts),
        pa.scalar(b"", encodings.BINARY),
    )
    offsets = byte_ranges.value_offsets(body)
    return byte_ranges.value_bytes(body), offsets - offsets[0]
