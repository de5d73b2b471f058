"""`flare pack --add-column`: pack a column, and add it to a dataset as a new stream.

Without a key column, the rows of the source must be in the order of the dataset. With a key column,
the source rows are first saved to a temporary Arrow file. They are then matched by key, and written
in the order of the dataset.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli import formats, read
from flarecli.commands.packing.append import unfinished_base, with_format
from flarecli.commands.packing.plan import PackTask, Plan, selected
from flarecli.commands.packing.run import (
    Packed,
    dry_run,
    expected_rows,
    pack_task,
    planned,
    source_record,
)
from flarecli.commands.packing.source import Source
from flarecli.commands.provenance import PLACE
from flarecli.errors import BusyError, FormatError, UsageError
from flarecli.hashes import DEFAULT, digest
from flarecli.model import Stream
from flarecli.progress import Progress
from flarecli.storage import Location
from flarecli.storage.local import temporary_file_error
from flarecli.write import (
    Keys,
    Target,
    changed_error,
    is_empty_key,
    key_bytes,
    key_text,
    versions,
)
from flarecli.write.versions import Version, open_for_change

__all__ = ["add_column"]

_BATCH_ROWS = 1 << 14


@dataclass(frozen=True)
class AddColumn(versions.Change):
    """The change that adds a stream with one column, or replaces the stream with the same name.

    urls      addresses of the shards of the first stream when the column was packed, to detect
              changes of the rows
    replaced  addresses of the shards of the stream that the column replaces; None: no stream
    """

    at: Location
    name: str
    fragments: tuple[str]
    stream: Stream
    urls: tuple[str, ...]
    replaced: tuple[str, ...] | None
    source: Mapping[str, Any] | None
    verb: str = field(default="add-column", init=False)

    def apply(self, base: Version) -> tuple[Stream, ...]:
        if tuple(base.streams[0].urls) != self.urls:
            raise BusyError(
                "another process has changed the rows of the dataset",
                where=base.at,
                hint="Run the same command again.",
            )
        if _shards_of(base, self.name) != self.replaced:
            raise changed_error(base.at)
        part = versions.fragment_files(self.fragments[0], self.at, self.stream)
        new = replace(versions.moved(self.fragments[0], part), name=self.name, at=self.at)
        return (*(one for one in base.streams if one.name != self.name), new)


def _shards_of(base: Version, name: str) -> tuple[str, ...] | None:
    """Return the addresses of the shards of a stream; None if there is no such stream."""
    return next((tuple(one.urls) for one in base.streams if one.name == name), None)


def add_column(task: PackTask, progress: Progress) -> Packed:
    """Pack a column of the source as a new stream of an existing dataset, and commit a new version.

    raises  UsageError if the source lacks the column, or if the dataset has the column and
            `replace` is not set; FormatError if the source does not have exactly one value for each
            row
    """
    options, name = task.options, task.options.add_column or ""
    at, base = open_for_change(task.out, task.guard, options.dry_run)
    if not options.resume:  # otherwise, a version may already contain the column
        _check(task, base, name)
    if options.format in (formats.DEFAULT, base.streams[0].format):
        options = with_format(options, base.streams[0])
        task = replace(task, options=options)
    with tempfile.TemporaryDirectory(prefix="flare-") as folder:
        keyed, matched = None, os.path.join(folder, "matched.arrow")
        if task.key is not None:
            keyed = _keyed(task, base, progress)
            task = _without_key(task, keyed.source, matched)
        task = replace(task, options=replace(task.options, columns=[name]))
        plan = planned(task, progress) if keyed is None else keyed
        task = replace(task, source_digest=task.source_digest or plan.source.sum())
        record = source_record(task, plan.source, task.recorded_options())
        if options.resume:
            if (done := _added(task, at, base, name, record)) is not None:
                progress.note(f"version {done.version} already contains this column")
                return done
            _check(task, base, name)
        if keyed is not None:
            _match(keyed, base, folder, matched)
            plan = planned(task, progress)
        plan.task = task
        if options.dry_run:
            packed = dry_run(plan)
            _check_count(plan, base, packed.rows)
            return replace(packed, playlist=task.playlist)
        if (rows := expected_rows(plan)) is not None:
            _check_count(plan, base, rows)
        return _pack(task, plan, at, base, name, record)


def _check(task: PackTask, base: Version, name: str) -> None:
    options = task.options
    if options.folder_column and options.folder_column != name:
        raise UsageError(
            f"--folder-column {options.folder_column} cannot be combined with --add-column {name}, "
            "because --add-column adds one column"
        )
    for stream in base.streams:
        columns = [column.name for column in stream.columns or ()]
        if name not in columns:
            if stream.name == name:
                raise UsageError(f"the dataset already has a stream {name!r}", where=base.at)
            continue
        if columns != [name] or stream.name != name:
            raise UsageError(
                f"column {name!r} cannot be replaced, because --add-column did not add it",
                where=base.at,
            )
        if not options.replace:
            raise UsageError(
                f"the dataset already has a column {name!r}",
                where=base.at,
                hint="Use --replace to replace the column.",
            )


def _check_count(plan: Plan, base: Version, rows: int) -> None:
    """Raise FormatError unless the source and the dataset have the same number of rows."""
    if rows != base.rows:
        raise FormatError(
            f"the source has {rows} rows; the dataset has {base.rows}",
            where=plan.source.address,
            hint="Match the rows by a key column with --key.",
        )


def _added(
    task: PackTask, at: Location, base: Version, name: str, record: Mapping[str, Any]
) -> Packed | None:
    """Return the result of an earlier run with the same source and the same options, or None.

    If the version that the earlier run created was pruned, the column in `base` is compared.
    """
    version = versions.version_from(at, record)
    if version is None:
        streams = [stream for stream in base.streams if stream.name == name]
        if not any(
            versions.is_same_source(stream.headers.get("source"), record) for stream in streams
        ):
            return None
        version = base
    return Packed(
        task.playlist,
        task.options.format,
        version.rows,
        0,
        0,
        resumed_rows=version.rows,
        dry_run=task.options.dry_run,
        version=version.number,
    )


def _pack(
    task: PackTask,
    plan: Plan,
    at: Location,
    base: Version,
    name: str,
    record: Mapping[str, Any],
) -> Packed:
    urls, start = tuple(base.streams[0].urls), base
    if task.options.resume:
        own = {"source": record[DEFAULT], "options": task.recorded_options()}
        start = unfinished_base(at, base, own)
        earlier = tuple(start.streams[0].urls)
        if urls[: len(earlier)] != earlier:  # rows were removed or replaced, not only appended
            start = base
    fragment = versions.fragment_name([record[DEFAULT], record["options"], start.checksum, name])
    versions.check_fragment(at, fragment)
    committed: list[Version] = []
    playlist = task.playlist

    def commit(stream: Stream, target: Target) -> None:
        rows = 0 if stream.rows is None else int(stream.rows.sum())
        _check_count(plan, base, rows)
        replaced = _shards_of(base, name)
        change = AddColumn(at, name, (fragment,), stream, urls, replaced, record)
        committed.append(versions.commit(at, change, base, [target]))

    out = f"{task.out.rstrip('/')}/{fragment}"
    head = {"base": start.number, "base_checksum": start.checksum}
    task = replace(task, options=replace(task.options, out=out, key=None), head=head)
    packed = pack_task(task, plan.progress, plan, commit)
    # without a commit, another process has finished the fragment, and committed it
    version = committed[0] if committed else versions.version_of_fragment(at, base, fragment)
    return replace(packed, playlist=playlist, version=version.number)


def _without_key(task: PackTask, source: Source, matched: str) -> PackTask:
    """Return a task whose source is a file with the rows in the order of the dataset.

    matched  path of this file, which `_match` writes
    """
    facts = [source.sum(), task.recorded_options()]  # both determine the rows to pack
    checksum = digest(json.dumps(facts, sort_keys=True).encode())
    # the other options describe the source or select its rows, and do not apply to the matched file
    options = replace(
        task.options,
        sources=[matched],
        key=None,
        where=None,
        limit=None,
        rows=None,
        streams=(),
        folder_column=None,
        input=None,
        csv=(),
    )
    return replace(task, options=options, source_digest=checksum, object_name=source.address)


def _keyed(task: PackTask, base: Version, progress: Progress) -> Plan:
    """Return a plan in which the key has the name and the value that it has in the dataset."""
    format = base.streams[0].format or formats.DEFAULT
    if formats.find(format).key_column not in base.dataset.schema.names:
        format = formats.DEFAULT
    return planned(replace(task, options=replace(task.options, format=format)), progress)


def _match(plan: Plan, base: Version, folder: str, matched: str) -> None:
    """Write the selected rows of a plan to a file, in the order of the keys of the dataset.

    folder   folder for temporary files
    matched  path of the file
    raises   FormatError for a key that is missing in the source, or that occurs twice in the source
    """
    key, data = plan.renamed(plan.task.key or ""), base.dataset
    if key not in data.schema.names:
        raise UsageError(f"--key: the dataset has no column {key!r}", where=base.at)
    saved = os.path.join(folder, "saved.arrow")
    with Keys() as keys:
        try:
            count = _save(plan, saved, key, keys)
            with pa.memory_map(saved) as file:
                table = pa.ipc.open_file(file).read_all()
                _write(data, table, key, keys, count, matched, plan.source.address)
        except OSError as error:
            raise temporary_file_error(error, "the rows of the source") from None


def _save(plan: Plan, path: str, key: str, keys: Keys) -> int:
    """Write the source without the key column to a file; return the number of rows.

    The keys are added to `keys`.
    """
    count = 0
    writer = None
    try:
        for batch in selected(plan):
            column = batch.column(key)
            empty = np.flatnonzero(is_empty_key(column))
            if len(empty):
                raise FormatError("the key is empty", where=plan.source.address, row=empty[0])
            earlier = keys.seen(key_bytes(column), np.arange(count, count + batch.num_rows))
            again = np.flatnonzero(earlier >= 0)
            if len(again):
                raise FormatError(
                    f"key {key_text(column[int(again[0])])!r} occurs twice",
                    where=plan.source.address,
                    row=count + int(again[0]),
                )
            rest = batch.drop_columns([name for name in batch.schema.names if name in (key, PLACE)])
            if writer is None:
                writer = pa.ipc.new_file(path, rest.schema)
            writer.write_batch(rest)
            count += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return count


def _write(
    data: read.Dataset, table: pa.Table, key: str, keys: Keys, count: int, path: str, where: str
) -> None:
    """Write the rows of a table in the order of the dataset's keys."""
    row = 0
    with pa.ipc.new_file(path, table.schema) as writer:
        for batch in data.select([key]).batches():
            column = batch.column(0)
            found = keys.seen(key_bytes(column), count + row)
            missing = np.flatnonzero((found < 0) | (found >= count))
            if len(missing):
                at = int(missing[0])
                raise FormatError(
                    f"the source has no row with the key {key_text(column[at])!r}, "
                    f"which is the key of row {row + at} of the dataset",
                    where=where,
                )
            for start in range(0, len(found), _BATCH_ROWS):
                rows = table.take(pa.array(found[start : start + _BATCH_ROWS]))
                for piece in rows.combine_chunks().to_batches():
                    writer.write_batch(piece)
            row += batch.num_rows
