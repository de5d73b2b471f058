"""Tables as datasets: each file is a shard, and the columns of its batches have Arrow types.

When single rows are read as stored bytes, each column has the default encoding of its Arrow type.
For example, a timestamp is text, and a struct is JSON. If a column has another encoding, such as
`jpeg`, the metadata of its Arrow field contains the name of the encoding.

Several files are one table if their columns have the same names. The type of a column in the table
is the common type of its types in the files; see `schema_merge`.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from flarecli import encodings
from flarecli.bisect import failing_values
from flarecli.encodings import Encoding, lookup
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    UsageError,
    ValueFitError,
)
from flarecli.formats import byte_ranges, shard_files
from flarecli.formats.base import EACH, Format, Ranges, Span, Substitutes
from flarecli.formats.registry import TEXT_INPUTS, facts, find
from flarecli.formats.tables import default_encoding, is_default, typed_field
from flarecli.formats.tables.base import Part, TextPart, value_sizes
from flarecli.formats.tables.decompress import TextFile, split_compression
from flarecli.formats.tables.dialect import Dialect
from flarecli.formats.tables.ipc import Ipc
from flarecli.formats.tables.parquet import Parquet
from flarecli.formats.tables.parquet_write import (
    check_timestamps,
    checked_codec,
    parquet_parts,
)
from flarecli.formats.tables.registry import (
    COMPRESSIONS,
    TEXTS,
    is_delimited,
    is_table,
    open_kind,
    open_text,
)
from flarecli.formats.tables.rows import TableRows
from flarecli.formats.tables.schema_merge import convert, merge
from flarecli.hashes import DEFAULT
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
from flarecli.names import is_url
from flarecli.prefetch import cpu_count, ordered_map
from flarecli.storage import Location
from flarecli.units import format_size

__all__ = ["ArrowFormat", "ParquetFormat", "TextTable"]

_REMOTE_JOBS = 16  # may exceed the CPU count, because remote jobs wait for the network
_VERIFIED_ROWS = 8192
# Maximum size of a row that is written to Parquet. A row must fit in one page, and the maximum size
# of a page is 2 GiB; half of this size is a safe limit.
MAX_ROW_BYTES = 1 << 30
# keys of the stream headers for the values of --csv and --input
DIALECT, INPUT = "csv", "input"
_CHANGED = (
    "The file was changed after its columns were listed; "
    "if the columns are from a playlist, write the playlist again."
)


class TableFormat(Format):
    """Base class of the table formats. A subclass opens the files."""

    typed = True
    holds_null = True
    is_listed = True
    sizes_are_exact = False

    @abstractmethod
    def open_part(self, chunk: Chunk) -> Part:
        """Open a file without reading its rows. Raises FormatError for an invalid file."""

    # -- opening

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether a file name has a suffix of the format."""
        return name.lower().endswith(self.suffixes)

    def open_dataset(self, at: Location) -> Stream:
        """List the files of this format in a folder and its subfolders, sorted by name.

        raises  MissingError if there are no such files
        """
        sizes = {one.name: one.size for one in at.list() if self.sniff(one.name, b"")}
        names = sorted(sizes, key=os.fsencode)
        if not names:
            raise MissingError(f"folder contains no {self.suffixes[0]} files", where=at)
        return Stream(
            "data", at, self.name, names, sizes=np.array([sizes[one] for one in names], np.int64)
        )

    def described(self, streams: Sequence[Stream]) -> Sequence[Stream]:
        """Add the common columns and types of all files to the streams; return the new streams."""
        if not all(facts(stream.format).typed for stream in streams):
            return streams
        first = streams[0]
        if first.types and all(
            (stream.types, stream.columns) == (first.types, first.columns) for stream in streams
        ):
            return streams
        chunks = [
            (number, one)
            for number, stream in enumerate(streams)
            for one in (list(stream)[:1] if stream.types else stream)
        ]
        jobs = cpu_count() if first.at.is_local else _REMOTE_JOBS
        parts = list(ordered_map(_opened, [chunk for _, chunk in chunks], workers=jobs))
        if not parts:
            return streams
        schema, merged = merge(parts, allow_missing=False)
        types = _with_dictionaries(schema, merged)
        columns = _columns(schema, types, parts[0])
        out = []
        for number, stream in enumerate(streams):
            own = [part for (one, _), part in zip(chunks, parts, strict=True) if one == number]
            rows = stream.rows
            if rows is None and len(own) == len(stream):
                rows = np.array([-1 if part.rows is None else part.rows for part in own], np.int64)
            out.append(replace(stream, columns=columns, types=types, rows=rows))
        return out

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Open a file. Count its rows if neither the file nor the playlist contains their number.

        raises  FormatError for an invalid file, or for a row count that differs from the playlist;
                IntegrityError if the columns of the file differ from `columns`
        """
        byte_ranges.stored_size(chunk)
        part = self.open_part(chunk)
        schema = part.schema
        if columns is not None and {one.name for one in columns} != set(schema.names):
            wanted = {one.name for one in columns}
            name = min(wanted ^ set(schema.names))
            state = "missing" if name in wanted else "not listed"
            raise IntegrityError(
                f"column {name!r} is {state}", where=chunk.at, hint=_CHANGED, column=name
            )
        types: Mapping[str, pa.DataType] = chunk.types
        if not types:
            types = _with_dictionaries(schema, [part])
        if columns is None:
            columns = _columns(schema, types, part)
        part = part.with_types(_read_types(types))
        rows = chunk.rows if part.rows is None else part.rows
        rows = part.count() if rows is None else rows
        shard_files.check_row_count(chunk, rows)
        fields = pa.schema([typed_field(one, types[one.name]) for one in columns])
        shard = Shard(chunk, columns, rows, {"schema": fields})
        shard.memo[os.getpid()] = TableRows(part, rows)
        return shard

    def types(self, shard: Shard) -> Mapping[str, pa.DataType]:
        """Return the Arrow type of each column."""
        return {field.name: field.type for field in shard.layout["schema"]}

    def shard_facts(self, shard: Shard) -> Mapping[str, int | str]:
        """Return facts such as the number of row groups."""
        return self._rows(shard).part.facts()

    # -- reading

    def _rows(self, shard: Shard) -> TableRows:
        """Return the shard's reader for this process. A forked process opens its own reader."""
        rows: TableRows | None = shard.memo.get(os.getpid())
        if rows is None:
            part = self.open_part(shard.chunk).with_types(_read_types(self.types(shard)))
            rows = shard.memo.setdefault(os.getpid(), TableRows(part, shard.rows))
        return rows

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Read rows start..stop in the Arrow types of the table.

        raises  FormatError for invalid data; ValueFitError with row and column for text that is not
                UTF-8, or for a value that the common type of several files cannot represent
        """
        schema: pa.Schema = shard.layout["schema"]
        fields = list(schema) if columns is None else [schema.field(name) for name in columns]
        if not fields:
            return byte_ranges.record_batch((), (), stop - start)
        if start >= stop:
            return pa.RecordBatch.from_pylist([], schema=pa.schema(fields))
        read = self._rows(shard).read(start, stop, [field.name for field in fields])
        arrays = [
            _typed(
                pa.concat_arrays([batch.column(i) for batch in read])
                if len(read) > 1
                else read[0].column(i),
                field,
                shard,
                start,
            )
            for i, field in enumerate(fields)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Ranges | None = None,
    ) -> list[Row]:
        """Read the stored bytes of rows, in the requested order."""
        if ranges:
            shard_files.check_ranges(shard, ranges)
        chosen = byte_ranges.selected_columns(shard, columns)
        out: list[Row] = [{} for _ in rows]
        place = 0
        for start, stop in _runs(rows):
            batch = self.read_batch(shard, start, stop, [one.name for one in chosen])
            for one, array in zip(chosen, batch.columns, strict=True):
                values = _stored(array, lookup(one.encoding), one, shard, start).to_pylist()
                if ranges and one.name in ranges:
                    first, last = ranges[one.name]
                    values = [None if value is None else value[first:last] for value in values]
                for row, value in enumerate(values, place):
                    out[row][one.name] = value
            place += stop - start
        return out

    # -- checking

    def unprotected(self, shard: Shard) -> str:
        """Return a note that the file has no checksums."""
        return "no checksums; only the values were checked"

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Read all rows, to check the checksums of pages and to decode every value.

        Each finding names a column, and the first of its rows that cannot be read.
        """
        error = None
        for start, stop in self._steps(shard):
            try:
                self.read_batch(shard, start, stop)
            except FlareError as failure:
                error = failure
                break
        part = self._rows(shard).part
        if error is not None:
            yield from self._findings(shard, error)
        elif isinstance(part, TextPart) and (rows := part.count()) != shard.rows:
            yield Finding(
                str(shard.chunk.at),
                "format",
                f"contains {rows} rows; the playlist lists {shard.rows}",
            )

    def _steps(self, shard: Shard) -> Iterator[tuple[int, int]]:
        """Yield row ranges. Each range is inside one part of the file, such as a row group."""
        part, start = self._rows(shard).part, 0
        while start < shard.rows:
            rows = range(start + 1, min(shard.rows, start + _VERIFIED_ROWS))
            stop = start + 1 + bisect_right(rows, start, key=part.start_before)
            yield start, stop
            start = stop

    def _findings(self, shard: Shard, error: FlareError) -> Iterator[Finding]:
        """Read each column separately; yield a finding for each column that cannot be read.

        error  error that was raised when all columns were read together; it becomes a finding if
               every column can be read separately
        """
        found = []
        for one in shard.columns:
            for start, stop in self._steps(shard):
                try:
                    self.read_batch(shard, start, stop, [one.name])
                except FlareError as own:
                    finding = finding_of(own, shard.chunk.at)
                    if finding.row is None and finding.line is None:
                        place = self._rows(shard).part.place(start)
                        finding = replace(finding, row=start, message=f"{place}{finding.message}")
                    found.append(replace(finding, column=finding.column or one.name))
                    break
        yield from found or [finding_of(error, shard.chunk.at)]


# -- files


def _opened(chunk: Chunk) -> Part:
    """Return the reader of a file. If its column types are listed, do not open the file."""
    form = find(chunk.format or "")
    if chunk.types:
        return _Listed(chunk)
    if not isinstance(form, TableFormat):
        raise UsageError(f"{form.name} is not a table format", where=chunk.at)
    return form.open_part(chunk)


class _Listed(Part):
    """Unopened file whose column types are listed in a playlist."""

    def __init__(self, chunk: Chunk) -> None:
        self.at, self.rows = chunk.at, chunk.rows
        self.schema = pa.schema(
            [(name, encodings.value_type(kind)) for name, kind in chunk.types.items()]
        )
        self.dictionaries = {
            name: kind for name, kind in chunk.types.items() if pa.types.is_dictionary(kind)
        }

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield no rows."""
        return iter(())


def _with_dictionaries(schema: pa.Schema, parts: Sequence[Part]) -> dict[str, pa.DataType]:
    """Return the type of each column. Keep a dictionary type only if all files have this type."""
    kept = parts[0].dictionaries
    return {
        field.name: kept[field.name]
        if field.name in kept
        and all(part.dictionaries.get(field.name) == kept[field.name] for part in parts)
        and pa.types.is_dictionary(kept[field.name])
        and kept[field.name].value_type.equals(field.type)
        else field.type
        for field in schema
    }


def _columns(schema: pa.Schema, types: Mapping[str, pa.DataType], part: Part) -> Columns:
    """Return the columns of a table.

    The metadata of the file or the Arrow type determines the encoding of a column.
    """
    out = []
    for field in schema:
        encoding = part.encodings.get(field.name)
        if encoding is None or not _fits(encoding, types[field.name]):
            encoding = default_encoding(field.name, types[field.name])
        out.append(encodings.column(field.name, encoding))
    return tuple(out)


def _fits(encoding: str, kind: pa.DataType) -> bool:
    """Return whether the values of an encoding have the given Arrow type."""
    try:
        return bool(lookup(encoding).arrow.equals(encodings.without_variants(kind)))
    except UsageError:
        return False


# -- values


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) for each run of consecutive rows."""
    place = 0
    while place < len(rows):
        stop = place + 1
        while stop < len(rows) and rows[stop] == rows[stop - 1] + 1:
            stop += 1
        yield int(rows[place]), int(rows[stop - 1]) + 1
        place = stop


def _typed(array: pa.Array, field: pa.Field, shard: Shard, first: int) -> pa.Array:
    """Convert values from a file to the column type of the table, and check that text is UTF-8.

    first  row number, in the file, of the first value
    """
    kind = encodings.value_type(field.type)

    def converted(part: pa.Array) -> pa.Array:
        part = convert(part, kind)
        part.validate(full=True)
        return part

    try:
        out = converted(array)
    except pa.ArrowInvalid as error:
        at = next((row for row, _ in failing_values(array, converted, pa.ArrowInvalid)), 0)
        reason = str(error).splitlines()[0][:200].removeprefix("Invalid: ")
        raise ValueFitError(
            f"column {field.name!r}: {reason}",
            where=shard.chunk.at,
            row=first + at,
            column=field.name,
        ) from None
    if pa.types.is_dictionary(field.type):
        return out.dictionary_encode().cast(field.type)
    return out


def _stored(
    array: pa.Array, encoding: Encoding, column: Column, shard: Shard, first: int
) -> pa.Array:
    """Encode the values of a column as stored bytes. Null values remain null.

    first   row number, in the file, of the first value
    raises  ValueFitError with row and column for a value that the encoding cannot store
    """
    source = None if is_default(column, array.type) else encoding
    typed, failures = encodings.coerce(array, encoding, source)
    for row, reason in failures:
        if reason != "is null":
            raise ValueFitError(
                f"column {column.name!r} {reason}",
                where=shard.chunk.at,
                row=first + row,
                column=column.name,
            )
    return encodings.stored(typed, encoding)


def _read_types(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types in which columns are read. Text and bytes have 32-bit offsets."""
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    plain = {name: encodings.value_type(kind) for name, kind in types.items()}
    return {name: small.get(kind, kind) for name, kind in plain.items()}


class ParquetFormat(TableFormat):
    """Parquet files: columns in row groups and pages; a page may have a CRC-32."""

    name = "parquet"
    suffixes = (".parquet",)
    substitutes: ClassVar[Substitutes] = {
        **dict.fromkeys(("int64", "varint", "str_int", "json_int"), "int"),
        **dict.fromkeys(("msgpack_float", "str_float", "json_float"), "float64"),
        "json_str": "str",
        "json_json": "json",
        "bytes[]": EACH,
        "ndarray[]": EACH,
        "*[]": EACH,
    }

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether the name ends with `.parquet`, or the file starts with `PAR1`."""
        return super().sniff(name, head) or head.startswith(b"PAR1")

    def open_part(self, chunk: Chunk) -> Part:
        """Read the footer of a file."""
        return Parquet(chunk.at)

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the byte range of the row group that contains a row, or of one of its columns.

        The result is None if the file is not a Parquet file, or does not list the column.
        """
        part = self._rows(shard).part
        span = part.span(row, column) if isinstance(part, Parquet) else None
        return None if span is None else (shard.chunk.at, *span)

    def unprotected(self, shard: Shard) -> str:
        """Return a note if the pages of the file have no checksums."""
        part = self._rows(shard).part
        has_sums = isinstance(part, Parquet) and part.has_sums
        return "" if has_sums else "pages have no checksums; only the values were checked"

    # -- writing

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return 0 (the size of an empty shard), and the size of each row: int64 [rows].

        The size of a row is its size in Arrow's memory in bytes.

        raises  ValueFitError with the first row that exceeds MAX_ROW_BYTES, or that has a timestamp
                out of Parquet's range
        """
        checked_codec(settings.compression)
        check_timestamps(batch)
        sizes = value_sizes(batch).astype(np.int64)
        if (sizes > MAX_ROW_BYTES).any():
            row = int(np.argmax(sizes > MAX_ROW_BYTES))
            raise ValueFitError(
                f"row is {format_size(int(sizes[row]))}; the maximum for Parquet is "
                f"{format_size(MAX_ROW_BYTES)}",
                row=row,
            )
        return 0, sizes

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as a file such as `00000.parquet`, with page checksums and a page index.

        Each column of the file has the Arrow type of the column in the batches. If there are no
        batches, it has the Arrow type of its encoding.
        """
        name = f"{number:05d}.parquet"
        types = [encodings.field(one).type for one in columns]
        if batches:
            types = [batches[0].schema.field(one.name).type for one in columns]
        schema = pa.schema(
            [typed_field(one, kind) for one, kind in zip(columns, types, strict=True)]
        )
        typed = (
            pa.RecordBatch.from_arrays([batch.column(one.name) for one in columns], schema=schema)
            for batch in batches
        )
        written = (at / name).write(
            parquet_parts(schema, typed, settings.compression), {DEFAULT, *settings.hashes}
        )
        file = File(name, written.size, written.hashes)
        rows = sum(batch.num_rows for batch in batches)
        return Chunk(at / name, rows, (file,), self.name)


class ArrowFormat(TableFormat):
    """Arrow IPC files and streams. They have no checksums."""

    name = "arrow"
    suffixes = (".arrow", ".feather", ".arrows")
    writable = False

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether the name has a suffix of Arrow files, or the file starts with `ARROW1`."""
        return super().sniff(name, head) or head.startswith(b"ARROW1")

    def open_part(self, chunk: Chunk) -> Part:
        """Read the schema of a file."""
        return Ipc(chunk.at)


class TextTable(TableFormat):
    """CSV and TSV files, JSON lines and JSON arrays. They have no index and no checksums.

    If the number of rows is not listed, opening a file reads the complete file to count its rows.
    """

    name = "table"
    suffixes = tuple(f"{kind}{end}" for kind in TEXTS for end in ("", *COMPRESSIONS))
    writable = False

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether a name has the suffix of a text table and is not the name of an index."""
        last = name.rpartition("/")[2].lower()
        return is_table(last) and last.endswith(self.suffixes)

    def has_delimited_text(self, stream: Stream) -> bool:
        """Return whether a stream has a CSV or TSV file."""
        kind = stream.headers.get(INPUT)
        if kind in TEXT_INPUTS:
            return bool(kind != "jsonl")
        return any(
            is_delimited(url.partition("?")[0] if is_url(url) else url) for url in stream.urls
        )

    def open_part(self, chunk: Chunk) -> Part:
        """Read the first rows of a file, which determine the types of its columns."""
        kind = chunk.headers.get(INPUT)
        if kind in TEXT_INPUTS:
            return open_kind(kind, chunk.at, (), _dialect(chunk))
        name = chunk.files[0].name if chunk.files else chunk.at.name
        plain, _ = split_compression(name.lower())
        # For a compressed file, `verify` passes a location of the decompressed bytes. The name of
        # this location has no compression suffix.
        _, compression = split_compression(chunk.at.name.lower())
        return open_text(TextFile(chunk.at, compression), plain, (), _dialect(chunk))


def _dialect(chunk: Chunk) -> Dialect:
    """Return the CSV dialect from the headers of a chunk."""
    settings: Any = chunk.headers.get(DIALECT, [])
    if not isinstance(settings, list) or not all(isinstance(one, str) for one in settings):
        raise FormatError(f"header {DIALECT!r}: expected a list of KEY=VALUE", where=chunk.at)
    try:
        return Dialect.parse(settings)
    except UsageError as error:
        raise FormatError(f"header {DIALECT!r}: {error.message}", where=chunk.at) from None
