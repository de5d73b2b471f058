"""One or more index files as one table of rows, in order."""

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
from flarecli.ingest.csv import Delimited
from flarecli.ingest.folder import Folder
from flarecli.ingest.json import Json
from flarecli.ingest.lists import ListedFile, expand_lists
from flarecli.ingest.parquet import Parquet
from flarecli.ingest.read_ahead import NumberedBatch, read_ahead
from flarecli.ingest.read_files import Flaw, contents
from flarecli.ingest.registry import STDIN, Part, open_part
from flarecli.ingest.schema_merge import align, merge
from flarecli.ingest.source import OnRead
from flarecli.ingest.source_checksum import Running
from flarecli.ingest.statistics import select_row_groups
from flarecli.ingest.stdin import DATA, NAME, Addresses, Spool, standard_input
from flarecli.prefetch import ordered_map
from flarecli.redact import redact
from flarecli.storage import Guard, Limits, Location, locate
from flarecli.suggest import choose

__all__ = ["Index", "open_folder", "open_index"]

JOINED_ROWS, JOINED_BYTES = 1 << 17, 32 << 20
MAX_OPENERS = 16  # remote files that are opened at a time


@dataclass(frozen=True)
class Index:
    """Rows that list samples.

    address  as the user typed it, without secrets
    at       folder of the first file, the base of relative links
    rows     None if unknown until the files are read
    links    columns of file names; a pack stores the contents of the files by default
    key      column that names the rows, if the source has one
    notes    notes for the user about the source, such as skipped files
    details  further notes, for verbose output
    flaw     function that returns kind and message for a row of a folder without a file for a
             column
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
    # part -> number of its first row, for the parts read so far
    _firsts: dict[int, int] = field(default_factory=dict, compare=False)

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine; then their rows may name local files."""
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
        """Yield the rows in order, with the given columns, at most 8,192 in a batch.

        where    condition that allows to skip row groups of parquet; other rows are not filtered
        row      name of an additional int64 column with the number of each row in the index
        start    first row; files and row groups before it are skipped if their rows are known
        stop     row to stop before; None: all
        running  checksum to update with the bytes that are read, if `running()` returned one
        raises   UsageError for an unknown column; FormatError with file and row for invalid data,
                 or if known are no rows
        """
        known = set(self.schema.names)
        for name in columns or ():
            if name not in known:
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
        reads_ahead = start <= 0 and stop is None and any(_is_far(part) for part in self.parts)
        streams = (
            read_ahead(
                partial(_numbered_batches, part, _common_names(part, names), bounds, 0, sys.maxsize)
                for part in self.parts
            )
            if reads_ahead
            else None
        )
        for number, part in enumerate(self.parts):
            if first >= last:
                return
            self._firsts[number], count = first, 0
            on_read = None if running is None else partial(running.heard, number)
            for at, batch in (
                next(streams)
                if streams is not None
                else _numbered_batches(
                    part, _common_names(part, names), bounds, start - first, last - first, on_read
                )
            ):
                count, rows = at + batch.num_rows, rows + batch.num_rows
                low, high = max(start - first - at, 0), min(last - first - at, batch.num_rows)
                if low < high:
                    fit = align(batch.slice(low, high - low), schema, part, at + low)
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
        """Return the file, and the row number in it, of a row number of `batches`."""
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
        """Yield the rows with the contents of linked files, and the files that failed, which are
        null there.
        """
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
        """Replace file names in some columns by the contents of the files; failed files are null."""
        resolve = self.at.join if self.address == STDIN else self.at.__truediv__
        is_local = self.at.is_local and self.address != STDIN
        return contents(batches, columns, resolve, limits, *(() if is_local else (1,)))

    def count(self, where: str | None = None) -> int:
        """Return the number of rows that a condition selects; reads only the columns needed, or
        nothing.
        """
        if where is None and self.rows is not None:
            return self.rows
        names = (self.schema.names if where is None else sql.columns_of(where, self.schema.names))[
            : None if where else 1
        ]
        batches = self.batches(names or self.schema.names[:1], where)
        if where is not None:
            schema = pa.schema([self.schema.field(name) for name in names or self.schema.names[:1]])
            _, batches = sql.select(schema, _join_small(batches), where)
        return sum(batch.num_rows for batch in batches)

    def running(self) -> Running | None:
        """Return a checksum of the files to update while they are read; None if they must be read
        for it.
        """
        parts = [part for part in self.parts if isinstance(part, Parquet) and part.is_local]
        if len(parts) < len(self.parts):
            return None
        sums = Sums([DEFAULT])
        for part in parts:
            sums.update(f"{part.at.size()}\n".encode())
            sums.update(part.tail())
        return Running([part.at for part in parts], sums.hex()[DEFAULT])

    def sum(self) -> str:
        """Return the xxh3_128 of the bytes of all files, in order; reads every file."""
        sums = Sums([DEFAULT])
        for part in self.parts:
            for block in part.blocks():
                sums.update(block)
        return sums.hex()[DEFAULT]


def _join_small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, because a condition takes about a millisecond per batch."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if (
            rows >= JOINED_ROWS
            or sum(item.nbytes for item in held[-2:]) * len(held) >= JOINED_BYTES
        ):
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows = [], 0
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _common_names(part: Part, names: Sequence[str]) -> list[str]:
    known = set(part.schema.names)
    return [name for name in names if name in known]


def _is_far(part: Part) -> bool:
    at = getattr(part.at, "at", part.at)
    return isinstance(at, Location) and not at.is_local


def _numbered_batches(
    part: Part,
    names: list[str],
    bounds: Sequence[sql.Bound],
    start: int,
    stop: int,
    on_read: OnRead | None = None,
) -> Iterator[NumberedBatch]:
    """Yield batches of a part that may have rows within bounds and from start to stop, with their
    row.
    """
    if part.rows is not None and part.rows <= start:
        return
    if part.rows is not None and any(bound.column not in part.schema.names for bound in bounds):
        return  # null in every row; comparisons with null are never true
    names = names or part.schema.names[:1]  # a column is needed to count rows
    runs = (
        select_row_groups(part, bounds, start, stop)
        if isinstance(part, Parquet) and (bounds or start > 0 or stop < part.rows)
        else None
    )
    stored: int | None = None
    size = rows = 0
    for first, groups in [(0, None)] if runs is None else runs:
        found = (
            part.batches(names, groups, on_read)
            if isinstance(part, Parquet)
            else part.batches(names)
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
    """Return the size of a part's file; unlimited for standard input."""
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
    """Open an index: its columns are known, its rows are not read yet.

    address         tables: parquet, CSV, TSV, JSON, JSON lines, Arrow, text also as `.gz` and
                    `.zst`; lists of them (`.txt`); several are concatenated. `-`: standard input
    text            columns of a CSV or TSV that are always text: keys, links
    allow_missing   fill columns that some files lack with nulls
    null_separated  addresses at standard input end with a NUL instead of a newline
    stdin           stream to read for `-` instead of standard input
    raises          MissingError if an address does not exist; FormatError for invalid files, no
                    rows, duplicate columns, or columns of different types; UsageError for an
                    unknown kind of file
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses:
        raise UsageError("no index given")
    if STDIN in addresses:
        if len(addresses) > 1:
            raise UsageError("- (standard input) cannot be combined with other indexes")
        return _open_stdin(
            stdin if stdin is not None else standard_input(), guard or Guard(), null_separated
        )
    found = [
        file for address in addresses for file in expand_lists(ListedFile(locate(address, guard)))
    ]
    return _open_tables(
        " ".join(redact(address) for address in addresses), found, text, allow_missing
    )


def open_folder(
    address: str, *, guard: Guard | None = None, columns: Sequence[str] | None = None
) -> Index:
    """Open a folder as an index: the files of a key are a row, and each extension is a column of
    names.

    columns  extensions, and `key`; keys without any of the extensions are left out
    raises   as `Folder`; UsageError for an address that cannot be listed
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


def _open_tables(
    shown: str, found: Sequence[ListedFile], text: Collection[str], allow_missing: bool
) -> Index:
    def open_file(file: ListedFile) -> Part:
        try:
            return open_part(file.at, text)
        except FlareError as error:
            raise file.with_source(error) from None

    if len(found) == 1 or all(file.at.is_local for file in found):
        parts = [open_file(file) for file in found]
    else:
        parts = list(ordered_map(open_file, found, workers=MAX_OPENERS))
    schema, all_parts = merge(parts, allow_missing)
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
        notes=(*_timestamp_notes(all_parts), *_separator_notes(all_parts)),
        details=tuple(_checksum_notes(all_parts)),
    )


def _checksum_notes(parts: Sequence[Part]) -> Iterator[str]:
    names = [str(part.at) for part in parts if isinstance(part, Parquet) and not part.has_sums]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{more}: pages have no checksums, so damage may not be detected"


def _timestamp_notes(parts: Sequence[Part]) -> Iterator[str]:
    for name in sorted(
        {name for part in parts if isinstance(part, Parquet) for name in part.coarse}
    ):
        yield f"column {name!r}: int96 timestamps are read with microsecond precision"


def _separator_notes(parts: Sequence[Part]) -> Iterator[str]:
    """Yield a note for a CSV or TSV with one column whose header contains another separator."""
    for part in parts:
        name = part.schema.names[0] if isinstance(part, Delimited) and len(part.schema) == 1 else ""
        other = next((sign for sign in ";\t|," if sign in name), None)
        if other is not None:
            yield (
                f"{part.at}: the header is one column, {name[:60]!r}; "
                f"is {other!r} the separator of its fields?"
            )


def _open_stdin(stream: IO[bytes], guard: Guard, null_separated: bool) -> Index:
    """Open addresses or rows from standard input, distinguished by the first character.

    Standard input is trusted like the command line.
    """
    spool = Spool(stream)
    head = next((block.lstrip() for block in spool.blocks() if block.strip()), b"")
    if not head:
        raise FormatError("standard input is empty", where=spool)
    at = locate(".", replace(guard, allow_local=True))
    if head[:1] in (b"{", b"[") and not null_separated:
        table = Json(spool)
        return Index(STDIN, at, table.schema, None, (table,))
    addresses = Addresses(spool, null_separated)
    return Index(STDIN, at, addresses.schema, None, (addresses,), (DATA,), NAME)
