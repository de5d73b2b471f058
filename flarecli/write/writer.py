"""Writer: write rows as shards, then the index, and finally the playlist as the commit."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from flarecli import __version__, compress, encodings, formats, playlists
from flarecli import hashes as sums
from flarecli.arguments import Address, checked, shown
from flarecli.errors import FlareError, UnsafeError, UsageError, ValueFitError
from flarecli.model import Chunk, Columns, File, IntArray, Playlist, Settings, Stream
from flarecli.names import escape
from flarecli.prefetch import OrderedQueue
from flarecli.progress import Progress, counted
from flarecli.storage import Guard
from flarecli.write.columns import (
    ColumnConverter,
    Unstorable,
    check_columns,
    chosen_encodings,
    convert_all,
    measured,
    record_batches,
    restored_batch,
    schema_header,
    source_types,
    stored_schema,
    table_encodings,
)
from flarecli.write.failures import Failed
from flarecli.write.folder_target import claim
from flarecli.write.journal import Journal
from flarecli.write.target import Target, check_files

if TYPE_CHECKING:
    # imported only for type hints, because `ingest` loads the readers of tables
    from flarecli.ingest import SourceChecksum

__all__ = ["SHARD_LIMIT", "Writer"]

MAX_BUFFERED_SAMPLES, MAX_BUFFERED_BYTES = 1024, 1 << 24
_MAX_QUEUED_BYTES = 256 << 20  # maximum total size of the rows in unrecorded shards
_KEYS_HINT = "Make the keys unique, or omit the column so that each row gets a generated key."
_COLUMNS_ERROR = "columns: expected names with encodings"
_COLUMNS_HINT = 'Use a mapping such as {"image": "jpeg", "label": "int"}.'
SHARD_LIMIT = (1 << 32) - 1  # maximum shard size in bytes: the largest uint32 offset


class Writer:
    """A writer that stores rows as shards in a folder, on a disk or in a bucket.

        with Writer("out", columns={"image": "jpeg", "label": "int"}) as writer:
            writer.write({"image": data, "label": 3})

    At the end of the `with` block, `close()` writes the index and then the playlist. After an
    exception, `abandon()` keeps the finished shards. A later Writer with `resume=True` continues
    after these shards; its attribute `rows` starts with the number of rows in these shards. If an
    open Writer is garbage collected, it is abandoned, and Python issues a ResourceWarning.

    columns    name -> encoding, or Columns; None: infer the columns from the first `write_batch`
    settings   shard limits, compression and checksums
    head       source and options; to resume, a later Writer must be called with an equal `head`
    source_checksum  checksum that is computed while the source is read; see `Journal`
    guard      access rules, and limits of requests to a remote target
    jobs       maximum number of compressed shards to write in parallel; if a shard cannot be
               written, a later call raises the error
    playlist   True: write `playlist.yaml`; False: the format's own index marks the dataset as
               complete, as in the original library
    progress   receives the number of written rows while a shard is written
    keeps_rows  True: keep written rows in `unrecorded` until the journal lists their shard
    unrecorded  written rows whose shard is not in the journal, in row order: (batch, position of
                each row in the selection)
    has_large_row  whether this Writer wrote a row that is larger than the shard limit
    raises     the errors of `Target`; UsageError for an unknown format
    """

    # public names for other modules of this package; docs/api.md omits them
    INTERNAL: ClassVar[frozenset[str]] = frozenset(
        (
            "INTERNAL",
            "abandon",
            "find_unstorable",
            "is_done",
            "is_empty",
            "kept_rows",
            "name_columns",
            "size",
            "stored_schema",
            "write_typed",
        )
    )

    @checked
    def __init__(
        self,
        path: Address,
        *,
        format: str = formats.DEFAULT,
        columns: Mapping[str, str] | Columns | None = None,
        settings: Settings | None = None,
        head: Mapping[str, Any] | None = None,
        source_checksum: SourceChecksum | None = None,
        resume: bool = False,
        overwrite: bool = False,
        guard: Guard | None = None,
        jobs: int = 1,
        playlist: bool = True,
        progress: Progress | None = None,
    ) -> None:
        if jobs < 1:
            raise UsageError(f"jobs: expected at least 1, got {jobs}")
        self._format, self.settings = (
            formats.find(format),
            _validated_settings(settings or Settings()),
        )
        is_cut = self.settings.shard_bytes is not None or self.settings.shard_rows is not None
        self._subfolder = self._format.shards_in if is_cut else ""
        arranged = None if columns is None else self._arranged(columns)
        self.target = claim(path, resume=resume, overwrite=overwrite, guard=guard)
        self.columns: Columns | None = None
        self._stored_schema: pa.Schema | None = None  # computed on first use
        self._chunks: list[Chunk] = []
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_rows, self._buffered_bytes, self._header_bytes = 0, 0, 0
        # the batch that `find_unstorable` checked last, and the sizes of its rows
        self._measured: tuple[pa.RecordBatch | None, IntArray] = (None, np.zeros(0, np.int64))
        self.keeps_rows = False
        self.unrecorded = deque[tuple[pa.RecordBatch, IntArray]]()
        self._samples = _SampleBuffer()
        # keys in the unfinished shard, if the format requires unique keys
        self._shard_keys: set[bytes] = set()
        # the calling thread writes uncompressed shards, because more threads would not be faster
        threads = jobs if self.settings.compression and jobs > 1 else 0
        self._queue = OrderedQueue(
            _write_queued,
            workers=threads,
            max_items=threads + 1,
            max_bytes=_MAX_QUEUED_BYTES,
            weigh=lambda shard: shard.size,
        )
        self._ended = self.target.is_done
        self._writes_playlist, self._progress = playlist, progress or Progress()
        self._is_abandoned = self.has_large_row = False
        # True while the buffer is being changed. If the change is interrupted, the attribute stays
        # True, because rows may be lost or repeated. It is also True after a failed write of a
        # shard. If the attribute is True, the Writer accepts no more rows.
        self._is_inconsistent = False
        self.rows = self.next = 0
        self.written_bytes = 0  # size of the rows that this Writer wrote, before compression
        if self._ended:
            self.rows = self._listed_rows()
            return
        try:
            self._begin(
                {
                    "flare": __version__,
                    "format": format,
                    "settings": asdict(self.settings),
                    **(head or {}),
                },
                source_checksum,
            )
            if arranged is not None:
                self._name_columns(arranged, None)
        except BaseException:
            self.target.abandon(keep=True)
            raise
        self._dropped = weakref.finalize(
            self, _drop, os.getpid(), self.target, self.failed, self.journal
        )
        self._dropped.atexit = False  # no call at exit, because the lock ends with the process

    def _begin(self, head: dict[str, Any], source_checksum: SourceChecksum | None) -> None:
        self.journal = Journal(self.target.at, head, source_checksum)
        for entry in self.journal.shards:
            files = tuple(File(**file) for file in entry["files"])
            main, *companions = (self.target.at / file.name for file in files)
            self._chunks.append(
                Chunk(main, entry["rows"], files, self._format.name, tuple(companions))
            )
            self.rows += entry["rows"]
            self.next = entry["next"]
        self.failed = Failed(
            self.target.at, self.journal.shards[-1]["failed"] if self._chunks else None
        )
        if self.journal.columns is not None:
            self.columns = tuple(
                encodings.column(name, encoding, self.journal.extensions.get(name, ""))
                for name, encoding in self.journal.columns
            )

    def _listed_rows(self) -> int:
        """Return the number of rows in a finished dataset; 0 if the playlist cannot be read."""
        with contextlib.suppress(FlareError):
            return sum(
                0 if one.rows is None else int(one.rows.sum())
                for one in playlists.read(self.target.at / playlists.PLAYLIST).streams
            )
        return 0

    def _check_open(self) -> None:
        """Raise UsageError if the Writer is closed, or if an earlier write failed."""
        if self._is_inconsistent and not self._ended:
            raise UsageError(
                "an earlier shard could not be written, so later rows are refused",
                hint="Open another Writer with resume=True, and skip the rows that it already contains (`writer.rows`).",
            )
        if self._ended:
            raise UsageError(
                "the dataset is already finished"
                if self.is_done or not self._is_abandoned
                else "the Writer was abandoned",
                where=self.target.shown,
                hint="Write rows only if `is_done` is False, or pass overwrite=True to replace the dataset."
                if self.is_done
                else "Open another Writer.",
            )

    def _arranged(
        self, columns: Mapping[str, str] | Columns, extensions: Mapping[str, str] | None = None
    ) -> Columns:
        pairs = _column_pairs(columns)
        known = _extensions(columns) if extensions is None else extensions
        return formats.arranged(
            self._format,
            (encodings.column(name, encoding, known.get(name, "")) for name, encoding in pairs),
        )

    def _name_columns(self, columns: Columns, schema: Mapping[str, Any] | None) -> None:
        if self.columns is None:
            self.columns = columns
            self.journal.record_columns(
                [(column.name, column.encoding) for column in columns],
                schema,
                {column.name: column.extension for column in columns if column.extension},
            )
        elif columns != self.columns:
            raise UsageError(
                "the unfinished pack has different columns",
                where=self.target.shown,
                hint="Use --overwrite to start again.",
            )

    @property
    def format(self) -> str:
        """Return the name of the format."""
        return self._format.name

    @property
    def is_done(self) -> bool:
        """Return whether the target already contained a finished dataset.

        In this case, no rows can be written.
        """
        return self.target.is_done

    @property
    def is_empty(self) -> bool:
        """Return whether no row has been written."""
        return not (self._chunks or len(self._queue) or self._buffered_rows or self._samples)

    @property
    def shards(self) -> int:
        """Return the number of finished shards."""
        return len(self._chunks)

    @property
    def kept_rows(self) -> int | None:
        """Return the row count of finished shards; None if `abandon` would remove the output."""
        return sum(chunk.rows or 0 for chunk in self._chunks) if _is_kept(self.journal) else None

    @property
    def size(self) -> int:
        """Return the total size of the finished shards in bytes."""
        return sum(file.size or 0 for chunk in self._chunks for file in chunk.files)

    def name_columns(
        self,
        columns: Mapping[str, str] | Columns,
        types: Mapping[str, pa.DataType] | None = None,
        extensions: Mapping[str, str] | None = None,
    ) -> Columns:
        """Set the columns, and return them in the order of the format.

        types       column -> Arrow type to list in the playlist, in the order of the source
        extensions  column -> extension of the files in the column, see `Column`; None: the
                    extensions in `columns`
        """
        if extensions is None:
            extensions = _extensions(columns)
        if types is not None and self._format.typed:
            columns = table_encodings(self._format, dict(_column_pairs(columns)), types)
        arranged = self._arranged(columns, extensions)
        header = None
        if types is not None:
            header = schema_header(arranged, types, self._format.key_column)
        self._name_columns(arranged, header)
        return self.columns or ()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample.

        Samples are buffered. If the format cannot store a buffered sample, a later call raises
        ValueFitError with the row number of that sample, and drops only that sample.

        sample  column -> Python value; a value of type `bytes` is stored unchanged
        raises  UsageError for a missing or unknown column, or if the dataset is finished;
                ValueFitError for a value that its encoding cannot store
        """
        self._check_open()
        if self.columns is None:
            raise UsageError("the columns are unknown", hint="Pass columns= to the Writer.")
        self._samples.add(self.columns, sample, self.rows + self._buffered_rows)
        if self._samples.is_full:
            self._write_samples()

    def _write_samples(self) -> None:
        """Write the buffered samples. Drop a sample that cannot be stored, and raise the error."""
        if not self._samples:
            return
        first, refused = self.rows + self._buffered_rows, -1
        try:
            batch = self._samples.batch(self.columns or (), first)
            if self._format.typed:
                kinds = {field.name: field.type for field in self.stored_schema}
                batch = restored_batch(batch, self.columns or (), kinds)
            self.write_typed(
                batch,
                np.arange(first, first + len(self._samples)),
            )
        except (ValueFitError, UnsafeError) as error:
            if error.row is not None and not error.address:
                refused = error.row - first
            raise
        finally:
            self._samples.remove(self.rows + self._buffered_rows - first, refused)

    def find_unstorable(self, batch: pa.RecordBatch) -> Unstorable | None:
        """Return the first row that the format cannot store; None if it can store all rows."""
        if self._measured[0] is batch:
            return None
        found = measured(self._format, self.columns or (), batch, self.settings)
        if isinstance(found, Unstorable):
            return found
        self._header_bytes, sizes = found
        self._measured = batch, sizes
        return None

    def write_batch(self, batch: Any, rows: IntArray | Sequence[int] | None = None) -> None:
        """Write a table. Each column is cast to its encoding, and every value is checked.

        Columns are matched by name. If the Writer has no columns yet, it infers them from the first
        batch. If a value cannot be stored, no row of the table is written. If the table is a
        stream, its earlier batches remain written, and no further row is written.

        batch   a pyarrow RecordBatch or Table, or a stream: any other object with the method
                `__arrow_c_stream__` or `__arrow_c_array__`, such as a pandas or Polars DataFrame, a
                DuckDB relation, a pyarrow RecordBatchReader or a flare dataset
        rows    int64 [rows of the batch], ascending: the number of each row in the source, for the
                journal; by default, rows are numbered in the order in which they are written. With
                `rows`, a stream is read into memory and written as a table
        raises  UsageError for a missing or unknown column; ValueFitError with row and column for a
                null, or for a value that the encoding or the format cannot store
        """
        self._check_open()
        if not isinstance(batch, (pa.RecordBatch, pa.Table)):
            from flarecli.ingest import arrow_batches

            stream = arrow_batches(batch)
            if stream is not None and rows is None:
                for one in stream:
                    self._write_table(one, None)
                return
            found = [] if stream is None else list(stream)
            batch = pa.Table.from_batches(found) if found else batch
        self._write_table(batch, rows)

    def _write_table(
        self, batch: pa.RecordBatch | pa.Table, rows: IntArray | Sequence[int] | None
    ) -> None:
        batches = record_batches(batch)
        places = None if rows is None else _row_numbers(rows, batch.num_rows)
        names = batch.schema.names
        if self.columns is None:
            check_columns(names, names)
            if not batch.num_rows:
                return
            chosen = chosen_encodings(
                batches[0], names, {}, {}, {}, holds_null=self._format.holds_null
            )
            self.name_columns(chosen, source_types(batch.schema, chosen, {}, {}))
        columns = self.columns or ()
        check_columns(names, [column.name for column in columns])
        self._write_samples()  # the buffered samples precede the rows of this table
        if places is None:
            first = self.rows + self._buffered_rows
            places = np.arange(first, first + batch.num_rows)
        typed = ColumnConverter(columns, None, self._format.holds_null, self.stored_schema)
        ready, start = [], 0
        for one in batches:
            numbers = places[start : start + one.num_rows]
            ready.append((convert_all(typed, one, numbers), numbers))
            start += one.num_rows
        for one, numbers in ready if len(ready) > 1 else ():
            self._check_storable(one, numbers)
        for one, numbers in ready:
            self.write_typed(one, numbers)

    def write_typed(self, batch: pa.RecordBatch, rows: IntArray) -> None:
        """Write a batch from `ColumnConverter.convert`. The types are checked, but not the values.

        If the format cannot store a row, no row of the batch is written. If a key is a duplicate,
        the rows of the batch that are already in earlier shards remain written.

        rows    int64 [rows of the batch]: the position of each row in the selection
        raises  ValueFitError with the row number for a row that the format cannot store, or for a
                key that is already in the same shard
        """
        self._check_open()
        expected_fields = zip(self.columns or (), self.stored_schema, batch.schema, strict=True)
        for column, expected, field in expected_fields:
            if not field.equals(expected):
                raise UsageError(
                    f"column {field.name!r}: expected {expected.type} for {column.encoding}, "
                    f"got {field.type}",
                    column=field.name,
                )
        self._check_storable(batch, rows)
        sizes, self._measured = self._measured[1], (None, np.zeros(0, np.int64))
        ends = np.cumsum(sizes)
        self.written_bytes += int(ends[-1]) if len(ends) else 0
        limit = min(self.settings.shard_bytes or SHARD_LIMIT, SHARD_LIMIT)
        max_rows = self.settings.shard_rows or 1 << 62
        start, before = 0, 0
        while start < batch.num_rows:
            room = limit - self._header_bytes - self._buffered_bytes
            stop = min(
                int(np.searchsorted(ends, before + room, "right")),
                start + max_rows - self._buffered_rows,
            )
            if stop <= start and not self._buffered_rows:
                stop = start + 1  # a row that is larger than the shard limit gets its own shard
                self.has_large_row = True
            if stop > start:
                self._check_keys(batch.slice(start, stop - start), rows[start:])
                self._is_inconsistent = True
                part = batch.slice(start, stop - start)
                if self.keeps_rows:
                    self.unrecorded.append((part, rows[start:stop]))
                self._buffered.append(part)
                self._buffered_rows += stop - start
                self._buffered_bytes += int(ends[stop - 1]) - before
                self._is_inconsistent = False
                start, before = stop, int(ends[stop - 1])
            if start < batch.num_rows:
                self._flush(int(rows[start]))
                # otherwise, Arrow's default allocator would keep the memory of the written rows and
                # allocate more memory for the next shard
                pa.default_memory_pool().release_unused()

    def _check_storable(self, batch: pa.RecordBatch, rows: IntArray) -> None:
        """Raise the error for the first row that the format cannot store."""
        if unstorable := self.find_unstorable(batch):
            raise unstorable.error.changed(row=int(rows[unstorable.row]))

    def _check_keys(self, batch: pa.RecordBatch, rows: IntArray) -> None:
        """Raise ValueFitError for a key that is already in the unfinished shard."""
        column = self._format.key_column
        if not column or column not in batch.schema.names:
            return
        names = batch.column(column).cast(pa.large_binary()).to_pylist()
        if len(fresh := set(names)) == len(names) and self._shard_keys.isdisjoint(fresh):
            self._shard_keys |= fresh
            return
        fresh = set()
        for name, row in zip(names, rows.tolist(), strict=False):
            if name in self._shard_keys or name in fresh:
                shown = escape(name.decode("utf-8", "backslashreplace"))
                raise ValueFitError(
                    f"duplicate key {shown!r:.80} in the same shard",
                    row=row,
                    hint=_KEYS_HINT,
                )
            fresh.add(name)

    def end_shard(self, next: int) -> None:
        """End the unfinished shard. The next row begins another shard.

        next  position of the next row in the selection
        """
        self._check_open()
        self._write_samples()
        if self._buffered_rows:
            self._flush(next)

    def _flush(self, next: int) -> None:
        """Queue the buffered rows as one shard.

        next  position of the next shard's first row in the selection
        """
        self._is_inconsistent = True
        number, size = len(self._chunks) + len(self._queue), self._buffered_bytes
        write = partial(self._write_shard, number, self._buffered, size)
        self.rows += self._buffered_rows
        self._buffered, self._buffered_rows, self._buffered_bytes, self._shard_keys = (
            [],
            0,
            0,
            set(),
        )
        # later failures may be written before the shard is recorded, so the state is computed now
        failed = self.failed.settle(next)
        self._record(partial(self._queue.put, _QueuedShard(write, next, failed, size)))
        self._is_inconsistent = False

    def _record(self, written: Callable[[], Iterable[_WrittenShard]]) -> None:
        """Call `written`, and add each shard that it returns to the journal, in order."""
        try:
            for chunk, next, failed in written():
                self._chunks.append(chunk)
                self.target.check()
                self.journal.record_shard(chunk.rows or 0, next, chunk.files, failed)
                self.next = next
                self.failed.forget(next)
                while self.unrecorded and self.unrecorded[0][1][-1] < next:
                    self.unrecorded.popleft()
        except BaseException:
            self._queue.close()  # later shards must not be recorded, because this shard is missing
            raise

    @property
    def stored_schema(self) -> pa.Schema:
        """Return the schema of the batches for `write_typed`; see `columns.stored_schema`."""
        if self._stored_schema is None:
            columns = self.columns or ()
            types = self._types if self._format.typed else {}
            self._stored_schema = stored_schema(self._format, columns, types)
        return self._stored_schema

    @property
    def _types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column of the packed table, in column order."""
        if self.journal.schema is not None:
            return {name: encodings.parse_type(one) for name, one in self.journal.schema.items()}
        return {one.name: encodings.lookup(one.encoding).arrow for one in self.columns or ()}

    def _write_shard(self, number: int, batches: list[pa.RecordBatch], size: int) -> Chunk:
        """Write a shard, and report its rows to `progress` while the shard is written.

        size  total size of the rows in bytes, to compute how many rows have been written so far
        """
        at, rows, written = self.target.at, sum(batch.num_rows for batch in batches), 0

        def report(count: int) -> None:
            nonlocal written
            count = min(count, size - written)
            written += count
            self._progress.written(rows * count / max(1, size))

        if self._format.typed:
            types, columns = self._types, self.columns or ()
            batches = [restored_batch(batch, columns, types) for batch in batches]
        with counted(report):
            chunk = self._format.write_shard(
                at / self._subfolder if self._subfolder else at,
                number,
                self.columns or (),
                batches,
                self.settings,
            )
        self._progress.written(rows * (1 - written / max(1, size)))
        if not self._subfolder:
            return chunk
        return replace(
            chunk,
            files=tuple(
                replace(file, name=f"{self._subfolder}/{file.name}") for file in chunk.files
            ),
        )

    @checked
    def close(
        self,
        source: Mapping[str, Any] | None = None,
        commit: Callable[[Stream, Target], None] | None = None,
    ) -> str:
        """Write the last shard, the index and the playlist; return the path of the playlist.

        Later calls return the same path. If `close` raises an error, call `abandon` to unlock the
        target. A `with` block calls these methods itself.

        source  description of the source, for the playlist
        commit  function to call with the written stream and the target after the playlist was
                written, and before the target is unlocked. If `commit` raises an error, the shards
                are kept, so that the pack can be resumed
        """
        if self._is_abandoned or self._is_inconsistent:
            self._check_open()
        if self._ended:
            return self.playlist
        self._write_samples()
        if self._buffered_rows:
            self._flush(1 << 62)
        self._is_inconsistent = True
        self._record(self._queue.drain)
        self._is_inconsistent = False
        self.failed.settle(1 << 62)
        self.target.check()
        files = self._format.write_index(
            self.target.at, self._chunks, self.columns or (), self.settings
        )
        failed = self.failed.files()
        written = (file for chunk in self._chunks for file in chunk.files)
        check_files(
            self.target.at,
            ((one.name, one.size) for one in (*written, *files.values(), *failed.values())),
            "Run the same command with --resume to write the file again.",
        )
        self.target.check(now=True)
        if self._writes_playlist:
            playlists.write(
                self.target.at / playlists.PLAYLIST,
                Playlist((self._stream({**files, **failed}, source),)),
            )
        if commit is not None:
            commit(self._stream({**files, **failed}, source), self.target)
        self.failed.close()
        self.journal.close()
        self._ended = True
        self._dropped.detach()
        self.target.finish()
        return self.playlist

    @property
    def playlist(self) -> str:
        """Return the path of the playlist, as a user would type it."""
        return self.target.playlist

    def _stream(self, files: dict[str, File], source: Mapping[str, Any] | None) -> Stream:
        stored = [chunk.files[0] for chunk in self._chunks]
        names = sorted({sums.DEFAULT, *self.settings.hashes})
        zipped = any(file.raw_size is not None for file in stored)
        schema = self.journal.schema
        if schema is None and self._format.typed:
            schema = {
                name: encodings.type_header(encodings.without_variants(kind))
                for name, kind in self._types.items()
            }
        headers = {
            key: value
            for key, value in (
                ("compression", self.settings.compression),
                (playlists.SCHEMA, schema),
                ("source", source),
            )
            if value
        }
        return Stream(
            "data",
            self.target.at,
            self._format.name,
            [file.name for file in stored],
            self.columns or (),
            np.array([chunk.rows for chunk in self._chunks], np.int64),
            np.array([file.size for file in stored], np.int64),
            {name: [file.hashes[name] for file in stored] for name in names},
            np.array([file.raw_size for file in stored], np.int64) if zipped else None,
            {},
            headers,
            files,
            [chunk.files[1:] for chunk in self._chunks]
            if any(len(chunk.files) > 1 for chunk in self._chunks)
            else (),
        )

    def abandon(self) -> None:
        """Stop without a playlist, and unlock the target.

        Finished shards are kept, so that the pack can be resumed. If there are neither finished
        shards nor saved downloads, the output is removed.
        """
        if self._ended:
            return
        self._ended = self._is_abandoned = True
        self._dropped.detach()
        with contextlib.suppress(Exception):  # the caller is already handling another error
            self._record(self._queue.drain)
        self._queue.close(wait=True)  # wait for threads that are still writing shards
        _release(self.target, self.failed, self.journal)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Writer cannot be sent to another process",
            hint="Open a separate Writer in each process, with a separate folder.",
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.abandon()  # does nothing after a successful `close`


class _QueuedShard(NamedTuple):
    """A shard to write.

    write   function that writes the shard
    next    position of the next shard's first row in the selection
    failed  state of `failed.jsonl` for the journal
    size    total size in bytes of the rows in the shard
    """

    write: Callable[[], Chunk]
    next: int
    failed: dict[str, Any]
    size: int


_WrittenShard = tuple[Chunk, int, dict[str, Any]]  # chunk, and the fields `next` and `failed`


def _write_queued(shard: _QueuedShard) -> _WrittenShard:
    return shard.write(), shard.next, shard.failed


class _SampleBuffer:
    """Buffer of encoded samples, which are written as one batch."""

    def __init__(self) -> None:
        self._buffered: list[dict[str, Any]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._buffered)

    @property
    def is_full(self) -> bool:
        """Return whether the buffer has reached MAX_BUFFERED_SAMPLES or MAX_BUFFERED_BYTES."""
        return len(self._buffered) >= MAX_BUFFERED_SAMPLES or self._size >= MAX_BUFFERED_BYTES

    def add(self, columns: Columns, sample: Mapping[str, Any], first: int) -> None:
        """Encode a sample and add it to the buffer.

        first   row number of the first sample in the buffer, for errors
        raises  UsageError for a missing or unknown column; ValueFitError for a value that its
                encoding cannot store
        """
        try:
            keys = sample.keys()
        except AttributeError:
            kind = type(sample).__name__
            raise UsageError(f"sample: expected a mapping, got {kind}") from None
        if keys != {column.name for column in columns}:
            names = sorted(set(sample) ^ {column.name for column in columns})
            if names[0] in sample:
                raise UsageError(f"the sample has an unknown column {names[0]!r}", column=names[0])
            raise UsageError(f"the sample has no column {names[0]!r}", column=names[0])
        row = {}
        for column in columns:
            try:
                row[column.name] = encodings.encode(
                    encodings.lookup(column.encoding), sample[column.name]
                )
            except FlareError as error:
                at = first + len(self._buffered)
                raise error.changed(address="", row=at).of_column(column.name) from None
        self._buffered.append(row)
        self._size += _sample_size(row)

    def batch(self, columns: Columns, first: int) -> pa.RecordBatch:
        """Return all samples in the buffer as a batch.

        first   row number of the first sample in the buffer, for errors
        raises  ValueFitError with the row number for text that is not valid UTF-8
        """
        arrays = []
        for column in columns:
            encoding = encodings.lookup(column.encoding)
            try:
                arrays.append(
                    encodings.typed(
                        pa.array([sample[column.name] for sample in self._buffered], encoding.raw),
                        encoding,
                    )
                )
            except ValueFitError as error:
                raise error.at("", first).of_column(column.name) from None
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([encodings.field(column) for column in columns])
        )

    def remove(self, count: int, refused: int = -1) -> None:
        """Remove the first `count` samples, and the sample at index `refused` unless it is -1."""
        self._buffered = [
            sample for i, sample in enumerate(self._buffered) if i >= count and i != refused
        ]
        self._size = sum(map(_sample_size, self._buffered))


def _sample_size(row: Mapping[str, Any]) -> int:
    return sum(
        sum(map(len, stored)) if isinstance(stored, list) else len(stored)
        for stored in row.values()
    )


def _row_numbers(rows: IntArray | Sequence[int], count: int) -> IntArray:
    """Convert row numbers to an array.

    raises  UsageError if the row numbers are not `count` ascending integers
    """
    places = np.asarray(rows)
    if not count and not places.size:
        return np.zeros(0, np.int64)
    if places.dtype.kind not in "iu" or places.shape != (count,):
        raise UsageError(f"rows: expected {count} whole numbers, got {shown(rows)}")
    if (places[1:] <= places[:-1]).any():
        raise UsageError(f"rows: expected ascending numbers, got {shown(rows)}")
    return places


def _release(target: Target, failed: Failed, journal: Journal) -> None:
    failed.close()
    journal.close()
    target.abandon(keep=_is_kept(journal))


def _is_kept(journal: Journal) -> bool:
    """Return whether the output of an abandoned Writer is kept, so that it can be resumed."""
    return bool(journal.shards) or journal.is_kept


def _drop(pid: int, target: Target, *logs: Any) -> None:
    """Abandon the target of a garbage-collected Writer. In a forked process, do nothing."""
    if os.getpid() != pid:
        return
    # unlock before the warning, because a warning handler may open the target
    target.run_finalizer(partial(_release, target, *logs))
    warnings.warn(
        f"{target.shown}: a Writer was garbage collected without close()",
        ResourceWarning,
        stacklevel=2,
    )


def _validated_settings(settings: Settings) -> Settings:
    """Validate settings, and convert numbers such as numpy integers to Python integers.

    raises  UsageError for an invalid setting
    """
    return _checked(**{name: getattr(settings, name) for name in settings.__slots__})


@checked
def _checked(
    compression: str | None,
    hashes: Sequence[str],
    shard_bytes: int | None,
    shard_rows: int | None,
    newline: str,
    separator: str,
) -> Settings:
    if compression is not None:
        compress.suffix_of(compression)
    sums.Sums(hashes)
    if shard_bytes is not None and shard_bytes > SHARD_LIMIT:
        raise UsageError(f"shard_bytes: expected at most {SHARD_LIMIT} (4 GiB), got {shard_bytes}")
    for name, value, minimum in (("shard_bytes", shard_bytes, 0), ("shard_rows", shard_rows, 1)):
        if value is not None and value < minimum:
            raise UsageError(f"{name}: expected at least {minimum}, got {value}")
    return Settings(compression, tuple(hashes), shard_bytes, shard_rows, newline, separator)


def _column_pairs(columns: Mapping[str, str] | Columns) -> list[tuple[str, str]]:
    """Return (name, encoding) of each column.

    raises  UsageError if `columns` is neither a mapping of strings nor Columns
    """
    try:
        pairs = (
            [*columns.items()]
            if isinstance(columns, Mapping)
            else [(one.name, one.encoding) for one in columns]
        )
    except (AttributeError, TypeError):
        raise UsageError(_COLUMNS_ERROR, hint=_COLUMNS_HINT) from None
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise UsageError(_COLUMNS_ERROR, hint=_COLUMNS_HINT)
    return pairs


def _extensions(columns: Mapping[str, str] | Columns) -> dict[str, str]:
    """Return column -> `Column.extension`; empty if `columns` contains only encodings."""
    return {} if isinstance(columns, Mapping) else {one.name: one.extension for one in columns}
