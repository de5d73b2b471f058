"""Pack in parts: every N rows of the source become a dataset in `00000/`, `00001/` and so on.

One index and one playlist join the parts. The result depends only on N and the source, not on the
engine, the order in which parts are packed, or retries.

`--part-rows N` packs and joins all parts. `--part K/N` packs one part in an independent job, and
`--join` joins the parts. The journal of the whole pack is then shared by the jobs:

    OUT/.flare/journal    source, options, N, and the columns that the first job inferred
    OUT/.flare/lock       locked by a job while it uses the journal, and by the join
    OUT/00002/.flare/     lock and journal of the job that packs part 3/N
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

from flarecli import __version__, encodings, formats, playlists, sql
from flarecli.commands.options import PackOptions
from flarecli.commands.packing.plan import (
    DOTS_NOTE,
    PackTask,
    Plan,
    Selection,
    check_keys,
    selected,
)
from flarecli.commands.packing.run import (
    Estimate,
    Kept,
    Packed,
    PackInterrupt,
    ShardNotes,
    count_selected,
    dry_run,
    estimate,
    failed_row,
    finished_before,
    no_rows,
    note_addresses,
    pack_task,
    planned,
    source_record,
    write_share,
)
from flarecli.commands.packing.source import RowRequest, Source
from flarecli.commands.provenance import PLACE
from flarecli.commands.row_order import first_rows
from flarecli.errors import (
    BusyError,
    FlareError,
    FormatError,
    MissingError,
    NoRowsError,
    ReachError,
    UnfinishedError,
    UsageError,
)
from flarecli.hashes import DEFAULT
from flarecli.model import Columns, Stream
from flarecli.names import is_url, local_path, whole_path
from flarecli.playlists import PLAYLIST
from flarecli.progress import Progress
from flarecli.storage import Location, is_stream
from flarecli.storage.local import LocalStore
from flarecli.units import format_count
from flarecli.write import Journal, Target, bucket_of, check_target, claim, engines, parts
from flarecli.write.columns import reader_notes, schema_header

__all__ = ["check_division", "join_parts", "pack_one_part", "pack_parts"]

_MAX_BUSY_S = 120.0  # maximum time to wait for a part that another process packs
_MAX_WAIT_S = 600.0  # maximum time to wait for jobs that infer the columns, or join the parts
_BUSY_DELAY_S = 0.5  # delay between two attempts to lock a folder
_MAX_NOTES = 20  # maximum number of reported notes about parts


@dataclass(frozen=True)
class _Outcome:
    """Result of packing one part: `packed` or `error`.

    notes     notes about the part, to report to the user
    reported  (rows received, bytes, rows written) that are already counted in the progress of the
              pack
    failed    number of failed rows that are already counted in the progress of the pack
    """

    packed: Packed | None
    error: FlareError | None = None
    notes: tuple[str, ...] = ()
    reported: tuple[int, int, float] = (0, 0, 0.0)
    failed: int = 0


class _PartProgress(Progress):
    """Progress of one part.

    It collects the notes, and reports rows and failures to `whole`, the progress of the pack.
    """

    def __init__(self, whole: Progress) -> None:
        self.notes: list[str] = []
        self.reported: tuple[int, int, float] = (0, 0, 0.0)
        self.failures = 0
        self._whole, self._counting = whole, threading.Lock()

    def advance(self, rows: int, bytes: int) -> None:
        self._add(rows, bytes, 0.0)
        self._whole.advance(rows, bytes)

    def written(self, rows: float) -> None:
        self._add(0, 0, rows)
        self._whole.written(rows)

    def _add(self, rows: int, bytes: int, written: float) -> None:
        with self._counting:
            before = self.reported
            self.reported = before[0] + rows, before[1] + bytes, before[2] + written

    def failed(self, key: str, reason: str, rows: int = 1) -> None:
        self.failures += rows
        self._whole.failed(key, reason, rows)

    def note(self, text: str, verbose: bool = False) -> None:
        if not verbose:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class _Division:
    """The division of the rows into parts. `len()` is the number of parts that have rows.

    rows          number of rows to pack
    part_rows     number of rows per part, except the last part
    parts         N of `--part K/N`; None for `--part-rows`
    is_selection  True: divide the selected rows; False: divide the rows of the source
    """

    rows: int
    part_rows: int
    parts: int | None = None
    is_selection: bool = False

    def __len__(self) -> int:
        return -(-self.rows // self.part_rows)

    def name(self, number: int) -> str:
        """Return the name of a part for messages."""
        return f"part {number + 1}/{self.parts}"


def pack_parts(
    task: PackTask,
    progress: Progress,
    plan: Plan | None = None,
    commit: Callable[[Stream, Target], None] | None = None,
) -> Packed:
    """Pack parts of `part_rows` rows of the source as separate datasets, and join them.

    plan    plan of the task, if the source is already open
    commit  function that commits the dataset; called with the joined stream and the target, before
            the target is released
    raises  UsageError for options that need rows of several parts; the errors of `pack_task`
    """
    plan, options = plan or planned(task, progress), task.options
    part_rows = options.part_rows or 1
    source = plan.source
    check_division(plan)
    if options.dry_run:
        check_target(task.out, resume=options.resume, overwrite=options.overwrite, guard=task.guard)
        return dry_run(plan, part_rows)
    division = _Division(_count(plan, None), part_rows)
    record, head = _record_and_head(task, plan.source, division)
    target = claim(task.out, resume=options.resume, overwrite=options.overwrite, guard=task.guard)
    if target.is_done:
        return finished_before(target, record, options.format)
    # If this run is rejected, the output of an earlier run is kept.
    journal, done, keep = None, None, True
    try:
        journal = Journal(target.at, head)
        keep = journal.columns is not None
        check_keys(plan)
        if journal.columns is None:
            _record_columns(plan, journal)
        keep = True
        common = _common_task(task, record, journal)
        tasks = _PartTasks(common, str(target.at), division)
        done = _Totals(len(tasks))
        _run(options, tasks, done, division.rows, progress, (*source.notes, DOTS_NOTE))
        if not any(done.has_rows):
            raise no_rows(plan)
        stream = parts.join(target.at, done.names(), {"source": record})
        if commit is not None:
            commit(stream, target)
    except BaseException as error:
        if journal is not None:
            journal.close()
        target.abandon(keep=keep)
        if isinstance(error, KeyboardInterrupt):
            kept = Kept(0 if keep and done is None else None, 0, 0)
            kept = error.kept if isinstance(error, PackInterrupt) else kept
            count = "" if done is None else f"{done.parts} of {format_count(len(division), 'part')}"
            raise PackInterrupt(options, kept, count) from None
        raise
    finally:
        progress.close()
    journal.close()
    target.finish()
    return done.packed(target.playlist, options.format)


def pack_one_part(task: PackTask, progress: Progress) -> Packed:
    """Pack part K of N into its own folder, for `--part K/N`. The parts are not joined.

    The first job writes the journal of the whole pack, with the source, the options and the
    columns. Later jobs must have the same source and options, and use the recorded columns.

    raises  UsageError if the options differ from the options of an earlier job, or if the source
            was changed; BusyError if another process packs the same part; the errors of `pack_task`
    """
    number, count = _part_number(task.options)
    plan = planned(task, progress)
    check_division(plan)
    division = _divided(plan, count)
    with _hints_without_overwrite(task, division):
        if task.options.dry_run:
            return _dry_run_part(plan, division, number)
        at, common = _prepare(plan, division, progress)
        tasks = _PartTasks(common, str(at), division)
        if number >= len(tasks):
            return _empty_part(plan, division, number)
        part_task = tasks[number]
        is_packed = (at / f"{parts.part_name(number)}/{PLAYLIST}").exists()
        if not is_packed:
            part_task = _from_first_row(part_task, plan.source)
        packed = pack_task(part_task, progress, Plan(part_task, plan.source, progress))
    if is_packed:
        progress.note(f"{division.name(number)} was already packed")
    return packed


def join_parts(task: PackTask, progress: Progress) -> Packed:
    """Join the parts that `--part K/N` has packed, and write the index and the playlist.

    A second call returns the same result, even if the process of the first call was killed.

    raises  UnfinishedError if a part is not packed yet; UsageError if a part was packed from
            another source or with other options; FormatError for a key that is used twice
    """
    plan = planned(task, progress)
    check_division(plan)
    out = _location(task)
    count = parts.recorded_parts(out)
    if count is None and not (out / PLAYLIST).exists():
        raise _no_parts(out)
    division = _Division(0, 1) if count is None else _divided(plan, count)
    with _hints_without_overwrite(task, division):
        if task.options.dry_run and count is not None:
            return _dry_run_join(plan, division, out)
        target = _claim_and_wait(task, progress)
        if target.is_done:
            return _joined_before(plan, target)
        if count is None:
            target.abandon(keep=True)
            raise _no_parts(out)
        return _join(plan, division, target, progress)


def _join(plan: Plan, division: _Division, target: Target, progress: Progress) -> Packed:
    """Join all parts into one dataset. This process has locked the target."""
    task, journal = plan.task, None
    try:
        record, head = _record_and_head(plan.task, plan.source, division)
        journal = Journal(target.at, head)
        tasks = _PartTasks(_common_task(task, record, journal), str(target.at), division)
        done = _check_parts(plan, target.at, tasks, progress)
        parts.join(target.at, done.names(), {"source": record})
    except BaseException as error:
        if journal is not None:
            journal.close()
        target.abandon(keep=True)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(
                "run the same command again: flare keeps all parts, and checks and joins them again"
            ) from None
        raise
    finally:
        progress.close()
    journal.close()
    target.finish()
    return replace(done.packed(target.playlist, task.options.format), resumed_rows=done.rows)


def _dry_run_join(plan: Plan, division: _Division, out: Location) -> Packed:
    """Check that all parts are packed, and return their totals, without writing anything."""
    tasks = _PartTasks(plan.task, str(out), division)
    done = _check_parts(plan, out, tasks, plan.progress)
    packed = done.packed(plan.task.playlist, plan.options.format)
    return replace(packed, resumed_rows=done.rows, dry_run=True)


def _joined_before(plan: Plan, target: Target) -> Packed:
    """Return the result of an earlier join.

    raises  UsageError if the dataset was packed from another source or with other options
    """
    at = target.at / PLAYLIST
    part_rows = parts.rows_of_first(target.at, playlists.read(at).streams[0])
    division = _Division(part_rows, max(part_rows, 1))
    return finished_before(
        target, _record_and_head(plan.task, plan.source, division)[0], plan.options.format
    )


def _check_parts(plan: Plan, at: Location, tasks: _PartTasks, progress: Progress) -> _Totals:
    """Check all parts and their keys, and return the totals.

    raises  the errors of `join_parts`
    """
    _check_all_packed(at, tasks)
    done = _Totals(len(tasks))
    for number, task in enumerate(tasks):
        done.add(number, _packed_part(plan, task, progress))
    check_keys(plan)
    return done


def _check_all_packed(at: Location, tasks: _PartTasks) -> None:
    """Raise UnfinishedError with the numbers of all parts that are not packed yet."""
    is_missing = [not (at / f"{parts.part_name(i)}/{PLAYLIST}").exists() for i in range(len(tasks))]
    count = tasks.division.parts
    missing = _ranges([i + 1 for i, one in enumerate(is_missing) if one])
    if missing.isdecimal():
        raise UnfinishedError(
            f"part {missing}/{count} is not packed yet",
            where=at,
            hint=f"Run `flare pack … --part {missing}/{count}`, then `flare pack … --join`.",
        )
    if missing:
        raise UnfinishedError(
            f"{sum(is_missing)} of {len(tasks)} parts are not packed yet: {missing}",
            where=at,
            hint=f"Run `flare pack … --part K/{count}` for K = {missing}, then `flare pack … --join`.",
        )


def _ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges such as `1-3,7`, as in `sbatch --array`."""
    found = set(numbers)
    starts = [one for one in numbers if one - 1 not in found]
    stops = [one for one in numbers if one + 1 not in found]
    pairs = zip(starts, stops, strict=True)
    return ",".join(f"{one}" if one == two else f"{one}-{two}" for one, two in pairs)


def _no_parts(out: Location) -> UnfinishedError:
    return UnfinishedError(
        "found no parts of this pack",
        where=out,
        hint="Run `flare pack … --part K/N` for each part first. If you have copied the parts, "
        "also copy the hidden folder .flare.",
    )


def _packed_part(plan: Plan, task: PackTask, progress: Progress) -> Packed:
    """Return the result of a packed part.

    If the process that packed the part was killed just before its end, the part is completed first.

    raises  UsageError if the part was packed from another source or with other options
    """
    target = _claim_and_wait(task, progress)
    if not target.is_done:
        target.abandon(keep=True)
        if not task.options.dry_run:
            return pack_task(task, Progress(), Plan(task, plan.source, Progress()))
    record = source_record(task, plan.source, task.recorded_options())
    return finished_before(target, record, task.options.format)


def _part_number(options: PackOptions) -> tuple[int, int]:
    """Return the part number, counted from 0, and the number of parts."""
    number, count = cast("tuple[int, int]", options.part)
    if not 0 <= number < count:
        raise UsageError(
            f"--part: expected K/N with K from 1 to N, got {number + 1}/{count}",
            hint="In Python, part=(0, 3) is the first of three parts, like part='1/3'.",
        )
    return number, count


def _divided(plan: Plan, count: int) -> _Division:
    """Divide the selected rows into N parts of the same size.

    The last part that has rows may be smaller, and the parts after it are empty.
    """
    options = plan.options
    is_selection = options.where is not None or options.shuffle is not None
    rows = _count(plan, options.where)
    if not rows:
        raise no_rows(plan)
    return _Division(rows, -(-rows // count), count, is_selection)


def _prepare(plan: Plan, division: _Division, progress: Progress) -> tuple[Location, PackTask]:
    """Write the journal of the whole pack, or compare the task with an existing journal.

    return  the folder of the target, and the task with the values that all parts share
    """
    record, head = _record_and_head(plan.task, plan.source, division)
    target = _claim_and_wait(plan.task, progress)
    if target.is_done:
        finished_before(target, record, plan.options.format)
        return target.at, _common_task(plan.task, record)
    journal, keep = None, True
    try:
        journal = Journal(target.at, head)
        keep = journal.columns is not None
        if not keep:
            kept = replace(plan.options, on_duplicate="keep")
            rows = Selection(0, division.rows)
            task = replace(plan.task, options=kept, selection=rows)
            _record_columns(Plan(task, plan.source, progress), journal)
        keep = True
        return target.at, _common_task(plan.task, record, journal)
    except KeyboardInterrupt:
        raise PackInterrupt(plan.options, Kept(0 if keep else None, 0, 0)) from None
    finally:
        if journal is not None:
            journal.close()
        target.abandon(keep=keep)


def _claim_and_wait(task: PackTask, progress: Progress) -> Target:
    """Lock the target of a task. If another job has locked the target, wait for that job."""
    stop, is_noted = time.monotonic() + _MAX_WAIT_S, False
    while True:
        try:
            return claim(task.out, resume=True, guard=task.guard)
        except BusyError as error:
            if time.monotonic() > stop:
                raise
            if not is_noted:
                progress.note(f"waiting: {error}")
            is_noted = True
            time.sleep(_BUSY_DELAY_S)


def _location(task: PackTask) -> Location:
    """Return the folder of the target, without locking or creating it."""
    bucket = bucket_of(task.out, task.guard)
    if bucket is not None:
        return bucket
    path = local_path(task.out).rstrip("/") or "/"
    return Location(LocalStore(whole_path(path), path, maps=False))


@contextlib.contextmanager
def _hints_without_overwrite(task: PackTask, division: _Division) -> Iterator[None]:
    """Replace hints that recommend --overwrite, which cannot replace single parts."""
    out = str(_location(task)).rstrip("/")
    try:
        yield
    except UnfinishedError:
        raise
    except (UsageError, MissingError, FormatError) as error:
        address = error.address.rstrip("/")
        if address == out:
            hint = "Use the same source and options for all parts, or specify another folder."
            raise error.changed(hint=hint) from None
        folder = address.removeprefix(f"{out}/").partition("/")[0]
        is_joined = division.parts is None or (_location(task) / PLAYLIST).exists()
        if address.startswith(f"{out}/") and folder.isdecimal() and not is_joined:
            name = f"--part {int(folder) + 1}/{division.parts}"
            hint = f"Move the folder {folder} elsewhere, and run `flare pack … {name}` again."
            raise error.changed(hint=hint) from None
        raise


def _from_first_row(task: PackTask, source: Source) -> PackTask:
    """Return a task that skips the rows before the first row of its part.

    To find this row, only the columns in the condition are read. If a shuffle or a query needs all
    earlier rows, the task is returned unchanged.
    """
    span, options = task.selection, task.options
    if span is None or options.where is None or options.shuffle is not None:
        return task
    kept = replace(options, on_duplicate="keep", limit=None)
    plan = Plan(replace(task, options=kept, selection=None), source, Progress())
    if plan.is_statement or not source.is_run:
        return task
    skipped = 0
    for batch in selected(plan, keys_only=True):
        if skipped + batch.num_rows > span.first:
            row = batch.column(PLACE)[span.first - skipped].as_py()
            return replace(task, selection=replace(span, row=row, skipped=span.first))
        skipped += batch.num_rows
    return task


def _dry_run_part(plan: Plan, division: _Division, number: int) -> Packed:
    task = plan.task
    check_target(task.out, resume=True, guard=task.guard)
    tasks = _PartTasks(task, task.out, division)
    if number >= len(tasks):
        return replace(_empty_part(plan, division, number), dry_run=True)
    check_target(tasks[number].out, resume=True, guard=task.guard)
    return dry_run(Plan(tasks[number], plan.source, plan.progress))


def _empty_part(plan: Plan, division: _Division, number: int) -> Packed:
    """Return the result for a part without rows, which has no folder."""
    plan.progress.note(
        f"{division.name(number)} contains no rows, because {format_count(division.rows, 'row')} "
        f"are divided into {len(division)} parts of {format_count(division.part_rows, 'row')}"
    )
    return Packed("", plan.options.format, 0, 0, 0)


def _record_and_head(
    task: PackTask, source: Source, division: _Division
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the source record for the playlist, and the first line of the journal."""
    recorded = {**task.recorded_options(), "part_rows": division.part_rows}
    record = source_record(task, source, recorded)
    head = {
        "flare": __version__,
        "format": task.options.format,
        "settings": asdict(task.settings),
        **({} if division.parts is None else {"parts": division.parts}),
        "source": record[DEFAULT],
        "options": recorded,
        **task.head,
    }
    return record, json.loads(json.dumps(head))


def _record_columns(plan: Plan, journal: Journal) -> None:
    """Record the columns for all parts. Unknown columns are inferred from the first rows."""
    task = plan.task
    if task.encodings is None:
        sample = _sample(plan)
        columns, types = sample.columns, sample.types
    else:  # the columns are known from the dataset to which the rows are appended
        own = [
            encodings.column(name, one, plan.extensions.get(name, ""))
            for name, one in task.encodings.items()
        ]
        columns, types = formats.arranged(task.format, own), task.types or {}
    journal.record_columns(
        [(column.name, column.encoding) for column in columns],
        schema_header(columns, types, task.format.key_column),
    )


def _common_task(
    task: PackTask, record: Mapping[str, str], journal: Journal | None = None
) -> PackTask:
    """Return the task for all rows, with the values that all parts share, such as the columns."""
    columns = None if journal is None else journal.columns
    schema = None if journal is None else journal.schema
    options = replace(task.options, resume=True, overwrite=False, progress=None)
    common = replace(
        task, options=options, source_digest=record[DEFAULT], base_folder=_base_folder(task)
    )
    if task.encodings is not None:
        # The keys of all rows have already been compared, so the task of a part does not need the
        # dataset. A task without the dataset is small even if the dataset has a million shards.
        return replace(common, options=replace(options, on_duplicate="keep"), existing=None)
    return replace(
        common,
        encodings=None if columns is None else dict(columns),
        types=None
        if schema is None
        else {name: encodings.parse_type(one) for name, one in schema.items()},
    )


class _PartTasks(Sequence[PackTask]):
    """The tasks of all parts. A task is created on access, because there may be millions."""

    def __init__(self, common: PackTask, out: str, division: _Division) -> None:
        self._common, self._out, self.division = common, out.rstrip("/"), division

    def __len__(self) -> int:
        return len(self.division)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        division, options = self.division, self._common.options
        out = f"{self._out}/{parts.part_name(number)}"
        rows = parts.span(number, division.part_rows, division.rows)
        if division.is_selection:
            return replace(
                self._common, options=replace(options, out=out), selection=Selection(*rows)
            )
        return replace(self._common, options=replace(options, out=out, limit=None), rows=rows)


class _Totals:
    """Totals over the packed parts.

    has_rows  for each part, 1 if the part has rows, otherwise 0
    parts     number of parts that were packed without an error
    """

    def __init__(self, count: int) -> None:
        self.has_rows = bytearray(count)
        self.parts = self.rows = self.shards = self.bytes = self.resumed_rows = 0
        self.reasons = Counter[str]()
        self.columns: Columns = ()

    def add(self, number: int, one: Packed) -> None:
        """Add the result of a part that has rows."""
        self.has_rows[number] = 1
        self.rows += one.rows
        self.shards += one.shards
        self.bytes += one.bytes
        self.resumed_rows += one.resumed_rows
        self.reasons.update(one.reasons)
        self.columns = self.columns or one.columns

    def names(self) -> Iterator[str]:
        """Yield the folder names of the parts that have rows."""
        return (parts.part_name(i) for i, has_rows in enumerate(self.has_rows) if has_rows)

    def packed(self, playlist: str, format: str) -> Packed:
        """Return the result for the joined dataset."""
        return Packed(
            playlist,
            format,
            self.rows,
            self.shards,
            self.bytes,
            self.reasons.total(),
            dict(sorted(self.reasons.items())),
            self.columns,
            resumed_rows=self.resumed_rows,
        )


def check_division(plan: Plan) -> None:
    """Raise UsageError for options that need rows of several parts, and for input streams."""
    options = plan.options
    if options.part_rows is not None:
        _check_source_rows(plan)
    flag = "--part-rows" if options.part_rows else "--join" if options.join else "--part"
    if options.on_duplicate == "first" and plan.key is not None:
        raise UsageError(
            "`--on-duplicate first` needs the keys of all parts",
            hint=f"Use `--on-duplicate error` or `--on-duplicate keep`, or omit {flag}.",
        )
    if any(map(is_stream, plan.task.sources)):
        raise UsageError(
            "a stream cannot be read in parts",
            where=plan.source.address,
            hint="Save the stream to a file, and pack the file.",
        )


def _check_source_rows(plan: Plan) -> None:
    """Raise UsageError for a condition or a limit that --part-rows does not support."""
    options = plan.options
    if options.where is not None and not sql.is_row_by_row(plan.source.schema, options.where):
        raise UsageError(
            "the condition of --where needs rows of several parts",
            hint="Use a condition on single rows, or omit --part-rows.",
        )
    if options.limit is not None and options.where is not None:
        raise UsageError(
            "--limit with --where needs the number of matching rows in all parts",
            hint="Omit --limit, --where or --part-rows.",
        )


def _count(plan: Plan, where: str | None) -> int:
    """Return the number of rows to divide, including rows with duplicate keys."""
    if where is None and plan.known_rows is None:
        # one column is enough; `count_selected` would also read and compare all keys
        batches = plan.source.batches(RowRequest(plan.source.schema.names[:1]))
        if plan.options.limit is not None:
            batches = first_rows(batches, plan.options.limit)
        return sum(batch.num_rows for batch in batches)
    options = replace(plan.options, where=where, on_duplicate="keep", shuffle=None)
    return count_selected(Plan(replace(plan.task, options=options), plan.source, Progress()))


def _sample(plan: Plan) -> Estimate:
    """Infer the columns from the first rows of the source, so that all parts have equal columns."""
    # discard the notes of this run, because the parts report the same notes
    sample = estimate(Plan(plan.task, plan.source, Progress()))
    note_addresses(sample.addresses, plan.progress)
    for note in reader_notes(plan.task.format, sample.columns, sample.types):
        plan.progress.note(note)
    if sample.failures and not sample.columns and plan.options.on_error == "fail":
        raise failed_row(plan, sample.failures[0])
    if not sample.columns:
        raise NoRowsError(
            "found no valid row from which to infer the columns",
            where=plan.source.address,
            hint="Set the encoding of each column with --encode.",
        )
    return sample


def _run(
    options: PackOptions,
    tasks: Sequence[PackTask],
    done: _Totals,
    rows: int,
    progress: Progress,
    reported: Sequence[str],
) -> None:
    """Pack all parts. Raises the error of the failed part with the lowest number.

    done      totals to update
    reported  notes that were already reported, and are not repeated
    """
    notes, engine = 0, options.engine
    shard_notes = ShardNotes(options, progress, len(tasks))
    errors: dict[int, FlareError] = {}
    progress.start("pack", rows, write_share=write_share(options))
    work = partial(pack_part, progress=progress) if engine == "local" else pack_part
    for finished, (i, outcome) in enumerate(engines.run(engine, work, tasks), 1):
        part, packed = f"part {parts.part_name(i)}", outcome.packed
        done.parts += outcome.error is None
        if packed is not None:
            done.add(i, packed)
            shard_notes.check_progress(done.shards, finished)
        if outcome.error is not None:
            errors[i] = outcome.error
            if engine == "local":
                break
        for note in outcome.notes:
            if note in shard_notes.texts:
                shard_notes.report(note)  # report the note once, because it concerns all parts
                continue
            notes += note not in reported
            if note not in reported and notes <= _MAX_NOTES:
                progress.note(f"{part}: {note}")
        first, stop = tasks[i].rows or (0, 0)
        size, failed = (0, 0) if packed is None else (packed.bytes, packed.failed)
        known = outcome.reported
        progress.advance(stop - first - known[0], max(0, size - known[1]))
        progress.written(stop - first - failed - known[2])
        if unreported := failed - outcome.failed:
            count = format_count(unreported, "row")
            progress.failed(part, f"{count} failed, see its failed.jsonl", unreported)
    if notes > _MAX_NOTES:
        progress.note(f"{format_count(notes - _MAX_NOTES, 'more note')} about parts")
    if errors:
        i = min(errors)
        error, part = errors[i], f"part {parts.part_name(i)}"
        if error.address:
            raise error.changed(address=f"{part}: {error.address}")
        where = f"{part}: {error.where}" if error.where else part
        raise error.changed(address=where, row=None)


def _base_folder(task: PackTask) -> str | None:
    """Return the base folder of relative addresses for workers; None if workers do not need it."""
    addresses = (*task.sources, task.out)
    is_relative = any(not is_url(one) and not os.path.isabs(one) for one in addresses)
    return whole_path("") if task.options.engine != "local" and is_relative else None


def _change_folder(folder: str | None) -> None:
    if folder is None:
        return
    try:
        os.chdir(folder)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise ReachError(
            f"cannot resolve relative addresses in this folder: {reason}",
            where=folder,
            hint="Use absolute paths on a file system that every node can access.",
        ) from None


def pack_part(task: PackTask, progress: Progress | None = None) -> _Outcome:
    """Pack one part, on any engine.

    The target of the whole pack is already locked, by this process or by the process that runs the
    engine. If an earlier run was killed, one of its workers may still be packing the same part.
    Such a worker ends soon, so wait for it.

    progress  progress of the pack; None in a worker, whose rows are reported by the process that
              runs the engine
    """
    stop = time.monotonic() + _MAX_BUSY_S
    while True:
        try:
            _change_folder(task.base_folder)
            part = _PartProgress(progress or Progress())
            packed = pack_task(task, part)
            notes = tuple(part.notes[:_MAX_NOTES])
            if progress is None:  # the process that runs the engine reports these rows
                return _Outcome(packed, None, notes)
            return _Outcome(packed, None, notes, part.reported, part.failures)
        except NoRowsError:
            return _Outcome(None)
        except BusyError as error:
            if time.monotonic() > stop:
                return _Outcome(None, error)
            time.sleep(_BUSY_DELAY_S)
        except FlareError as error:
            return _Outcome(None, error)
