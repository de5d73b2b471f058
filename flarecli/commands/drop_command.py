"""The `drop` and `compact` commands: rewrite shards without some rows, or join small shards."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli import formats, read
from flarecli.arguments import address_text, from_options
from flarecli.commands.key_file import FileKeys, read_keys
from flarecli.commands.options import CompactOptions, DropOptions
from flarecli.commands.rewrite import (
    Group,
    groups_without,
    rewrite,
    row_counts,
    source_of,
    total_size,
)
from flarecli.commands.row_order import select_rows
from flarecli.errors import MissingError, UsageError
from flarecli.hashes import digest
from flarecli.model import Columns, IntArray, Stream, column_of
from flarecli.names import is_url
from flarecli.prefetch import cpu_count, ordered_map
from flarecli.progress import Progress
from flarecli.read.version_lists import file_names, files_of, files_to_remove, listed_files
from flarecli.storage import Limits, Location
from flarecli.suggest import choose
from flarecli.units import format_count
from flarecli.write import (
    CommitLock,
    Keys,
    Target,
    changed_error,
    check_key_type,
    erasable_bytes,
    removal,
    versions,
)
from flarecli.write.erased import (
    ErasedKeys,
    KeysToErase,
    WithoutFailures,
    failed_names,
    failures_without,
    files_with_keys,
    shard_files,
)
from flarecli.write.versions import Version, open_for_change

__all__ = ["Changed", "compact", "drop"]

_BATCH_ROWS = 1 << 14  # number of rows whose keys are read together


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a change to a dataset.

    version  number of the new version; None in a dry run, or if nothing changed
    rows     number of removed rows
    shards   number of rewritten shards
    bytes    total size of these shards before the change, in bytes
    """

    version: int | None
    rows: int
    shards: int
    bytes: int
    dry_run: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values, for --json."""
        return asdict(self)


@from_options(DropOptions)
def drop(options: DropOptions) -> Changed:
    """Remove rows or a column from a dataset, and rewrite the shards that contain them.

    The rows are selected by a condition, by number, or by the values of a key column in a file.
    With `erase`, the replaced files and the versions that list them are deleted.

    raises  UsageError if no option or more than one option selects rows or a column, or if a pin
            lists a file to erase; the errors of `rewrite`
    """
    if options.break_pins and not options.erase:
        raise UsageError(
            "--break-pins needs --erase",
            hint="Without --erase, the rows remain in pinned versions. Omit --break-pins, or add --erase.",
        )
    out, progress = address_text(options.out), options.progress or Progress()
    guard = options.guard([out])
    at, base = open_for_change(out, guard, options.dry_run)
    with versions.check_unchanged(at, base):
        _check_selection(options, base)
        keys = _keys(options, base.dataset)
    if options.erase and not options.dry_run:
        _complete_erasures(at, options, progress)
    if options.resume and (number := _dropped_in(options, at, base)) is not None:
        removed = "these rows" if options.drop_column is None else "this column"
        progress.note(f"version {number} has already removed {removed}")
        return Changed(None, 0, 0, 0, options.dry_run)
    with versions.check_unchanged(at, base):
        selection, erasure = _selected(options, base, keys), None
        if options.erase:
            erasure = _planned_erasure(at, options, base, selection, keys, progress)
    if erasure is not None:
        if selection is None and erasure.lines:
            selection = _Selection({}, [])
        if options.dry_run and erasure.files:
            count = format_count(len(erasure.files), "file")
            them = "it" if len(erasure.files) == 1 else "them"
            progress.note(
                f"the erasure would delete {count}, and all earlier versions that list {them}"
            )
    if selection is None:
        if erasure is not None and not options.dry_run and (erasure.files or erasure.keys.keys):
            _erase(at, erasure.files, options, progress, erasure.keys)
        if erasure is None or not erasure.files:
            progress.note("no row matches")
        return Changed(None, 0, 0, 0, options.dry_run)
    shards, sizes = total_size(base, selection.groups)
    if options.dry_run:
        return Changed(None, selection.rows, shards, sizes, True)

    is_committed = False

    def commit(change: versions.Change, targets: Sequence[Target] = ()) -> Version:
        nonlocal is_committed
        change = change if erasure is None else erasure.added_to(change)
        new = versions.commit(at, change, base, targets)
        # an earlier drop of the same rows, without `--erase`, erases no files
        is_committed = set(change.erases) <= set(new.erases)
        return new

    if selection.stream:
        new = commit(DropStream(selection.stream, source_of("drop", None, selection.facts)))
    else:
        new = rewrite(
            out,
            at,
            base,
            selection.groups,
            "drop",
            selection.facts,
            shard_bytes=None,
            guard=guard,
            resume=options.resume,
            jobs=min(options.limits().jobs, cpu_count()),
            progress=progress,
            columns=selection.columns,
            commit=commit,
        )
    if options.erase:
        if not is_committed:  # another process's version might not erase the same files and keys
            raise changed_error(new.at)
        _erase(at, new.erases, options, progress)
    return Changed(new.number, selection.rows, shards, sizes)


@dataclass(frozen=True)
class DropStream(versions.Change):
    """The change that removes a stream from the dataset."""

    name: str
    source: Mapping[str, Any] | None
    verb: str = field(default="drop", init=False)
    fragments: tuple[str, ...] = field(default=(), init=False)

    def apply(self, base: Version) -> tuple[Stream, ...]:
        streams = tuple(stream for stream in base.streams if stream.name != self.name)
        if not streams or len(streams) == len(base.streams):
            # another process has dropped the other columns, or this column
            raise changed_error(base.at)
        return streams


@dataclass(frozen=True)
class _Selection:
    """The rows or the column to remove.

    groups   index of a stream -> groups of its shards that are replaced
    facts    values that identify this selection, for the names of the new fragments
    rows     number of removed rows
    columns  index of a stream -> its remaining columns
    stream   name of the stream to remove completely; empty: none
    dropped  numbers of the removed rows: int64, ascending
    """

    groups: Mapping[int, Sequence[Group]]
    facts: Sequence[Any]
    rows: int = 0
    columns: Mapping[int, Columns] = field(default_factory=dict)
    stream: str = ""
    dropped: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))


def _check_selection(options: DropOptions, base: Version) -> None:
    """Raise UsageError unless the options select rows or a column in exactly one way."""
    chosen = [
        name
        for name, value in (
            ("--where", options.where),
            ("--rows", options.rows),
            ("--keys", options.keys),
            ("--drop-column", options.drop_column),
        )
        if value is not None
    ]
    if len(chosen) != 1:
        raise UsageError(
            "expected exactly one of --where, --rows, --keys and --drop-column"
            + (f", got {' and '.join(chosen)}" if chosen else ""),
            hint="Select the rows or the column to remove.",
        )
    if options.keys is not None and options.key is None:
        raise UsageError("--keys needs --key", hint="Use --keys FILE --key COLUMN.")
    erases_rows = options.erase and options.drop_column is None
    if options.key is not None and options.keys is None and not erases_rows:
        raise UsageError(
            "--key needs --keys or --erase, and cannot be used with --drop-column",
            hint="Use --keys FILE --key COLUMN, or omit --key.",
        )
    if options.key is not None:
        _check_key(base.dataset, options.key)


def _selected(options: DropOptions, base: Version, keys: FileKeys | None) -> _Selection | None:
    """Return the selection that the options describe; None if no row is selected.

    keys  keys in the file of `--keys`; None without `--keys`
    """
    if options.drop_column is not None:
        return _column(options, base)
    dropped = _dropped_rows(options, base.dataset, keys)
    if not len(dropped):
        return None
    groups = {number: groups_without(stream, dropped) for number, stream in enumerate(base.streams)}
    return _Selection(groups, _facts(options, dropped), len(dropped), dropped=dropped)


def _facts(options: DropOptions, dropped: IntArray | None = None) -> list[str]:
    """Return the values that identify a selection in the source that a version records.

    dropped  numbers of the rows that a condition or keys select
    """
    if options.drop_column is not None:
        return ["column", options.drop_column]
    if options.rows is not None:
        return ["rows", options.rows]
    return [] if dropped is None else [digest(dropped.tobytes())]


def _dropped_in(options: DropOptions, at: Location, base: Version) -> int | None:
    """Return the number of the version in which an earlier run made the same drop, or None.

    After a drop by row numbers, the same numbers select other rows, which a resumed drop must not
    remove. Conditions and keys need no check, because they cannot select removed rows again.
    """
    name = options.drop_column
    if name is None and options.rows is None:
        return None
    if any(column.name == name for stream in base.streams for column in stream.columns or ()):
        return None
    found = versions.version_from(at, source_of("drop", None, _facts(options)))
    if found is None or (options.erase and not found.erases):
        return None
    return found.number


def _column(options: DropOptions, base: Version) -> _Selection:
    """Return the selection for --drop-column.

    raises  UsageError if the column is unknown, or if it is the only column of the dataset
    """
    name, known = options.drop_column or "", list[str]()
    for number, stream in enumerate(base.streams):
        names = [column.name for column in stream.columns or ()]
        known += names
        if name not in names:
            continue
        if names == [name]:
            if len(base.streams) == 1:
                raise UsageError(f"{name!r} is the only column", where=base.at)
            return _Selection({}, _facts(options), stream=stream.name)
        row_counts(stream)
        kept = tuple(
            # the extensions of these files are unknown without the dropped column
            replace(column, extension="") if column_of(column.extension) == name else column
            for column in stream.columns or ()
            if column.name != name
        )
        groups = [Group(i, i + 1, (None,)) for i in range(len(stream))]
        return _Selection({number: groups}, _facts(options), columns={number: kept})
    raise UsageError(f"no column {name!r}", where=base.at, hint=choose(name, known, "Choose from"))


def _replaced_files(base: Version, selection: _Selection) -> list[str]:
    """Return the names of the files that the new version no longer lists."""
    names = list[str]()
    for number, stream in enumerate(base.streams):
        if stream.name == selection.stream:
            names += [name for name, _ in file_names(stream)]
        for group in selection.groups.get(number, ()):
            for i in range(group.start, group.stop):
                names += shard_files(stream, i)
    return [name for name in names if not is_url(name)]


@dataclass(frozen=True)
class _Erasure:
    """Files and log lines that a drop erases in addition to the rows in the newest version.

    files    names of the files to delete after the commit
    lines    name of each `failed.jsonl` that contains an erased key -> the lines to keep
    scanned  names of all `failed.jsonl` files
    keys     keys to erase
    """

    at: Location
    files: tuple[str, ...]
    lines: Mapping[str, list[bytes]]
    scanned: frozenset[str]
    keys: KeysToErase

    def added_to(self, change: versions.Change) -> versions.Change:
        """Return a change that also replaces the `failed.jsonl` files, and records the keys."""
        return WithoutFailures(self.at, change, self.keys, self.lines, self.scanned, self.files)


def _planned_erasure(
    at: Location,
    options: DropOptions,
    base: Version,
    selection: _Selection | None,
    file_keys: FileKeys | None,
    progress: Progress,
) -> _Erasure:
    """Find the keys to erase, and the files that contain the removed rows or these keys.

    raises  UsageError if a pin lists a file to erase, and `break_pins` is not set; the errors of
            reading the earlier versions, the pins and their shards
    """
    earlier = [(pin.number, pin) for pin in versions.pins(at).values()]
    earlier += ((one.number, one) for one in versions.read_versions(at, versions.numbers(at)))
    earlier.sort(key=lambda one: (one[0], one[1].at.name))
    names = [version.at.name for _, version in earlier]
    listed = files_of(at, base.playlist).keys()
    failed = failed_names(listed)
    for list_name in names:
        with contextlib.suppress(MissingError):  # another process has removed this version
            failed |= failed_names(listed_files(at, list_name))
    name, keys = options.key or "", _keys_to_erase(options, base, selection, file_keys)
    erased = ErasedKeys.read(at).added(name, keys)
    if options.key is None and failed and selection is not None and selection.rows:
        progress.note(
            "failed.jsonl may contain keys of the erased rows; to remove the lines with these keys, "
            "name the key column with --key COL"
        )
    lines = failures_without(at, failed, erased)
    replaced = set(lines)
    if selection is not None:
        replaced.update(_replaced_files(base, selection))
    known = frozenset(url for stream in base.streams for url in stream.urls)
    if options.key is not None and erased:
        found_versions = [version for _, version in earlier]
        replaced |= files_with_keys(at, found_versions, name, erased, known) - listed
        known |= {url for one in found_versions for stream in one.streams for url in stream.urls}
    found = removal.copies(at, names, replaced)
    files = tuple(sorted(found - (listed - replaced)))
    if not options.break_pins:
        removal.refuse_pins(at, files, base.number + 1)
    recorded = KeysToErase(name, keys, erased, known, base.number)
    return _Erasure(at, files, lines, frozenset(failed), recorded)


def _keys_to_erase(
    options: DropOptions, base: Version, selection: _Selection | None, keys: FileKeys | None
) -> list[pa.Array]:
    """Return arrays of keys: the keys in the `--keys` file, and the keys of the selected rows.

    Return an empty list if the user named no key column (`--key`).
    """
    name, data = options.key, base.dataset
    if name is None:
        return []
    found = [] if keys is None else keys.to_erase()
    rows = np.zeros(0, np.int64) if selection is None else selection.dropped
    for start in range(0, len(rows), _BATCH_ROWS):
        found.append(data.take(rows[start : start + _BATCH_ROWS], [name]).column(0))
    return found


def _complete_erasures(at: Location, options: DropOptions, progress: Progress) -> None:
    """Complete earlier erasures that were interrupted after their commit.

    If an earlier version was restored, the newest version may list some of the files to delete.
    These files are kept.
    """
    found = versions.read_versions(at, versions.numbers(at))
    erased = {name for version in found for name in version.erases}
    if erased:
        listed = files_of(at, versions.newest(at).playlist)
        _erase(at, sorted(erased - listed.keys()), options, progress)
    elif files_to_remove(at):  # only earlier versions contained the rows
        _erase(at, [], options, progress)


def _erase(
    at: Location,
    files: Sequence[str],
    options: DropOptions,
    progress: Progress,
    keys: KeysToErase | None = None,
) -> None:
    """Delete files, and all playlists that list one of these files.

    keys  keys to record before the deletion; None if they are already recorded
    """
    with CommitLock(at) as lock:
        number = versions.newest(at).number
        if keys is not None:
            keys.check(at)
            removal.refuse_listed(at, files, number)
            keys.record(at, lock)
            if not files:
                return
        count, busy = removal.erase(at, files, number, options.break_pins, lock)
    for name in busy:
        progress.note(
            f"{name}: not erased, because another process is writing this fragment, which may contain "
            "the rows; run `flare prune` after the other process has ended"
        )
    if count:
        versions_of_objects = "" if at.is_local else ", earlier versions of objects in the bucket,"
        progress.note(
            f"erased the rows from this folder; caches of readers{versions_of_objects} and backups "
            "may still contain them"
        )


def _dropped_rows(options: DropOptions, data: read.Dataset, keys: FileKeys | None) -> IntArray:
    """Return the numbers of the selected rows: int64, ascending."""
    if options.where is not None:
        return data.matching(options.where)
    if options.rows is not None:
        order = select_rows(len(data), options.rows)
        rows: IntArray = np.unique(order.rows(0, len(order)))
        return rows
    if keys is None:
        return np.zeros(0, np.int64)
    distinct = keys.distinct()
    is_found = np.zeros(len(distinct), bool)
    matching, first = [np.zeros(0, np.int64)], 0
    for batch in data.select([options.key or ""]).batches():
        column = batch.column(0)
        found = pc.index_in(erasable_bytes(column, column.type), value_set=distinct)
        is_found[found.drop_null().to_numpy()] = True
        matching.append(first + np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)))
        first += batch.num_rows
    missing = len(distinct) - int(is_found.sum())
    if missing and (is_found.any() or options.erase):
        which = "matches" if missing == 1 else "match"
        where = " of the current version" if options.erase else ""
        (options.progress or Progress()).note(
            f"{missing} of {format_count(len(distinct), 'key')} {which} no row{where}"
        )
    return np.concatenate(matching)


def _check_key(data: read.Dataset, name: str) -> None:
    if name not in data.schema.names:
        raise UsageError(
            f"--key: no column {name!r}", hint=choose(name, data.schema.names, "Choose from")
        )
    check_key_type(name, data.schema.field(name).type)


def _keys(options: DropOptions, data: read.Dataset) -> FileKeys | None:
    """Return the keys in the file of `--keys`; None without `--keys`."""
    if options.keys is None:
        return None
    name, address = options.key or "", address_text(options.keys)
    return read_keys(address, options.guard([address]), name, data.schema.field(name).type)


@from_options(CompactOptions)
def compact(options: CompactOptions) -> Changed:
    """Join consecutive shards that are smaller than `below`, in the order of their rows.

    raises  the errors of `rewrite`
    """
    out, progress = address_text(options.out), options.progress or Progress()
    guard = options.guard([out])
    at, base = open_for_change(out, guard, options.dry_run)
    below, target = int(options.below), int(options.shard_size)
    groups = dict[int, list[Group]]()
    for number, stream in enumerate(base.streams):
        small = _small_runs(stream, below)
        with versions.check_unchanged(at, base):
            found = [part for one in small for part in _with_unique_keys(stream, one, guard.limits)]
        if found:
            groups[number] = found
        if count := sum(map(_length, small)) - sum(map(_length, found)):
            progress.note(
                f"not joined: {format_count(count, 'shard')} with keys that occur in adjacent shards"
            )
    shards, sizes = total_size(base, groups)
    if not groups or options.dry_run:
        if not groups:
            progress.note("no consecutive shards are small enough to be joined")
        return Changed(None, 0, shards, sizes, options.dry_run)
    new = rewrite(
        out,
        at,
        base,
        groups,
        "compact",
        [[(number, one.start, one.stop) for number, own in groups.items() for one in own]],
        shard_bytes=target,
        guard=guard,
        resume=options.resume,
        jobs=min(options.limits().jobs, cpu_count()),
        progress=progress,
    )
    return Changed(new.number, 0, shards, sizes)


def _small_runs(stream: Stream, below: int) -> list[Group]:
    """Group consecutive shards that are smaller than `below` bytes; omit groups of one shard."""
    row_counts(stream)
    sizes = np.full(len(stream), below) if stream.sizes is None else stream.sizes
    if stream.raw_sizes is not None:
        sizes = np.where(stream.raw_sizes >= 0, stream.raw_sizes, sizes)
    edges = np.flatnonzero(np.diff(np.r_[0, (sizes >= 0) & (sizes < below), 0].astype(np.int8)))
    return [
        Group(start, stop, (None,) * (stop - start))
        for start, stop in edges.reshape(-1, 2).tolist()
        if stop - start > 1
    ]


def _length(group: Group) -> int:
    return group.stop - group.start


def _with_unique_keys(stream: Stream, group: Group, limits: Limits) -> list[Group]:
    """Split a group before each shard that repeats a key, if the format requires unique keys.

    Groups of one shard are omitted.

    limits  limits for reading the keys in parallel
    """
    format = formats.find(stream.format or "")
    name = format.key_column
    if not name or name not in [column.name for column in stream.columns or ()]:
        return [group]

    def read_keys_of(i: int) -> pa.Array:
        shard = format.open_shard(stream.chunk(i), stream.columns)
        return format.read_batch(shard, 0, shard.rows, [name]).column(0)

    shards = range(group.start, group.stop)
    columns = ordered_map(
        read_keys_of,
        shards,
        workers=limits.jobs,
        max_bytes=limits.ahead_bytes,
        weigh_result=lambda column: column.nbytes,
    )
    starts, keys = [group.start], Keys()
    try:
        with contextlib.closing(columns):
            for i, column in zip(shards, columns, strict=True):
                if (keys.seen(column, 0) >= 0).any():
                    starts.append(i)
                    keys.close()
                    keys = Keys()
                    keys.seen(column, 0)
    finally:
        keys.close()
    return [
        Group(start, stop, (None,) * (stop - start))
        for start, stop in pairwise([*starts, group.stop])
        if stop - start > 1
    ]
