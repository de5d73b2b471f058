"""Input streams of the commands that read datasets, and notes about the data that is read.

An input stream is standard input or a FIFO. A tar from an input stream is read in one pass, in
bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING

from flarecli import encodings
from flarecli.errors import FormatError, UsageError, ValueFitError
from flarecli.formats import INPUTS, STREAMED, TableOptions, facts, find
from flarecli.hashes import DEFAULT, Sums
from flarecli.lazy import pa
from flarecli.model import Playlist, total
from flarecli.playlists import text
from flarecli.progress import Progress
from flarecli.storage import bucket_in, bucket_note, is_stream
from flarecli.units import format_count

if TYPE_CHECKING:
    from flarecli.ingest import Spool

__all__ = ["lists_checksum", "note_sources", "open_streams", "samples", "single_tar"]


def open_streams(
    sources: Sequence[str], kind: str | None, stdin: IO[bytes] | None = None
) -> dict[str, Spool]:
    """Open the sources that are input streams; return address -> open stream.

    kind    value of --input
    raises  the errors of `ingest.open_streams`
    """
    if not any(map(is_stream, sources)):
        return {}
    from flarecli import ingest  # loads the table readers, which other sources rarely need

    opened = ingest.open_streams(sources, stdin, is_opaque=kind == "files")
    pairs = zip(sources, opened, strict=True)
    return {source: one for source, one in pairs if isinstance(one, ingest.Spool)}


def single_tar(
    sources: Sequence[str], opened: Mapping[str, Spool], options: TableOptions
) -> Spool | None:
    """Return the input stream if it is the only source and contains a tar, and None otherwise.

    raises  FormatError for an input stream of an unknown kind; UsageError for an invalid --csv
    """
    if len(sources) != 1 or sources[0] not in opened:
        return None
    from flarecli.ingest import Dialect, sniff

    spool, dialect = opened[sources[0]], Dialect.parse(options.csv)
    kind = options.input or sniff(spool, dialect)
    return spool if INPUTS.get(kind) == STREAMED else None


def samples(
    spool: Spool, format: str | None = None, exact: bool = False
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of the samples in a tar, which is read once.

    format  format that the user named
    exact   whether numbers that are stored as text are returned as text
    raises  UsageError for another format; FormatError for an invalid or empty tar; ReachError if
            reading fails
    """
    if format not in (None, STREAMED):
        raise UsageError(
            f"the stream is a tar, which cannot be read as format {format}",
            where=spool,
            hint="Save the stream to a file, or omit -f.",
        )
    batches = find(STREAMED).scan_stream(spool.drain(), where=spool)
    batches = batches if exact else _plain(batches, str(spool))
    first = next(batches, None)
    if first is None:
        raise FormatError("tar archive contains no samples", where=spool)
    return first.schema, chain([first], batches)


def lists_checksum(playlists: Sequence[Playlist], spools: Iterable[Spool]) -> str:
    """Return the xxh3_128 of the lists and the input streams of a dataset."""
    sums = Sums([DEFAULT])
    for one in playlists:
        sums.update(text(one))
    for spool in spools:
        for block in spool.blocks():
            sums.update(block)
    return sums.hex()[DEFAULT]


def _plain(batches: Iterator[pa.RecordBatch], where: str) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in batches:
        arrays, fields = [], []
        for field, array in zip(batch.schema, batch.columns, strict=True):
            try:
                array, encoding = encodings.plain(
                    array, encodings.lookup(encodings.encoding_of(field) or "bytes")
                )
            except ValueFitError as error:
                raise error.at(where, first).of_column(field.name) from None
            arrays.append(array)
            fields.append(encodings.field(encodings.column(field.name, encoding.name)))
        first += batch.num_rows
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def note_sources(playlists: Sequence[Playlist], progress: Progress) -> None:
    """Report the lists and input streams of sources as verbose notes.

    Two notes are also reported without --verbose:

    - the buckets that a local list names, because the user's credentials are used to read them,
    - a table that is read as one file, because the user may have expected its rows.
    """
    for one in playlists:
        if one.at is not None and one.at.is_local:
            urls = (url for stream in one for url in stream.urls if "://" in url)
            buckets = dict.fromkeys(bucket for url in urls if (bucket := bucket_in(url)))
            if buckets:
                progress.note(bucket_note(one.at, list(buckets)))
    for one in playlists:
        for stream in one:
            if (
                facts(stream.format).is_plain
                and one.at is None
                and not one.requested_format
                and len(stream) == 1
                and _is_index(stream.urls[0])
            ):
                progress.note(
                    f"{stream.chunk(0).at}: reading this table as a single file; "
                    "to read its rows, pack it with `flare pack`"
                )
            rows = (
                "rows not listed"
                if stream.rows is None
                else format_count(total(stream.rows), "row")
            )
            listed = f"{one.at}: " if one.at is not None else f"{stream.at}: no list, "
            format = f"format {stream.format}" if stream.format else "unknown format"
            shards = format_count(len(stream), "shard")
            note = f"{listed}stream {stream.name!r}: {format}, {rows} in {shards}"
            progress.note(note, verbose=True)


def _is_index(name: str) -> bool:
    from flarecli.ingest import is_index  # imported only here, because it loads the table readers

    return is_index(name)
