"""Pack in parts: every N rows of the source become a dataset in `00000/`, `00001/` and so on.

One index and one playlist join the parts. The result depends only on N and the source, not on the
engine, the order in which parts are packed, or retries.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flarecli import __version__, encodings, ingest, sql
from flarecli.commands.options import PackOptions
from flarecli.commands.packing.plan import DOTS_NOTE, PackTask, Plan, check_keys
from flarecli.commands.packing.run import (
    Estimate,
    Packed,
    ShardNotes,
    dry_run,
    estimate,
    finished_before,
    note_addresses,
    pack_task,
    planned,
    source_record,
)
from flarecli.commands.packing.source import RowRequest
from flarecli.errors import BusyError, FlareError, NoRowsError, ReachError, UsageError
from flarecli.hashes import DEFAULT
from flarecli.model import Columns
from flarecli.names import is_url, whole_path
from flarecli.progress import Progress
from flarecli.units import format_count
from flarecli.write import Journal, claim, engines, error_of, parts
from flarecli.write.columns import reader_notes, schema_header

__all__ = ["pack_part", "pack_parts"]

_MAX_BUSY_S = 120.0  # maximum time to wait for a part that another process packs
_BUSY_DELAY_S = 0.5  # delay between two attempts
_MAX_NOTES = 20  # maximum number of reported notes about parts


@dataclass(frozen=True)
class _Outcome:
    """Result of packing a part: the counts or the error, and the notes."""

    packed: Packed | None
    error: FlareError | None = None
    notes: tuple[str, ...] = ()


class _NoteCollector(Progress):
    """Collector for the notes about a part."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, verbose: bool = False) -> None:
        if not verbose:
            self.notes.append(text)


def pack_parts(task: PackTask, progress: Progress) -> Packed:
    """Pack parts of `part_rows` rows of the source as separate datasets, and join them.

    raises  UsageError for options that need rows of several parts; the errors of `pack_task`
    """
    plan, options, part_rows = planned(task, progress), task.options, task.options.part_rows or 1
    source = plan.source
    _check_options(plan)
    if options.dry_run:
        return dry_run(plan, part_rows)
    rows = _count(plan)
    recorded = {**task.recorded_options(), "part_rows": part_rows}
    record = source_record(task, source, recorded)
    head = {
        "flare": __version__,
        "format": options.format,
        "settings": asdict(task.settings),
        "source": record[DEFAULT],
        "options": recorded,
    }
    target = claim(task.out, resume=options.resume, overwrite=options.overwrite, guard=task.guard)
    if target.is_done:
        return finished_before(target, record, options.format)
    journal, keep = None, True  # keep the output of an earlier run if this run is rejected
    try:
        journal = Journal(target.at, json.loads(json.dumps(head)))
        keep = journal.columns is not None
        check_keys(plan)
        if journal.columns:
            columns: Columns = tuple(encodings.column(*one) for one in journal.columns)
        else:
            sample = _sample(plan)
            columns = sample.columns
            journal.record_columns(
                [(column.name, column.encoding) for column in columns],
                schema_header(columns, sample.types, task.format.key_column),
            )
        common = replace(
            task,
            options=replace(options, limit=None, resume=True, overwrite=False, progress=None),
            source_digest=record[DEFAULT],
            encodings={column.name: column.encoding for column in columns},
            types=None
            if journal.schema is None
            else {name: encodings.parse_type(one) for name, one in journal.schema.items()},
            base_folder=_base_folder(task),
        )
        keep = True
        tasks = _PartTasks(common, str(target.at), part_rows, rows)
        done = _run(options, tasks, rows, progress, (*source.notes, DOTS_NOTE))
        if not any(done.has_rows):
            raise NoRowsError(
                "no rows to pack",
                where=source.address,
                hint="Check --where." if options.where else "",
            )
        names = (parts.part_name(i) for i, has_rows in enumerate(done.has_rows) if has_rows)
        stream = parts.join(target.at, names, {"source": record})
    except BaseException:
        if journal is not None:
            journal.close()
        target.abandon(keep=keep)
        raise
    finally:
        progress.close()
    journal.close()
    target.finish()
    return Packed(
        target.playlist,
        options.format,
        done.rows,
        len(stream),
        done.bytes,
        done.failed,
        dict(sorted(done.reasons.items())),
        columns,
        0,
        done.resumed_rows,
    )


class _PartTasks(Sequence[PackTask]):
    """The task for each part, created on access because there may be millions of parts."""

    def __init__(self, common: PackTask, out: str, part_rows: int, rows: int) -> None:
        self._common, self._out = common, out.rstrip("/")
        self._part_rows, self._rows = part_rows, rows

    def __len__(self) -> int:
        return -(-self._rows // self._part_rows)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        out = f"{self._out}/{parts.part_name(number)}"
        rows = parts.span(number, self._part_rows, self._rows)
        return replace(self._common, options=replace(self._common.options, out=out), rows=rows)


@dataclass
class _Totals:
    """Totals over the packed parts.

    has_rows  for each part, 1 if the part has rows, otherwise 0
    """

    has_rows: bytearray
    rows: int = 0
    shards: int = 0
    bytes: int = 0
    failed: int = 0
    resumed_rows: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, number: int, one: Packed) -> None:
        """Add the result of a part that has rows."""
        self.has_rows[number] = 1
        self.rows += one.rows
        self.shards += one.shards
        self.bytes += one.bytes
        self.failed += one.failed
        self.resumed_rows += one.resumed_rows
        self.reasons.update(one.reasons)


def _check_options(plan: Plan) -> None:
    """Raise UsageError for options that need rows of several parts."""
    options = plan.options
    if options.shuffle is not None:
        raise UsageError(
            "--shuffle cannot be combined with --part-rows, because a shuffle needs the rows of all parts",
            hint="Shuffle when reading the dataset, or omit --part-rows.",
        )
    if options.where is not None and not sql.is_row_by_row(plan.source.schema, options.where):
        raise UsageError(
            "--where needs rows of several parts",
            hint="Use a condition on single rows, or omit --part-rows.",
        )
    if options.limit is not None and options.where is not None:
        raise UsageError(
            "--limit with --where needs the number of matching rows in all parts",
            hint="Omit --limit, --where or --part-rows.",
        )
    if options.on_duplicate == "first" and plan.key is not None:
        raise UsageError(
            "--on-duplicate first needs the keys of all parts",
            hint="Use --on-duplicate error or keep, or omit --part-rows.",
        )
    if any(map(ingest.is_stream, plan.task.sources)):
        raise UsageError(
            "a stream cannot be read in parts",
            where=plan.source.address,
            hint="Save the stream to a file, and pack the file.",
        )


def _count(plan: Plan) -> int:
    """Return the number of rows to pack; read the source once if the number is not listed."""
    rows, limit = plan.known_rows, plan.options.limit
    if rows is None:
        first_column = RowRequest(plan.source.schema.names[:1])
        rows = sum(batch.num_rows for batch in plan.source.batches(first_column))
    return rows if limit is None else min(rows, limit)


def _sample(plan: Plan) -> Estimate:
    """Infer the columns from the first rows of the source, so that all parts agree."""
    # Notes are discarded here, because the parts report them.
    sample = estimate(Plan(plan.task, plan.source, Progress()))
    note_addresses(sample.addresses, plan.progress)
    for note in reader_notes(plan.task.format, sample.columns, sample.types):
        plan.progress.note(note)
    if sample.failures and not sample.columns and plan.options.on_error == "fail":
        raise error_of(sample.failures[0], plan.source.address)
    if not sample.columns:
        raise NoRowsError(
            "no rows to pack among the first rows",
            where=plan.source.address,
            hint="Set the encoding of each column with --encode.",
        )
    return sample


def _run(
    options: PackOptions,
    tasks: Sequence[PackTask],
    rows: int,
    progress: Progress,
    reported: Sequence[str],
) -> _Totals:
    """Pack all parts. Raises the error of the failed part with the lowest number.

    reported  notes that were already reported, and are not repeated
    """
    done, notes, engine = _Totals(bytearray(len(tasks))), 0, options.engine
    shard_notes = ShardNotes(options, progress, len(tasks))
    errors: dict[int, FlareError] = {}
    progress.start("pack", rows)
    for finished, (i, outcome) in enumerate(engines.run(engine, pack_part, tasks), 1):
        part, packed = f"part {parts.part_name(i)}", outcome.packed
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
        progress.advance(stop - first, 0 if packed is None else packed.bytes)
        if packed is not None and packed.failed:
            progress.failed(part, f"{packed.failed} rows failed, see its failed.jsonl")
    if notes > _MAX_NOTES:
        progress.note(f"{format_count(notes - _MAX_NOTES, 'more note')} about parts")
    if errors:
        i = min(errors)
        error, part = errors[i], f"part {parts.part_name(i)}: "
        if error.address:
            raise error.changed(address=part + error.address)
        raise error.changed(address=part + error.where, row=None)
    return done


def _base_folder(task: PackTask) -> str | None:
    """Return the base folder of relative addresses, for workers with a different working folder."""
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


def pack_part(task: PackTask) -> _Outcome:
    """Pack one part, on any engine.

    This process or its driver has locked the target. If another process packs the same part, that
    process is a worker of a lost driver or node, and ends soon.
    """
    stop = time.monotonic() + _MAX_BUSY_S
    while True:
        try:
            _change_folder(task.base_folder)
            collector = _NoteCollector()
            packed = pack_task(task, collector)
            return _Outcome(packed, notes=tuple(collector.notes[:_MAX_NOTES]))
        except NoRowsError:
            return _Outcome(None)
        except BusyError as error:
            if time.monotonic() > stop:
                return _Outcome(None, error)
            time.sleep(_BUSY_DELAY_S)
        except FlareError as error:
            return _Outcome(None, error)
