"""Run of one pack, which writes the rows of a source as the shards of one target.

The rows of the source are selected (where, limit, shuffle), and their keys are checked. Links are
fetched ahead, in order. The rows are then converted to typed columns, and written as shards.
Finally, the playlist is written.

A dry run converts the first rows, fetches only a few links, and estimates the total size.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flarecli import encodings, formats, playlists
from flarecli.bisect import failing_rows
from flarecli.commands.options import DEFAULT_SHARD_SIZE, PackOptions
from flarecli.commands.packing.plan import PackTask, Plan, fetched, selected
from flarecli.commands.packing.source import Source
from flarecli.errors import FlareError, NoRowsError, UsageError, ValueFitError
from flarecli.hashes import DEFAULT
from flarecli.ingest import SourceChecksum
from flarecli.media import kind_of
from flarecli.model import Columns, IntArray, Stream
from flarecli.names import is_url, local_path, scheme_of, shell_quoted, whole_path
from flarecli.prefetch import cpu_count
from flarecli.progress import Progress
from flarecli.units import format_count, format_list
from flarecli.write import (
    FAILED,
    SHARD_LIMIT,
    Failure,
    Spool,
    Target,
    Writer,
    check_target,
    drop_rows,
    error_of,
    fetch_links,
    key_text,
)
from flarecli.write.columns import (
    ColumnConverter,
    Unstorable,
    address_columns,
    chosen_encodings,
    measured,
    reader_notes,
    source_types,
    stored_schema,
    table_encodings,
)
from flarecli.write.failures import count_failed

__all__ = [
    "Estimate",
    "Kept",
    "PackInterrupt",
    "Packed",
    "ShardNotes",
    "count_selected",
    "dry_run",
    "estimate",
    "expected_rows",
    "failed_row",
    "finished_before",
    "no_rows",
    "note_addresses",
    "pack_task",
    "planned",
    "source_record",
    "write_share",
]

_SAMPLE_ROWS, _SAMPLE_LINKS = 1024, 32  # rows that a dry run converts, without and with links
MAX_SHARDS = 100_000  # a note is reported if a pack has more shards
_MIN_SHARDS = 1000  # minimum number of finished shards for an estimate of the total number
_LARGE_ROW = (
    f"some rows are larger than the default --shard-size of {DEFAULT_SHARD_SIZE}; "
    "each of these rows becomes a shard of its own"
)


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of a pack or a dry run.

    estimated  whether shards and bytes are estimated from the first rows
    version    number of the version that contains the rows; None for a dataset without versions
    replaced   number of earlier rows that were removed because a new row has the same key
    rewritten_bytes  total size of the shards that were rewritten without these rows
    """

    playlist: str
    format: str
    rows: int
    shards: int
    bytes: int
    failed: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    columns: Columns = ()
    duplicates: int = 0
    resumed_rows: int = 0
    dry_run: bool = False
    estimated: bool = False
    version: int | None = None
    replaced: int = 0
    rewritten_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values, for --json."""
        columns = {column.name: column.encoding for column in self.columns}
        return {**asdict(self), "columns": columns}


class Kept(NamedTuple):
    """Work that an interrupted pack keeps for a resumed pack.

    rows     number of rows in finished shards; None if nothing is kept
    shards   number of finished shards
    fetched  number of further rows whose downloads are saved
    """

    rows: int | None
    shards: int
    fetched: int

    def texts(self) -> list[str]:
        """Return phrases that describe the kept work, such as `10 rows in 2 shards`."""
        parts = []
        if self.shards:
            shards = format_count(self.shards, "shard")
            parts.append(f"{format_count(self.rows or 0, 'row')} in {shards}")
        if self.fetched:
            more = "more row" if self.shards else "row"
            parts.append(f"the downloads of {format_count(self.fetched, more)}")
        if self.rows is not None and not parts:
            parts.append("the columns")
        return parts


class PackInterrupt(KeyboardInterrupt):
    """An interrupt of a pack. The message lists the work that is kept, and the work to repeat.

    kept   work that the interrupted pack keeps for a resumed pack
    parts  phrase such as `2 of 5 parts`; empty if the pack does not write parts
    """

    def __init__(self, options: PackOptions, kept: Kept, parts: str = "") -> None:
        self.options, self.kept = options, kept
        again = "run the same command again"
        held = [*([parts] if parts else []), *kept.texts()]
        if not held:
            super().__init__(f"nothing was kept: {again}")
            return
        verbs = ["reads the source"]
        if options.shuffle is not None:
            verbs.append("shuffles the rows")
        if options.key and options.on_duplicate != "keep":
            verbs.append("checks the keys")
        if options.fetch:
            verbs.append("fetches the other links")
        if options.part is None:
            flags = "--overwrite --resume" if options.overwrite else "--resume"
            again = f"use {flags} to continue"
        super().__init__(
            f"{again}: flare keeps {format_list(held)}, and {format_list(verbs)} again"
        )


def source_record(
    task: PackTask,
    source: Source,
    options: Mapping[str, Any],
    checksum: SourceChecksum | None = None,
) -> dict[str, str]:
    """Return the source record for a playlist: address, checksum, and checksum of the options."""
    text = json.dumps([task.options.format, task.settings, options], sort_keys=True, default=asdict)
    digest = task.source_digest or (source.sum() if checksum is None else checksum.total())
    return {
        "address": source.name.text,
        DEFAULT: digest,
        "options": hashlib.sha256(text.encode()).hexdigest()[:32],
    }


def planned(task: PackTask, progress: Progress) -> Plan:
    """Open the source, report its notes, and return the plan. Raises the errors of `pack`."""
    source = task.open_source()
    for note in source.notes:
        progress.note(note)
    for note in source.details:
        progress.note(note, verbose=True)
    plan = Plan(task, source, progress)
    if (
        source.files
        and not source.is_list
        and f"{_real_address(task.out)}/".startswith(f"{_real_address(task.sources[0])}/")
    ):
        raise UsageError(
            "the output folder is inside the folder to pack",
            where=task.out,
            hint="Write to another folder, because the source must not change during a pack.",
        )
    return plan


def _real_address(address: str) -> str:
    """Return an address with symbolic links resolved, so that nested folders share a prefix."""
    is_path = not is_url(address) or scheme_of(address) == "file"
    return (os.path.realpath(whole_path(local_path(address))) if is_path else address).rstrip("/")


def pack_task(
    task: PackTask,
    progress: Progress,
    plan: Plan | None = None,
    commit: Callable[[Stream, Target], None] | None = None,
) -> Packed:
    """Pack the rows of a task. Raises the errors of `pack`.

    plan    plan of the task, if the source is already open
    commit  function that commits the dataset; see `Writer.close`
    """
    plan, options = plan or planned(task, progress), task.options
    source, recorded = plan.source, task.recorded_options()
    if options.dry_run:
        check_target(task.out, resume=options.resume, overwrite=options.overwrite, guard=task.guard)
        return dry_run(plan)
    checksum = None
    # If the checksum is updated during the pack, the source need not be read a second time.
    if task.source_digest is None and options.where is None and options.shuffle is None:
        checksum = source.source_checksum()
    if checksum is not None:
        digest = checksum.header
    else:
        digest = task.source_digest or source.sum()
        task = replace(task, source_digest=digest)
    record = partial(source_record, task, source, recorded, checksum)
    writer = Writer(
        task.out,
        format=options.format,
        settings=task.settings,
        head={"source": digest, "options": recorded, **task.head},
        source_checksum=checksum,
        resume=options.resume,
        overwrite=options.overwrite,
        guard=task.guard,
        jobs=min(task.limits.jobs, cpu_count()),
        progress=progress,
    )
    if writer.is_done:
        return finished_before(writer.target, record(), options.format)
    resumed_rows, spool = writer.rows, None
    try:
        with writer:
            if task.encodings is not None:
                writer.name_columns(task.encodings, task.types, plan.extensions)
            spool = Spool(writer) if plan.links else None
            try:
                _write(plan, writer, spool, checksum)
            except KeyboardInterrupt:  # also raised for SIGTERM and SIGHUP
                if spool is not None:
                    with contextlib.suppress(FlareError):  # only the interrupt is reported
                        spool.save(now=True)
                raise
            if writer.is_empty and not writer.failed.count:
                raise no_rows(plan)
            path = writer.close(record(), commit)
    except KeyboardInterrupt:
        saved = 0 if spool is None else spool.saved_rows(len(plan.links))
        raise PackInterrupt(options, Kept(writer.kept_rows, writer.shards, saved)) from None
    finally:
        progress.close()
    return Packed(
        path,
        options.format,
        writer.rows,
        writer.shards,
        writer.size,
        writer.failed.count,
        dict(sorted(writer.failed.counts.items())),
        writer.columns or (),
        plan.duplicates,
        resumed_rows,
    )


def _write(
    plan: Plan, writer: Writer, spool: Spool | None, checksum: SourceChecksum | None
) -> None:
    """Convert the rows to typed columns, and write them.

    With --on-error skip, failed rows are added to `writer.failed`. Otherwise, the error of the
    first failed row is raised.
    """
    progress, skips, total = plan.progress, plan.options.on_error == "skip", expected_rows(plan)
    if writer.rows:
        written = f"{format_count(writer.rows, 'row')} in {format_count(writer.shards, 'shard')}"
        progress.note(f"resuming an interrupted pack; already written: {written}")
    first = writer.next
    if spool is not None:
        if kept := spool.restore(len(plan.links)):
            progress.note(
                f"an earlier run downloaded the files of {format_count(kept, 'more row')}"
            )
        first = spool.until
    until = first
    progress.start("pack", total, done=first, write_share=write_share(plan.options))
    holds_null = plan.task.format.holds_null
    typed: ColumnConverter | None = None
    if writer.columns:
        typed = ColumnConverter(
            writer.columns, plan.row_name, holds_null, writer.stored_schema, plan.task.casts
        )
    written_bytes = writer.written_bytes
    notes = ShardNotes(plan.options, progress, total)
    with contextlib.closing(fetched(plan, first, spool=spool, checksum=checksum)) as parts:
        for part in parts:
            if typed is None and part.batch.num_rows:
                columns = _named_columns(plan, writer, part)
                typed = ColumnConverter(columns, plan.row_name, holds_null, writer.stored_schema)
            failures = list(part.failures)
            batch, rows = None, part.rows
            if typed is not None and part.batch.num_rows:
                batch, rows, unfit = typed.convert(part.batch, part.rows)
                batch, rows, unstorable = _storable(
                    plan, writer.find_unstorable, part, batch, rows, only_first=not skips
                )
                failures = sorted([*failures, *unfit, *unstorable], key=lambda one: one.row)
            failures = [plan.places.placed(failure) for failure in failures]
            if skips:
                for failure in failures:
                    progress.failed(*failure.report)
                    writer.failed.add(plan.source.name.listed(failure))
            elif failures and batch is not None:  # keep the earlier rows for a resumed pack
                kept = int(np.searchsorted(rows, failures[0].row))
                batch, rows = batch.slice(0, kept), rows[:kept]
            if batch is not None and batch.num_rows:
                _write_rows(plan, writer, batch, rows)
            notes.check_progress(writer.shards, writer.next)
            notes.check_rows(writer.has_large_row)
            if failures and not skips:
                raise failed_row(plan, failures[0])
            plan.places.forget(part.until)
            writer.failed.write(part.until)
            until = part.until
            if spool is not None:
                spool.until = part.until
                spool.save()
            if not plan.links:  # rows with links are counted when the downloads end
                count = part.batch.num_rows + len(part.failures)
                progress.advance(count, writer.written_bytes - written_bytes)
                written_bytes = writer.written_bytes
    if plan.options.add_column is not None:
        # Another process may append rows to the dataset before the commit. A resumed pack then
        # keeps this shard, and continues with the appended rows.
        writer.end_shard(until)
    if plan.duplicates:
        count = format_count(plan.duplicates, "row")
        progress.note(f"skipped {count} with the key of an earlier row")


def no_rows(plan: Plan) -> NoRowsError:
    """Return the error for a pack that selects no row."""
    options = plan.options
    selects = (options.where, options.limit, options.rows) != (None, None, None)
    return NoRowsError(
        "no rows to pack",
        where=plan.source.address,
        hint="Check --rows, --where and --limit." if selects else "",
    )


def failed_row(plan: Plan, failure: Failure) -> FlareError:
    """Return the error that ends a pack at its first failed row."""
    encoding = plan.task.encode.get(failure.column)
    is_first_value = failure.kind == "value" and failure.row == 0 and not failure.hint
    if is_first_value and encoding is not None:  # the encoding may be wrong for the whole column
        option = shell_quoted(f"{failure.column}={encoding}")
        failure = replace(failure, hint=f"Use a different encoding instead of --encode {option}.")
    # every row of a dataset needs a value in an added column
    can_skip = plan.options.add_column is None
    return error_of(failure, plan.source.address, can_skip=can_skip)


def write_share(options: PackOptions) -> float:
    """Return the estimated fraction of a pack's time that passes after the last row was received.

    The fraction is large if shards are compressed and no files are downloaded.
    """
    return 0.5 if options.compress and not options.fetch else 0.1


def expected_rows(plan: Plan) -> int | None:
    """Return the number of rows to pack; None if it is unknown before the rows are read."""
    if (span := plan.task.selection) is not None:
        return span.stop - span.first
    rows = plan.known_rows if plan.options.where is None else None
    return rows if rows is None or plan.options.limit is None else min(rows, plan.options.limit)


def _write_rows(plan: Plan, writer: Writer, batch: pa.RecordBatch, rows: IntArray) -> None:
    """Write rows. The error for a duplicate key in a shard contains the address of the row."""
    try:
        writer.write_typed(batch, rows)
    except ValueFitError as error:
        if error.row is None or error.address:
            raise
        failure = Failure(error.row, "", error.column or "", error.kind, error.message)
        raise error_of(plan.places.placed(failure), plan.source.address, error.hint) from None


def _storable(
    plan: Plan,
    find_unstorable: Callable[[pa.RecordBatch], Unstorable | None],
    part: fetch_links.Fetched,
    batch: pa.RecordBatch,
    rows: IntArray,
    only_first: bool,
) -> tuple[pa.RecordBatch, IntArray, list[Failure]]:
    """Return the rows that the format can store, and failures for all other rows.

    For example, some formats cannot store a value that contains the separator.

    only_first  search only for the first failure
    """
    if not batch.num_rows or find_unstorable(batch) is None:
        return batch, rows, []
    failing = failing_rows(
        0, batch.num_rows, lambda start, stop: find_unstorable(batch[start:stop])
    )
    unstorable = list(islice(failing, 1 if only_first else None))
    failures = []
    for at, (_, error) in unstorable:
        key = ""
        if plan.row_name is not None:
            column = part.batch.column(plan.row_name)
            key = key_text(column[int(np.searchsorted(part.rows, rows[at]))])
        failures.append(Failure(int(rows[at]), key, "", error.kind, error.message, hint=error.hint))
    return *drop_rows(batch, rows, [at for at, _ in unstorable]), failures


def _inferred(
    plan: Plan, part: fetch_links.Fetched
) -> tuple[dict[str, str], dict[str, pa.DataType], tuple[str, ...]]:
    """Infer the columns from the first rows.

    return  column -> encoding; column -> Arrow type in the source, in the order of the source;
            columns of addresses that are not fetched
    """
    encode, source = plan.task.encode, plan.source
    extensions = {name: one.lower() for name, one in plan.extensions.items() if one[0] != "{"}
    # use `bytes` for files of several types, because the encoding of the first file may not fit the
    # others
    mixed = {
        name: "bytes"
        for name in source.files
        if len({kind_of(file) for file in part.names.get(name, ()) if file}) > 1
    }
    chosen = chosen_encodings(
        part.batch,
        plan.names,
        encode if plan.is_statement else {**mixed, **source.encodings, **encode},
        {**extensions, **part.extensions},
        source.stored,
        source.types,
        plan.task.format.holds_null,
    )
    types = source_types(part.batch.schema, chosen, encode, source.types)
    addresses = tuple(name for name in address_columns(part.batch) if name in plan.names)
    return chosen, types, addresses


def _named_columns(plan: Plan, writer: Writer, part: fetch_links.Fetched) -> Columns:
    chosen, types, addresses = _inferred(plan, part)
    note_addresses(addresses, plan.progress)
    for name, encoding in chosen.items():
        plan.progress.note(f"column {name!r}: {encoding}", verbose=True)
    columns = writer.name_columns(chosen, types, plan.extensions)
    for note in reader_notes(plan.task.format, columns, types):
        plan.progress.note(note)
    return columns


def finished_before(target: Target, record: Mapping[str, Any], format: str) -> Packed:
    """Return the result of the finished pack in a target.

    Raises UsageError if this pack has a different source or different options.

    record  return value of `source_record`
    """
    at = target.at / playlists.PLAYLIST
    stream = playlists.read(at).streams[0] if at.exists() else None
    recorded = stream.headers.get("source") if stream is not None else None
    if (
        stream is None
        or not isinstance(recorded, Mapping)
        or any(recorded.get(name) != record[name] for name in (DEFAULT, "options"))
    ):
        raise UsageError(
            "the folder contains a dataset from a different source or with different options",
            where=target.shown,
            hint="Use --overwrite to replace the dataset, or specify another folder.",
        )
    rows = int(stream.rows.sum()) if stream.rows is not None else 0
    size = int(stream.stored.sum()) if stream.stored is not None else 0
    failed = count_failed(target.at / FAILED) if FAILED in stream.files else Counter[str]()
    return Packed(
        target.playlist,
        format,
        rows,
        len(stream),
        size,
        failed.total(),
        dict(sorted(failed.items())),
        stream.columns or (),
        0,
        rows,
    )


# -- dry runs


@dataclass(frozen=True, slots=True)
class Estimate:
    """Rows, shards and bytes that a pack would write.

    types       column -> Arrow type in the source, in source order
    tried       number of rows that were converted; their links were also fetched
    is_exact    whether the numbers are computed from all rows, and not only from the first rows
    addresses   columns that contain addresses but are not fetched
    duplicates  number of rows that are skipped because an earlier row has the same key
    has_large_row  whether one of the first rows is larger than a shard
    """

    rows: int
    shards: int
    bytes: int
    columns: Columns
    types: Mapping[str, pa.DataType]
    failures: tuple[Failure, ...]
    tried: int
    is_exact: bool
    addresses: tuple[str, ...]
    duplicates: int
    has_large_row: bool


def dry_run(plan: Plan, part_rows: int | None = None) -> Packed:
    """Return the estimated result of a pack, without writing anything.

    part_rows  number of rows per part; None: pack all rows as one dataset
    raises     the error of the first failure among the converted rows, if a failed row ends the
               pack
    """
    task = plan.task
    totals = estimate(plan, part_rows)
    note_addresses(totals.addresses, plan.progress)
    for note in reader_notes(task.format, totals.columns, totals.types):
        plan.progress.note(note)
    notes = ShardNotes(plan.options, plan.progress)
    notes.check_total(totals.shards)
    notes.check_rows(totals.has_large_row)
    ends = bool(totals.failures) and plan.options.on_error == "fail"
    if plan.links:
        failed = len({one.row for one in totals.failures})
        tried, fetched_rows = format_count(totals.tried, "row"), totals.tried - failed
        plan.progress.note(f"tried the links of {tried}: {fetched_rows} succeeded, {failed} failed")
    for failure in totals.failures if plan.links or not ends else ():
        plan.progress.failed(*failure.report)
    if ends:
        raise failed_row(plan, totals.failures[0])
    return Packed(
        task.playlist,
        task.options.format,
        totals.rows,
        totals.shards,
        totals.bytes,
        len(totals.failures),
        dict(sorted(Counter(one.kind for one in totals.failures).items())),
        totals.columns,
        totals.duplicates,
        dry_run=True,
        estimated=not totals.is_exact,
    )


def estimate(plan: Plan, part_rows: int | None = None) -> Estimate:
    """Convert the first rows, and estimate the total size from these rows."""
    format, settings = plan.task.format, plan.task.settings
    rows = count_selected(plan)
    duplicates = plan.duplicates  # save the count, because `fetched` changes it
    typed: ColumnConverter | None = None
    columns: Columns = ()
    types: Mapping[str, pa.DataType] = {}
    addresses: tuple[str, ...] = ()
    base = body = sampled = largest = 0
    row_sizes, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    failures: list[Failure] = []

    def find_unstorable(batch: pa.RecordBatch) -> Unstorable | None:
        found = measured(format, columns, batch, settings)
        return found if isinstance(found, Unstorable) else None

    for part in fetched(plan, limit=_SAMPLE_LINKS if plan.links else _SAMPLE_ROWS):
        failures += part.failures
        sampled += part.batch.num_rows + len(part.failures)
        if not part.batch.num_rows:
            continue
        if typed is None:
            chosen, types, addresses = _inferred(plan, part)
            if plan.task.encodings is not None:  # those of the dataset to which rows are appended
                chosen, types = dict(plan.task.encodings), plan.task.types or {}
            chosen = table_encodings(format, chosen, types)
            columns = formats.arranged(
                format,
                (
                    encodings.column(name, one, plan.extensions.get(name, ""))
                    for name, one in chosen.items()
                ),
            )
            schema = stored_schema(format, columns, types)
            typed = ColumnConverter(
                columns, plan.row_name, format.holds_null, schema, plan.task.casts
            )
        batch, numbers, unfit = typed.convert(part.batch, part.rows)
        batch, numbers, unstorable = _storable(
            plan, find_unstorable, part, batch, numbers, only_first=False
        )
        base, sizes = format.row_sizes(columns, batch, settings)
        row_sizes.append(sizes)
        places.append(numbers)
        body += int(sizes.sum())
        largest = max(largest, int(sizes.max(initial=0)))
        failures += [*unfit, *unstorable]
    limit = max((settings.shard_bytes or SHARD_LIMIT) - base, 1)
    # with a condition, the number of selected rows per part is unknown
    has_all = sampled >= rows and (part_rows is None or plan.options.where is None)
    shards = 0
    if has_all:
        part_numbers = np.concatenate(places) // (part_rows or max(1, rows))
        bounds = np.flatnonzero(np.diff(part_numbers)) + 1
        for part_sizes in np.split(np.concatenate(row_sizes), bounds):
            shards += _count_shards(part_sizes, limit, settings.shard_rows)
    else:
        body = body * rows // sampled if sampled else body
        for count, share in _part_shares(plan, rows, part_rows):
            by_rows = -(-round(rows * share) // settings.shard_rows) if settings.shard_rows else 0
            shards += count * max(-(-round(body * share) // limit), by_rows, min(body, 1))
    placed = tuple(plan.places.placed(one) for one in sorted(failures, key=lambda one: one.row))
    return Estimate(
        rows,
        shards,
        body + shards * base,
        columns,
        types,
        placed,
        sampled,
        has_all and format.sizes_are_exact and not format.has_shard_index,
        addresses,
        duplicates,
        largest > limit,
    )


def _count_shards(sizes: IntArray, max_bytes: int, max_rows: int | None) -> int:
    """Return the number of shards that the Writer creates for rows of the given sizes."""
    ends, shards, start = np.cumsum(sizes), 0, 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + max_bytes, "right"))
        if max_rows is not None:
            stop = min(stop, start + max_rows)
        shards, start = shards + 1, max(stop, start + 1)
    return shards


def count_selected(plan: Plan) -> int:
    """Return the number of selected rows; read all rows only if the number is not known."""
    where, limit, rows = plan.options.where, plan.options.limit, None
    if not plan.key or plan.options.on_duplicate == "keep":
        if (span := plan.task.selection) is not None:
            return span.stop - span.first
        if where is None:
            rows = plan.known_rows
        elif plan.task.rows is None:
            rows = plan.source.count(where)
    if rows is None:
        return sum(batch.num_rows for batch in selected(plan, keys_only=True))
    return rows if limit is None else min(rows, limit)


def _part_shares(plan: Plan, rows: int, part_rows: int | None) -> list[tuple[int, float]]:
    """Return the shares of the rows in the parts, for an estimate of the number of shards.

    A condition is assumed to select rows evenly.

    return  a tuple (number of parts, share of all rows in each of these parts) for the full parts,
            and another tuple for the last part if it is not full
    """
    total = plan.known_rows if plan.options.where is not None and plan.known_rows else rows
    if part_rows is None or total <= part_rows:
        return [(1, 1.0)]
    full, rest = divmod(total, part_rows)
    return [(full, part_rows / total), *([(1, rest / total)] if rest else [])]


def note_addresses(names: Sequence[str], progress: Progress) -> None:
    """Report the columns that contain addresses but are not fetched."""
    for name in names:
        progress.note(
            f"column {name!r} contains addresses; "
            f"add --fetch {shell_quoted(name)} to pack the linked files"
        )


class ShardNotes:
    """Notes about too many shards and about large rows. Each note is reported at most once.

    total  number of rows (or parts) to pack; None if unknown
    texts  all notes that may be reported
    """

    def __init__(self, options: PackOptions, progress: Progress, total: int | None = None) -> None:
        limits = ["--shard-size"]
        limits += ["--shard-rows"] if options.shard_rows is not None else []
        limits += ["--part-rows"] if options.part_rows is not None else []
        self._many_shards = (
            f"more than {MAX_SHARDS:,} shards are expected; "
            f"increase {' or '.join(limits)} to write fewer files"
        )
        self.texts = (self._many_shards, _LARGE_ROW)
        self._has_default_size = options.shard_size == PackOptions.shard_size
        self._progress, self._total = progress, total
        self._reported = set[str]()

    def check_progress(self, shards: int, done: int) -> None:
        """Report a note if the pack has written, or will probably write, too many shards.

        shards  number of finished shards
        done    number of rows (or parts) that were packed into these shards
        """
        if shards >= _MIN_SHARDS and self._total is not None and done:
            shards = max(shards, shards * self._total // done)
        self.check_total(shards)

    def check_total(self, shards: int) -> None:
        """Report a note if the total number of shards is too large."""
        if shards > MAX_SHARDS:
            self.report(self._many_shards)

    def check_rows(self, has_large_row: bool) -> None:
        """Report rows that are larger than a shard, unless the user chose the shard size."""
        if has_large_row and self._has_default_size:
            self.report(_LARGE_ROW)

    def report(self, text: str) -> None:
        """Report a note, unless the same note was already reported."""
        if text not in self._reported:
            self._reported.add(text)
            self._progress.note(text)
