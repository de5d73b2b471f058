"""What a pack reads from: an index of samples, or a dataset that is converted; both are batches of columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from flarecli import ingest, playlists, read
from flarecli.arguments import Addresses, address_texts
from flarecli.braces import WILDCARDS
from flarecli.commands.provenance import shard_of
from flarecli.commands.row_order import no_index, ordered, read_rows, weight
from flarecli.commands.source_names import UNNAMED, SourceName, source_name
from flarecli.errors import NoRowsError
from flarecli.formats import facts
from flarecli.hashes import DEFAULT, Sums
from flarecli.media import is_media, kind_of
from flarecli.model import IntArray, Playlist, Stream
from flarecli.redact import redact
from flarecli.storage import Guard, Location, locate

__all__ = ["Source", "open_source"]


@dataclass(frozen=True)
class Source:
    """Rows to pack.

    address  as the user typed it, without secrets: for messages
    named    what outputs say of it, whatever was typed
    at       where relative links in it start
    rows     how many there are, if that is known without reading
    batches  gives the rows start..stop, only the columns named; with a condition, rows that it surely leaves out need not come;
             `place` names one more column, int64: the number of each row in the whole source
    place    gives the file, and the row in it, of a row that was given by its number
    sum      gives the xxh3_128 of what the rows come from: the index's own bytes, or the listing of the dataset
    running  gives what takes that sum while `batches` reads, given it as `running`; None where it is to be taken apart
    notes    what to tell the user about it, `details` those who ask for more
    stored   what the columns of a dataset are stored as; empty for an index
    count    counts the rows that a condition leaves, from statistics where they tell
    files    columns that hold names of files in `batches`, and what those hold in `schema`
    filled   puts the contents in place of the names, in some of those columns
    key      the column that names the rows, of sources that have one by themselves
    flaw     returns kind and message for a row without a file for a column of `files`; None where none can lack
    is_run   whether the rows are numbered from 0 on, without gaps
    """

    address: str
    at: Location
    schema: pa.Schema
    rows: int | None
    batches: Callable[
        ..., Iterator[pa.RecordBatch]
    ]  # (columns=None, where=None, start=0, stop=None, place=None)
    sum: Callable[[], str]
    place: Callable[[int], tuple[str, int]]
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    stored: Mapping[str, str] = field(default_factory=dict)
    count: Callable[[str], int] | None = None
    files: tuple[str, ...] = ()
    filled: (
        Callable[
            [Iterable[pa.RecordBatch], Sequence[str]],
            Iterator[tuple[pa.RecordBatch, list[ingest.Flaw]]],
        ]
        | None
    ) = None
    key: str | None = None
    flaw: Callable[[str, bool], tuple[str, str]] | None = None
    is_run: bool = True
    running: Callable[[], ingest.SourceChecksum | None] = lambda: None
    named: SourceName = UNNAMED


def open_source(
    sources: Addresses,
    *,
    text: Collection[str],
    guard: Guard,
    columns: Sequence[str] | None = None,
    allow_missing: bool = False,
    null_separated: bool = False,
    exact: bool = True,
    streams: Sequence[str] = (),
    rows: str | None = None,
) -> Source:
    """Open an index (parquet, CSV, JSON, lists of them, `-`), a folder of files, or a dataset.

    text            columns of a CSV that are read as text, whatever they look like
    columns         those that are packed: of a folder, which files make a row
    allow_missing   columns that some files of an index do not have are null there
    null_separated  a NUL stands behind each address at standard input
    exact           a dataset's numbers that are kept as text come as that text, so that nothing of them changes
    streams, rows   only these of a dataset, rows such as `10:20`
    raises          UsageError for streams or rows of an index; whatever opening raises
    """
    addresses = address_texts(sources)
    expanded, skipped = _expanded(addresses, guard)
    opened = _opened(
        addresses,
        expanded,
        skipped,
        text=text,
        guard=guard,
        columns=columns,
        allow_missing=allow_missing,
        null_separated=null_separated,
        exact=exact,
        streams=streams,
        rows=rows,
    )
    return replace(opened, named=source_name(addresses, expanded))


def _opened(
    addresses: Sequence[str],
    expanded: list[str],
    skipped: list[str],
    *,
    text: Collection[str],
    guard: Guard,
    columns: Sequence[str] | None,
    allow_missing: bool,
    null_separated: bool,
    exact: bool,
    streams: Sequence[str],
    rows: str | None,
) -> Source:
    shown = " ".join(redact(address) for address in addresses)
    if expanded and all(ingest.is_index(address) for address in expanded):
        no_index(shown, streams, rows)
        index = ingest.open_index(
            expanded,
            guard=guard,
            text=text,
            allow_missing=allow_missing,
            null_separated=null_separated,
        )
        return _of_index(shown, replace(index, notes=(*skipped, *index.notes)), guard)
    found = read.resolve(expanded, guard=guard, maps=False, expanded=True)
    if len(expanded) == 1 and is_plain_folder(expanded[0], found, guard):
        no_index(shown, streams, rows)
        return _of_index(
            shown, ingest.open_folder(expanded[0], guard=guard, columns=columns), guard
        )
    parts = read.select_streams(found, streams)
    notes = (*skipped, *(_alone(found[0].streams[0]) if len(expanded) == 1 else ()))
    data = read.Dataset(parts, found)
    first = parts[0][0].at
    order = None if rows is None else ordered(len(data), rows)

    def listing() -> str:
        sums = Sums([DEFAULT])
        for one in data.playlists:
            sums.update(playlists.text(one))
        return sums.hex()[DEFAULT]

    def numbered(
        columns: Sequence[str] | None, start: int, stop: int | None
    ) -> Iterator[tuple[IntArray, pa.RecordBatch]]:
        if order is not None:
            names = data.schema.names if columns is None else columns
            yield from read_rows(
                data,
                order,
                start,
                len(order) if stop is None else min(stop, len(order)),
                names,
                weight(parts, len(data)),
                exact,
            )
            return
        for batch in data.scan(columns, start, stop, exact=exact):
            yield np.arange(start, start + batch.num_rows), batch
            start += batch.num_rows

    def batches(
        columns: Sequence[str] | None = None,
        where: str | None = None,
        start: int = 0,
        stop: int | None = None,
        place: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        for rows, batch in numbered(columns, start, stop):
            yield (
                batch
                if place is None
                else batch.append_column(pa.field(place, pa.int64()), pa.array(rows))
            )

    stored = {column.name: column.encoding for column in data.columns}
    rows_of, schema = (
        len(data) if order is None else len(order),
        data.exact if exact else data.schema,
    )
    return Source(
        shown,
        first,
        schema,
        rows_of,
        batches,
        listing,
        partial(shard_of, data, parts[0]),
        notes,
        stored=stored,
        is_run=order is None,
    )


def _expanded(addresses: Sequence[str], guard: Guard) -> tuple[list[str], list[str]]:
    """Expand addresses; of what a wildcard matches, files that are no data are left out, with a note."""
    expanded, notes = list[str](), list[str]()
    for address in addresses:
        found = read.expand(address, guard)
        if found != [address] and any(sign in address for sign in WILDCARDS):
            data, skipped = ingest.data_among(found)
            if not data:
                raise NoRowsError("no data files match", where=redact(address))
            found, notes = data, [*notes, *skipped]
        expanded += found
    return expanded, notes


def _alone(stream: Stream) -> tuple[str, ...]:
    """Note that a single file, which is no picture or the like, was not taken for a table."""
    if not facts(stream.format).is_plain or len(stream) != 1 or is_media(kind_of(stream.urls[0])):
        return ()
    return (
        f"{stream.chunk(0).at}: taken as a file, which makes one row: by its name it is no table that is read",
    )


def is_plain_folder(address: str, found: Sequence[Playlist], guard: Guard) -> bool:
    """Say whether an address is a folder that is no dataset: it resolved to the plain files in it."""
    streams = [stream for one in found for stream in one.streams]
    return (
        len(streams) == 1
        and facts(streams[0].format).is_plain
        and found[0].at is None
        and streams[0].at == locate(address, guard).unmapped()
    )


def _of_index(shown: str, index: ingest.Index, guard: Guard) -> Source:
    def batches(
        columns: Sequence[str] | None = None,
        where: str | None = None,
        start: int = 0,
        stop: int | None = None,
        place: str | None = None,
        running: ingest.SourceChecksum | None = None,
    ) -> Iterator[pa.RecordBatch]:
        return index.batches(columns, where, place, start, stop, running)

    if not index.links:
        sum, notes, details = index.sum, index.notes, index.details
        return Source(
            shown,
            index.at,
            index.schema,
            index.rows,
            batches,
            sum,
            index.place,
            notes,
            details,
            count=index.count,
            running=index.source_checksum,
        )

    def filled(
        batches: Iterable[pa.RecordBatch], columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, list[ingest.Flaw]]]:
        return index.filled(batches, columns, guard.limits)

    schema = ingest.filled(index.schema, index.links)
    return Source(
        shown,
        index.at,
        schema,
        index.rows,
        batches,
        index.sum,
        index.place,
        index.notes,
        files=index.links,
        filled=filled,
        key=index.key,
        flaw=index.flaw,
    )
