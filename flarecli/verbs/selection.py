"""Which rows a pack takes, and what of them: where, limit, shuffle, keys used before, then links fetched ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from flarecli import encodings, read
from flarecli import where as sql
from flarecli.errors import FormatError, UnsafeError, UsageError
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits
from flarecli.verbs.rows import first_rows
from flarecli.verbs.source import Source
from flarecli.write import Keys, key_text, links
from flarecli.write.columns import check_names

__all__ = ["Plan", "checked", "fetched", "parse_link", "selected"]

_STEP = 8192


@dataclass(frozen=True)
class Plan:
    """What was asked for, checked against the columns there are."""

    source: Source
    links: tuple[links.Link, ...]
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
    rows: tuple[int, int | None] = (0, None)  # only these of the source: from, to
    duplicates: Counter[str] = field(default_factory=Counter)

    @property
    def known_rows(self) -> int | None:
        """How many rows are looked at, if that is known without reading."""
        known, (start, stop) = self.source.rows, self.rows
        return None if known is None else max(0, min(known, known if stop is None else stop) - start)

    @property
    def named_by(self) -> str | None:
        """The column that still names rows when links are fetched: a key of addresses is gone by then."""
        return None if any(link.source == self.key for link in self.links) else self.key


def parse_link(text: str, encode: Mapping[str, str]) -> links.Link:
    """Read `COLUMN` or `COLUMN:NAME`. Raises UsageError if it names no column."""
    source, _, name = text.partition(":")
    if not source:
        raise UsageError(f"--fetch {text!r} names no column", hint="Write COLUMN or COLUMN:NAME.")
    return links.Link(source, name or source, encode.get(name or source))


def checked(plan: Plan) -> list[str]:
    """Hold what was asked against the columns there are; give the names of the columns to pack."""
    schema = plan.source.schema
    if plan.where is not None:
        schema, _ = sql.select(schema, iter(()), plan.where)
    check_names(schema, [link.source for link in plan.links], "--fetch")
    check_names(schema, [plan.key] if plan.key else [], "--key")
    renamed = {link.source: link.name for link in plan.links}
    after = [renamed.get(name, name) for name in schema.names]
    for name in after:
        if after.count(name) > 1:
            raise UsageError(f"two columns would be named {name!r}", hint="Give the fetched one another name: --fetch COLUMN:NAME.")
    known = pa.schema([pa.field(name, pa.null()) for name in after])
    check_names(known, list(plan.encode), "--encode")
    check_names(known, list(plan.columns or ()), "--columns")
    for name, encoding in plan.encode.items():
        if encodings.lookup(encoding).name == "pkl":
            hint = f"Use --encode {name}=json or {name}=bytes."
            raise UnsafeError(f"{name} is packed as pkl, and reading a pickle runs code", hint=hint)
    return list(plan.columns if plan.columns is not None else after)


def selected(plan: Plan, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Give the rows of the selection from `skip` on: where, limit, shuffle, then keys that were used before."""
    renamed = {link.name: link.source for link in plan.links}
    wanted = None
    if plan.columns is not None:
        names = {renamed.get(name, name) for name in plan.columns} | ({plan.key} if plan.key else set()) | set(renamed.values())
        names |= set(sql.columns_of(plan.where, plan.source.schema.names)) if plan.where is not None else set()
        wanted = [name for name in plan.source.schema.names if name in names] or None
    batches = plan.source.batches(wanted, plan.where, *plan.rows)
    if plan.where is not None:
        schema = plan.source.schema if wanted is None else pa.schema([plan.source.schema.field(name) for name in wanted])
        _, batches = sql.select(schema, batches, plan.where)
    if plan.limit is not None:
        batches = first_rows(batches, plan.limit)
    if plan.shuffle is not None:
        batches = _shuffled(batches, plan.shuffle)
    if plan.key is not None and plan.on_duplicate != "keep":
        batches = _distinct(batches, plan)
    for batch in batches:
        cut = min(skip, batch.num_rows)
        skip -= cut
        if batch.num_rows > cut:
            yield batch.slice(cut)


def _shuffled(batches: Iterator[pa.RecordBatch], seed: int) -> Iterator[pa.RecordBatch]:
    """Order the rows by a keyed permutation; the index columns wait in memory, what they point at does not."""
    held = list(batches)
    if not held:
        return
    table = pa.Table.from_batches(held)
    for start in range(0, table.num_rows, _STEP):
        steps = np.arange(start, min(start + _STEP, table.num_rows))
        yield from table.take(pa.array(read.positions(steps, table.num_rows, seed))).combine_chunks().to_batches()


def _distinct(batches: Iterator[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Refuse a key that an earlier row used, or leave its row out."""
    keys, row = Keys(), 0
    for batch in batches:
        column = batch.column(plan.key)
        used = keys.seen(column, row)
        row += batch.num_rows
        again = np.flatnonzero(used >= 0)
        if len(again) and plan.on_duplicate == "error":
            first = int(again[0])
            where = f"{plan.source.address}[{row - batch.num_rows + first}]"
            hint = "Give --on-duplicate first to keep the first of them, or keep to keep all."
            raise FormatError(f"key {key_text(column[first])!r} was used in row {used[first]}", where=where, hint=hint)
        plan.duplicates["first"] += len(again)
        yield batch.filter(pa.array(used < 0)) if len(again) else batch


def fetched(plan: Plan, skip: int = 0, most: int | None = None) -> Iterator[links.Fetched]:
    """Give the selection from row `skip` on, `most` rows at most, with what its links point at."""
    rows = selected(plan, skip)
    return links.fetch(
        rows if most is None else first_rows(rows, most),
        plan.links,
        key=plan.key,
        at=plan.source.at,
        guard=plan.guard,
        limits=plan.limits,
        allow_empty=plan.allow_empty,
        first_row=skip,
        progress=plan.progress,
    )
