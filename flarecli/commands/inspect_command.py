"""The `inspect` command: describe datasets.

Playlists and indexes are read first. If they do not list the row count or the size of a shard, the
header of the shard is read. Rows are read only for a sample or for statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from flarecli import encodings, formats
from flarecli.arguments import address_texts, from_options, name_list
from flarecli.commands.missing_shards import holes, missing_shards, writer_of
from flarecli.commands.options import InspectOptions
from flarecli.commands.sources import note_sources, open_streams
from flarecli.compress import SUFFIXES
from flarecli.errors import FlareError
from flarecli.lazy import np
from flarecli.model import Column, Columns, Playlist, Stream, total
from flarecli.playlists import has_change
from flarecli.playlists.fill import filled
from flarecli.progress import Progress
from flarecli.read import Series, resolve, select_streams
from flarecli.redact import redact

if TYPE_CHECKING:
    from flarecli.commands.row_order import Order
    from flarecli.lazy import pa
    from flarecli.read import Dataset

__all__ = ["Inspection", "StreamInfo", "inspect"]

_MAX_ROWS, _MAX_BYTES = 10_000, 256 << 20  # limits on the sample, which is kept in memory


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """Description of one stream. Sizes are in bytes.

    raw_bytes   decompressed size; None if the size of a shard is unknown
    smallest, median, largest  sizes of the stored files; None if there are no files
    hashes      names of the listed checksums
    writer      program that wrote the stream; None if unknown
    holes       sentences about missing shards, and about gaps in the shard numbers
    shard_list  (address, rows, bytes) of each shard, if requested
    urls        full address of each shard, if requested
    shard_facts  other facts about each shard, such as the number of row groups; often empty
    stats       column -> statistics, if requested
    schema      column -> name of its Arrow type in the packed table, if the playlist lists it
    """

    name: str
    format: str
    rows: int
    shards: int
    bytes: int
    raw_bytes: int | None
    columns: Columns
    compression: str | None
    hashes: tuple[str, ...]
    smallest: int | None
    median: int | None
    largest: int | None
    writer: str | None = None
    holes: tuple[str, ...] = ()
    shard_list: tuple[tuple[str, int, int], ...] | None = None
    urls: tuple[str, ...] | None = None
    shard_facts: tuple[Mapping[str, int | str], ...] = ()
    stats: dict[str, dict[str, Any]] | None = None
    schema: Mapping[str, str] = field(default_factory=dict)

    def types(self) -> dict[str, str]:
        """Return column -> name of its Arrow type; the name is empty for an unknown encoding."""
        return {
            column.name: self.schema.get(column.name) or _type(column) for column in self.columns
        }

    def as_json(self) -> dict[str, Any]:
        """Return the description as JSON values, for --json."""
        out = {name: getattr(self, name) for name in self.__slots__}
        out["columns"] = {column.name: column.encoding for column in self.columns}
        out["types"] = self.types()
        out["hashes"], out["holes"] = list(self.hashes), list(self.holes)
        del out["shard_list"], out["urls"], out["shard_facts"], out["stats"], out["schema"]
        if self.shard_list is not None:
            firsts = accumulate((rows for _, rows, _ in self.shard_list), initial=0)
            listed = zip(self.shard_list, firsts, strict=False)
            out["shard_list"] = [
                {"url": url, "rows": rows, "bytes": size, "first": first}
                for (url, rows, size), first in listed
            ]
            for entry, facts in zip(out["shard_list"], self.shard_facts, strict=False):
                entry |= {name.replace(" ", "_"): value for name, value in facts.items()}
        if self.urls is not None:
            out["urls"] = list(self.urls)
        if self.stats is not None:
            out["stats"] = self.stats
        return out


@dataclass(frozen=True, slots=True)
class Inspection:
    """Description of datasets.

    rows         number of rows; the sum over all streams if their numbers of rows differ
    asked        requested number of rows in the sample; the sample may have fewer rows
    missing      addresses of missing shards, which the sample and the statistics exclude
    sample_rows  row number of each row in the sample
    selected     number of rows that `rows`, `where` and `limit` select; None without these options
    """

    address: str
    format: str
    streams: tuple[StreamInfo, ...]
    rows: int
    shards: int
    bytes: int
    sample: tuple[pa.RecordBatch, ...] = field(default=())
    asked: int = 0
    missing: tuple[str, ...] = ()
    sample_rows: tuple[int, ...] = ()
    selected: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the description as JSON values, for --json.

        A bytes value is replaced with its length.
        """
        raw = [stream.raw_bytes for stream in self.streams]
        out: dict[str, Any] = {
            "address": self.address,
            "format": self.format,
            "rows": self.rows,
            "shards": self.shards,
            "bytes": self.bytes,
            "raw_bytes": None if None in raw else sum(size or 0 for size in raw),
            "columns": {
                column.name: column.encoding for stream in self.streams for column in stream.columns
            },
            "writer": ", ".join(
                dict.fromkeys(stream.writer for stream in self.streams if stream.writer)
            )
            or None,
            "holes": [hole for stream in self.streams for hole in stream.holes],
            "streams": [stream.as_json() for stream in self.streams],
        }
        if self.selected is not None:
            out["selected"] = self.selected
        if self.missing:
            out["missing"] = list(self.missing)
        if self.sample:
            if self.asked > sum(batch.num_rows for batch in self.sample):
                out["sample_asked"] = self.asked
            out["sample"] = [
                {name: _plain(value) for name, value in row.items()}
                for batch in self.sample
                for row in batch.to_pylist()
            ]
            out["sample_rows"] = list(self.sample_rows)
        return out


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {"bytes": len(value)} if isinstance(value, bytes) else value


@from_options(InspectOptions)
def inspect(options: InspectOptions) -> Inspection:
    """Describe datasets: format, rows, shards, bytes, columns, compression, checksums, gaps.

    Only playlists, indexes and shard headers are read. For a remote dataset with a playlist or an
    index, only this file is read. A compressed shard whose row count is not listed is read
    completely, because its header is also compressed. A sample has at most 10,000 rows and about
    256 MiB; `Inspection.asked` is the requested number of rows. `columns` selects the columns to
    describe. `rows`, `where` and `limit` are applied in this order; they select the rows of the
    sample and of the statistics, and `Inspection.selected` counts these rows. If a value that is
    read is larger than `max_object`, an error is raised. If local shards are missing, `missing`
    contains their addresses, and the sample and the statistics describe the other shards. Raises
    UsageError for an unknown stream or column, or if `format` is not the listed format; UnsafeError
    for `urls` if a listed address is not allowed; and the errors of `resolve`.
    """
    sources = address_texts(options.sources)
    guard = options.guard(sources)
    format, streams = options.source_format(options.format), options.streams
    shards = options.shards
    sample, stats, seed = options.sample, options.stats, options.seed
    progress = options.progress or Progress()
    table, opened = options.table_headers(), open_streams(sources, options.input)
    playlists = resolve(sources, format=format, guard=guard, table=table, opened=opened)
    note_sources(playlists, progress)
    chosen = select_streams(playlists, streams)
    progress.start("inspect", sum(len(one) for listed in chosen for one in listed), unit="file")
    parts = [[filled(stream, progress) for stream in one] for one in chosen]
    writers = {id(stream): writer_of(stream, one) for one in playlists for stream in one.streams}
    changed = {id(stream) for one in playlists if has_change(one) for stream in one.streams}
    infos = tuple(
        replace(
            _info(one, shards, options.urls, any(id(stream) in changed for stream in listed)),
            writer=", ".join(
                dict.fromkeys(name for stream in listed if (name := writers[id(stream)]))
            )
            or None,
        )
        for listed, one in zip(chosen, parts, strict=True)
    )
    batches: tuple[pa.RecordBatch, ...] = ()
    numbers, asked, missing, selected = tuple[int, ...](), 0, list[str](), None
    has_selection = any(one is not None for one in (options.rows, options.where, options.limit))
    if options.columns is not None:
        infos = _with_columns(infos, name_list(options.columns))
    if stats or sample is not None or has_selection:
        # imported only here, because these modules load Arrow
        from flarecli.commands.column_stats import statistics
        from flarecli.commands.row_reader import ValueLimit
        from flarecli.read import Dataset

        data = Dataset(parts, playlists)
        missing, readable = missing_shards(parts, len(data))
        order = _selected(data, options, readable)
        selected = len(order) if has_selection else None
        if options.columns is not None:
            data = data.select(name_list(options.columns))
        limit = ValueLimit(data, parts, guard.limits.max_bytes)
        if stats:
            stats_by_column = statistics(data, order, limit, seed, progress)
            infos = tuple(
                replace(
                    info,
                    stats={
                        column.name: stats_by_column[column.name]
                        for column in info.columns
                        if column.name in stats_by_column
                    },
                )
                for info in infos
            )
        if sample is not None:
            asked = len(order.sampled(sample, seed))
            sampled = order.sampled(
                min(asked, _MAX_ROWS, max(1, _MAX_BYTES // limit.row_bytes)),
                seed,
            )
            progress.start("inspect", len(sampled))
            found, names = [], data.schema.names
            pairs = limit.reader(names).read(sampled, names)
            for batch in limit.checked(pairs):
                progress.advance(batch.num_rows, batch.nbytes)
                found.append(batch)
            batches = tuple(found)
            numbers = tuple(sampled.rows(0, len(sampled)).tolist())
    counts = [info.rows for info in infos]
    return Inspection(
        ", ".join(dict.fromkeys(_address(one) for one in playlists)),
        ", ".join(dict.fromkeys(info.format for info in infos)),
        infos,
        counts[0] if len(set(counts)) == 1 else sum(counts),
        sum(info.shards for info in infos),
        sum(info.bytes for info in infos),
        batches,
        asked,
        tuple(missing),
        numbers,
        selected,
    )


def _with_columns(infos: Sequence[StreamInfo], names: Sequence[str]) -> tuple[StreamInfo, ...]:
    """Return descriptions with only the given columns. Raises UsageError for an unknown column."""
    from flarecli.commands.row_order import check_names  # loads Arrow

    check_names([column.name for info in infos for column in info.columns], names, "--columns")
    return tuple(
        replace(info, columns=tuple(one for one in info.columns if one.name in names))
        for info in infos
    )


def _selected(data: Dataset, options: InspectOptions, readable: Sequence[range]) -> Order:
    """Return the rows for the sample and the statistics.

    readable  ranges of rows in shards that exist
    """
    from flarecli.commands.row_order import order_of, select_rows

    order = select_rows(len(data), options.rows)
    if options.rows is None and options.where is None:
        order = select_rows(len(data), readable)
    elif options.where is not None or sum(map(len, readable)) < len(data):
        rows = order.rows(0, len(order))
        kept = np.zeros(len(rows), bool)
        for run in readable:
            kept |= (rows >= run.start) & (rows < run.stop)
        if options.where is not None:
            kept &= np.isin(rows, data.matching(options.where))
        order = order_of(rows[kept])
    limit = order.count if options.limit is None else options.limit
    return replace(order, count=min(limit, order.count))


def _address(playlist: Playlist) -> str:
    """Return the address of the list; without a list, the address of the folder or file."""
    first = playlist.streams[0]
    is_named = first.columns is None and len(first.urls) == 1
    return str(playlist.at or (first.at.join(first.urls[0]) if is_named else first.at))


def _type(column: Column) -> str:
    try:
        return encodings.lookup(column.encoding).arrow_name
    except FlareError:
        return ""


def _info(parts: Sequence[Stream], shards: bool, urls: bool, is_changed: bool) -> StreamInfo:
    """Return the description of one stream.

    parts       the stream, as one `Stream` per source, with known row counts and sizes
    shards      whether to list the shards by the names in the playlist or index
    urls        whether to list the full addresses of the shards
    is_changed  whether the list was written by a command that changed the dataset, such as `drop`;
                gaps in the shard numbers are then not reported
    """
    series = Series(parts)
    rows = np.concatenate([stream.rows for stream in parts])
    size = np.concatenate([stream.stored for stream in parts])
    names = [redact(url) for stream in parts for url in stream.urls] if shards else []
    raw = [_raw_bytes(stream) for stream in parts]
    sums = {
        name
        for stream in parts
        for table in (stream.hashes, stream.raw_hashes)
        for name, values in table.items()
        if any(values)
    }
    sums |= {formats.facts(stream.format).record_checksums for stream in parts} - {""}
    columns = {column.name: column for column in series.columns}
    schema = {name: str(kind) for name, kind in series.types.items()}
    smallest, median, largest = (
        np.percentile(size, (0, 50, 100), method="lower").tolist()
        if len(size)
        else (None, None, None)
    )
    return StreamInfo(
        parts[0].name,
        ", ".join(dict.fromkeys(stream.format or "" for stream in parts)),
        series.rows,
        series.chunks,
        total(size),
        None if None in raw else sum(one or 0 for one in raw),
        tuple(columns[name] for name in schema or columns),
        ", ".join(dict.fromkeys(name for stream in parts for name in _compressions(stream)))
        or None,
        tuple(sorted(sums)),
        smallest,
        median,
        largest,
        None,
        holes(parts, is_changed),
        tuple(zip(names, rows.tolist(), size.tolist(), strict=True)) if shards else None,
        tuple(str(one.at.join(url)) for one in parts for url in one.urls) if urls else None,
        tuple(map(series.shard_facts, range(len(names)))) if series.is_typed else (),
        schema=schema,
    )


def _raw_bytes(stream: Stream) -> int | None:
    raw, sizes, stored = stream.raw_sizes, stream.sizes, stream.stored
    if raw is not None:
        if sizes is not None:
            raw = np.where(raw < 0, sizes, raw)
        return total(raw) + sum(
            (file.size if file.raw_size is None else file.raw_size) or 0
            for one in stream.parts
            for file in one
        )
    return None if stored is None or _compressions(stream) else total(stored)


def _compressions(stream: Stream) -> list[str]:
    """Return the compression formats of the shards.

    If the playlist or the index lists no format, the suffixes of the shard files determine it.
    """
    listed = stream.headers.get("compression")
    if isinstance(listed, str):
        return [listed]
    if formats.facts(stream.format).is_plain:
        return []
    return sorted({url.rpartition(".")[2] for url in stream.urls} & set(SUFFIXES))
