"""Rows of an index, and their files. The file names are checked before a download.

The rows are stored in a local memory-mapped file, because an index may be larger than memory.
"""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli import encodings
from flarecli.commands.packing.source import RowRequest, Source, SourceOptions, open_source
from flarecli.errors import FlareError, Place, ReachError, UnsafeError, UsageError, ValueFitError
from flarecli.names import check_name, scheme_of
from flarecli.progress import Progress
from flarecli.read import expand
from flarecli.sql import select
from flarecli.storage import Guard, Limits, Location, descriptors, with_reach
from flarecli.storage.local import LocalStore
from flarecli.write import Keys, key_text
from flarecli.write.failures import Failure
from flarecli.write.fetch_links import Link, fetch

__all__ = ["FetchedRow", "IndexFile", "Rows"]

MAX_BATCH_ROWS = 1 << 14  # small, because a lookup of one row reads a complete batch
MIN_STALE_AGE_S = 60.0
MAX_EXTENSION_LENGTH = 12


class IndexFile:
    """Rows of an index, stored in a local file and read by row number.

    A pickled IndexFile contains the path of the file, and no rows. The process that created the
    file removes it.

    folder    folder for the file; files that killed processes left in this folder are removed
    key       name of a column whose values must be unique; None means no key
    suffixes  if `a` is a key, `a-SUFFIX` must not be a key
    raises    UsageError for duplicate keys, or for a key that equals `a-SUFFIX` for another key `a`
    """

    def __init__(
        self,
        folder: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        key: str | None,
        where: str,
        suffixes: Sequence[str] = (),
    ) -> None:
        schema = pa.schema(
            [field.with_type(encodings.without_dictionaries(field.type)) for field in schema]
        )
        _remove_stale(folder)
        fd, self._path = tempfile.mkstemp(".arrow", ".flare-index-", folder)
        # If locks are not supported, `_remove_stale` keeps all files.
        with contextlib.suppress(OSError):
            descriptors.lock(fd)
        weakref.finalize(self, _remove, self._path, fd, os.getpid())
        starts = [0]
        with (
            contextlib.ExitStack() as stack,
            os.fdopen(os.dup(fd), "wb") as file,
            pa.ipc.new_file(file, schema) as out,
        ):
            keys = stack.enter_context(Keys())
            suffixed = {suffix: stack.enter_context(Keys()) for suffix in suffixes}
            for batch in batches:
                for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
                    part = batch.slice(start, MAX_BATCH_ROWS).cast(schema)
                    if key is not None:
                        _check_unique(keys, part.column(key), starts[-1], where)
                        for suffix, both in suffixed.items():
                            _check_suffix(both, part.column(key), suffix, where)
                    out.write_batch(part)
                    starts.append(starts[-1] + part.num_rows)
        self._starts = np.array(starts)
        self._open()

    def _open(self) -> None:
        self._file = pa.ipc.open_file(pa.memory_map(self._path))
        self.schema: pa.Schema = self._file.schema

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_starts": self._starts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Sequence[int]) -> pa.Table:
        """Return rows in the order of `rows`; read only the batches that contain the rows."""
        positions = np.asarray(rows, np.int64)
        number = np.searchsorted(self._starts, positions, "right") - 1
        order = np.argsort(number, kind="stable")
        parts = []
        for k in np.unique(number).tolist():
            in_batch = positions[number == k] - self._starts[k]
            parts.append(self._file.get_batch(k).take(pa.array(in_batch)))
        table = pa.Table.from_batches(parts, self.schema).combine_chunks()
        return table.take(pa.array(np.argsort(order)))


def _check_unique(keys: Keys, column: pa.Array, first: int, where: str) -> None:
    twice = np.flatnonzero(keys.seen(column, first) >= 0)
    if len(twice):
        raise UsageError(
            f"duplicate key {key_text(column[int(twice[0])])!r:.60}",
            where=where,
            hint="Choose a column with unique values.",
        )


def _check_suffix(both: Keys, column: pa.Array, suffix: str, where: str) -> None:
    """Raise UsageError if one key equals another key followed by `-` and the suffix.

    both  each earlier key, and each earlier key followed by `-` and the suffix
    """
    texts = [key_text(key) for key in column if key.is_valid]
    clash = np.flatnonzero(
        both.seen(pa.array([*texts, *(f"{text}-{suffix}" for text in texts)], pa.large_string()), 0)
        >= 0
    )
    if len(clash):
        key = texts[int(clash[0]) % len(texts)]
        other = key.removesuffix(f"-{suffix}") if int(clash[0]) < len(texts) else f"{key}-{suffix}"
        raise UsageError(
            f"files of the keys {min(key, other)!r:.60} and {max(key, other)!r:.60} would have the "
            "same name",
            where=where,
            hint=f"Choose a column whose values do not end in -{suffix}, or download one column "
            "at a time.",
        )


def _remove_stale(folder: str) -> None:
    """Remove the index files of killed processes: old files that no process has locked."""
    for path in glob.glob(os.path.join(glob.escape(folder), ".flare-index-*.arrow")):
        try:
            fd = os.open(path, os.O_RDONLY | descriptors.FILE)
        except OSError:
            continue
        try:
            if time.time() - os.fstat(fd).st_mtime > MIN_STALE_AGE_S:
                descriptors.lock(fd)
                os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(fd)


def _remove(path: str, fd: int, pid: int) -> None:
    if os.getpid() == pid:
        os.close(fd)
        if os.path.exists(path):
            os.unlink(path)


@dataclass(frozen=True, slots=True)
class FetchedRow:
    """A row with its fetched files, or with the error that occurred during the fetch.

    sample  columns of the row, with file paths instead of addresses
    files   column -> path
    size    total bytes of the files
    """

    row: int
    sample: dict[str, Any]
    files: Mapping[str, str]
    size: int
    error: FlareError | None = None


class Rows:
    """The rows of an index or of a folder of files. The files of a row are fetched on request.

    key     column whose values are used in file names; if the default `index` is not a column, the
            key column of the source is used; without a key column, the row number is used
    raises  UsageError for a missing column or a duplicate key
    """

    def __init__(
        self,
        src: str,
        dst: str,
        columns: Sequence[str] | None,
        key: str,
        *,
        jobs: int,
        retries: int,
        keep: Sequence[str] | None,
        limit: int | None,
        indexes: int | None,
        sql: str | None,
        allow_missing: bool,
        allow_private: bool,
        allow_local: bool,
        allow_host: str | Sequence[str] = (),
    ) -> None:
        self._limits = Limits(jobs=jobs, retries=retries)
        guard = Guard(limits=self._limits, allow_private=allow_private, allow_local=allow_local)
        self._guard = with_reach(guard, allow_host, [src])
        self._src = _first(src, indexes)
        self._options = SourceOptions(
            text=[key], guard=self._guard, allow_missing=allow_missing, by_extension=True
        )
        source = open_source(self._src, self._options)
        self._source: Source | None = source
        self._links_at, self._files, self._allow_missing = source.at, source.files, allow_missing
        self.columns = list(columns or source.files)
        names = source.schema.names
        if not self.columns:
            raise UsageError(
                "no column to download", where=src, hint=f"Choose from {', '.join(names)}."
            )
        self.key = key if key in names or key != "index" else source.key or ""
        required = [*self.columns, *([self.key] if self.key else [])]
        schema, batches = _batches(
            source,
            [name for name in names if keep is None or name in keep or name in required],
            limit,
            sql,
        )
        for name in required:
            if name not in schema.names:
                raise UsageError(
                    f"no column {name!r}",
                    where=src,
                    hint=f"Choose from {', '.join(names)}.",
                    column=name,
                )
        if self.key in self.columns:
            raise UsageError(
                f"column {self.key!r} cannot be both the key and a column to download",
                where=src,
                column=self.key,
            )
        os.makedirs(dst, exist_ok=True)
        self.dst = dst
        self.table = IndexFile(
            os.path.dirname(os.path.abspath(dst)),
            schema,
            batches,
            self.key or None,
            src,
            _suffixes(self.columns),
        )
        self._at = Location(LocalStore(os.path.realpath(dst), dst, durable=False))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}  # the source is opened again if needed

    def __len__(self) -> int:
        return len(self.table)

    def fetch(self, rows: Sequence[int]) -> list[FetchedRow]:
        """Fetch the missing files of rows in parallel; return the rows in order."""
        batch = self.table.take(rows)
        samples, fetched = batch.to_pylist(), []
        missing: list[int] = []
        for i, (row, sample) in enumerate(zip(rows, samples, strict=True)):
            try:
                names = self._names(row, sample)
            except FlareError as error:
                fetched.append(FetchedRow(row, sample, {}, 0, error))
                continue
            fetched.append(FetchedRow(row, sample, names, 0))
            if not all(os.path.exists(os.path.join(self.dst, name)) for name in names.values()):
                missing.append(i)
        if missing:
            self._fetch_files(batch.take(pa.array(missing, pa.int64())), missing, fetched)
        return [row if row.error is not None else self._paths(row) for row in fetched]

    def _names(self, row: int, sample: dict[str, Any]) -> dict[str, str]:
        """Return the file names of a row: column -> `KEY-COLUMN.ext`."""
        key = str(sample[self.key] if self.key else row)
        names = {}
        for column in self.columns:
            address = sample[column]
            if address is None or address == "":
                if not self._allow_missing:
                    raise ValueFitError(
                        f"column {column!r} has no address",
                        row=row,
                        hint="Pass allow_missing_columns=True.",
                        column=column,
                    )
                continue
            path = str(address).partition("?")[0].rpartition("/")[2]
            extension = os.path.splitext(path)[1].lower()[:MAX_EXTENSION_LENGTH]
            name = f"{key}-{column}{extension}"
            if "/" in name:
                raise UnsafeError(f"file name {name!r:.80} contains a slash", row=row)
            names[column] = check_name(name, where=Place(row=row))
        return names

    def _fetch_files(self, table: pa.Table, missing: list[int], fetched: list[FetchedRow]) -> None:
        """Fetch and write the files of rows; add the error of each failed row to `fetched`.

        table    rows whose files are fetched
        missing  position of each row of `table` in `fetched`
        """
        (batch,) = table.combine_chunks().to_batches()
        if self._files:
            self._read_files(batch, missing, fetched)
            return
        for column in self.columns:  # a row may have an address in only some columns
            at = [
                k
                for k, i in enumerate(missing)
                if fetched[i].error is None and fetched[i].sample[column] not in (None, "")
            ]
            addresses = pa.RecordBatch.from_arrays(
                [batch.column(column).take(pa.array(at, pa.int64()))], [column]
            )
            parts = fetch(
                [addresses],
                [Link(column, column)],
                key=None,
                at=self._links_at,
                guard=self._guard,
                limits=self._limits,
                progress=Progress(),
            )
            for part in parts:
                for failure in part.failures:
                    i = missing[at[failure.row]]
                    address = str(fetched[i].sample[column])
                    error = _error_of(failure, column, address, fetched[i].row)
                    fetched[i] = replace(fetched[i], error=error)
                self._store(part.batch, [missing[at[row]] for row in part.rows.tolist()], fetched)

    def _read_files(
        self, batch: pa.RecordBatch, missing: list[int], fetched: list[FetchedRow]
    ) -> None:
        """Copy the files of rows if the source is a folder of files."""
        if self._source is None:  # a worker process
            self._source = open_source(self._src, self._options)
        names = [name for name in self.columns if name in self._files]
        for contents, flaws in self._source.filled([batch.select(names)], names):
            for flaw in flaws:
                i = missing[flaw.row]
                fetched[i] = replace(fetched[i], error=flaw.error)
            self._store(contents, missing, fetched)

    def _store(
        self, batch: pa.RecordBatch, places: Sequence[int], fetched: list[FetchedRow]
    ) -> None:
        for column in batch.schema.names:
            for i, value in zip(places, batch.column(column), strict=True):
                data = value.as_buffer() if value.is_valid else None
                name = fetched[i].files.get(column)
                if data is not None and name is not None and fetched[i].error is None:
                    (self._at / name).write([memoryview(data)])

    def _paths(self, row: FetchedRow) -> FetchedRow:
        paths = {column: os.path.join(self.dst, name) for column, name in row.files.items()}
        try:
            size = sum(os.path.getsize(path) for path in paths.values())
        except FileNotFoundError as error:
            return replace(
                row,
                error=ReachError(
                    "the file was removed while it was being fetched", where=error.filename
                ),
            )
        return replace(row, sample={**row.sample, **paths}, files=paths, size=size)


def _error_of(failure: Failure, column: str, address: str, row: int) -> FlareError:
    """Return the error for a row whose file was not fetched."""
    message = f"column {column!r}: {failure.reason}"
    if failure.kind != "unsafe":
        return ReachError(message, row=row, column=column)
    switch = "allow_private" if scheme_of(address) in ("http", "https") else "allow_local"
    return UnsafeError(
        message,
        row=row,
        column=column,
        hint=f"Pass {switch}=True if you trust this index.",
    )


def _suffixes(columns: Sequence[str]) -> list[str]:
    """Return key suffixes that make file names ambiguous.

    With columns `url` and `thumb-url`, `KEY-thumb-url` may be a file of `KEY` or `KEY-thumb`.
    """
    return sorted(
        {
            long.removesuffix(f"-{short}")
            for long in columns
            for short in columns
            if long.endswith(f"-{short}")
        }
    )


def _first(src: str, count: int | None) -> str | list[str]:
    """Return the first `count` indexes that match a wildcard.

    raises  UsageError for an invalid count
    """
    if count is None:
        return src
    if count < 1 or src.endswith(".txt"):
        raise UsageError(
            f"max_index_files_to_use: expected at least 1, got {count}"
            if count < 1
            else "max_index_files_to_use cannot be combined with a list of addresses",
            where=src,
        )
    return expand(src)[:count]


def _batches(
    source: Source, names: list[str], limit: int | None, sql: str | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of the selected columns and rows."""
    schema, batches = (
        pa.schema([source.schema.field(name) for name in names]),
        source.batches(RowRequest(names)),
    )
    if source.files:
        schema = pa.schema(
            [
                field.with_type(pa.large_string()) if field.name in source.files else field
                for field in schema
            ]
        )
    if sql is not None:
        schema, batches = select(schema, batches, sql)
    return schema, batches if limit is None else _limit(batches, limit)


def _limit(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows
