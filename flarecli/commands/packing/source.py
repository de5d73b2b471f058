"""Sources of a pack: an index, a folder of files, a dataset or a stream. Each yields batches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from flarecli import ingest, read
from flarecli.arguments import Addresses, address_texts
from flarecli.braces import WILDCARDS
from flarecli.commands.provenance import SourceName, shard_of, source_name
from flarecli.commands.row_order import check_no_rows, select_rows
from flarecli.commands.row_reader import ValueLimit
from flarecli.commands.sources import lists_checksum
from flarecli.errors import FormatError, NoRowsError, UsageError
from flarecli.formats import INDEX_INPUTS, INPUTS, LIST_INPUT, facts
from flarecli.ingest import DIALECT, Dialect
from flarecli.media import is_media, kind_of
from flarecli.model import IntArray, Playlist, Stream
from flarecli.names import is_url, shell_quoted
from flarecli.redact import redact
from flarecli.storage import Guard, Location, is_stream, locate

__all__ = ["RowRequest", "Source", "SourceOptions", "StoredColumns", "open_source"]


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Request for rows start..stop of a source.

    columns   columns to read; None: all
    where     condition; rows that cannot match may be skipped, but the batches may still contain
              rows that do not match
    place     name of an additional int64 column for the source row numbers
    checksum  checksum to update with the bytes that are read
    unused    columns whose values are not used until their size has been compared with
              `--max-object`; NUL bytes of the same length may replace a value above this limit
    """

    columns: Sequence[str] | None = None
    where: str | None = None
    start: int = 0
    stop: int | None = None
    place: str | None = None
    checksum: ingest.SourceChecksum | None = None
    unused: Collection[str] = ()


_ALL_ROWS = RowRequest()
_WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")  # files of spreadsheet programs


class Source:
    """Source of the rows to pack.

    address  address that the user typed, without secrets, for messages
    name     name of the source in outputs
    at       base folder of relative links in the rows
    rows     number of rows; None if unknown until the source is read
    notes    notes for the user
    details  notes for verbose output
    stored   column -> encoding in a dataset; empty for an index
    is_list  whether each row is the address of a file, which may be outside the folder `at`
    types    column -> original Arrow type, if it differs from the type in `schema`: a dictionary
             type of an index, or the type of a dataset column before the dataset was packed
    files    columns that contain file names in `batches`; in `schema`, these columns have the types
             of the file contents
    key      column that contains the row keys; None if the source has none
    flaw     function that returns the error kind and message for a missing file, or None if the
             file may be missing; its arguments are the column, whether all files of the row are
             missing, and the key. None if no file can be missing
    extensions  column -> `Column.extension`
    encodings   column -> encoding of the contents of files, unless the first row determines it
    is_run   whether the numbers of the source rows are 0, 1, 2, … without gaps; False if --rows
             selects rows
    """

    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    key: str | None = None
    is_list = False
    flaw: Callable[[str, bool, str], tuple[str, str] | None] | None = None
    extensions: Mapping[str, str] = MappingProxyType({})
    encodings: Mapping[str, str] = MappingProxyType({})
    is_run = True

    def __init__(
        self, address: str, name: SourceName, at: Location, schema: pa.Schema, rows: int | None
    ) -> None:
        self.address, self.name, self.at, self.schema, self.rows = address, name, at, schema, rows
        self.stored: Mapping[str, str] = {}
        self.types: Mapping[str, pa.DataType] = {}

    def batches(self, request: RowRequest = _ALL_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the requested rows."""
        raise NotImplementedError

    def sum(self) -> str:
        """Return the xxh3_128 of an index, or of the lists and input streams of a dataset."""
        raise NotImplementedError

    def place(self, row: int) -> tuple[str, int]:
        """Return the file that contains a source row, and the row number in this file."""
        raise NotImplementedError

    def source_checksum(self) -> ingest.SourceChecksum | None:
        """Return a checksum that `batches` updates; None if `sum` must be used instead."""
        return None

    def count(self, where: str) -> int | None:
        """Return the number of rows that match a condition; None if this requires a full read."""
        return None

    def filled(
        self, batches: Iterable[pa.RecordBatch], columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, list[ingest.Flaw]]]:
        """Replace file names in columns with the contents of the files."""
        raise NotImplementedError


class _IndexSource(Source):
    """Rows of an index, or the files of a folder."""

    def __init__(self, address: str, name: SourceName, index: ingest.Index, guard: Guard) -> None:
        schema = ingest.filled(index.schema, index.links) if index.links else index.schema
        super().__init__(address, name, index.at, schema, index.rows)
        self._index, self._limits = index, guard.limits
        self.notes, self.files, self.types = index.notes, index.links, index.dictionaries
        if index.links:
            self.key, self.flaw, self.is_list = index.key, index.flaw, index.is_list
            self.extensions, self.encodings = index.extensions, index.encodings
        else:
            self.details = index.details

    def batches(self, request: RowRequest = _ALL_ROWS) -> Iterator[pa.RecordBatch]:
        return self._index.batches(
            request.columns,
            request.where,
            request.place,
            request.start,
            request.stop,
            request.checksum,
        )

    def sum(self) -> str:
        return self._index.sum()

    def place(self, row: int) -> tuple[str, int]:
        return self._index.place(row)

    def source_checksum(self) -> ingest.SourceChecksum | None:
        return None if self.files else self._index.source_checksum()

    def count(self, where: str) -> int | None:
        return None if self.files else self._index.count(where)

    def filled(
        self, batches: Iterable[pa.RecordBatch], columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, list[ingest.Flaw]]]:
        return self._index.filled(batches, columns, self._limits)


class StoredColumns(NamedTuple):
    """The columns of a flare dataset whose rows were saved to a file.

    schema  schema of the saved batches, with the encodings of stored columns
    stored  column -> encoding
    types   column -> Arrow type that the playlist lists
    """

    schema: pa.Schema
    stored: Mapping[str, str]
    types: Mapping[str, pa.DataType]


class _ObjectSource(_IndexSource):
    """Rows of a Python object or of another source, which were saved to a temporary file.

    Messages contain the name of the original source. If this source is a flare dataset, its
    encodings and types are used, because the file does not contain them.
    """

    def __init__(self, options: SourceOptions, name: SourceName, index: ingest.Index) -> None:
        # the user's own code created the rows, so allow relative paths and local files
        at = locate(".", replace(options.guard, allow_local=True))
        super().__init__(options.object_name, name, replace(index, at=at), options.guard)
        columns = options.object_columns
        if columns is not None:
            fields = [
                field.with_metadata(columns.schema.field(field.name).metadata)
                for field in self.schema
            ]
            self.schema = pa.schema(fields)
            self.stored, self.types = columns.stored, columns.types

    def batches(self, request: RowRequest = _ALL_ROWS) -> Iterator[pa.RecordBatch]:
        for batch in super().batches(request):
            fields = [
                self.schema.field(field.name) if field.name in self.stored else field
                for field in batch.schema
            ]
            yield pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))

    def place(self, row: int) -> tuple[str, int]:
        return self.address, row


class _DatasetSource(Source):
    """Rows of a dataset.

    rows       rows to select, such as `10:20`; None: all
    exact      whether numbers that are stored as text are returned as text
    max_bytes  maximum size of a value
    spools     input streams that contain the shards
    """

    def __init__(
        self,
        address: str,
        name: SourceName,
        parts: Sequence[Sequence[Stream]],
        resolved: Sequence[Playlist],
        rows: str | None,
        exact: bool,
        max_bytes: int,
        spools: Sequence[ingest.Spool] = (),
    ) -> None:
        self._data, self._parts, self._exact = read.Dataset(parts, resolved), parts, exact
        self._max_bytes, self._spools = max_bytes, spools
        self._order = select_rows(len(self._data), rows)
        schema = self._data.exact if exact else self._data.schema
        super().__init__(address, name, parts[0][0].at, schema, len(self._order))
        self.stored = {column.name: column.encoding for column in self._data.columns}
        self.extensions = {
            column.name: column.extension for column in self._data.columns if column.extension
        }
        self.types = self._data.types
        self.is_run = rows is None

    def batches(self, request: RowRequest = _ALL_ROWS) -> Iterator[pa.RecordBatch]:
        for rows, batch in self._numbered(request):
            if request.place is not None:
                field = pa.field(request.place, pa.int64())
                batch = batch.append_column(field, pa.array(rows))
            yield batch

    def _numbered(self, request: RowRequest) -> Iterator[tuple[IntArray, pa.RecordBatch]]:
        """Return an iterator over the requested rows, as row numbers and batches."""
        data, rows = self._data, len(self._order)
        stop = rows if request.stop is None else min(request.stop, rows)
        names = data.schema.names if request.columns is None else request.columns
        limit = ValueLimit(data, self._parts, self._max_bytes)
        reader = limit.reader(request.unused, self._exact)
        return reader.read(self._order, names, request.start, stop)

    def sum(self) -> str:
        return lists_checksum(self._data.playlists, self._spools)

    def place(self, row: int) -> tuple[str, int]:
        return shard_of(self._data, self._parts[0], row)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options that determine how a source is opened.

    guard           access rules
    text            CSV columns that are always read as text
    columns         columns to pack; for a folder, the file extensions that form a row
    streams, rows   streams to read, and rows such as `10:20`; only for a dataset
    exact           whether numbers that a dataset stores as text are returned as text
    dialect         dialect of CSV files
    kind            value of --input; None: detected from the names, or from the bytes of an input
                    stream
    null_separated  whether each address in a list ends with a NUL byte
    object_name     name of the source in messages, if its rows were saved to a temporary file:
                    class name of a Python object, or address of the original source; otherwise
                    empty
    object_columns  columns of a flare dataset whose rows were saved to a temporary file; None for
                    any other source
    folder_column   name of a column with the first folder of each file; only for a folder
    allow_missing   whether files of a folder and columns of an index may be missing
    by_extension    whether a folder has one column per extension, instead of one per file category
    used            columns of a folder that are used in addition to `columns`
    where           condition that selects rows
    """

    guard: Guard
    text: Collection[str] = ()
    columns: Sequence[str] | None = None
    streams: Sequence[str] = ()
    rows: str | None = None
    exact: bool = True
    dialect: Dialect = DIALECT
    kind: str | None = None
    null_separated: bool = False
    object_name: str = ""
    object_columns: StoredColumns | None = None
    folder_column: str = ""
    allow_missing: bool = False
    by_extension: bool = False
    used: Collection[str] = ()
    where: str | None = None


def open_source(sources: Addresses, options: SourceOptions) -> Source:
    """Open an index (a table, a list of tables, or a stream), a folder of files, or a dataset.

    raises  UsageError for options that do not fit the source; any error that opening a source
            raises
    """
    addresses = address_texts(sources)
    shown = " ".join(map(redact, addresses))
    if options.null_separated and options.kind not in (None, LIST_INPUT):
        raise UsageError(
            f"-0 needs a list of addresses (--input lines), got --input {options.kind}"
        )
    if options.null_separated and options.kind is None and not any(map(is_stream, addresses)):
        raise UsageError(
            "-0 needs a list of addresses on stdin, or a source with --input lines",
            where=options.object_name or shown,
            hint="Use --input lines -0 if the source is a list of addresses; otherwise omit -0.",
        )
    opened, skipped = _expanded(
        ingest.open_streams(addresses, is_opaque=options.kind == "files"), options.guard
    )
    expanded = list(map(str, opened))
    name = source_name(addresses, expanded)
    spools = [one for one in opened if isinstance(one, ingest.Spool)]
    kinds = (
        {options.kind}
        if options.kind
        else {ingest.sniff(one, options.dialect, options.null_separated) for one in spools}
    )
    format = next((INPUTS[one] for one in kinds if one not in INDEX_INPUTS), None)
    kinds_of_all = kinds if options.kind or len(spools) == len(opened) else ()
    if format is None and options.kind is not None:
        for one in opened:
            if isinstance(one, str) and not is_url(one) and os.path.isdir(one):
                raise UsageError(
                    f"expected files for --input {options.kind}, got a folder",
                    where=one,
                    hint=f"Use a wildcard, such as {shell_quoted(one.rstrip('/') + '/*')}.",
                )
    is_index = options.kind is not None or all(
        isinstance(one, ingest.Spool) or ingest.is_index(one) for one in opened
    )
    tables: Sequence[str | ingest.Spool] = ()
    resolved: Sequence[Playlist] = ()
    is_single = options.kind is None and len(expanded) == 1
    if expanded and format is None and is_index:
        tables = opened
    else:
        if spools and (format is None or len(kinds) > 1):
            raise UsageError(
                "the sources are of different kinds",
                where=shown,
                hint="Pack tables, tar archives and datasets separately.",
            )
        resolved = read.resolve(
            expanded,
            format=None if options.kind is None else format,
            guard=options.guard,
            maps=False,
            expanded=True,
            table={} if options.kind is None else {"input": options.kind},
            opened={str(one): one for one in spools},
        )
        if is_single:
            tables = _tables_in(expanded[0], resolved)
    source: Source
    if tables:
        shown_table = options.object_name or shown
        check_no_rows(shown_table, options.streams, options.rows)
        _check_folder_column(options.folder_column, shown_table)
        with _hints_on_kind(options.kind, kinds_of_all):
            index = ingest.open_index(
                tables,
                guard=options.guard,
                text=options.text,
                dialect=options.dialect,
                kind=options.kind,
                null_separated=options.null_separated,
                allow_missing=options.allow_missing,
            )
        if options.object_name:
            source = _ObjectSource(options, replace(name, folder=""), index)
        else:
            source = _IndexSource(shown, name, index, options.guard)
    elif is_single and not spools and _is_plain_folder(expanded[0], resolved, options.guard):
        options.dialect.check_used(False, shown)
        check_no_rows(shown, options.streams, options.rows, "folder")
        folder = ingest.open_folder(
            expanded[0],
            guard=options.guard,
            columns=options.columns,
            folder_column=options.folder_column,
            allow_missing=options.allow_missing,
            by_extension=options.by_extension,
            used=options.used,
            where=options.where,
            listed=resolved[0].streams[0],
        )
        source = _IndexSource(shown, name, folder, options.guard)
    else:
        if options.kind is not None and not facts(format).is_plain:
            _check_kind(options.kind, resolved)
        options.dialect.check_used(False, shown)
        _check_folder_column(options.folder_column, shown)
        parts = read.select_streams(resolved, options.streams)
        max_bytes = options.guard.limits.max_bytes
        with _hints_on_kind(options.kind, kinds_of_all):
            source = _DatasetSource(
                shown, name, parts, resolved, options.rows, options.exact, max_bytes, spools
            )
        source.notes = _single_file(resolved[0].streams[0]) if is_single else ()
    source.notes = (*skipped, *source.notes)
    return source


def _tables_in(folder: str, resolved: Sequence[Playlist]) -> list[str]:
    """Return the addresses of the tables in a folder.

    The result is empty if the folder contains other files, or a playlist or index of shards.
    """
    streams = [stream for one in resolved for stream in one.streams]
    is_folder = len(streams) == 1 and resolved[0].at is None and streams[0].sizes is not None
    if not is_folder or not facts(streams[0].format).typed:
        return []
    return [f"{folder.rstrip('/')}/{url}" for url in streams[0].urls]


def _check_kind(kind: str, resolved: Sequence[Playlist]) -> None:
    """Raise UsageError if a folder contains no files of the kind in --input."""
    for one in resolved:
        if one.at is None and facts(one.streams[0].format).is_plain:
            raise UsageError(
                f"the folder contains no {kind} files; --input {kind} expects such files",
                where=one.streams[0].at,
                hint="Omit --input to pack the files in the folder.",
            )


def _check_folder_column(name: str, shown: str) -> None:
    if name:
        raise UsageError(
            "--folder-column: the source is not a folder of files",
            where=shown,
            hint="Omit --folder-column, or pass a folder as the source.",
        )


@contextlib.contextmanager
def _hints_on_kind(kind: str | None, kinds: Collection[str]) -> Iterator[None]:
    """Extend the hint of an error in the `with` block: recommend setting or changing --input.

    kind   value of --input; None if the user did not set it
    kinds  kinds that the hint names: the value of --input, or else the detected kinds of the input
           streams; empty: do not change the hint
    """
    try:
        yield
    except NoRowsError:
        raise
    except FormatError as error:
        if not kinds:
            raise
        option = "change --input" if kind else "set its kind with --input"
        hint = f"If the source is not {' or '.join(sorted(kinds))}, {option}."
        raise error.changed(hint=f"{error.hint} {hint}".lstrip()) from None


def _expanded(
    sources: Sequence[str | ingest.Spool], guard: Guard
) -> tuple[list[str | ingest.Spool], list[str]]:
    """Replace each address that contains wildcards with the addresses of the matching data files.

    return  all sources, including unchanged input streams; notes about skipped files
    """
    expanded, notes = list[str | ingest.Spool](), list[str]()
    for address in sources:
        if isinstance(address, ingest.Spool):
            expanded.append(address)
            continue
        matches = read.expand(address, guard)
        if matches != [address] and any(sign in address for sign in WILDCARDS):
            data, skipped = ingest.data_among(matches)
            if not data:
                raise NoRowsError("no data files match the pattern", where=redact(address))
            matches, notes = data, [*notes, *skipped]
        expanded += matches
    return expanded, notes


def _single_file(stream: Stream) -> tuple[str, ...]:
    """Return a note if the source is one file that is neither a known table nor a media file."""
    if not facts(stream.format).is_plain or len(stream) != 1 or is_media(kind_of(stream.urls[0])):
        return ()
    reason, advice = "unknown extension", "use --input if the file is a table"
    if stream.urls[0].lower().endswith(_WORKBOOKS):
        reason, advice = "workbook", "save its sheets as CSV files to pack their rows"
    return (f"{stream.chunk(0).at}: {reason}; packing the whole file as one row; {advice}",)


def _is_plain_folder(address: str, resolved: Sequence[Playlist], guard: Guard) -> bool:
    """Return whether an address is a folder of plain files, without a playlist or index."""
    streams = [stream for one in resolved for stream in one.streams]
    return (
        len(streams) == 1
        and facts(streams[0].format).is_plain
        and resolved[0].at is None
        and streams[0].at == locate(address, guard).unmapped()
    )
