"""One pack: the rows of a source into shards of one target.

index -> where, limit, shuffle -> keys -> links fetched ahead, in order -> typed columns -> Writer -> playlist
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli import formats, playlists
from flarecli.bisect import failing_rows
from flarecli.commands.packing.estimate import note_addresses, reckon
from flarecli.commands.packing.media import Intake
from flarecli.commands.packing.plan import Plan, checked, fetched, parse_link
from flarecli.commands.packing.source import Source, open_source
from flarecli.cpus import cpu_count
from flarecli.errors import FlareError, NoRowsError, UsageError, ValueFitError
from flarecli.formats import find
from flarecli.hashes import DEFAULT
from flarecli.ingest import SourceChecksum
from flarecli.model import Columns, IntArray, Settings
from flarecli.names import is_url, local_path, scheme_of, whole_path
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits
from flarecli.write import (
    Failure,
    Spool,
    Target,
    Writer,
    bucket_of,
    error_of,
    fetch_links,
    key_text,
)
from flarecli.write.columns import Typed, chosen_encodings, looks_like_addresses

__all__ = ["SKIP", "Packed", "Request", "done_before", "packed", "planned", "would_pack"]

SKIP = "Give --on-error skip to leave such rows out and list them in failed.jsonl."


@dataclass(frozen=True, slots=True)
class Packed:
    """What a pack did, or would do: `estimated` says that shards and bytes were reckoned from the first rows."""

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

    def as_json(self) -> dict[str, Any]:
        """Give the result as plain values, for --json."""
        return {
            **asdict(self),
            "columns": {column.name: column.encoding for column in self.columns},
        }


@dataclass(frozen=True)
class Request:
    """What `pack` was asked for; see there. It pickles, so that a part can be packed elsewhere.

    known  the sum of the source, where it was taken already
    typed  what the columns are, column -> encoding, where that was told before; else the first rows tell
    rows   of the source's, those of one part: from, to
    spec   rows of a dataset, as they are named; `streams` of it
    below  the folder where relative addresses start, if that is not the one a process happens to be in
    """

    sources: tuple[str, ...]
    out: str
    format: str = formats.DEFAULT
    fetch: tuple[str, ...] = ()
    key: str | None = None
    columns: tuple[str, ...] | None = None
    encode: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    limit: int | None = None
    rows: tuple[int, int] | None = None
    shuffle: int | None = None
    settings: Settings = field(default_factory=Settings)
    on_error: str = "fail"
    on_duplicate: str = "error"
    dry_run: bool = False
    resume: bool = False
    overwrite: bool = False
    allow_empty: bool = False
    allow_missing: bool = False
    null_separated: bool = False
    guard: Guard = field(default_factory=Guard)
    limits: Limits = field(default_factory=Limits)
    intake: Intake = field(default_factory=Intake)
    known: str | None = None
    typed: Mapping[str, str] | None = None
    streams: tuple[str, ...] = ()
    spec: str | None = None
    below: str | None = None

    def source(self) -> Source:
        """Open what the rows come from. Raises what `open_source` raises."""
        text = {parse_link(one, self.encode).source for one in self.fetch} | (
            {self.key} if self.key else set()
        )
        text |= {name for name, one in self.encode.items() if not _is_number(one)}
        return open_source(
            self.sources,
            text=text,
            guard=self.guard,
            columns=self.columns,
            allow_missing=self.allow_missing,
            null_separated=self.null_separated,
            exact=self.where is None,
            streams=self.streams,
            rows=self.spec,
        )

    def plan(self, source: Source, progress: Progress) -> Plan:
        """Say which rows of the source are packed, and how."""
        parsed = tuple(parse_link(text, self.encode) for text in self.fetch)
        return Plan(
            source,
            parsed,
            self.key,
            self.columns,
            self.encode,
            self.where,
            self.limit,
            self.shuffle,
            self.on_error,
            self.on_duplicate,
            self.allow_empty,
            self.guard,
            self.limits,
            progress,
            self.rows or (0, None),
            self.intake,
            find(self.format).key_column or None,
        )

    def options(self) -> dict[str, Any]:
        """Give what decides which bytes come out, besides source, format and settings; a resumed pack must have the same.

        How far links may reach is of it where rows that reach too far are left out; else such a row ends the pack, and a resume may reach further.
        """
        links = [parse_link(text, self.encode) for text in self.fetch]
        reach: dict[str, Any] = {
            "max_object": self.limits.max_bytes,
            "allow_private": self.guard.allow_private,
            "allow_local": self.guard.allow_local,
        }
        if self.guard.allow_hosts:
            reach["allow_hosts"] = sorted(self.guard.allow_hosts)
        return {
            "fetch": [[link.source, link.name] for link in links],
            "key": self.key,
            "columns": self.columns and list(self.columns),
            "encode": dict(self.encode),
            "where": self.where,
            "limit": self.limit,
            "shuffle": self.shuffle,
            "on_error": self.on_error,
            "on_duplicate": self.on_duplicate,
            "allow_empty": self.allow_empty,
            "allow_missing": self.allow_missing,
            **({} if self.rows is None else {"rows": list(self.rows)}),
            **self.intake.options(),
            **(reach if self.on_error == "skip" else {}),
            **({"null_separated": True} if self.null_separated else {}),
            **({"streams": list(self.streams)} if self.streams else {}),
            **({} if self.spec is None else {"spec": self.spec}),
        }

    def about(
        self, source: Source, options: Mapping[str, Any], running: SourceChecksum | None = None
    ) -> dict[str, str]:
        """Give what a playlist says that it was packed from, and a sum of how."""
        how = json.dumps([self.format, self.settings, options], sort_keys=True, default=asdict)
        sum = self.known or (source.sum() if running is None else running.total())
        return {
            "address": source.named.text,
            DEFAULT: sum,
            "options": hashlib.sha256(how.encode()).hexdigest()[:32],
        }

    def running(self, source: Source) -> SourceChecksum | None:
        """Give what sums the source while it is read; None where all of it is read before the first row, or it was summed before."""
        return (
            None
            if self.known is not None or self.where is not None or self.shuffle is not None
            else source.running()
        )


def planned(request: Request, progress: Progress) -> tuple[Plan, list[str]]:
    """Open the source, tell what is to be known of it, and give which rows are packed and the columns. Raises what `pack` raises."""
    source = request.source()
    for note in source.notes:
        progress.note(note)
    for note in source.details:
        progress.note(note, verbose=True)
    plan = request.plan(source, progress)
    names = checked(plan)
    if (
        source.files
        and request.sources != ("-",)
        and f"{_whole(request.out)}/".startswith(f"{_whole(request.sources[0])}/")
    ):
        hint = "Name a folder elsewhere: what is packed must not change on the way."
        raise UsageError(
            "the target lies in the folder that is packed", where=request.out, hint=hint
        )
    return plan, names


def _whole(address: str) -> str:
    """Give an address so that what lies below a folder begins like it."""
    is_path = not is_url(address) or scheme_of(address) == "file"
    return (os.path.realpath(whole_path(local_path(address))) if is_path else address).rstrip("/")


def packed(request: Request, progress: Progress) -> Packed:
    """Do what a request says. Raises what `pack` raises."""
    plan, names = planned(request, progress)
    source = plan.source
    plan = replace(
        plan, links=tuple(link for link in plan.links if link.name in names)
    )  # what is not packed is not fetched
    format, settings, options = request.format, request.settings, request.options()
    if request.dry_run:
        return would_pack(request, plan, names)
    running = request.running(source)
    if running is None:
        request = replace(request, known=request.known or source.sum())
    else:
        plan = replace(
            plan, source=replace(source, batches=partial(source.batches, running=running))
        )
    about = partial(request.about, source, options, running)
    head = {"source": request.known if running is None else running.header, "options": options}
    jobs = min(request.limits.jobs, cpu_count())
    writer = Writer(
        request.out,
        format=format,
        settings=settings,
        head=head,
        running=running,
        resume=request.resume,
        overwrite=request.overwrite,
        guard=request.guard,
        jobs=jobs,
    )
    if writer.is_done:
        return done_before(writer.target, about(), format)
    resumed = writer.rows
    try:
        with writer:
            if request.typed is not None:
                writer.name_columns(request.typed)
            spool = Spool(writer) if plan.links else None
            try:
                _write(plan, writer, names, spool)
            except KeyboardInterrupt:  # SIGINT, SIGTERM and SIGHUP come as one
                if spool is not None:
                    with contextlib.suppress(FlareError):  # the interrupt is what is reported
                        spool.save(now=True)
                raise
            if writer.is_empty and not writer.failed.count:
                is_chosen = (
                    plan.where is not None or plan.limit is not None or request.spec is not None
                )
                raise NoRowsError(
                    "no rows to pack",
                    where=source.address,
                    hint="Look at --rows, --where and --limit." if is_chosen else "",
                )
            path = writer.close(about())
    finally:
        progress.close()
    counts = dict(sorted(writer.failed.counts.items()))
    return Packed(
        path,
        format,
        writer.rows,
        writer.shards,
        writer.size,
        writer.failed.count,
        counts,
        writer.columns or (),
        plan.duplicates["first"],
        resumed,
    )


def _is_number(encoding: str) -> bool:
    return encoding.startswith(("int", "uint", "float"))


def _write(plan: Plan, writer: Writer, names: list[str], spool: Spool | None) -> None:
    rows = plan.known_rows if plan.where is None else None
    plan.progress.start(
        "pack", rows if rows is None or plan.limit is None else min(rows, plan.limit)
    )
    if writer.rows:
        plan.progress.note(f"going on after {writer.rows} rows in {writer.shards} shards")
    first = writer.next
    if spool is not None:
        if kept := spool.restore():
            plan.progress.note(f"{kept} more rows were fetched by an earlier run")
        first = spool.until
    nulls = find(writer.format).holds_null
    typed = Typed(writer.columns, plan.named_by, nulls) if writer.columns else None
    stream, taken = fetched(plan, names, first, spool=spool), writer.taken
    try:
        for part in stream:
            if typed is None and part.batch.num_rows:
                typed = Typed(_named(plan, writer, part, names), plan.named_by, nulls)
            failures = list(part.failures)
            batch: pa.RecordBatch | None = None
            numbers = part.rows
            if typed is not None and part.batch.num_rows:
                batch, numbers, unfit = typed.convert(part.batch, part.rows)
                batch, numbers, unheld = _held(plan, writer, part, batch, numbers)
                failures = sorted([*failures, *unfit, *unheld], key=lambda one: one.row)
            failures = [plan.places.placed(failure) for failure in failures]
            for failure in failures[: 1 if plan.on_error == "fail" else None]:
                if plan.on_error == "skip":
                    plan.progress.failed(failure.key or failure.where, failure.reason)
                    writer.fail(plan.source.named.listed(failure))
                elif batch is not None:  # what stands before it is kept for a resume
                    kept = int(np.searchsorted(numbers, failure.row))
                    batch, numbers = batch.slice(0, kept), numbers[:kept]
            if batch is not None and batch.num_rows:
                _put(plan, writer, batch, numbers)
            if failures and plan.on_error == "fail":
                raise error_of(failures[0], plan.source.address, SKIP)
            plan.places.forget(part.until)
            if spool is not None:
                spool.until = part.until
                spool.save()
            plan.progress.advance(part.batch.num_rows + len(part.failures), writer.taken - taken)
            taken = writer.taken
    finally:
        stream.close()  # type: ignore[attr-defined]
    if plan.duplicates["first"]:
        plan.progress.note(f"{plan.duplicates['first']} rows with a key used before were left out")


def _put(plan: Plan, writer: Writer, batch: pa.RecordBatch, rows: IntArray) -> None:
    """Hand rows to the writer; a key that came before in its shard ends the run, as one does that may not come again at all."""
    try:
        writer.write_typed(batch, rows)
    except ValueFitError as error:
        if error.row is None or error.address:
            raise
        failure = Failure(error.row, "", error.column or "", error.kind, error.message)
        raise error_of(plan.places.placed(failure), plan.source.address, error.hint) from None


def _held(
    plan: Plan, writer: Writer, part: fetch_links.Fetched, batch: pa.RecordBatch, rows: IntArray
) -> tuple[pa.RecordBatch, IntArray, list[Failure]]:
    """Leave out the rows with values that their encoding holds and the format does not, such as a separator in a line of CSV."""
    first = writer.unheld(batch) if batch.num_rows else None
    if first is None:
        return batch, rows, []
    found = [_earliest(writer, batch, first)] if plan.on_error == "fail" else _unheld(writer, batch)
    failures = []
    for at, error in found:
        key = plan.named_by
        named = (
            ""
            if key is None
            else key_text(part.batch.column(key)[int(np.searchsorted(part.rows, rows[at]))])
        )
        failures.append(Failure(int(rows[at]), named, "", error.kind, error.message))
    keep = np.ones(len(rows), bool)
    keep[[at for at, _ in found]] = False
    return batch.filter(pa.array(keep)), rows[keep], failures


def _earliest(
    writer: Writer, batch: pa.RecordBatch, found: tuple[int, FlareError]
) -> tuple[int, FlareError]:
    """Find the first such row: a format looks at one column after another."""
    while found[0] and (earlier := writer.unheld(batch[: found[0]])) is not None:
        found = earlier
    return found


def _unheld(writer: Writer, batch: pa.RecordBatch) -> list[tuple[int, FlareError]]:
    """Return every row that the format cannot store, with its error."""
    failing = failing_rows(0, batch.num_rows, lambda start, stop: writer.unheld(batch[start:stop]))
    return [(row, error) for row, (_, error) in failing]


def _named(plan: Plan, writer: Writer, part: fetch_links.Fetched, names: list[str]) -> Columns:
    chosen = chosen_encodings(part.batch, names, plan.encode, part.extensions, plan.source.stored)
    note_addresses(
        [name for name in looks_like_addresses(part.batch) if name in names], plan.progress
    )
    for name, encoding in chosen.items():
        plan.progress.note(f"column {name!r}: {encoding}", verbose=True)
    return writer.name_columns(chosen)


def done_before(target: Target, about: Mapping[str, Any], format: str) -> Packed:
    """Say again what a finished pack did, if it was this one."""
    at = target.at / playlists.PLAYLIST
    stream = playlists.read(at).streams[0] if at.exists() else None
    said = stream.headers.get("source") if stream is not None else None
    if (
        stream is None
        or not isinstance(said, Mapping)
        or any(said.get(name) != about[name] for name in (DEFAULT, "options"))
    ):
        hint = "Give --overwrite to replace it, or name another folder."
        raise UsageError(
            "a dataset of another source or other options is there", where=target.shown, hint=hint
        )
    rows = int(stream.rows.sum()) if stream.rows is not None else 0
    size = int(stream.sizes.sum()) if stream.sizes is not None else 0
    failed = stream.files.get("failed.jsonl")
    count = sum(block.count(b"\n") for block in (at.folder / failed.name).blocks()) if failed else 0
    return Packed(
        target.playlist, format, rows, len(stream), size, count, {}, stream.columns or (), 0, rows
    )


def would_pack(
    request: Request, plan: Plan, names: list[str], part_rows: int | None = None
) -> Packed:
    """Say what would be packed; a row that fails among the first ones fails here too, and a target that cannot be written to."""
    bucket_of(request.out, request.guard)
    would = reckon(plan, names, request.format, request.settings, part_rows)
    note_addresses(would.addresses, plan.progress)
    if would.failures and plan.on_error == "fail":
        raise error_of(would.failures[0], plan.source.address, SKIP)
    for failure in would.failures:
        plan.progress.failed(failure.key or failure.where, failure.reason)
    path, failed = f"{request.out.rstrip('/')}/{playlists.PLAYLIST}", len(would.failures)
    return Packed(
        path,
        request.format,
        would.rows,
        would.shards,
        would.bytes,
        failed,
        {},
        would.columns,
        dry_run=True,
        estimated=would.estimated,
    )
