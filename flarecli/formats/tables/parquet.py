"""Parquet: read selected columns, one row group after another, and verify page checksums.

A reader needs memory for one batch, and one megabyte for each column. The memory use does not
depend on the size of the file or of its row groups.
"""

from __future__ import annotations

import base64
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flarecli.errors import FlareError, FormatError
from flarecli.expansion import check_decoded, check_rows, check_values
from flarecli.formats.tables.arrow_files import LocationFile, arrow_errors, open_native
from flarecli.formats.tables.base import Part
from flarecli.formats.tables.parquet_metadata import (
    INVALID_FOOTER,
    ColumnChunk,
    Footer,
    column_chunks,
    pages,
    read_tail,
    valid_leaves,
)
from flarecli.formats.tables.parquet_pages import (
    MAX_EXPANDED_BYTES,
    PageRun,
    RowGroupPages,
    SmallFile,
)
from flarecli.formats.tables.schema_merge import convert, plain
from flarecli.sql import Bound
from flarecli.storage import Location

__all__ = ["Parquet"]

_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
HEAD_BYTES = 64  # bytes read after the magic, to check the header of the first page
# matches the start of a file whose first page header has a type and two sizes, but no CRC-32
_WITHOUT_CRC = re.compile(rb"PAR1(?:\x15[\x80-\xff]*[\0-\x7f]){3}[^\x15]")
# Arrow's buffers grow by doubling, so the limit in bytes is slightly less than a power of two.
_ROWS, _BATCH_BYTES = 8192, 15 << 17
# the buffer for remote files is larger, because each read is a request
REMOTE_BUFFER_BYTES, LOCAL_BUFFER_BYTES = 1 << 20, 1 << 16
MAX_REMOTE_PAGES = 8 << 20  # maximum size of remote files whose page headers are read
MAX_PAGES_BYTES = 32 << 20  # maximum size of the pages of several rows that are read together
PROBE_ROWS = 64  # rows decoded to estimate the row size, which the footer does not contain


class Parquet(Part):
    """Reader of a Parquet file.

    rows           number of rows according to the footer
    int96_columns  columns of int96 timestamps, which are read in microseconds, because nanoseconds
                   overflow after the year 2262
    has_sums       whether the first page has a CRC-32; if not, damage may stay undetected
    """

    at: Location
    rows: int
    group_name = "row group"

    def __init__(self, at: Location) -> None:
        self.at = at
        self._row_group_pages: dict[int, RowGroupPages | None] = {}
        # column chunk -> size in bytes of the longest value in its dictionary
        self._longest: dict[ColumnChunk, int] = {}
        file = LocationFile(at)
        head = _checked_head(at, file.size)
        with _parquet_errors(at, file):
            reader = _open(file)
            self.rows = reader.metadata.num_rows
            self.has_sums = not self.rows or _WITHOUT_CRC.match(head) is None
            self._footer_schema = reader.schema_arrow
            columns = [reader.schema.column(i) for i in range(len(reader.schema))]
            int96 = [column for column in columns if column.physical_type == "INT96"]
            self.int96_columns = tuple(
                dict.fromkeys(column.path.partition(".")[0] for column in int96)
            )
            difference = _schema_difference(reader)
        self.set_schema(self._footer_schema)
        if difference:
            raise FormatError(
                f"the two schemas in the footer differ: {difference}",
                where=at,
                hint="The footer is damaged, or a tool changed only one of its two "
                "schemas; write the file again.",
            )

    def footer(self) -> bytes:
        """Return the bytes of the footer."""
        size = self.at.size()
        length = int.from_bytes(self.at.read(max(0, size - 8), max(0, size - 4)), "little")
        return self.at.read(max(0, size - 8 - length), size)

    def metadata(self) -> pq.FileMetaData:
        """Return the parsed footer: row groups and column statistics."""
        file = LocationFile(self.at)
        with _parquet_errors(self.at, file):
            if self.at.is_local:
                return _open(file).metadata
            return pq.read_metadata(pa.BufferReader(_MAGIC + self._tail))

    @cached_property
    def _tail(self) -> bytes:
        """The result of `read_tail`: the footer, its length and the magic."""
        return read_tail(self.at)

    def select_row_groups(
        self, bounds: Sequence[Bound], start: int, stop: int
    ) -> list[tuple[int, range]]:
        """Return ranges of the row groups that may have rows within all bounds.

        A row group is skipped only if its column statistics prove that all its rows are outside a
        bound.

        start, stop  range of rows; row groups outside the range are skipped
        return       for each range of row groups: its first row, and the range
        """
        metadata = self.metadata()
        paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        checks = []
        valid = valid_leaves(self.at, metadata) if bounds else frozenset()
        for bound in bounds:
            kind = self.schema.field(bound.column).type
            if paths.count(bound.column) == 1 and not pa.types.is_nested(kind):
                leaf = paths.index(bound.column)
                if leaf in valid:
                    checks.append((bound, leaf, kind))
        runs: list[tuple[int, range]] = []
        row = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            first, row = row, row + group.num_rows
            if not group.num_rows or first >= stop or row <= start:
                continue
            if any(_is_outside(group, leaf, bound, kind) for bound, leaf, kind in checks):
                continue
            if runs and runs[-1][1].stop == number:
                run_start, run = runs[-1]
                runs[-1] = run_start, range(run.start, number + 1)
            else:
                runs.append((first, range(number, number + 1)))
        return runs

    def batches(
        self,
        columns: Sequence[str] | None,
        groups: range | None = None,
        on_read: Callable[[int], object] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows, or the rows of some row groups, in order; verify page checksums.

        Text is not validated. Parquet does not guarantee UTF-8, so callers must check text values.

        on_read  function that is called for each batch, with the byte offset at which the last row
                 group of the batch ends
        raises   FormatError for data that does not match the footer
        """
        file, reader = self._reader(0 if groups is None else groups.stop)
        if groups is None:
            groups = range(reader.metadata.num_row_groups)
        yield from self._batches(file, reader, self.selected(columns), groups, on_read)

    def _reader(self, groups: int) -> tuple[LocationFile, pq.ParquetFile]:
        """Open the file again.

        raises  FormatError if its schema changed, or if it has fewer than `groups` row groups
        """
        file = LocationFile(self.at)
        with _parquet_errors(self.at, file):
            # the footer of a remote file is read only once, because the file's version is pinned
            reader = _open(file, metadata=None if self.at.is_local else self.metadata())
        same_schema = reader.schema_arrow.equals(self._footer_schema)
        if not same_schema or groups > reader.metadata.num_row_groups:
            raise FormatError(
                "the footer changed while the file was being read",
                where=self.at,
                hint="Run the command again when no other process is writing to the file.",
            )
        return file, reader

    def _batches(
        self,
        file: LocationFile,
        reader: pq.ParquetFile,
        schema: pa.Schema,
        groups: range,
        on_read: Callable[[int], object] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups; see `batches`."""
        all_groups = range(reader.metadata.num_row_groups)
        with _parquet_errors(self.at, file):
            ends = list(accumulate(reader.metadata.row_group(i).num_rows for i in groups))
            # in a damaged footer, the total row count may differ from the sum over the row groups
            expected_rows = self.rows if groups == all_groups else ends[-1]
            check_rows(expected_rows, len(schema), file.size, self.at)
            batches = self._read(reader, schema.names, groups)
        row = 0
        while True:
            with _parquet_errors(self.at, file):
                batch = next(batches, None)
                if batch is None:
                    break
                if not batch.schema.equals(schema, check_metadata=True):
                    arrays = [convert(batch.column(field.name), field.type) for field in schema]
                    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            row += batch.num_rows
            if on_read is not None:
                last = min(bisect_left(ends, row), len(groups) - 1)
                on_read(self._end_of_row_group(groups[last]))
            yield batch
        if row != expected_rows:
            raise FormatError(
                f"file has {row} rows; its footer lists {expected_rows}", where=self.at
            )

    @cached_property
    def group_starts(self) -> list[int]:
        """First row of each row group, followed by the total number of rows."""
        metadata = self.metadata()
        counts = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        return list(accumulate(counts, initial=0))

    def facts(self) -> dict[str, int | str]:
        """Return the row group count, the compression codecs and the type of page checksums."""
        metadata = self.metadata()
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        codecs = {
            group.column(i).compression.lower()
            for group in groups
            for i in range(group.num_columns)
        }
        return {
            "row groups": len(groups),
            "compression": ", ".join(sorted(codecs - {"uncompressed"})) or "none",
            "page checksums": "crc32" if self.has_sums else "none",
        }

    def span(self, row: int, column: str | None) -> tuple[int, int] | None:
        """Return the byte range of the row group that contains a row, or of one of its columns.

        The result is None if the footer does not list the column.
        """
        number = bisect_right(self.group_starts, row) - 1
        chunks = self._chunks[number] if number < len(self._chunks) else []
        chosen = [one for one in chunks if column is None or one.column == column]
        if not chosen:
            return None
        return min(one.start for one in chosen), max(one.start + one.stored for one in chosen)

    def row_group_pages(self, number: int) -> RowGroupPages | None:
        """Return the pages of a row group; None for an invalid footer or an encrypted column."""
        if number not in self._row_group_pages:
            first, stop = self.group_starts[number : number + 2]
            chunks = self._chunks[number] if number < len(self._chunks) else []
            schema = self.metadata().schema
            found = None
            if len(chunks) == len(schema):
                flat = [schema.column(i).max_repetition_level == 0 for i in range(len(schema))]
                found = RowGroupPages(self.at, number, chunks, stop - first, flat)
            self._row_group_pages[number] = found
        return self._row_group_pages[number]

    @cached_property
    def _footer(self) -> Footer | None:
        try:
            return Footer(self._tail)
        except INVALID_FOOTER:
            return None

    def page_runs(
        self, row: int, stop: int, columns: Sequence[str]
    ) -> tuple[int, int, list[PageRun]] | None:
        """Return the pages that contain `row` and the following rows; None if they are unknown.

        The rows end at `stop` or earlier: at the end of the row group, after _ROWS rows, or, if the
        pages are larger than MAX_PAGES_BYTES, at the end of the first page.

        return  first row of the row group; the row after the last row to read; the pages, as runs
                whose row numbers are relative to the row group
        """
        number = bisect_right(self.group_starts, row) - 1
        first, end = self.group_starts[number : number + 2]
        found = self.row_group_pages(number)
        if found is None or self._footer is None or not found.find(columns):
            return None
        stop = min(stop, end, row + _ROWS)
        runs = [run for name in columns for run in found.runs(name, row - first, stop - first)]
        if found.stored_size(runs) > MAX_PAGES_BYTES:
            ends = [found.runs(name, row - first, row - first + 1)[0].stop for name in columns]
            stop = min(stop, first + min(ends))
            runs = [run for name in columns for run in found.runs(name, row - first, stop - first)]
        return first, stop, runs

    def read_runs(self, row: int, runs: Sequence[PageRun]) -> list[tuple[PageRun, pa.Array]] | None:
        """Return (run, values) for each run in `runs`.

        The result is None if the values may need too much memory; see `RowGroupPages.read`.

        row   a row of the row group
        runs  runs of consecutive pages of this row group
        """
        found = self.row_group_pages(bisect_right(self.group_starts, row) - 1)
        if found is None or self._footer is None:
            return None

        def read_file(small: SmallFile, columns: Sequence[str], rows: int) -> pa.Table | None:
            schema, file = self.selected(columns), LocationFile(small.at)
            with _parquet_errors(self.at, file):
                for chunk, count in small.dictionaries:
                    if chunk not in self._longest:
                        self._longest[chunk] = _longest_entry(file, 0, chunk)
                    if self._longest[chunk] * count > MAX_EXPANDED_BYTES:
                        return None
                batches = [
                    pa.RecordBatch.from_arrays(
                        [convert(batch.column(field.name), field.type) for field in schema],
                        schema=schema,
                    )
                    for batch in _open(file).iter_batches(
                        rows, columns=list(columns), use_threads=False
                    )
                ]
                return pa.Table.from_batches(batches, schema)

        try:
            return found.read(runs, self._footer, read_file)
        except FlareError:
            raise
        except INVALID_FOOTER:  # Arrow then reads the whole row group, and reports any error
            return None

    def batches_from(
        self, start: int, columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches, beginning with the row group whose first row is `start`."""
        row, last = start, len(self.group_starts) - 1
        file, reader = self._reader(last)
        for group in range(bisect_left(self.group_starts, start), last):
            # read one row group at a time, so that no page headers of later row groups are read
            for batch in self._batches(
                file, reader, self.selected(columns), range(group, group + 1)
            ):
                yield row, batch
                row += batch.num_rows

    def _read(
        self, reader: pq.ParquetFile, names: Sequence[str], groups: range
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of bounded size.

        Adjacent row groups with the same number of rows per batch are read together. Row groups
        with nested dictionaries are read separately, because Arrow cannot join these dictionaries.
        """
        kinds = [reader.schema_arrow.field(name).type for name in names]
        has_nested = any(pa.types.is_nested(kind) and kind != plain(kind) for kind in kinds)
        if len(groups) > 1 and has_nested:
            for number in groups:
                yield from self._read(reader, names, range(number, number + 1))
            return
        safe = {number: self._safe_rows(reader, names, number) for number in groups}
        batch_rows = _batch_rows(reader, names, groups, min(safe.values(), default=_ROWS))
        for rows, run in itertools.groupby(groups, lambda number: min(batch_rows, safe[number])):
            yield from reader.iter_batches(
                rows, row_groups=list(run), columns=names, use_threads=False
            )

    def _safe_rows(self, reader: pq.ParquetFile, names: Sequence[str], number: int) -> int:
        """Return a number of rows per batch that bounds the decoded size of a batch.

        Page headers declare the sizes of pages, but decoded values may be larger. Every row may
        have the same long dictionary value, and a DELTA_BYTE_ARRAY page may repeat its first value.
        Page headers of large remote files are not read, because each header would require a
        request.

        raises  IntegrityError if the decoded pages are larger than the file size allows
        """
        size, rows, selected = 0, _ROWS, set(names)
        stored = self.at.size()
        chunks = self._chunks if self.at.is_local or stored <= MAX_REMOTE_PAGES else []
        if number >= len(chunks):
            check_decoded(reader.metadata.row_group(number).total_byte_size, stored, self.at)
            return rows
        for chunk in chunks[number]:
            if chunk.column not in selected:
                continue
            dictionary = values = 0
            for page in pages(self.at, stored, chunk):
                size += page.size
                check_decoded(size, stored, self.at)
                if page.is_dictionary:
                    dictionary = max(dictionary, page.size)
                    continue
                values += page.values
                check_values(values, stored, self.at)
                if page.is_delta and page.size * min(rows, page.values) > MAX_EXPANDED_BYTES:
                    rows = max(1, MAX_EXPANDED_BYTES // page.size)
            if chunk.is_bytes and dictionary * rows > MAX_EXPANDED_BYTES:
                # average number of values in a row; it exceeds 1 for a list column
                count = max(1, chunk.values // max(1, reader.metadata.row_group(number).num_rows))
                file = LocationFile(self.at)
                longest = _longest_entry(file, number, chunk, reader.metadata) * count
                rows = max(1, min(rows, MAX_EXPANDED_BYTES // max(1, longest)))
        return rows

    def _end_of_row_group(self, number: int) -> int:
        """Return the end offset of a row group's pages, or the file size if it is unknown."""
        chunks = self._chunks[number] if number < len(self._chunks) else []
        return max((chunk.start + chunk.stored for chunk in chunks), default=self.at.size())

    @cached_property
    def _chunks(self) -> list[list[ColumnChunk]]:
        return column_chunks(self._tail)


def _longest_entry(
    file: LocationFile,
    number: int,
    chunk: ColumnChunk,
    metadata: pq.FileMetaData | None = None,
) -> int:
    """Return the size in bytes of the longest value in the dictionary of a column chunk.

    number    number of the row group
    metadata  parsed footer; None: read the footer
    """
    batches = _open(file, [chunk.path], metadata).iter_batches(
        1, row_groups=[number], columns=[chunk.column], use_threads=False
    )
    first = next(batches, None)
    values = None if first is None else _dictionary(first.column(0))
    if values is None:
        return 0
    return int(pc.max(pc.binary_length(values.cast(pa.large_binary()))).as_py() or 0)


def _dictionary(array: pa.Array) -> pa.Array | None:
    """Return the dictionary of an array or of the first dictionary array inside it, or None."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return array.dictionary
    if pa.types.is_struct(kind):
        inner = [array.field(i) for i in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        inner = [array.keys, array.items]
    else:
        inner = [array.values] if pa.types.is_nested(kind) else []
    return next((found for one in inner if (found := _dictionary(one)) is not None), None)


def _checked_head(at: Location, size: int) -> bytes:
    """Check the magic at the start and at the end of a file; return the first bytes of the file."""
    head = at.read(0, min(size, len(_MAGIC) + HEAD_BYTES))
    end = at.read(size - 4, size) if size >= 12 else b""
    if _ENCRYPTED_MAGIC in (head[:4], end):
        raise _encrypted(at)
    if size < 12 or not head.startswith(_MAGIC):
        raise FormatError("not a parquet file: it does not start with PAR1", where=at)
    if end != _MAGIC:
        raise FormatError(
            "truncated parquet file: it does not end with PAR1",
            where=at,
            hint="The file was cut short; download it again.",
        )
    return head


def _encrypted(at: Location) -> FormatError:
    return FormatError("the parquet file is encrypted", where=at, hint="Decrypt the file first.")


@contextmanager
def _parquet_errors(at: Location, file: LocationFile) -> Iterator[None]:
    """Convert Arrow's errors to FormatError, including errors about encrypted columns."""
    with arrow_errors(at, file, "parquet"):
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            is_arrow_error = not isinstance(error, FlareError) and file.error is None
            if is_arrow_error and "decrypt" in str(error).lower():
                raise _encrypted(at) from None
            raise


def _open(
    file: LocationFile,
    dictionaries: Sequence[str] = (),
    metadata: pq.FileMetaData | None = None,
) -> pq.ParquetFile:
    """Open a file with Arrow.

    dictionaries  columns to read as dictionary arrays
    metadata      parsed footer; None: read the footer
    """
    source = open_native(file)
    return pq.ParquetFile(
        source,
        metadata=metadata,
        pre_buffer=False,
        read_dictionary=list(dictionaries),
        buffer_size=LOCAL_BUFFER_BYTES if isinstance(source, pa.OSFile) else REMOTE_BUFFER_BYTES,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",
    )


def _batch_rows(
    reader: pq.ParquetFile, names: Sequence[str], numbers: range, safe_rows: int
) -> int:
    """Return the number of rows per batch: _ROWS, or fewer if a batch would exceed _BATCH_BYTES."""
    groups = [reader.metadata.row_group(i) for i in numbers]
    sizes = [group.total_byte_size // max(1, group.num_rows) for group in groups]
    probes = reader.iter_batches(
        min(PROBE_ROWS, safe_rows), row_groups=list(numbers), columns=list(names), use_threads=False
    )
    first = next(probes, None)
    if first is not None and first.num_rows:
        decoded = sum(convert(column, plain(column.type)).nbytes for column in first.columns)
        sizes.append(decoded // first.num_rows)
    return int(max(1, min(_ROWS, _BATCH_BYTES // max([1, *sizes]))))


def _schema_difference(reader: pq.ParquetFile) -> str:
    """Compare the parquet schema with the Arrow schema in the footer.

    Both schemas must have the same column names and the same text columns. The comparison detects
    some damage to the footer, which has no checksum.

    return  the first difference; empty if the schemas match or if the file has no Arrow schema
    """
    text = (reader.metadata.metadata or {}).get(b"ARROW:schema")
    if text is None:
        return ""
    arrow_schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    for fields in zip(reader.schema_arrow, arrow_schema, strict=False):
        one, other = (
            f"{'text' if _is_text(field.type) else 'column'} {field.name!r}" for field in fields
        )
        if one != other:
            return f"{one}, {other}"
    return ""


def _is_text(kind: pa.DataType) -> bool:
    return plain(kind) in (pa.string(), pa.large_string())


def _is_outside(group: Any, leaf: int, bound: Bound, kind: pa.DataType) -> bool:
    """Return whether statistics prove that no row of a row group satisfies a bound.

    leaf  number of the leaf column in the Parquet schema
    """
    try:
        statistics = group.column(leaf).statistics
        if statistics is None:
            return False
        # If all values are null, no row satisfies the bound.
        if statistics.has_null_count and statistics.null_count == group.num_rows:
            return True
        return bool(statistics.has_min_max) and bound.excludes(statistics.min, statistics.max, kind)
    except (pa.ArrowException, ValueError, OverflowError, OSError, NotImplementedError):
        return False  # invalid statistics
