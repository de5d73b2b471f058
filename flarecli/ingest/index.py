"""One or more index files, read as one table."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from flarecli import sql
from flarecli.errors import EmptyTableError, FlareError, UsageError
from flarecli.expansion import FREE_BYTES, FREE_ROWS, check_decoded, check_rows
from flarecli.formats import INDEX_INPUTS, LIST_INPUT
from flarecli.formats.tables.base import Part
from flarecli.formats.tables.csv import Delimited
from flarecli.formats.tables.dialect import DEFAULT as DIALECT
from flarecli.formats.tables.dialect import DELIMITERS, Dialect
from flarecli.formats.tables.parquet import Parquet
from flarecli.formats.tables.registry import open_kind, open_part, text_file
from flarecli.formats.tables.schema_merge import align, merge
from flarecli.hashes import DEFAULT, Sums
from flarecli.ingest.folder import Folder, FolderOptions
from flarecli.ingest.lists import ListedFile, expand_lists
from flarecli.ingest.read_files import Flaw, contents
from flarecli.ingest.stdin import DATA, NAME, Addresses, Spool, open_streams, sniff
from flarecli.model import Stream
from flarecli.names import shell_quoted
from flarecli.prefetch import ordered_map, result_interruptibly, submit
from flarecli.redact import redact
from flarecli.storage import STDIN, Guard, Limits, Location, locate
from flarecli.suggest import choose
from flarecli.units import format_list

__all__ = ["Index", "SourceChecksum", "open_folder", "open_index", "read_ahead"]

JOINED_ROWS, JOINED_BYTES = 1 << 17, 32 << 20
MAX_OPENERS = 16  # maximum number of remote files to open concurrently
READ_AHEAD_FILES = 4  # maximum number of remote files to read concurrently
_CHECKSUM_BLOCK_BYTES = 1 << 20  # bytes per read for a checksum
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 1 << 20, 8 << 20  # limits for the bytes that one call reads


class NumberedBatch(NamedTuple):
    """A batch, and the number of its first row in the file."""

    row: int
    batch: pa.RecordBatch


@dataclass(frozen=True)
class Index:
    """A table of samples, read from index files, a folder or standard input.

    address  address that the user passed, without secrets
    at       folder of the first file; relative links are relative to this folder
    rows     number of rows; None if unknown until the files are read
    links    columns of file names; a pack replaces the names with the contents of the files
    key      column that contains the row keys; None if the source has none
    notes    notes for the user about the source, such as skipped files
    details  notes for verbose output
    flaw     function that returns the error kind and message for a missing file; None unless the
             source is a folder
    is_list  True: the rows are addresses, which may name any file; False: the file names in the
             columns `links` are relative to `at`
    extensions  column of files -> `Column.extension`
    encodings   column of files -> encoding, unless the first row determines it
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
    flaw: Callable[[str, bool, str], tuple[str, str] | None] | None = None
    is_list: bool = False
    extensions: Mapping[str, str] = field(default_factory=dict)
    encodings: Mapping[str, str] = field(default_factory=dict)
    # file number -> number of rows in all earlier files; only for files that were read
    _firsts: dict[int, int] = field(default_factory=dict, compare=False)

    @property
    def dictionaries(self) -> dict[str, pa.DataType]:
        """Return column -> dictionary type, for columns that have the same type in every file."""
        first, *others = (part.dictionaries for part in self.parts)
        return {
            name: kind
            for name, kind in first.items()
            if all(kind == other.get(name) for other in others)
        }

    @property
    def is_local(self) -> bool:
        """Return whether the index files are local. Rows in local files may name local files."""
        return self.at.is_local

    def batches(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        row: str | None = None,
        start: int = 0,
        stop: int | None = None,
        checksum: SourceChecksum | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, at most 8,192 in a batch.

        columns   columns to read, in this order; None: all
        where     condition used to skip parquet row groups; rows are not filtered
        row       name of an additional int64 column for the row numbers in the index
        start     number of the first row to read; earlier files and row groups are skipped if their
                  row counts are known
        stop      number of the row after the last row to read; None: read to the end
        checksum  return value of `source_checksum`, to update with the bytes that are read
        raises    UsageError for an unknown column; FormatError with file and row for invalid data,
                  or if there are no rows
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
        last = sys.maxsize if stop is None else stop
        first = rows = 0
        streams = None
        if start <= 0 and stop is None and any(_is_remote(part) for part in self.parts):
            streams = read_ahead(
                _numbered_batches(part, names, bounds, 0, last) for part in self.parts
            )
        for number, part in enumerate(self.parts):
            if first >= last:
                return
            self._firsts[number], count = first, 0
            if streams is not None:
                batches = next(streams)
            else:
                on_read = None if checksum is None else partial(checksum.advance, number)
                batches = _numbered_batches(
                    part, names, bounds, start - first, last - first, on_read
                )
            for at, batch in batches:
                count, rows = at + batch.num_rows, rows + batch.num_rows
                low, high = max(start - first - at, 0), min(last - first - at, batch.num_rows)
                if low < high:
                    aligned = align(batch.slice(low, high - low), schema, part, at + low)
                    if row is not None:
                        numbers = pa.array(np.arange(first + at + low, first + at + high))
                        aligned = pa.RecordBatch.from_arrays(
                            [*aligned.columns, numbers],
                            schema=schema.append(pa.field(row, pa.int64())),
                        )
                    yield aligned
                if first + count >= last:
                    return
            first += count if part.rows is None else part.rows
        if not rows and not bounds and not start:
            raise EmptyTableError("table has no rows", where=self.address)

    def place(self, row: int) -> tuple[str, int]:
        """Return the file that contains a row, and the row number in this file.

        row  row number in the index; `batches` must already have yielded this row
        """
        number = bisect_right(range(len(self._firsts)), row, key=self._firsts.__getitem__) - 1
        return str(self.parts[number].at), row - self._firsts[number]

    def filled(
        self,
        batches: Iterable[pa.RecordBatch],
        columns: Sequence[str],
        limits: Limits | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
        """Replace the file names in some columns with the contents of the files.

        The values of unreadable files are null.
        """
        locate = self.at.join if self.is_list else self.at.__truediv__
        is_remote = not self.at.is_local
        return contents(batches, columns, locate, limits, is_remote, has_addresses=self.is_list)

    def count(self, where: str | None = None) -> int:
        """Return the number of rows that a condition selects.

        Only the columns in the condition are read. Without a condition, nothing is read if the
        number of rows is known.
        """
        if where is None:
            if self.rows is not None:
                return self.rows
            return sum(batch.num_rows for batch in self.batches(self.schema.names[:1]))
        names = sql.columns_of(where, self.schema.names) or self.schema.names[:1]
        schema = pa.schema([self.schema.field(name) for name in names])
        _, selected = sql.select(schema, _join_small(self.batches(names, where)), where)
        return sum(batch.num_rows for batch in selected)

    def source_checksum(self) -> SourceChecksum | None:
        """Return a checksum that `batches` updates; None unless all files are local parquet files.

        For other files, use `sum`.
        """
        parts = [part for part in self.parts if isinstance(part, Parquet) and part.at.is_local]
        if len(parts) < len(self.parts):
            return None
        sums = Sums([DEFAULT])
        for part in parts:
            sums.update(f"{part.at.size()}\n".encode())
            sums.update(part.footer())
        return SourceChecksum([part.at for part in parts], sums.hex()[DEFAULT])

    def sum(self) -> str:
        """Read all files in order, and return the xxh3_128 of the concatenated bytes."""
        sums = Sums([DEFAULT])
        for part in self.parts:
            for block in part.blocks():
                sums.update(block)
        return sums.hex()[DEFAULT]


class SourceChecksum:
    """The xxh3_128 of concatenated files, up to the last byte that was read for rows.

    With this checksum, a resumed pack detects whether the source was changed. For each shard, the
    journal records the number of bytes that were read, and their checksum. To compute the checksum,
    the bytes are read again, usually from the page cache.

    files   the files in order
    header  checksum of the file sizes and footers, which is compared before any row is read
    """

    def __init__(self, files: Sequence[Location], header: str) -> None:
        self.header = header
        self._files = files
        self._starts = [0, *accumulate(file.size() for file in files)]
        self._sums = Sums([DEFAULT])
        self._end = 0  # end of the last row that was read, as an offset in the concatenated files

    def advance(self, number: int, end: int) -> None:
        """Record that the rows up to byte `end` of file `number` were read."""
        self._end = max(self._end, min(self._starts[number] + end, self._starts[number + 1]))

    def state(self) -> list[Any]:
        """Return the number of bytes up to the last row that was read, and their checksum."""
        while (position := self._sums.size) < self._end:
            number = bisect_right(self._starts, position) - 1
            start = position - self._starts[number]
            stop = min(self._end, self._starts[number + 1]) - self._starts[number]
            self._sums.update(
                self._files[number].read(start, min(start + _CHECKSUM_BLOCK_BYTES, stop))
            )
        return [self._sums.size, self._sums.hex()[DEFAULT]]

    def matches(self, state: Any) -> bool:
        """Return whether the files match a stored result of `state`; False for a malformed value.

        Call this method before any other method. It reads all bytes that were read for the state.
        """
        if not isinstance(state, list) or len(state) != 2 or not isinstance(state[0], int):
            return False
        if not 0 <= state[0] <= self._starts[-1]:
            return False
        self._end = max(self._end, state[0])
        return self.state() == state

    def total(self) -> str:
        """Return the checksum of all bytes in all files."""
        self._end = self._starts[-1]
        return str(self.state()[1])


def _join_small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, because a condition is evaluated faster on a few large batches."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield from pa.Table.from_batches(small).combine_chunks().to_batches()
            small, rows, size = [], 0, 0
    if small:
        yield from pa.Table.from_batches(small).combine_chunks().to_batches()


def _is_remote(part: Part) -> bool:
    return part.location is not None and not part.location.is_local


def _numbered_batches(
    part: Part,
    columns: Sequence[str],
    bounds: Sequence[sql.Bound],
    start: int,
    stop: int,
    on_read: Callable[[int], object] | None = None,
) -> Iterator[NumberedBatch]:
    """Yield the batches of one file. Skip row groups outside start..stop or outside the bounds.

    columns  requested columns; the file may have only some of these columns
    on_read  callback for `Parquet.batches`
    """
    if part.rows is not None and part.rows <= start:
        return
    known = set(part.schema.names)
    if part.rows is not None and any(bound.column not in known for bound in bounds):
        return  # the column is null in every row, and comparisons with null are never true
    # read at least one column, because a batch without columns has no row count
    names = [name for name in columns if name in known] or part.schema.names[:1]
    stored: int | None = None
    size = rows = 0
    for first, batches in _runs(part, names, bounds, start, stop, on_read):
        row = first
        for batch in batches:
            size, rows = size + batch.nbytes, rows + batch.num_rows
            if size > FREE_BYTES or rows * len(names) > FREE_ROWS:
                if stored is None:
                    stored = sys.maxsize if part.location is None else part.location.size()
                check_decoded(size, stored, part.at)
                check_rows(rows, len(names), stored, part.at)
            yield NumberedBatch(row, batch)
            row += batch.num_rows


def _runs(
    part: Part,
    names: list[str],
    bounds: Sequence[sql.Bound],
    start: int,
    stop: int,
    on_read: Callable[[int], object] | None,
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield (number of the first row, batches) for each range of adjacent row groups to read."""
    if not isinstance(part, Parquet):
        yield 0, part.batches(names)
    elif bounds or start > 0 or stop < part.rows:
        for first, groups in part.select_row_groups(bounds, start, stop):
            yield first, part.batches(names, groups, on_read)
    else:
        yield 0, part.batches(names, on_read=on_read)


class _Chunk(NamedTuple):
    """Batches from one read-ahead call.

    error  exception to raise after the batches
    """

    batches: list[NumberedBatch]
    is_last: bool
    error: BaseException | None = None


def read_ahead(files: Iterable[Iterator[NumberedBatch]]) -> Iterator[Iterator[NumberedBatch]]:
    """Yield the batches of each file in order, while threads read further batches and files.

    Until the second batch of the first file is requested, only this file is read, because a preview
    may need only one batch.
    """
    waiting = iter(files)
    ahead = deque[tuple[Iterator[NumberedBatch], Future[_Chunk]]]()
    is_over = threading.Event()

    def read_chunk(file: Iterator[NumberedBatch], max_bytes: int) -> _Chunk:
        found, size = list[NumberedBatch](), 0
        try:
            for batch in file:
                found.append(batch)
                size += batch.batch.nbytes
                if size >= max_bytes or is_over.is_set():
                    return _Chunk(found, is_last=False)
        except BaseException as error:
            return _Chunk(found, True, error)
        return _Chunk(found, is_last=True)

    def open_files(count: int, max_bytes: int) -> None:
        while len(ahead) < count and (file := next(waiting, None)) is not None:
            ahead.append((file, submit(partial(read_chunk, file, max_bytes))))

    def batches(file: Iterator[NumberedBatch], future: Future[_Chunk]) -> Iterator[NumberedBatch]:
        max_bytes, is_last = MIN_CHUNK_BYTES, False
        while not is_last:
            found, is_last, error = result_interruptibly(future)
            for position, batch in enumerate(found):
                yield batch
                if position == 0:
                    if not is_last:
                        future = submit(partial(read_chunk, file, max_bytes))
                    max_bytes = min(2 * max_bytes, MAX_CHUNK_BYTES // 2)
                    open_files(READ_AHEAD_FILES, MAX_CHUNK_BYTES)
            if error is not None:
                raise error

    try:
        open_files(1, 0)
        while ahead:
            yield batches(*ahead[0])
            ahead.popleft()
            open_files(1, 0)
    finally:
        is_over.set()


def open_index(
    address: str | Sequence[str | Spool],
    *,
    guard: Guard | None = None,
    text: Collection[str] = (),
    allow_missing: bool = False,
    null_separated: bool = False,
    dialect: Dialect = DIALECT,
    stdin: IO[bytes] | None = None,
    kind: str | None = None,
) -> Index:
    """Open an index without reading its rows.

    address         tables (parquet, CSV, TSV, JSON, JSON lines, Arrow; text files also as `.gz`,
                    `.bz2` and `.zst`), `.txt` files that list tables, and streams (`-` for
                    standard input), which are concatenated; or one list of other addresses, such as
                    links
    text            columns of CSV and TSV files that are always text, such as keys and links
    allow_missing   whether files may lack columns; the values of missing columns are null
    null_separated  whether addresses in a stream end with a NUL instead of a newline
    dialect         dialect of CSV and TSV files; unset fields are detected
    stdin           stream to read for `-`; None: standard input
    kind            kind of every file: arrow, parquet, jsonl, csv, tsv or lines; None: determined
                    by the suffix of a file, and by the content of a stream
    raises          MissingError if an address does not exist; FormatError for an invalid file, a
                    table without rows, duplicate columns, or columns without a common type;
                    UsageError for an unknown suffix, or for a list of addresses that is not the
                    only source
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses:
        raise UsageError("missing table: expected at least one address")
    files: list[ListedFile | Spool] = []
    for one in addresses:
        if isinstance(one, Spool):
            files.append(one)
        elif one == STDIN:
            files += [file for file in open_streams([one], stdin) if isinstance(file, Spool)]
        else:
            file = ListedFile(locate(one, guard))
            files += [file] if kind is not None else expand_lists(file, dialect)
    kinds = [_kind(file, kind, dialect, null_separated) for file in files]
    shown = " ".join(redact(str(one)) for one in addresses)
    if LIST_INPUT in kinds:
        if len(files) > 1:
            raise UsageError(
                "a list of addresses cannot be combined with other sources",
                where=files[kinds.index(LIST_INPUT)],
                hint="Pack the list alone, or set one kind for all sources with --input.",
            )
        dialect.check_used(False, shown)
        return _open_list(shown, files[0], guard or Guard(), null_separated)
    at = _base_folder(files, guard or Guard())
    return _open_tables(shown, at, files, kinds, text, dialect, allow_missing)


def _kind(
    file: ListedFile | Spool, kind: str | None, dialect: Dialect, null_separated: bool
) -> str | None:
    """Return the kind of a file, or None if its suffix determines the kind."""
    if kind is not None or isinstance(file, ListedFile):
        return kind
    found = sniff(file, dialect, null_separated)
    if found not in INDEX_INPUTS:
        raise UsageError(
            f"expected a table, got a stream of kind {found}",
            where=file,
            hint="Write the stream to a file, and pass the name of the file.",
        )
    return found


def _base_folder(files: Sequence[ListedFile | Spool], guard: Guard) -> Location:
    """Return the base folder of relative links in the rows: the folder of the first file.

    If all sources are streams, the result is the current folder, and links may name any local
    file, because flare trusts the links in a stream that the user passed.
    """
    for file in files:
        if isinstance(file, ListedFile):
            return file.at.folder
    return locate(".", replace(guard, allow_local=True))


def _open_list(shown: str, file: ListedFile | Spool, guard: Guard, null_separated: bool) -> Index:
    """Open a list of addresses. Each address is a row that refers to the file at this address."""
    blocks = file if isinstance(file, Spool) else text_file(file.at)
    addresses, at = Addresses(blocks, null_separated), _base_folder([file], guard)
    return Index(shown, at, addresses.schema, None, (addresses,), (DATA,), NAME, is_list=True)


def open_folder(
    address: str,
    *,
    guard: Guard | None = None,
    columns: Sequence[str] | None = None,
    folder_column: str = "",
    allow_missing: bool = False,
    by_extension: bool = False,
    used: Collection[str] = (),
    where: str | None = None,
    listed: Stream | None = None,
) -> Index:
    """Open a folder as an index: files with the same key form a row; each kind of file is a column.

    columns        columns to read; keys without files for these columns are skipped
    folder_column  name of a column to add, which contains the first folder of each key; empty: none
    allow_missing  whether incomplete rows are valid, with nulls for missing files
    by_extension   True: each extension is a column; False: each category of files is a column
    used           other columns that the caller uses; metadata files are read only if one of their
                   columns is used
    where          condition on the rows; the columns in the condition are also used
    listed         a stream with the files of the folder, if the caller has listed the folder
    raises         the errors of `Folder`; UsageError for an address that cannot be listed
    """
    at = locate(address, guard)
    folder = Folder(
        at, FolderOptions(columns, folder_column, allow_missing, by_extension, used, where), listed
    )
    return Index(
        redact(address),
        at,
        folder.schema,
        folder.rows,
        (folder,),
        tuple(folder.files),
        folder.key,
        folder.notes,
        flaw=folder.flaw,
        extensions=folder.extensions,
        encodings=folder.encodings,
    )


def _open_tables(
    shown: str,
    at: Location,
    files: Sequence[ListedFile | Spool],
    kinds: Sequence[str | None],
    text: Collection[str],
    dialect: Dialect,
    allow_missing: bool,
) -> Index:
    def open_file(pair: tuple[ListedFile | Spool, str | None]) -> Part:
        file, kind = pair
        if isinstance(file, Spool):
            return open_kind(kind or "", file.location, text, dialect, file)
        try:
            if kind is not None:
                return open_kind(kind, file.at, text, dialect)
            return open_part(file.at, text, dialect)
        except FlareError as error:
            raise file.with_source(error) from None

    is_local = all(isinstance(file, Spool) or file.at.is_local for file in files)
    workers = 0 if is_local else MAX_OPENERS
    parts = list(ordered_map(open_file, list(zip(files, kinds, strict=True)), workers=workers))
    dialect.check_used(any(isinstance(part, Delimited) for part in parts), shown)
    schema, all_parts = merge(parts, allow_missing)
    known = [part.rows for part in parts if part.rows is not None]
    total = sum(known) if len(known) == len(parts) else None
    if total == 0:
        raise EmptyTableError("table has no rows", where=parts[0].at)
    return Index(
        shown,
        at,
        schema,
        total,
        all_parts,
        notes=tuple(_notes(all_parts)),
        details=tuple(_checksum_notes(all_parts)),
    )


def _checksum_notes(parts: Sequence[Part]) -> Iterator[str]:
    names = [str(part.at) for part in parts if isinstance(part, Parquet) and not part.has_sums]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{more}: pages have no checksums, so damage may stay undetected"


def _notes(parts: Sequence[Part]) -> Iterator[str]:
    """Yield notes about int96 timestamps, and about CSV files that may be read incorrectly."""
    int96 = {name for part in parts if isinstance(part, Parquet) for name in part.int96_columns}
    for name in sorted(int96):
        yield f"column {name!r}: int96 timestamps are read with microsecond precision"
    tables = [part for part in parts if isinstance(part, Delimited)]
    for part in tables:
        if part.lacks_header:
            yield (
                f"{part.at}: the first line contains numbers, not names; "
                f"the columns are column_0 to column_{len(part.schema) - 1}"
            )
        name = part.schema.names[0] if len(part.schema) == 1 else ""
        other = next((sign for sign in DELIMITERS if sign in name), None)
        if other is not None:
            yield (
                f"{part.at}: the header has only the column {name[:60]!r}; "
                f"use --csv {shell_quoted(f'delimiter={other}')} if {other!r} is the delimiter"
            )
    for name in dict.fromkeys(name for part in tables for name in part.decimal_commas):
        yield (
            f"column {name!r} has numbers with decimal commas, which are read as text; "
            "use --csv decimal=, to read them as numbers"
        )
    null_texts: dict[str, dict[str, None]] = {}  # ordered sets
    for part in tables:
        for name, texts in part.null_texts.items():
            null_texts.setdefault(name, {}).update(dict.fromkeys(texts))
    for name, found in null_texts.items():
        options = " ".join(f"--csv {shell_quoted(f'null={text}')}" for text in found)
        yield (
            f"column {name!r} contains {format_list(list(map(repr, found)))}, and is read as text; "
            f"use {options} to read {'it' if len(found) == 1 else 'them'} as null"
        )
    for name in dict.fromkeys(name for part in tables for name in part.schema.names):
        if name != name.strip():
            yield f"the name of column {name[:60]!r} begins or ends with a space"
