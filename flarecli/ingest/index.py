"""One or several index files as one table of rows, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from flarecli import where as sql
from flarecli.errors import FormatError, UsageError
from flarecli.hashes import DEFAULT, Sums
from flarecli.ingest.opening import Part, opened
from flarecli.ingest.parquet import Parquet
from flarecli.ingest.schemas import fitted, joined
from flarecli.ingest.statistics import kept
from flarecli.names import redact
from flarecli.storage import Guard, Location, locate

__all__ = ["Index", "open_index"]

_OPENERS = 16  # files on the network that are opened at a time


@dataclass(frozen=True)
class Index:
    """Rows that list samples.

    address  as the user typed it, without secrets
    at       the folder of the first file: relative links start there
    rows     None where only reading tells
    links    columns of names of files, which a pack takes the contents of unless it is told otherwise
    key      the column that names the rows, of sources that have one by themselves
    notes    what to tell the user about the source: what was left out, and which
    """

    address: str
    at: Location
    schema: pa.Schema
    rows: int | None
    parts: tuple[Part, ...]
    links: tuple[str, ...] = ()
    key: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether the files lie on this machine: then their rows may name what lies beside them."""
        return self.at.is_local

    def batches(self, columns: Sequence[str] | None = None, where: str | None = None, row: str | None = None) -> Iterator[pa.RecordBatch]:
        """Give the rows in order, file after file, only the columns asked for, 8,192 at most in a batch.

        where   row groups of parquet that surely hold no row of this condition are not read; all other rows come
        row     name of one more column, int64: the place of each row in the whole index
        raises  UsageError for a column that is not there; FormatError naming file and place for bytes that are not
                the format, or if there is no row at all
        """
        for name in columns or ():
            if name not in self.schema.names:
                raise UsageError(f"no column {name!r}", where=self.address, hint=f"Choose from {', '.join(self.schema.names)}.")
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        bounds = () if where is None else sql.bounds(where, self.schema.names)
        first = rows = 0
        for part in self.parts:
            count = 0
            for at, batch in _placed(part, [name for name in names if name in part.schema.names], bounds):
                count, rows = at + batch.num_rows, rows + batch.num_rows
                fit = fitted(batch, schema, part, at)
                yield fit if row is None else fit.append_column(pa.field(row, pa.int64()), pa.array(range(first + at, first + count), pa.int64()))
            first += count if part.rows is None else part.rows
        if not rows and not bounds:
            raise FormatError("the index has no rows", where=self.address)

    def count(self, where: str | None = None) -> int:
        """Give how many rows there are that a condition keeps; reads only what it looks at, and nothing if the files say it."""
        if where is None and self.rows is not None:
            return self.rows
        names = (self.schema.names if where is None else sql.columns_of(where, self.schema.names))[: None if where else 1]
        batches = self.batches(names or self.schema.names[:1], where)
        if where is not None:
            schema = pa.schema([self.schema.field(name) for name in names or self.schema.names[:1]])
            _, batches = sql.select(schema, batches, where)
        return sum(batch.num_rows for batch in batches)

    def sum(self) -> str:
        """Give the xxh3_128 over the bytes of all files, in order; reads each once."""
        sums = Sums([DEFAULT])
        for part in self.parts:
            for block in part.blocks():
                sums.update(block)
        return sums.hex()[DEFAULT]


def _placed(part: Part, names: list[str], bounds: Sequence[sql.Bound]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Give the batches of a part that may hold rows within bounds, and the place of each in the part."""
    if any(bound.column not in part.schema.names for bound in bounds):
        return  # null in every row, and no comparison holds for null
    runs = kept(part, bounds) if bounds and isinstance(part, Parquet) else None
    for first, groups in [(0, None)] if runs is None else runs:
        found = part.batches(names) if groups is None or not isinstance(part, Parquet) else part.batches(names, groups)
        for batch in found:
            yield first, batch
            first += batch.num_rows


def open_index(
    address: str | Sequence[str],
    *,
    guard: Guard | None = None,
    text: Collection[str] = (),
    allow_missing: bool = False,
) -> Index:
    """Open an index; its columns are known then, its rows are not read yet.

    address        tables, local or HTTP(S): parquet, CSV, TSV, JSON, JSON lines, Arrow; several are one behind the other
    text           columns of a CSV or TSV that are text whatever they look like: keys, links
    allow_missing  columns that some of the files do not have are null there
    raises         MissingError if nothing is there; FormatError if it cannot be read, has no rows, two columns of one
                   name, or columns that do not go together; UsageError for a kind of file that is not read
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses:
        raise UsageError("no index is named")
    found = [locate(one, guard) for one in addresses]
    return _of_tables(" ".join(redact(one) for one in addresses), found, text, allow_missing)


def _of_tables(shown: str, found: Sequence[Location], text: Collection[str], allow_missing: bool) -> Index:
    if all(at.is_local for at in found) or len(found) == 1:
        parts = [opened(at, text) for at in found]
    else:
        with ThreadPoolExecutor(_OPENERS) as pool:
            parts = list(pool.map(lambda at: opened(at, text), found))
    schema, all_parts = joined(parts, allow_missing)
    rows = [part.rows for part in parts]
    total = None if None in rows else sum(count or 0 for count in rows)
    if total == 0:
        raise FormatError("the index has no rows", where=parts[0].at)
    return Index(shown, found[0].folder, schema, total, all_parts)
