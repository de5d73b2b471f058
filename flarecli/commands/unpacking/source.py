"""Rows to unpack: numbered rows of a dataset or an index, then where and limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from flarecli import encodings, formats, ingest, read, sql
from flarecli.arguments import Addresses, address_texts
from flarecli.commands import tar_stream as streamed
from flarecli.commands.provenance import shard_of
from flarecli.commands.row_order import first_rows, needed, no_index, ordered, read_rows, weight
from flarecli.commands.source_names import UNNAMED, SourceName, source_name
from flarecli.commands.source_notes import note_sources
from flarecli.commands.unpacking.filenames import ROW
from flarecli.errors import Facts, Place, UsageError
from flarecli.formats.files import COLUMNS
from flarecli.hashes import DEFAULT, Sums
from flarecli.model import Stream
from flarecli.playlists import text
from flarecli.progress import Progress
from flarecli.redact import redact
from flarecli.storage import Guard, Location, locate

__all__ = ["At", "Origin", "open_origin"]

_SCHEMA = pa.schema([encodings.field(column) for column in COLUMNS])
_FILES = 16  # files of a packed folder that are read together


@dataclass(frozen=True)
class Origin:
    """Rows to unpack. `batches(columns, skip)` gives them with a column of their numbers, `rereads`
    without much cost.

    place  gives the file of an index or a shard, and the row in it, of a row by its number; None
           where a query makes the rows
    named  what outputs say of the source, whatever was typed
    """

    address: str
    at: Location
    format: str
    schema: pa.Schema
    rows: int | None
    rereads: bool
    sum: Callable[[], str]
    batches: Callable[[Sequence[str], int], Iterator[pa.RecordBatch]]
    place: Callable[[int], tuple[str, int]] | None = None
    named: SourceName = UNNAMED


class At(Place):
    """The address of a row, in the file that holds it where that is known; looked up once it is
    used.
    """

    def __init__(self, origin: Origin, row: int) -> None:
        self._origin, self._row = origin, row

    def facts(self) -> Facts:
        """Return the file and the row in it."""
        place = self._origin.place
        file, row = (self._origin.address, self._row) if place is None else place(self._row)
        return file, row, None, None, ""


def open_origin(
    sources: Addresses,
    format: str | None,
    streams: Sequence[str],
    rows: str | None,
    where: str | None,
    limit: int | None,
    guard: Guard,
    texts: Collection[str],
    progress: Progress | None = None,
) -> Origin:
    """Open what is at some addresses: an index if they are called like one, else a dataset.

    rows    such as `10:20`, of a dataset; where and limit then keep some of those
    texts   columns of a CSV that are read as text: keys, links
    raises  UsageError for rows of an index; whatever opening raises
    """
    addresses = [one for source in address_texts(sources) for one in read.expand(source, guard)]
    if format is not None and streamed.is_stdin(addresses):
        return _of_stdin(format, rows, where, limit, guard)
    named = source_name(address_texts(sources), addresses)
    is_made = where is not None and sql.is_statement(where)
    shown = " ".join(redact(one) for one in address_texts(sources))
    if format is None and addresses and all(ingest.is_index(one) for one in addresses):
        no_index(shown, streams, rows)
        table = ingest.open_index(addresses, guard=guard, text=texts)
        for note in table.details:
            (progress or Progress()).note(note, verbose=True)
        origin = _selected(
            shown,
            table.at,
            "index",
            table.schema,
            table.rows,
            True,
            table.sum,
            lambda names, _: table.batches(names, where, ROW),
            where,
            limit,
        )
        return replace(origin, named=named, place=None if is_made else table.place)
    found = read.resolve(addresses, format=format, guard=guard, maps=False, expanded=True)
    note_sources(found, progress or Progress())
    parts = read.select_streams(found, streams)
    data = read.Dataset(parts, found)
    order = ordered(len(data), rows)
    at, kind = parts[0][0].at, parts[0][0].format or ""
    files = _packed(parts) if rows is None else None

    def batches(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        for numbers, batch in read_rows(
            data, order, skip, len(order), names, weight(parts, len(data))
        ):
            yield batch.append_column(pa.field(ROW, pa.int64()), pa.array(numbers))

    def listing() -> str:
        sums = Sums([DEFAULT])
        for one in found:
            sums.update(text(one))
        return sums.hex()[DEFAULT]

    if files is not None:  # the records of a packed folder are files, each under its own name
        origin = _selected(
            shown,
            at,
            formats.FALLBACK,
            _SCHEMA,
            len(files),
            True,
            listing,
            partial(_of_files, data, files),
            where,
            limit,
        )
        return replace(origin, named=named)
    origin = _selected(
        shown, at, kind, data.schema, len(order), at.is_local, listing, batches, where, limit
    )
    place = None if is_made else partial(shard_of, data, parts[0])
    return replace(origin, named=named, place=place)


def _of_stdin(
    format: str, rows: str | None, where: str | None, limit: int | None, guard: Guard
) -> Origin:
    """Take the samples of a tar at standard input: they come once, so names are checked as they
    come, and nothing is resumed.
    """
    if rows is not None:
        raise UsageError(
            "a stream has no rows by number", where=streamed.STDIN, hint="Give --where or --limit."
        )
    schema, samples = streamed.samples(format)

    def batches(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        if skip:
            raise UsageError(
                "standard input cannot be gone on with",
                where=streamed.STDIN,
                hint="Give --overwrite to begin anew.",
            )
        return (batch.select([*names, ROW]) for batch in _numbered(samples))

    return _selected(
        streamed.STDIN,
        locate(".", guard),
        format,
        schema,
        None,
        False,
        lambda: "",
        batches,
        where,
        limit,
    )


def _packed(parts: Sequence[Sequence[Stream]]) -> list[tuple[str, int]] | None:
    """Return the records of a packed folder, (path, row), in row order; None for other datasets."""
    if len(parts) != 1 or len(parts[0]) != 1 or len(stream := parts[0][0]) != 1:
        return None
    return formats.facts(stream.format).packed_files(stream.chunk(0))


def _of_files(
    data: read.Dataset, files: Sequence[tuple[str, int]], names: Sequence[str], skip: int
) -> Iterator[pa.RecordBatch]:
    own = data.schema.names[0]
    for start in range(skip, len(files), _FILES):
        some = files[start : start + _FILES]
        column = data.take([row for _, row in some], [own]).column(0)
        arrays = {"name": pa.array([path for path, _ in some], pa.large_string()), "data": column}
        fields = [*(_SCHEMA.field(name) for name in names), pa.field(ROW, pa.int64())]
        yield pa.RecordBatch.from_arrays(
            [*(arrays[name] for name in names), pa.array(np.arange(start, start + len(some)))],
            schema=pa.schema(fields),
        )


def _numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in batches:
        yield batch.append_column(
            pa.field(ROW, pa.int64()), pa.array(np.arange(first, first + batch.num_rows))
        )
        first += batch.num_rows


def _selected(
    address: str,
    at: Location,
    format: str,
    schema: pa.Schema,
    rows: int | None,
    rereads: bool,
    sum: Callable[[], str],
    batches: Callable[[Sequence[str], int], Iterator[pa.RecordBatch]],
    where: str | None,
    limit: int | None,
) -> Origin:
    """Apply where, limit, and a skip of completed rows to the batches of a source."""
    numbered = schema.append(pa.field(ROW, pa.int64()))
    result = numbered if where is None else sql.select(numbered, iter(()), where)[0]
    can_skip = where is None and format != "index"

    def chosen(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        wanted = needed(schema.names, names, where)
        some = batches(wanted, skip if can_skip else 0)
        if where is not None:
            own = pa.schema([*(schema.field(one) for one in wanted), pa.field(ROW, pa.int64())])
            _, some = sql.select(own, some, where)
            some = _numbered(some) if ROW not in result.names else some
        if limit is not None:
            some = first_rows(some, limit - skip if can_skip else limit)
        left = 0 if can_skip else skip
        for batch in some:
            cut = min(left, batch.num_rows)
            left -= cut
            if batch.num_rows > cut:
                yield batch.slice(cut).select([*names, ROW])

    total = (
        None if where is not None or rows is None else rows if limit is None else min(rows, limit)
    )
    return Origin(
        address,
        at,
        format,
        pa.schema([one for one in result if one.name != ROW]),
        total,
        rereads,
        sum,
        chosen,
    )
