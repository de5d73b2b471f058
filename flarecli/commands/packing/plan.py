"""Plan of a pack: select rows (where, limit, shuffle, duplicate keys), then fetch links, then
process media.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from flarecli import encodings, sql
from flarecli.commands.external_shuffle import shuffled
from flarecli.commands.packing.media import Intake, Medium, info_names, media_of, taken_in
from flarecli.commands.packing.source import Source
from flarecli.commands.provenance import PLACE, Places
from flarecli.commands.row_order import first_rows
from flarecli.errors import FormatError, UnsafeError, UsageError, format_place
from flarecli.names import shell_quoted
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits
from flarecli.write import Failure, Keys, Spool, fetch_links, is_unnamed, key_text, limited
from flarecli.write.columns import check_names

__all__ = ["Plan", "checked", "fetched", "parse_link", "selected"]

# columns of names beside those of contents, which no source has by accident
_OF = "what names it in "


@dataclass(frozen=True)
class Plan:
    """The options of a pack, checked against the columns of the source."""

    source: Source
    links: tuple[fetch_links.Link, ...]
    key: str | None
    columns: tuple[str, ...] | None
    encode: Mapping[str, str]
    where: str | None
    limit: int | None
    shuffle: int | None
    on_error: str
    on_duplicate: str
    allow_empty: bool
    guard: Guard
    limits: Limits
    progress: Progress
    rows: tuple[int, int | None] = (0, None)  # rows of the source: start, stop
    intake: Intake = field(default_factory=Intake)
    key_as: str | None = None  # what the format calls the key, if it has a name for it
    duplicates: Counter[str] = field(default_factory=Counter)

    @cached_property
    def places(self) -> Places:
        """The source rows of rows that are being packed."""
        return Places(self.source.place, start=self.rows[0] if self.is_run else None)

    @property
    def is_run(self) -> bool:
        """Whether the rows that are packed are one run of rows of the source."""
        leaves_out = self.where is not None or (
            self.key is not None and self.on_duplicate == "first"
        )
        return self.source.is_run and self.shuffle is None and not leaves_out

    @property
    def known_rows(self) -> int | None:
        """How many rows are looked at, if that is known without reading."""
        known, (start, stop) = self.source.rows, self.rows
        return (
            None if known is None else max(0, min(known, known if stop is None else stop) - start)
        )

    @property
    def named_by(self) -> str | None:
        """The column that still names rows when links are fetched: a key of addresses is gone by
        then.
        """
        own = self._own_key
        return own if own is None or self.key_as is None else self.key_as

    @property
    def _own_key(self) -> str | None:
        """The name that this column has in the source."""
        own = self.key or (None if self.is_statement else self.source.key)
        return None if any(link.source == own for link in self.links) else own

    @property
    def is_statement(self) -> bool:
        """Whether `where` is a whole SELECT, whose columns may be any."""
        return self.where is not None and sql.is_statement(self.where)

    @property
    def early(self) -> list[str]:
        """Columns of files whose contents the condition looks at."""
        if self.where is None:
            return []
        return [
            name
            for name in self.source.files
            if self.is_statement or name in sql.columns_of(self.where, self.source.schema.names)
        ]

    def named(self, name: str) -> str:
        """Give what a column of the source is called once its rows are chosen."""
        return self.named_by or name if name == self._own_key else name


def parse_link(text: str, encode: Mapping[str, str]) -> fetch_links.Link:
    """Read `COLUMN` or `COLUMN:NAME`. Raises UsageError if it names no column."""
    source, colon, name = text.partition(":")
    if not source or (colon and not name):
        what = "gives no name" if source else "names no column"
        raise UsageError(f"--fetch {text!r} {what}", hint="Write COLUMN or COLUMN:NAME.")
    return fetch_links.Link(source, name or source, encode.get(name or source))


def checked(plan: Plan) -> list[str]:
    """Check the options against the columns of the source; return the columns to pack."""
    schema = plan.source.schema
    if PLACE in schema.names and (plan.where is not None or not plan.is_run):
        raise UsageError(
            f"a column is named {PLACE!r}, as the numbers that travel beside the rows are",
            hint="Rename it in the source.",
        )
    if plan.where is not None:
        schema, _ = sql.select(schema, iter(()), plan.where)
    check_names(schema, [link.source for link in plan.links], "--fetch")
    check_names(schema, [plan.key] if plan.key else [], "--key")
    renamed = {link.source: link.name for link in plan.links}
    after = [plan.named(renamed.get(name, name)) for name in schema.names]
    counts = Counter(after)
    for name in after:
        if counts[name] > 1:
            raise UsageError(
                f"two columns would be named {name!r}",
                hint="Give the fetched one another name: --fetch COLUMN:NAME.",
            )
    wanted = after if plan.columns is None else [plan.named(name) for name in plan.columns]
    if plan.key_as is not None and plan.named_by in after and plan.named_by not in wanted:
        wanted = [plan.key_as, *wanted]  # it names the samples, asked for or not
    infos = [name for columns in _media(plan, wanted)[1].values() for name in columns.values()]
    known = pa.schema([pa.field(name, pa.null()) for name in (*after, *infos)])
    check_names(known, [plan.named(name) for name in plan.encode], "--encode")
    check_names(known, wanted, "--columns")
    for name, encoding in plan.encode.items():
        if encodings.lookup(encoding).name == "pkl":
            as_json, as_bytes = shell_quoted(f"{name}=json"), shell_quoted(f"{name}=bytes")
            hint = f"Use --encode {as_json} or --encode {as_bytes}."
            raise UnsafeError(f"{name} is packed as pkl, and reading a pickle runs code", hint=hint)
    return [*wanted, *(name for name in infos if name not in wanted)]


def _media(plan: Plan, names: Sequence[str]) -> tuple[list[Medium], dict[str, dict[str, str]]]:
    """Return the columns of files, and the names of their media info columns."""
    schema = plan.source.schema
    if plan.is_statement:
        schema, _ = sql.select(schema, iter(()), plan.where or "")
    named = [
        *(link.name for link in plan.links),
        *(name for name in plan.source.files if name in names),
    ]
    replaced = {link.source for link in plan.links}
    taken = [
        name
        for name in (*schema.names, *(link.name for link in plan.links))
        if name not in replaced
    ]
    found = media_of(schema, names, named, plan.encode)
    if plan.intake.option is not None and not any(one.is_medium for one in found):
        raise UsageError(
            f"{plan.intake.option} finds no column of files",
            hint="Name a column of links with --fetch.",
        )
    return found, info_names(found, taken) if plan.intake.info else {}


def selected(plan: Plan, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Give the rows of the selection from `skip` on: where, limit, shuffle, then keys that were
    used before.

    return  beside the columns the number of each row in the source, as PLACE; not where the rows
            are one run, or a query made them
    """
    renamed = {link.name: link.source for link in plan.links}
    wanted = None
    if plan.columns is not None:
        names = (
            {renamed.get(name, name) for name in plan.columns}
            | ({plan.key, plan.source.key} - {None})
            | set(renamed.values())
        )
        names |= (
            set(sql.columns_of(plan.where, plan.source.schema.names))
            if plan.where is not None
            else set()
        )
        wanted = [name for name in plan.source.schema.names if name in names] or None
    batches = plan.source.batches(
        wanted, plan.where, *plan.rows, place=None if plan.is_run else PLACE
    )
    if plan.where is not None:
        schema = (
            plan.source.schema
            if wanted is None
            else pa.schema([plan.source.schema.field(name) for name in wanted])
        )
        if plan.source.files:
            batches = _whole(plan, batches, plan.early, is_complete=plan.is_statement)
            schema = _listed(plan, schema)
        _, batches = sql.select(schema, batches, plan.where, hidden=PLACE)
    if plan.limit is not None:
        batches = first_rows(batches, plan.limit)
    if plan.shuffle is not None:
        batches = shuffled(batches, plan.shuffle)
    if plan.key is not None and plan.on_duplicate != "keep":
        batches = _distinct(batches, plan)
    after: list[str] = []
    is_renamed = False
    for batch in batches:
        cut = min(skip, batch.num_rows)
        skip -= cut
        if not after:
            after = [plan.named(name) for name in batch.schema.names]
            is_renamed = after != batch.schema.names
        if batch.num_rows > cut:
            rest = batch.slice(cut)
            yield rest.rename_columns(after) if is_renamed else rest


def _listed(plan: Plan, schema: pa.Schema) -> pa.Schema:
    """Return the schema of rows whose files were not read, except those in the condition."""
    left = set(plan.source.files) - set(plan.early)
    return pa.schema(
        [pa.field(one.name, pa.string()) if one.name in left else one for one in schema]
    )


def _whole(
    plan: Plan, batches: Iterator[pa.RecordBatch], columns: Sequence[str], is_complete: bool
) -> Iterator[pa.RecordBatch]:
    """Put contents in place of names, where no row can be left out: raises the error of the first
    file that cannot be read.

    is_complete  a row that lacks a file is an error too; False where its null is left to a
                 condition
    """
    if plan.source.filled is None or not columns:
        yield from batches
        return
    for batch, flaws in plan.source.filled(batches, columns):
        if flaws:
            raise flaws[0].error
        if is_complete:
            for row, (_, _, message) in _lacking(plan, batch, columns).items():
                key = f"{key_text(batch.column(plan.source.key)[row])}: " if plan.source.key else ""
                hint = "Complete the folder, or give --where a condition instead of a SELECT."
                raise FormatError(f"{key}{message}", where=plan.source.address, hint=hint)
        yield batch


def _lacking(
    plan: Plan, batch: pa.RecordBatch, columns: Sequence[str]
) -> dict[int, tuple[str, str, str]]:
    """Return the rows without a file: row -> column, kind, message.

    columns  of names or contents; null where there is no file
    """
    found: dict[int, tuple[str, str, str]] = {}
    if plan.source.flaw is None or not any(batch.column(name).null_count for name in columns):
        return found
    is_there = {name: batch.column(name).is_valid().to_pylist() for name in columns}
    for row in range(batch.num_rows):
        lacking = [name for name, there in is_there.items() if not there[row]]
        if lacking:
            column = lacking[0].removeprefix(_OF)
            found[row] = column, *plan.source.flaw(column, len(lacking) == len(columns))
    return found


def _distinct(batches: Iterator[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Reject or skip rows whose key occurred before."""
    keys, row = Keys(), plan.rows[0] if plan.is_run else 0
    for batch in batches:
        column = batch.column(plan.key)
        is_beside = PLACE in batch.schema.names
        rows = batch.column(PLACE).to_numpy() if is_beside else np.arange(row, row + batch.num_rows)
        used = np.where(is_unnamed(column), -1, keys.seen(column, rows))
        row += batch.num_rows
        again = np.flatnonzero(used >= 0)
        if len(again) and plan.on_duplicate == "error":
            first = int(again[0])
            (file, at), (earlier, before) = (
                plan.source.place(one) if is_beside or plan.is_run else (plan.source.address, one)
                for one in (int(rows[first]), int(used[first]))
            )
            hint = "Give --on-duplicate first to keep the first of them, or keep to keep all."
            told = format_place("" if earlier == file else earlier, before)
            if (
                earlier == file and int(rows[first] - used[first]) != at - before
            ):  # rows of a file are consecutive
                told, hint = (
                    f"{told} of that file, which comes more than once",
                    f"Name it once. {hint}",
                )
            raise FormatError(
                f"key {key_text(column[first])!r} was used in {told}",
                where=file,
                row=at,
                hint=hint,
            )
        plan.duplicates["first"] += len(again)
        yield batch.filter(pa.array(used < 0)) if len(again) else batch


def fetched(
    plan: Plan,
    names: Sequence[str],
    skip: int = 0,
    most: int | None = None,
    spool: Spool | None = None,
) -> Iterator[fetch_links.Fetched]:
    """Give the selection from row `skip` on, `most` rows at most, with what its links point at, and
    its media as asked for.

    names  of the columns to pack
    spool  keeps what was fetched
    """
    rows = plan.places.passed(selected(plan, skip), skip)
    if most is not None:
        rows = first_rows(rows, most)
    files = [
        name
        for name in plan.source.files
        if name not in plan.early and (plan.columns is None or name in plan.columns)
    ]
    if files and not plan.links:
        parts = _contents(plan, rows, skip, files)
    else:
        parts = fetch_links.fetch(
            _whole(plan, rows, files, is_complete=True),
            plan.links,
            key=plan.named_by or plan.key,
            at=plan.source.at,
            guard=plan.guard,
            limits=plan.limits,
            allow_empty=plan.allow_empty,
            first_row=skip,
            progress=plan.progress,
            spool=spool,
        )
    parts = limited(parts, plan.named_by, plan.limits.max_bytes)
    found, infos = _media(plan, names)
    if plan.intake.is_nothing:
        found = [one for one in found if one.has_names]
    return (
        taken_in(parts, found, plan.intake, infos, plan.named_by, plan.progress, plan.limits.jobs)
        if found
        else parts
    )


def _contents(
    plan: Plan, rows: Iterator[pa.RecordBatch], first: int, files: Sequence[str]
) -> Iterator[fetch_links.Fetched]:
    """Read the files that rows name; a row whose file cannot be read is a failure."""

    early = [
        name
        for name in plan.early
        if not plan.is_statement and (plan.columns is None or name in plan.columns)
    ]

    def beside() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for name in files:
                batch = batch.append_column(_OF + name, batch.column(name))
            yield batch

    for batch, flaws in (
        plan.source.filled(beside(), files) if plan.source.filled is not None else ()
    ):
        keys = batch.column(plan.named_by) if plan.named_by is not None else None
        failures: dict[int, Failure] = {}
        for row, column, error in flaws:
            name = "" if keys is None else key_text(keys[row])
            reason = f"{batch.column(_OF + column)[row]}: {error.message}"
            failures.setdefault(row, Failure(first + row, name, column, error.kind, reason))
        of = [_OF + name for name in files]
        for row, (column, kind, reason) in _lacking(plan, batch, [*of, *early]).items():
            name = "" if keys is None else key_text(keys[row])
            failures.setdefault(row, Failure(first + row, name, column, kind, reason))
        places = np.arange(batch.num_rows)
        if failures:
            places = np.delete(places, list(failures))
            batch = batch.take(pa.array(places))
        names = {
            name: [text or "" for text in batch.column(_OF + name).to_pylist()] for name in files
        }
        until = first + len(places) + len(failures)
        rest = batch.select([name for name in batch.schema.names if not name.startswith(_OF)])
        yield fetch_links.Fetched(
            rest, first + places, [failures[row] for row in sorted(failures)], until, {}, names
        )
        first = until
