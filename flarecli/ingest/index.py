"""One or several index files as one table of rows, in order."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO

import numpy as np
import pyarrow as pa

from flarecli import sql
from flarecli.errors import FlareError, FormatError, UsageError
from flarecli.expansion import FREE_BYTES, FREE_ROWS, check_decoded, check_rows
from flarecli.hashes import DEFAULT, Sums
from flarecli.ingest.ahead import Placed, in_turn
from flarecli.ingest.csv import Delimited
from flarecli.ingest.folder import Folder
from flarecli.ingest.json import Json
from flarecli.ingest.lists import Named, listed
from flarecli.ingest.parquet import Parquet
from flarecli.ingest.read_files import Flaw, contents
from flarecli.ingest.registry import STDIN, Part, opened
from flarecli.ingest.schema_merge import fitted, joined
from flarecli.ingest.source import Heard
from flarecli.ingest.source_checksum import Running
from flarecli.ingest.statistics import kept
from flarecli.ingest.stdin import DATA, NAME, Addresses, Spool, standard_input
from flarecli.prefetch import ordered_map
from flarecli.redact import redact
from flarecli.storage import Guard, Limits, Location, locate
from flarecli.suggest import choose

__all__ = ["Index", "open_folder", "open_index"]

_LUMP_ROWS, _LUMP_BYTES = 1 << 17, 32 << 20
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
    details  what to tell those who ask for more
    flaw     returns kind and message for a row of a folder that has no file for a column
    """

    address: str
    at: Location
    schema: pa.Schema
    rows: int | None
    parts: tuple[Part, ...]
    links: tuple[str, ...] = ()
    key: str | None = None
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    flaw: Callable[[str, bool], tuple[str, str]] | None = None
    _firsts: dict[int, int] = field(
        default_factory=dict, compare=False
    )  # part -> number of its first row, as far as rows were read

    @property
    def is_local(self) -> bool:
        """Whether the files lie on this machine: then their rows may name what lies beside them."""
        return self.at.is_local

    def batches(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        row: str | None = None,
        start: int = 0,
        stop: int | None = None,
        running: Running | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Give the rows in order, file after file, only the columns asked for, 8,192 at most in a batch.

        where   row groups of parquet that surely hold no row of this condition are not read; all other rows come
        row     name of one more column, int64: the place of each row in the whole index
        start   only the rows of these places, start..stop; files and row groups that lie outside are not read where their rows are known
        running  takes in the bytes that rows are read from, where the index gave it
        raises  UsageError for a column that is not there; FormatError naming file and place for bytes that are not
                the format, or if there is no row at all
        """
        there = set(self.schema.names)
        for name in columns or ():
            if name not in there:
                raise UsageError(
                    f"no column {name!r}",
                    where=self.address,
                    hint=choose(name, self.schema.names, "Choose from"),
                    column=name,
                )
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        bounds = () if where is None else sql.bounds(where, self.schema.names)
        first = rows = 0
        last = sys.maxsize if stop is None else stop
        is_ahead = start <= 0 and stop is None and any(_is_far(part) for part in self.parts)
        turns = (
            in_turn(
                partial(_placed, part, _own(part, names), bounds, 0, sys.maxsize)
                for part in self.parts
            )
            if is_ahead
            else None
        )
        for number, part in enumerate(self.parts):
            if first >= last:
                return
            self._firsts[number], count = first, 0
            heard = None if running is None else partial(running.heard, number)
            for at, batch in (
                next(turns)
                if turns is not None
                else _placed(part, _own(part, names), bounds, start - first, last - first, heard)
            ):
                count, rows = at + batch.num_rows, rows + batch.num_rows
                low, high = max(start - first - at, 0), min(last - first - at, batch.num_rows)
                if low < high:
                    fit = fitted(batch.slice(low, high - low), schema, part, at + low)
                    places = (
                        None
                        if row is None
                        else pa.array(np.arange(first + at + low, first + at + high))
                    )
                    yield (
                        fit if row is None else fit.append_column(pa.field(row, pa.int64()), places)
                    )
                if first + count >= last:
                    return
            first += count if part.rows is None else part.rows
        if not rows and not bounds and not start:
            raise FormatError("the index has no rows", where=self.address)

    def place(self, row: int) -> tuple[str, int]:
        """Give the file, and the row in it, from 0, of a row that `batches` gave by its number."""
        number = bisect_right(range(len(self._firsts)), row, key=self._firsts.__getitem__) - 1
        return str(self.parts[number].at), row - self._firsts[number]

    def contents(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limits: Limits | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
        """Give the rows with what their links point at, read side by side; and the files that could not be read, null there."""
        return self.filled(
            self.batches(columns, where, start=start, stop=stop),
            [name for name in self.links if columns is None or name in columns],
            limits,
        )

    def filled(
        self,
        batches: Iterable[pa.RecordBatch],
        columns: Sequence[str],
        limits: Limits | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
        """Replace the names in some columns of one's rows by what the files hold; also the files that could not be read, null there."""
        find = self.at.join if self.address == STDIN else self.at.__truediv__
        is_near = self.at.is_local and self.address != STDIN
        return contents(batches, columns, find, limits, *(() if is_near else (1,)))

    def count(self, where: str | None = None) -> int:
        """Give how many rows there are that a condition keeps; reads only what it looks at, and nothing if the files say it."""
        if where is None and self.rows is not None:
            return self.rows
        names = (self.schema.names if where is None else sql.columns_of(where, self.schema.names))[
            : None if where else 1
        ]
        batches = self.batches(names or self.schema.names[:1], where)
        if where is not None:
            schema = pa.schema([self.schema.field(name) for name in names or self.schema.names[:1]])
            _, batches = sql.select(schema, _lumps(batches), where)
        return sum(batch.num_rows for batch in batches)

    def running(self) -> Running | None:
        """Give what sums the files while `batches` reads them; None where that would not save reading them for it."""
        parts = [part for part in self.parts if isinstance(part, Parquet) and part.is_near]
        if len(parts) < len(self.parts):
            return None
        sums = Sums([DEFAULT])
        for part in parts:
            sums.update(f"{part.at.size()}\n".encode())
            sums.update(part.tail())
        return Running([part.at for part in parts], sums.hex()[DEFAULT])

    def sum(self) -> str:
        """Give the xxh3_128 over the bytes of all files, in order; reads each once."""
        sums = Sums([DEFAULT])
        for part in self.parts:
            for block in part.blocks():
                sums.update(block)
        return sums.hex()[DEFAULT]


def _lumps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches of few bytes: each that a condition looks at costs a millisecond."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= _LUMP_ROWS or sum(one.nbytes for one in held[-2:]) * len(held) >= _LUMP_BYTES:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows = [], 0
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _own(part: Part, names: Sequence[str]) -> list[str]:
    there = set(part.schema.names)
    return [name for name in names if name in there]


def _is_far(part: Part) -> bool:
    at = getattr(part.at, "at", part.at)
    return isinstance(at, Location) and not at.is_local


def _placed(
    part: Part,
    names: list[str],
    bounds: Sequence[sql.Bound],
    start: int,
    stop: int,
    heard: Heard | None = None,
) -> Iterator[Placed]:
    """Give the batches of a part that may hold rows within bounds and from start to stop, and the place of each in the part."""
    if part.rows is not None and part.rows <= start:
        return
    if part.rows is not None and any(bound.column not in part.schema.names for bound in bounds):
        return  # null in every row, and no comparison holds for null
    names = names or part.schema.names[:1]  # rows are counted by a column
    runs = (
        kept(part, bounds, start, stop)
        if isinstance(part, Parquet) and (bounds or start > 0 or stop < part.rows)
        else None
    )
    stored: int | None = None
    size = rows = 0
    for first, groups in [(0, None)] if runs is None else runs:
        found = (
            part.batches(names, groups, heard) if isinstance(part, Parquet) else part.batches(names)
        )
        for batch in found:
            size, rows = size + batch.nbytes, rows + batch.num_rows
            if size > FREE_BYTES or rows * len(names) > FREE_ROWS:
                stored = _stored(part) if stored is None else stored
                check_decoded(size, stored, part.at)
                check_rows(rows, len(names), stored, part.at)
            yield first, batch
            first += batch.num_rows


def _stored(part: Part) -> int:
    """Return the size of a part's file; what comes through a pipe has none that could be exceeded."""
    at = getattr(part.at, "at", part.at)
    return at.size() if isinstance(at, Location) else sys.maxsize


def open_index(
    address: str | Sequence[str],
    *,
    guard: Guard | None = None,
    text: Collection[str] = (),
    allow_missing: bool = False,
    null_separated: bool = False,
    stdin: IO[bytes] | None = None,
) -> Index:
    """Open an index; its columns are known then, its rows are not read yet.

    address         tables: parquet, CSV, TSV, JSON, JSON lines, Arrow, the text ones also as `.gz` and `.zst`; lists of
                    them (`.txt`); several are one behind the other. Or `-`, alone: addresses or JSON at standard input
    text            columns of a CSV or TSV that are text whatever they look like: keys, links
    allow_missing   columns that some of the files do not have are null there
    null_separated  a NUL stands behind each address at standard input, not a line end
    stdin           what `-` reads instead of standard input
    raises          MissingError if nothing is there; FormatError if it cannot be read, has no rows, two columns of one
                    name, or columns that do not go together; UsageError for a kind of file that is not read
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses:
        raise UsageError("no index is named")
    if STDIN in addresses:
        if len(addresses) > 1:
            raise UsageError("- stands alone: what comes in at standard input is all there is")
        return _of_stdin(
            stdin if stdin is not None else standard_input(), guard or Guard(), null_separated
        )
    found = [one for address in addresses for one in listed(Named(locate(address, guard)))]
    return _of_tables(" ".join(redact(one) for one in addresses), found, text, allow_missing)


def open_folder(
    address: str, *, guard: Guard | None = None, columns: Sequence[str] | None = None
) -> Index:
    """Open a folder as an index: the files of a key are a row, and each extension is a column of their names.

    columns  extensions, and `key`: those asked for; a key that has none of them is no row
    raises   what `Folder` raises; UsageError for an address that cannot be listed
    """
    at = locate(address, guard)
    folder = Folder(at, columns)
    return Index(
        redact(address),
        at,
        folder.schema,
        folder.rows,
        (folder,),
        tuple(folder.extensions),
        folder.key,
        folder.notes,
        flaw=folder.flaw,
    )


def _of_tables(
    shown: str, found: Sequence[Named], text: Collection[str], allow_missing: bool
) -> Index:
    def begun(named: Named) -> Part:
        try:
            return opened(named.at, text)
        except FlareError as error:
            raise named.refusal(error) from None

    if len(found) == 1 or all(named.at.is_local for named in found):
        parts = [begun(named) for named in found]
    else:
        parts = list(ordered_map(begun, found, workers=_OPENERS))
    schema, all_parts = joined(parts, allow_missing)
    rows = [part.rows for part in parts]
    total = None if None in rows else sum(count or 0 for count in rows)
    if total == 0:
        raise FormatError("the index has no rows", where=parts[0].at)
    return Index(
        shown,
        found[0].at.folder,
        schema,
        total,
        all_parts,
        notes=(*_coarse(all_parts), *_undivided(all_parts)),
        details=tuple(_unsummed(all_parts)),
    )


def _unsummed(parts: Sequence[Part]) -> Iterator[str]:
    names = [str(part.at) for part in parts if isinstance(part, Parquet) and not part.has_sums]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{more}: no sums in the pages; a bit that flipped there would not be seen"


def _coarse(parts: Sequence[Part]) -> Iterator[str]:
    for name in sorted(
        {name for part in parts if isinstance(part, Parquet) for name in part.coarse}
    ):
        yield f"column {name!r}: int96 timestamps are read to the microsecond"


def _undivided(parts: Sequence[Part]) -> Iterator[str]:
    """Name a CSV or TSV whose one column looks like several, divided by something else."""
    for part in parts:
        name = part.schema.names[0] if isinstance(part, Delimited) and len(part.schema) == 1 else ""
        other = next((sign for sign in ";\t|," if sign in name), None)
        if other is not None:
            yield f"{part.at}: its header is taken for one column, {name[:60]!r}: are its fields divided by {other!r}?"


def _of_stdin(stream: IO[bytes], guard: Guard, null_separated: bool) -> Index:
    """Tell addresses from rows by the first byte that is no blank. What the user pipes in is the user's own word."""
    spool = Spool(stream)
    head = next((block.lstrip() for block in spool.blocks() if block.strip()), b"")
    if not head:
        raise FormatError("nothing came in", where=spool)
    at = locate(".", replace(guard, allow_local=True))
    if head[:1] in (b"{", b"[") and not null_separated:
        table = Json(spool)
        return Index(STDIN, at, table.schema, None, (table,))
    addresses = Addresses(spool, null_separated)
    return Index(STDIN, at, addresses.schema, None, (addresses,), (DATA,), NAME)
