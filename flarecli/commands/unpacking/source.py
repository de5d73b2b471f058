"""Sources of an unpack: rows of a dataset, an index or a tar stream, selected by options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from flarecli import encodings, formats, ingest, read, sql
from flarecli.commands.options import UnpackOptions
from flarecli.commands.provenance import SourceName, shard_of, source_name
from flarecli.commands.row_order import (
    check_no_rows,
    columns_to_read,
    first_rows,
    select_rows,
    without_rows,
)
from flarecli.commands.row_reader import RowReader, ValueLimit
from flarecli.commands.sources import (
    lists_checksum,
    note_sources,
    open_streams,
    samples,
    single_tar,
)
from flarecli.commands.unpacking.filenames import ROW
from flarecli.errors import Facts, Place, UsageError
from flarecli.formats import STREAMED
from flarecli.formats.files import COLUMNS
from flarecli.ingest import Dialect
from flarecli.model import Stream
from flarecli.progress import Progress
from flarecli.redact import redact
from flarecli.storage import Guard, Location, locate

__all__ = ["RowAddress", "RowSource", "open_source"]

_FILE_SCHEMA = pa.schema([encodings.field(column) for column in COLUMNS])
_ROW_FIELD = pa.field(ROW, pa.int64())
_UNNAMED = SourceName("")
_FILES_AT_ONCE = 16  # number of files of a packed folder that are read together


@dataclass(frozen=True)
class RowSource:
    """Rows to unpack.

    rows      number of rows; None if unknown
    rereads   whether rows can be read twice at little cost
    checksum  function that returns a checksum, to detect a changed source: of the index, or of the
              playlists and input streams; empty for a tar stream
    batches   function that yields batches; its arguments are the column names and the number of
              rows to skip, and each batch also contains the column ROW of row numbers
    place     function that returns, for a row number, the index file or shard that contains the
              row, and the row number in this file; None if a query creates the rows
    named     name of the source in the journal and in the list of failed rows
    extensions  column -> `Column.extension`
    """

    address: str
    at: Location
    format: str
    schema: pa.Schema
    rows: int | None
    rereads: bool
    checksum: Callable[[], str]
    batches: Callable[[Sequence[str], int], Iterator[pa.RecordBatch]]
    place: Callable[[int], tuple[str, int]] | None = None
    named: SourceName = _UNNAMED
    extensions: Mapping[str, str] = field(default_factory=dict)


class RowAddress(Place):
    """Address of a row: its file and its row number in this file, if they are known.

    The address is determined only when it is printed.
    """

    def __init__(self, source: RowSource, row: int) -> None:
        self._source, self._row = source, row

    def facts(self) -> Facts:
        """Return the file that contains the row, and the row number in this file."""
        place = self._source.place
        file, row = (self._source.address, self._row) if place is None else place(self._row)
        return file, row, None, None, ""


def open_source(
    options: UnpackOptions,
    sources: Sequence[str],
    guard: Guard,
    text_columns: Collection[str],
    progress: Progress,
) -> RowSource:
    """Open the rows of an index, a dataset or a tar stream.

    The source is an index if --input names a kind of index, or if every address is an input stream
    or has the suffix of an index.

    text_columns  CSV columns that are read as text, such as keys and links
    raises        UsageError if `rows` is set for an index; the errors of `ingest.open_index` and
                  `read.resolve`
    """
    kind = options.input
    is_index = kind in formats.INDEX_INPUTS
    format = None
    if options.format is not None or not is_index:
        format = options.source_format(options.format)
    rows, where = options.rows, options.where
    spools = open_streams(sources, kind)
    tar = single_tar(sources, spools, options)
    if tar is not None:
        return _open_tar(tar, format, options, guard)
    addresses = [
        one
        for source in sources
        for one in ([source] if source in spools else read.expand(source, guard))
    ]
    opened = [spools.get(one, one) for one in addresses]
    named = source_name(sources, addresses)
    shown = " ".join(redact(one) for one in sources)
    makes_rows = where is not None and sql.is_statement(where)
    if (
        format is None
        and addresses
        and (
            is_index or all(isinstance(one, ingest.Spool) or ingest.is_index(one) for one in opened)
        )
    ):
        check_no_rows(shown, options.streams, rows)
        table = ingest.open_index(
            opened, guard=guard, text=text_columns, dialect=Dialect.parse(options.csv), kind=kind
        )
        for note in table.details:
            progress.note(note, verbose=True)
        source = RowSource(
            shown,
            table.at,
            "index",
            table.schema,
            table.rows,
            True,
            table.sum,
            lambda names, _: table.batches(names, where, ROW),
            None if makes_rows else table.place,
            named,
        )
        return _select(source, where, options.limit)
    playlists = read.resolve(
        addresses,
        format=format,
        guard=guard,
        maps=False,
        expanded=True,
        table=options.table_headers(),
        opened=spools,
    )
    note_sources(playlists, progress)
    parts = read.select_streams(playlists, options.streams)
    data = read.Dataset(parts, playlists)
    order = select_rows(len(data), rows)
    stream = parts[0][0]
    unused = set() if where is not None else _unused_columns(data.schema, options, text_columns)
    reader = ValueLimit(data, parts, guard.limits.max_bytes).reader(unused)

    def batches(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        for numbers, batch in reader.read(order, names, skip):
            yield batch.append_column(_ROW_FIELD, pa.array(numbers))

    source = RowSource(
        shown,
        stream.at,
        stream.format or "",
        data.schema,
        len(order),
        stream.at.is_local,
        partial(lists_checksum, playlists, spools.values()),
        batches,
        None if makes_rows else partial(shard_of, data, parts[0]),
        named,
        {} if makes_rows else {one.name: one.extension for one in data.columns if one.extension},
    )
    files = _packed_files(parts) if rows is None else None
    if files is not None:  # each record of a packed folder is a file with a name
        source = replace(
            source,
            format=formats.FALLBACK,
            schema=_FILE_SCHEMA,
            rows=len(files),
            rereads=True,
            batches=partial(_read_files, reader, data.schema.names, files),
            place=None,
            extensions={},
        )
    return _select(source, where, options.limit)


def _open_tar(
    tar: ingest.Spool, format: str | None, options: UnpackOptions, guard: Guard
) -> RowSource:
    """Open a stream that contains a tar.

    The archive is read once, so names are checked batch by batch, and the unpack cannot be resumed.
    """
    if options.rows is not None:
        raise UsageError(
            "the rows of a tar from standard input or a pipe have no numbers",
            where=tar,
            hint="Save the tar to a file, or select rows with --where or --limit.",
        )
    schema, rows = samples(tar, format)

    def batches(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        if skip:
            raise UsageError(
                "a tar stream cannot be resumed",
                where=tar,
                hint="Use --overwrite to start again.",
            )
        return (batch.select([*names, ROW]) for batch in _number(rows))

    at = locate(".", guard)
    source = RowSource(str(tar), at, STREAMED, schema, None, False, lambda: "", batches)
    return _select(source, options.where, options.limit)


def _packed_files(parts: Sequence[Sequence[Stream]]) -> list[tuple[str, int]] | None:
    """Return (path, row) of the records in a packed folder, in row order; None for other data."""
    if len(parts) != 1 or len(parts[0]) != 1 or len(stream := parts[0][0]) != 1:
        return None
    return formats.facts(stream.format).packed_files(stream.chunk(0))


def _read_files(
    reader: RowReader,
    columns: Sequence[str],
    files: Sequence[tuple[str, int]],
    names: Sequence[str],
    skip: int,
) -> Iterator[pa.RecordBatch]:
    """Yield batches with the name and the bytes of each file in a packed folder."""
    while skip < len(files):
        records = np.array([row for _, row in files[skip : skip + _FILES_AT_ONCE]])
        for _, batch in reader.take(columns, records):
            start, skip = skip, skip + batch.num_rows
            paths = pa.array([path for path, _ in files[start:skip]], pa.large_string())
            arrays = {"name": paths, "data": batch.column(0)}
            numbers = pa.array(np.arange(start, skip))
            yield pa.RecordBatch.from_arrays(
                [*(arrays[name] for name in names), numbers],
                schema=pa.schema([*(_FILE_SCHEMA.field(name) for name in names), _ROW_FIELD]),
            )


def _unused_columns(
    schema: pa.Schema, options: UnpackOptions, text_columns: Collection[str]
) -> set[str]:
    """Return the columns in which values larger than `--max-object` need not be read.

    Columns of text, and columns whose values determine file names, must always be read. In all
    other columns, a larger value is not used, because its row fails.
    """
    pattern = options.name or ""
    return {
        field.name
        for field in schema
        if field.type != encodings.TEXT
        and field.name not in text_columns
        and field.name not in pattern
    }


def _number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Append the column of row numbers."""
    first = 0
    for batch in batches:
        numbers = np.arange(first, first + batch.num_rows)
        yield batch.append_column(_ROW_FIELD, pa.array(numbers))
        first += batch.num_rows


def _select(source: RowSource, where: str | None, limit: int | None) -> RowSource:
    """Return a source that yields only the rows that `where` and `limit` select."""
    numbered = source.schema.append(_ROW_FIELD)
    selected = numbered if where is None else sql.select(numbered, iter(()), where)[0]
    source_skips = where is None and source.format != "index"

    def batches(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        read_names = columns_to_read(source.schema.names, names, where)
        some = source.batches(read_names, skip if source_skips else 0)
        if where is not None:
            fields = [source.schema.field(name) for name in read_names]
            _, some = sql.select(pa.schema([*fields, _ROW_FIELD]), some, where)
            some = _number(some) if ROW not in selected.names else some
        if limit is not None:
            some = first_rows(some, limit - skip if source_skips else limit)
        for batch in without_rows(some, 0 if source_skips else skip):
            yield batch.select([*names, ROW])

    rows = source.rows
    if where is not None:
        rows = None
    elif rows is not None and limit is not None:
        rows = min(rows, limit)
    schema = pa.schema([one for one in selected if one.name != ROW])
    return replace(source, schema=schema, rows=rows, batches=batches)
