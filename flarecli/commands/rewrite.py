"""Rewrite some shards of a dataset, and commit a version that lists the new shards in their place.

`flare drop` rewrites shards without some of their rows, and `flare compact` joins small shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli import formats
from flarecli.errors import UsageError
from flarecli.hashes import DEFAULT, known
from flarecli.model import Chunk, Columns, IntArray, Settings, Stream
from flarecli.playlists import SCHEMA
from flarecli.playlists.fill import described
from flarecli.progress import Progress
from flarecli.storage import Guard, Location
from flarecli.write import Target, Writer, changed_error, versions
from flarecli.write.columns import ColumnConverter, convert_all
from flarecli.write.versions import Version

__all__ = [
    "Group",
    "Rewrite",
    "check_opens",
    "groups_without",
    "rewrite",
    "row_counts",
    "settings_of",
    "source_of",
    "total_size",
]

_STEP_BYTES = 16 << 20  # stored bytes that are read at a time


@dataclass(frozen=True)
class Group:
    """Consecutive shards of a stream that are replaced together.

    start, stop  range of shard indexes in the stream
    kept         numbers of the rows to keep, for each shard: int64, ascending, counted from 0 in
                 the shard; None: all rows
    """

    start: int
    stop: int
    kept: tuple[IntArray | None, ...]


@dataclass(frozen=True)
class Run:
    """Consecutive shards of a stream, and their replacement.

    urls  addresses of these shards
    new   stream that replaces these shards; None: the shards are removed
    """

    urls: tuple[str, ...]
    new: Stream | None


@dataclass(frozen=True)
class Rewrite(versions.Change):
    """The change that replaces runs of shards.

    runs     index of a stream -> its runs, in the order of its shards
    columns  index of a stream -> its new columns, if they change; the runs of this stream then
             contain all its shards
    keeps_rows  whether all rows and their order remain the same
    """

    at: Location
    verb: str
    fragments: tuple[str, ...]
    source: Mapping[str, Any] | None
    runs: Mapping[int, Sequence[Run]] = field(default_factory=dict)
    columns: Mapping[int, Columns] = field(default_factory=dict)
    keeps_rows: bool = False

    def apply(self, base: Version) -> tuple[Stream, ...]:
        return tuple(
            self._replaced(number, stream, base) if number in self.runs else stream
            for number, stream in enumerate(base.streams)
        )

    def _replaced(self, number: int, stream: Stream, base: Version) -> Stream:
        runs = self.runs[number]
        position = {url: i for i, url in enumerate(stream.urls)}
        pieces, done = list[Stream](), 0
        for run in runs:
            start = position.get(run.urls[0], -1)
            stop = start + len(run.urls)
            if start < done or tuple(stream.urls[start:stop]) != run.urls:
                raise changed_error(base.at)
            pieces.append(versions.sliced(stream, done, start))
            if run.new is not None:
                pieces.append(run.new)
            done = stop
        pieces.append(versions.sliced(stream, done, len(stream)))
        if number in self.columns:
            new = [run.new for run in runs if run.new is not None]
            if sum(map(len, pieces)) != sum(map(len, new)):
                raise changed_error(base.at)
            pieces = [_with_columns(versions.sliced(stream, 0, 0), self.columns[number]), *new]
        # stop listing the other files of a fragment if none of its shards is listed anymore
        return versions.without_unused_files(versions.concatenated(self.at, pieces))


def _with_columns(stream: Stream, columns: Columns) -> Stream:
    """Return a copy of a stream that lists only the given columns and their types."""
    names = {column.name for column in columns}
    headers = dict(stream.headers)
    schema = headers.pop(SCHEMA, None)
    if isinstance(schema, Mapping):
        headers[SCHEMA] = {name: kind for name, kind in schema.items() if name in names}
    return replace(stream, columns=columns, headers=headers)


def row_counts(stream: Stream) -> IntArray:
    """Return the number of rows in each shard: int64 [shards].

    raises  UsageError if the playlist does not list all of these numbers
    """
    if stream.rows is None or (stream.rows < 0).any() or stream.columns is None:
        raise UsageError(
            "the playlist lacks the columns or the numbers of rows",
            where=stream.at,
            hint="Run `flare playlist FOLDER -o FOLDER/playlist.yaml`.",
        )
    return stream.rows


def groups_without(stream: Stream, dropped: IntArray) -> list[Group]:
    """For each shard that contains a dropped row, return a group with the rows to keep.

    dropped  numbers of the rows in the stream: int64, ascending
    """
    counts = row_counts(stream)
    ends = np.cumsum(counts)
    groups = []
    for i in np.unique(np.searchsorted(ends, dropped, "right")).tolist():
        start, stop = int(ends[i] - counts[i]), int(ends[i])
        first, last = np.searchsorted(dropped, (start, stop))
        kept = np.setdiff1d(
            np.arange(stop - start), dropped[first:last] - start, assume_unique=True
        )
        groups.append(Group(i, i + 1, (kept,)))
    return groups


def total_size(base: Version, groups: Mapping[int, Sequence[Group]]) -> tuple[int, int]:
    """Return the number of shards in all groups, and the total size of these shards in bytes."""
    shards = size = 0
    for number, own in groups.items():
        sizes = base.streams[number].stored
        for one in own:
            shards += one.stop - one.start
            size += 0 if sizes is None else int(sizes[one.start : one.stop].sum())
    return shards, size


def rewrite(
    out: str,
    at: Location,
    base: Version,
    groups: Mapping[int, Sequence[Group]],
    verb: str,
    facts: Sequence[Any],
    *,
    shard_bytes: int | None,
    guard: Guard,
    resume: bool,
    jobs: int,
    progress: Progress,
    columns: Mapping[int, Columns] = MappingProxyType({}),
    commit: Callable[[Rewrite, Sequence[Target]], Version] | None = None,
) -> Version:
    """Write the new shards of groups to a fragment for each stream, and commit a version.

    out          address of the dataset, as the user typed it
    groups       index of a stream -> its groups, in the order of its shards, without overlaps
    facts        values that identify this rewrite; the names of the fragments depend on them
    shard_bytes  maximum size of a new shard; None: one shard for each group
    columns      index of a stream -> the columns to keep; its groups then contain all shards
    commit       function that receives the change and the locked targets of its fragments, and
                 commits the change together with other changes; None: commit only this change
    return       the new version; with `resume`, the version in which another process has committed
                 the same shards
    raises       BusyError if another process has replaced one of the shards
    """
    source = source_of(verb, shard_bytes, facts)
    options = source["options"]
    runs: dict[int, list[Run]] = {}
    fragments, targets = list[str](), list[Target]()
    order = sorted(groups)

    def finished() -> Version:
        chosen = (rows for own in groups.values() for one in own for rows in one.kept)
        keeps_rows = not columns and all(rows is None for rows in chosen)
        change = Rewrite(at, verb, tuple(fragments), source, runs, columns, keeps_rows)
        if commit is None:
            return versions.commit(at, change, base, targets)
        return commit(change, targets)

    def write(i: int) -> Version:
        """Write the streams order[i:]; their fragments stay locked until the commit."""
        if i == len(order):
            return finished()
        number = order[i]
        (stream,), own = described([base.streams[number]]), groups[number]
        chosen = columns.get(number, stream.columns)
        kept = _kept_rows(stream, own)
        if not sum(kept):
            runs[number] = [Run(tuple(stream.urls[one.start : one.stop]), None) for one in own]
            return write(i + 1)
        name = versions.fragment_name([verb, options, base.checksum, *([number] if number else [])])
        versions.check_fragment(at, name)
        with versions.check_unchanged(at, base):
            settings = settings_of(stream, shard_bytes)
        committed = list[Version]()

        def finish(written: Stream, target: Target) -> None:
            check_opens(written, chosen)
            fragments.append(name)
            targets.append(target)
            runs[number] = _runs(at, name, stream, written, own, kept)
            committed.append(write(i + 1))

        with Writer(
            f"{out.rstrip('/')}/{name}",
            format=stream.format or "",
            columns=None if stream.types else chosen,
            settings=replace(settings, shard_rows=max(kept) if shard_bytes is None else None),
            head={"base": base.number, "base_checksum": base.checksum, "options": options},
            resume=resume,
            guard=guard,
            jobs=jobs,
        ) as writer:
            if writer.is_done:
                return versions.version_of_fragment(at, base, name)
            if stream.types:
                names = {one.name for one in chosen or ()}
                kinds = {name: kind for name, kind in stream.types.items() if name in names}
                writer.name_columns(chosen or (), kinds)
            progress.start(verb, sum(kept), done=writer.rows)
            with versions.check_unchanged(at, base):
                _write(writer, stream, own, progress)
            writer.close(source, finish)
        return committed[0]

    return write(0)


def check_opens(written: Stream, columns: Columns | None) -> None:
    """Open the first of the new shards with the columns that the new version will list.

    raises  the errors of `Format.open_shard`, so that no version lists shards that cannot be read
    """
    if len(written):
        formats.find(written.format or "").open_shard(written.chunk(0), columns)


def source_of(verb: str, shard_bytes: int | None, facts: Sequence[Any]) -> dict[str, str]:
    """Return the source that a version records for a change without a source of rows.

    The arguments are described in `rewrite`.
    """
    text = repr([verb, shard_bytes, *facts])
    return {"options": hashlib.sha256(text.encode()).hexdigest()[:32]}


def _kept_rows(stream: Stream, groups: Sequence[Group]) -> list[int]:
    """Return the number of rows that each group keeps."""
    counts = row_counts(stream)
    return [
        int(sum(counts[i] if rows is None else len(rows) for i, rows in _shards(group)))
        for group in groups
    ]


def _shards(group: Group) -> Iterator[tuple[int, IntArray | None]]:
    return zip(range(group.start, group.stop), group.kept, strict=True)


def settings_of(stream: Stream, shard_bytes: int | None = None) -> Settings:
    """Return settings with the compression, the checksums and the separators of a stream."""
    compression = stream.headers.get("compression")
    names = [name for name, values in stream.hashes.items() if name != DEFAULT and any(values)]
    settings = Settings(
        compression if isinstance(compression, str) else None,
        tuple(sorted(set(names) & set(known()))),
        shard_bytes,
        None,
    )
    format = formats.find(stream.format or "")
    if not format.options or not len(stream):
        return settings
    layout = format.open_shard(stream.chunk(0), stream.columns).layout
    found: dict[str, Any] = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in layout.items()
        if name in format.options
    }
    return replace(settings, **found)


def _write(writer: Writer, stream: Stream, groups: Sequence[Group], progress: Progress) -> None:
    """Write the kept rows of groups; no shard contains rows of two groups."""
    skip, row = writer.next, 0
    names = [column.name for column in writer.columns or ()]
    # convert the columns, because batches of tables may contain dictionary arrays
    typed = ColumnConverter(writer.columns or (), None, True, writer.stored_schema)
    for group in groups:
        for i, rows in _shards(group):
            for batch in _batches(stream.chunk(i), stream, rows, names):
                count = batch.num_rows
                if row + count > skip:
                    rest = batch.slice(max(0, skip - row))
                    first = row + count - rest.num_rows
                    written = writer.written_bytes
                    rows_of_rest = np.arange(first, row + count)
                    if stream.types:
                        rest = convert_all(typed, rest, rows_of_rest)
                    writer.write_typed(rest, rows_of_rest)
                    progress.advance(rest.num_rows, writer.written_bytes - written)
                row += count
        writer.end_shard(row)


def _batches(
    chunk: Chunk, stream: Stream, rows: IntArray | None, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the given rows of a shard, or all rows, as typed batches."""
    format = formats.find(chunk.format or "")
    shard = format.open_shard(chunk, stream.columns)
    size = sum(file.raw_size or file.size or 0 for file in chunk.files)
    step = max(1, shard.rows * _STEP_BYTES // max(size, 1))
    for start in range(0, shard.rows, step):
        stop = min(start + step, shard.rows)
        if rows is None:
            yield format.read_batch(shard, start, stop, names)
            continue
        first, last = np.searchsorted(rows, (start, stop))
        if first < last:
            batch = format.read_batch(shard, start, stop, names)
            yield batch.take(pa.array(rows[first:last] - start))


def _runs(
    at: Location,
    name: str,
    old: Stream,
    written: Stream,
    groups: Sequence[Group],
    kept: Sequence[int],
) -> list[Run]:
    """Return a `Run` for each group of old shards.

    A `Run` contains the old shards of the group, and the new shards with the kept rows of these
    shards.
    """
    moved = versions.moved(name, versions.fragment_files(name, at, written))
    ends = np.cumsum(row_counts(written))
    runs, before, done = list[Run](), 0, 0
    for group, count in zip(groups, kept, strict=True):
        before += count
        stop = int(np.searchsorted(ends, before, "left")) + 1 if count else done
        new = versions.sliced(moved, done, stop) if count else None
        runs.append(Run(tuple(old.urls[group.start : group.stop]), new))
        done = stop
    return runs
