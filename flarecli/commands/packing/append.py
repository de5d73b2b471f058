"""`flare pack --append`: pack rows into a new fragment, and commit a version that lists it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli import encodings, formats, playlists, read
from flarecli.arguments import name_list
from flarecli.commands.options import PackOptions
from flarecli.commands.packing.parts import check_division, pack_parts
from flarecli.commands.packing.plan import PackTask, Plan, key_values, selected
from flarecli.commands.packing.run import Packed, dry_run, pack_task, planned, source_record
from flarecli.commands.rewrite import (
    Group,
    Rewrite,
    check_opens,
    groups_without,
    rewrite,
    row_counts,
    settings_of,
    total_size,
)
from flarecli.errors import (
    BusyError,
    FlareError,
    FormatError,
    NoRowsError,
    UsageError,
)
from flarecli.formats import find
from flarecli.formats.tables.schema_merge import common_type
from flarecli.hashes import DEFAULT, digest
from flarecli.model import IntArray, Stream
from flarecli.names import shell_quoted
from flarecli.playlists import PLAYLIST
from flarecli.prefetch import cpu_count
from flarecli.progress import Progress
from flarecli.storage import Location, read_each
from flarecli.storage.append_log import first_entry
from flarecli.storage.local import SCRATCH
from flarecli.suggest import choose
from flarecli.write import (
    Keys,
    Target,
    changed_error,
    is_empty_key,
    key_bytes,
    key_text,
    versions,
)
from flarecli.write.erased import ErasedKeys, failed_names, failures_without
from flarecli.write.versions import Version, open_for_change

__all__ = ["append_rows", "unfinished_base", "with_format"]


@dataclass(frozen=True)
class Append(versions.Change):
    """The change that adds the rows of new fragments after all existing rows.

    parts   for each stream of the dataset: the name of the new fragment, and the stream in it
    key     key column, if the new keys were compared with the keys in version `since`; None: keys
            may repeat
    since   version of the dataset when the rows were packed
    erased  keys of erased rows; the new rows have none of these keys
    """

    at: Location
    parts: tuple[tuple[str, Stream], ...]
    source: Mapping[str, Any] | None
    key: str | None
    since: Version
    erased: ErasedKeys
    verb: str = field(default="append", init=False)

    @property
    def fragments(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(name for name, _ in self.parts)

    def apply(self, base: Version) -> tuple[Stream, ...]:
        self.check(base)
        return self.added_to(base.streams)

    def check(self, base: Version) -> None:
        """Raise BusyError if the streams differ, or if new rows have keys in use or erased keys."""
        self.check_streams(base)
        if self.key is not None:
            self._check_keys(self.key, base)
        erased = ErasedKeys.read(self.at)
        if erased != self.erased:
            self._check_erased(erased, base)

    def check_streams(self, base: Version) -> None:
        """Raise BusyError if the streams are not those for which the rows were packed."""
        if _layout(base) != _layout(self.since):
            raise changed_error(base.at)

    def _check_erased(self, erased: ErasedKeys, base: Version) -> None:
        """Raise BusyError if a row has a key that was erased while the rows were packed."""
        failed = [f"{name}/{file}" for name, part in self.parts for file in part.files]
        is_erased = bool(failures_without(self.at, failed_names(failed), erased)) or any(
            erased.contains(name, keys).any()
            for name in erased.hashes
            if self._stream_with(name) is not None
            for keys in self.keys(name)
        )
        if is_erased:
            raise BusyError(
                "another process has erased a key that one of the new rows has",
                where=base.at,
                hint="Run the same command again, and then `flare prune`.",
            )

    def added_to(self, streams: Sequence[Stream]) -> tuple[Stream, ...]:
        """Return streams with the new shards after all other shards."""
        return tuple(
            versions.joined(self.at, [(name, versions.fragment_files(name, self.at, part))], stream)
            for stream, (name, part) in zip(streams, self.parts, strict=True)
        )

    def _check_keys(self, key: str, base: Version) -> None:
        """Raise BusyError if a shard added after version `since` contains a key of the new rows."""
        number = self._stream_with(key) or 0
        known, stream = set(self.since.streams[number].urls), base.streams[number]
        arrived = [i for i, url in enumerate(stream.urls) if url not in known]
        if not arrived:
            return
        added = versions.concatenated(self.at, [versions.sliced(stream, i, i + 1) for i in arrived])
        with contextlib.closing(_matches(self.keys(key), read.Dataset([[added]]), key)) as matches:
            for _, keys, again in matches:
                raise BusyError(
                    f"another process has added a row with the key "
                    f"{key_text(keys[int(again[0])])!r}",
                    where=base.at,
                    hint="Run the same command again.",
                )

    def _stream_with(self, key: str) -> int | None:
        """Return the number of the stream that contains a column; None if no stream contains it."""
        names = [[one.name for one in part.columns or ()] for _, part in self.parts]
        return next((number for number, own in enumerate(names) if key in own), None)

    def keys(self, key: str) -> Iterator[pa.Array]:
        """Yield the keys of the new rows."""
        part = self.parts[self._stream_with(key) or 0][1]
        return (batch.column(0) for batch in read.Dataset([[part]]).select([key]).batches())


def _layout(version: Version) -> list[tuple[Any, ...]]:
    """Return the name, the format and the columns of each stream."""
    return [(stream.name, stream.format, stream.columns) for stream in version.streams]


@dataclass(frozen=True)
class Replace(versions.Change):
    """The change that adds rows, and removes the earlier rows with the same keys.

    The keys of the new rows were compared with the keys in the version to which `rewrite` applies.

    append   change that adds the new rows
    rewrite  change that replaces the shards that contain the earlier rows
    copied   number of rows in these shards that are kept and therefore copied
    """

    append: Append
    rewrite: Rewrite
    copied: int | None
    verb: str = field(default="replace", init=False)

    @property
    def fragments(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.append.fragments, *self.rewrite.fragments)

    @property
    def source(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        return self.append.source

    def apply(self, base: Version) -> tuple[Stream, ...]:
        self.append.check(base)
        return self.append.added_to(self.rewrite.apply(base))


def _matches(
    keys: Iterable[pa.Array], data: read.Dataset, name: str
) -> Generator[tuple[int, pa.Array, IntArray], None, None]:
    """Find the rows of a dataset that have one of the given keys. Empty keys are ignored.

    name    column with the keys of the dataset
    return  for each batch that contains a matching row: the number of its first row, its keys, and
            the positions of the matching rows in the batch
    """
    with Keys() as known:
        for column in keys:
            known.seen(key_bytes(column.filter(pa.array(~is_empty_key(column)))), 0)
        first = 0
        for batch in data.select([name]).batches():
            column = batch.column(0)
            found = np.flatnonzero(known.find(key_bytes(column)) >= 0)
            if len(found):
                yield first, column, found
            first += batch.num_rows


def _rows_with_keys(keys: Iterable[pa.Array], data: read.Dataset, name: str) -> IntArray:
    """Return the numbers of the rows that have one of the given keys: int64, ascending."""
    found = [first + rows for first, _, rows in _matches(keys, data, name)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def append_rows(task: PackTask, progress: Progress) -> Packed:
    """Pack the rows of a task as a fragment of an existing dataset, and commit a new version.

    raises  UsageError if the folder contains no dataset with a playlist; FormatError if the columns
            of the source do not match the dataset; the errors of `pack` and of `versions.commit`
    """
    at, base = open_for_change(task.out, task.guard, task.options.dry_run)
    task = replace(_for_dataset(task, base), erased=ErasedKeys.read(at))
    plan = planned(task, progress)
    missing = _checked_columns(plan, base)
    plan.task = task = replace(task, null_columns=missing, casts=_casts(plan))
    if task.options.part_rows is not None:
        check_division(plan)
    if task.options.dry_run:
        packed = _would_append(task, plan, base)
        return _would_replace(plan, base, packed) if _replaces(plan) else packed
    task = replace(task, source_digest=task.source_digest or plan.source.sum())
    plan.task = task
    record = source_record(task, plan.source, _recorded_options(task))
    if task.options.resume:
        if (done := _appended(task, at, base, record)) is not None:
            progress.note(f"version {done.version} already contains these rows")
            return done
        # if the keys must be new, they are compared with the keys of the newest version
        if task.key is None or _replaces(plan):
            options = _recorded_options(_stream_task(task, base, 0))
            start = unfinished_base(at, base, {"source": task.source_digest, "options": options})
            if _layout(start) == _layout(base):
                base = start
    return _pack_streams(task, plan, at, base, record)


def _recorded_options(task: PackTask) -> dict[str, Any]:
    """Return the options that determine the rows and the shards of a fragment."""
    part_rows = task.options.part_rows
    return {
        **task.recorded_options(),
        **({} if part_rows is None else {"part_rows": part_rows}),
    }


def _replaces(plan: Plan) -> bool:
    return plan.key is not None and plan.options.on_duplicate == "replace"


def _would_append(task: PackTask, plan: Plan, base: Version) -> Packed:
    """Return the result of a dry run: a fragment for each stream of the dataset."""
    tasks = [_stream_task(task, base, number) for number in range(len(base.streams))]
    plans = [plan] if len(tasks) == 1 else [planned(one, plan.progress) for one in tasks]
    first, *others = [dry_run(one, task.options.part_rows) for one in plans]
    return _with_others(replace(first, playlist=task.playlist), others)


def _with_others(first: Packed, others: Sequence[Packed]) -> Packed:
    """Return the result for the first stream, with the shards and columns of the other streams."""
    return replace(
        first,
        bytes=first.bytes + sum(one.bytes for one in others),
        shards=first.shards + sum(one.shards for one in others),
        columns=(*first.columns, *(column for one in others for column in one.columns)),
        estimated=first.estimated or any(one.estimated for one in others),
    )


def _would_replace(plan: Plan, base: Version, packed: Packed) -> Packed:
    """Return the result of a dry run, with the number of rows that the new rows would replace."""
    name, data = plan.renamed(plan.key or ""), base.dataset
    keys = (key_values(plan, name, batch.column(name)) for batch in selected(plan, keys_only=True))
    rows = _rows_with_keys(keys, data, name)
    _, size = total_size(base, _groups_without(base, rows))
    return replace(packed, replaced=len(rows), rewritten_bytes=size)


def _groups_without(base: Version, rows: IntArray) -> dict[int, list[Group]]:
    return {number: groups_without(stream, rows) for number, stream in enumerate(base.streams)}


def _pack_streams(
    task: PackTask, plan: Plan, at: Location, base: Version, record: Mapping[str, Any]
) -> Packed:
    """Pack a fragment for each stream of the dataset, and commit them together.

    Every fragment remains locked until the commit.
    """
    head = {"base": base.number, "base_checksum": base.checksum}
    compares = plan.key is not None and task.options.on_duplicate != "keep"
    key = plan.renamed(plan.key or "") if compares else None
    parts: list[tuple[str, Stream]] = []
    targets: list[Target] = []
    others: list[Packed] = []
    version: Version | None = None
    removed_rows = removed_bytes = 0

    def pack_stream(number: int) -> Packed:
        nonlocal version
        facts = [record[DEFAULT], record["options"], base.checksum, *([number] if number else [])]
        if task.erased:
            facts.append(task.erased.checksum)
        name = versions.fragment_name(facts)
        versions.check_fragment(at, name)

        def commit(stream: Stream, target: Target) -> None:
            nonlocal version, removed_rows, removed_bytes
            check_opens(stream, base.streams[number].columns)
            parts.append((name, stream))
            targets.append(target)
            if number + 1 < len(base.streams):
                others.append(pack_stream(number + 1))
                return
            change = Append(at, tuple(parts), record, key, base, task.erased)
            if _replaces(plan):
                version, removed_rows, removed_bytes = _commit_replacing(
                    task, plan.progress, change, targets
                )
            else:
                version = versions.commit(at, change, base, targets)

        one = _stream_task(task, base, number)
        options = replace(one.options, out=f"{task.out.rstrip('/')}/{name}")
        one = replace(one, options=options, head=head)
        # `plan` contains all columns, so it can be used only if the dataset has one stream
        own = plan if len(base.streams) == 1 else planned(one, plan.progress)
        try:
            if options.part_rows is not None:
                packed = pack_parts(one, plan.progress, own, commit)
            else:
                packed = pack_task(one, plan.progress, own, commit)
        except NoRowsError:
            if number or not own.duplicates:
                raise
            plan.progress.note("no row has a new key; no version was created")
            return Packed("", options.format, 0, 0, 0, duplicates=own.duplicates)
        if len(parts) == number:  # another process has finished the fragment, and committed it
            version = versions.version_of_fragment(at, base, name)
        return packed

    packed = pack_stream(0)
    return replace(
        _with_others(packed, others),
        playlist=task.playlist,
        version=version.number if version is not None else None,
        replaced=removed_rows,
        rewritten_bytes=removed_bytes,
    )


def _commit_replacing(
    task: PackTask, progress: Progress, change: Append, targets: Sequence[Target]
) -> tuple[Version, int, int]:
    """Remove existing rows with the key of a new row, add the new rows, and commit one version.

    The keys are compared with the newest version, because another process may have changed the
    dataset while the new rows were packed.

    targets  the locked targets of the new rows
    return   the new version; the number of removed rows; the total size of the shards that
             contained these rows
    """
    at, base = change.at, versions.newest(change.at)
    change.check_streams(base)
    change = replace(change, since=base)
    change.check(base)  # raises if the rows have erased keys
    rows = _rows_with_keys(change.keys(change.key or ""), base.dataset, change.key or "")
    groups = _groups_without(base, rows)
    if not len(rows):
        return versions.commit(at, change, base, targets), 0, 0
    copied = sum(int(row_counts(base.streams[0])[one.start]) for one in groups[0]) - len(rows)
    version = rewrite(
        task.out,
        at,
        base,
        groups,
        "replace",
        [digest(rows.tobytes()), *change.fragments],
        shard_bytes=None,
        guard=task.guard,
        resume=task.options.resume,
        jobs=min(task.limits.jobs, cpu_count()),
        progress=progress,
        commit=lambda one, own: versions.commit(
            at, Replace(change, one, copied), base, [*targets, *own]
        ),
    )
    return version, len(rows), total_size(base, groups)[1]


def _stream_task(task: PackTask, base: Version, number: int) -> PackTask:
    """Return the task that packs the columns of one stream of a dataset."""
    if len(base.streams) == 1:
        return task
    names = [column.name for column in base.streams[number].columns or ()]
    present = [name for name in names if name not in task.null_columns]
    if not present:  # read one column of another stream to count the rows; it is not written
        present = [name for name in task.encodings or () if name not in task.null_columns][:1]
    options = replace(task.options, separator=None)  # the separator of the first stream
    return replace(
        task,
        options=replace(with_format(options, base.streams[number]), columns=present),
        null_columns={name: kind for name, kind in task.null_columns.items() if name in names},
        encodings={name: (task.encodings or {})[name] for name in names},
        types={name: (task.types or {})[name] for name in names},
    )


def _for_dataset(task: PackTask, base: Version) -> PackTask:
    """Return a task with the format, the encodings and the types of a dataset.

    raises  UsageError if the options choose another format or other encodings
    """
    options, format = task.options, base.streams[0].format or ""
    if not format or any(one.columns is None or one.rows is None for one in base.streams):
        raise UsageError(
            "the playlist lacks the format, the columns or the numbers of rows",
            where=base.at,
            hint="Run `flare playlist FOLDER -o FOLDER/playlist.yaml`.",
        )
    if options.on_error != "fail" and len(base.streams) > 1:
        raise UsageError(
            "--on-error skip cannot be used with a dataset of several streams",
            hint="Exclude invalid rows with --where.",
        )
    if options.format not in (format, formats.DEFAULT):
        raise UsageError(
            f"--format {options.format} differs from the format of the dataset, {format}",
            where=base.at,
        )
    columns = [column for stream in base.streams for column in stream.columns or ()]
    chosen = {column.name: column.encoding for column in columns}
    for name, encoding in (options.encode or {}).items():
        if chosen.get(name) != encoding:
            raise UsageError(
                f"--encode {name}={encoding} does not match the dataset, which has "
                + (f"the encoding {chosen[name]}" if name in chosen else "no such column"),
                where=base.at,
            )
    data = base.dataset
    types = {field.name: data.types.get(field.name, field.type) for field in data.schema}
    return replace(
        task,
        options=with_format(options, base.streams[0]),
        encodings=chosen,
        types=types,
        existing=data,
        existing_schema=data.schema,
        existing_extensions={one.name: one.extension for one in columns if one.extension},
    )


def with_format(options: PackOptions, stream: Stream) -> PackOptions:
    """Return options with the format, compression, checksums and separators of a stream.

    raises  UsageError if the options choose another separator
    """
    format, settings = find(stream.format or ""), settings_of(stream)
    separator = options.separator
    if "separator" in format.options:
        if separator not in (None, settings.separator):
            raise UsageError(
                f"--separator {separator!r} differs from the separator of the dataset, "
                f"{settings.separator!r}",
                where=stream.at,
            )
        separator = settings.separator
    return replace(
        options,
        format=format.name,
        compress=options.compress or settings.compression,
        hash=name_list(options.hash) or settings.hashes,
        newline=settings.newline,
        separator=separator,
    )


def _checked_columns(plan: Plan, base: Version) -> dict[str, pa.DataType]:
    """Return the columns that the source lacks, if --allow-missing is set.

    raises  FormatError unless the columns of the source match the columns of the dataset
    """
    task = plan.task
    chosen, types, key = task.encodings or {}, task.types or {}, task.format.key_column
    if key in chosen and key not in plan.names:
        raise FormatError(
            f"column {key!r} of the dataset is missing in the source",
            where=plan.source.address,
            hint="Specify the column that contains the keys with --key.",
            column=key,
        )
    for name in plan.names:
        if name not in chosen:
            hint = choose(name, chosen, "Choose the columns to append with -c. Columns:")
            if name == key:
                hint = "The keys of the dataset were generated" + (
                    ", so omit --key." if plan.key else "; pack the dataset again to store keys."
                )
            raise FormatError(
                f"column {name!r} is not in the dataset",
                where=plan.source.address,
                hint=hint,
                column=name,
            )
    missing = {name: types.get(name, pa.null()) for name in chosen if name not in plan.names}
    format_of = {
        column.name: find(one.format or "") for one in base.streams for column in one.columns or ()
    }
    for name in missing:
        format = format_of[name]
        is_filled = task.nulls.fills or name in task.nulls.values
        if task.options.allow_missing and (format.holds_null or is_filled):
            continue
        hint = "Use --allow-missing to store nulls in this column."
        if not format.holds_null:
            option = shell_quoted(f"{name}=VALUE")
            hint = f"Use --allow-missing and --null {option}; {format.name} cannot store nulls."
        raise FormatError(
            f"column {name!r} of the dataset is missing in the source",
            where=plan.source.address,
            hint=hint,
            column=name,
        )
    for name, kind in _source_types(plan).items():
        if name not in types or not _has_fixed_type(plan, name):
            continue
        if not _fits(kind, types[name]):
            raise FormatError(
                f"column {name!r} has the type {kind}; the dataset has {types[name]}",
                where=plan.source.address,
                hint=_type_hint(name, kind, types[name]),
                column=name,
            )
    return missing


def _source_types(plan: Plan) -> dict[str, pa.DataType]:
    """Return the types of the columns of the source: column of the dataset -> Arrow type."""
    source, out = plan.source, {}
    for one in source.schema:
        stored = encodings.source_of(one)
        if one.name in source.encodings:  # files, whose contents are decoded when they are packed
            kind = encodings.lookup(source.encodings[one.name]).arrow
        elif one.name in source.types or stored is None:
            kind = source.types.get(one.name, one.type)
        else:  # for example, integers that a flare dataset stores as text
            kind = encodings.plain(pa.nulls(0, stored.arrow), stored)[1].arrow
        out[plan.renamed(one.name)] = kind
    return out


def _has_fixed_type(plan: Plan, name: str) -> bool:
    """Return whether the values of a column must fit the type of the column in the dataset."""
    if name == plan.task.format.key_column:  # keys of any type are converted to text
        return False
    return name in plan.names and all(name != link.name for link in plan.links)


def _casts(plan: Plan) -> dict[str, pa.DataType]:
    """Return the types of the dataset for the columns that may have another type in the source."""
    kinds = {} if plan.is_statement else _source_types(plan)  # a statement may return other types
    out = {}
    for name, expected in (plan.task.types or {}).items():
        kind = _without_variants(expected)
        is_same = name in kinds and _without_variants(kinds[name]).equals(kind)
        if _has_fixed_type(plan, name) and not is_same:
            out[name] = kind
    return out


def _without_variants(kind: pa.DataType) -> pa.DataType:
    return encodings.without_dictionaries(encodings.without_variants(kind))


def _type_hint(name: str, kind: pa.DataType, expected: pa.DataType) -> str:
    if encodings.is_text(kind) and (
        pa.types.is_binary(expected) or pa.types.is_large_binary(expected)
    ):
        return (
            f"If the column contains links, download the files with --fetch {shell_quoted(name)}."
        )
    return ""


def _fits(kind: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether values of type `kind` can be cast to type `expected`.

    The cast itself rejects a value that is not exact in type `expected`.
    """
    one = encodings.value_type(encodings.without_variants(kind))
    other = encodings.value_type(encodings.without_variants(expected))
    common = common_type(one, other)
    return common is not None and encodings.without_variants(common).equals(other)


def _appended(
    task: PackTask, at: Location, base: Version, record: Mapping[str, Any]
) -> Packed | None:
    """Return the result of an earlier append of the same source with the same options, or None.

    If the version that the earlier append created was pruned, the append is found by its fragment,
    which `base` still lists.
    """

    def packed(version: int, added: int, removed: int) -> Packed:
        return Packed(
            task.playlist,
            task.options.format,
            added,
            0,
            0,
            resumed_rows=added,
            version=version,
            replaced=removed,
        )

    if (one := versions.version_from(at, record)) is not None:
        return packed(one.number, one.added, one.removed)
    if len(versions.numbers(at)) == base.number:  # no version was removed
        return None
    stream = base.streams[0]
    listed = dict.fromkeys(url.partition("/")[0] for url in stream.urls)
    where = [at / f"{name}/{PLAYLIST}" for name in listed if f"{name}/{PLAYLIST}" in stream.files]
    for place, data in zip(where, read_each(where), strict=True):
        if record["options"].encode() in bytes(data):
            for fragment in playlists.parse(bytes(data), place).streams[:1]:
                is_same = versions.is_same_source(fragment.headers.get("source"), record)
                if is_same and fragment.rows is not None:
                    return packed(base.number, int(fragment.rows.sum()), 0)
    return None


def unfinished_base(at: Location, base: Version, head: Mapping[str, Any]) -> Version:
    """Return the version from which an unfinished change started; without such a change, `base`.

    head  values in the journal of the change
    """
    for name in versions.unfinished_fragments(at, base):
        found = first_entry(at / f"{name}/{SCRATCH}/journal")
        if any(found.get(key) != value for key, value in head.items()):
            continue
        number, checksum = found.get("base"), found.get("base_checksum")
        if isinstance(number, int) and 0 < number <= base.number:
            try:
                one = base if number == base.number else versions.read_version(at, number)
            except FlareError:
                continue
            if one.checksum == checksum:
                return one
    return base
