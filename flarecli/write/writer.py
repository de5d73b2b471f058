"""The Writer: turns rows into shards; writing the playlist, as the last file, is the commit."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from flarecli import __version__, encodings, formats, hashes, playlists
from flarecli.arguments import Address, checked, shown
from flarecli.errors import FlareError, UnsafeError, UsageError, ValueFitError
from flarecli.ingest import SourceChecksum
from flarecli.model import Chunk, Columns, File, IntArray, Playlist, Settings, Stream
from flarecli.names import escape
from flarecli.storage import Guard
from flarecli.write.columns import (
    Typed,
    check_columns,
    chosen_encodings,
    fitted,
    record_batches,
)
from flarecli.write.failures import Failed, Failure
from flarecli.write.journal import Journal
from flarecli.write.open_target import claim
from flarecli.write.settings import SHARD_LIMIT as _SHARD_LIMIT
from flarecli.write.settings import column_pairs, held_settings
from flarecli.write.shard_queue import ShardQueue, rows_lost
from flarecli.write.target import Target, check_files

__all__ = ["Writer"]

MAX_BUFFERED_SAMPLES, MAX_BUFFERED_BYTES = 1024, 1 << 24
_KEYS_HINT = "Make the keys unique, or leave the column out: each row then gets its own key."


class Writer:
    """Write rows as shards into a folder, on a disk or in a bucket.

        with Writer("out", columns={"image": "jpeg", "label": "int"}) as writer:
            writer.write({"image": data, "label": 3})

    At the end of the block, `close()` writes the index and then the playlist. After an exception,
    `abandon()` keeps the finished shards: a Writer with `resume=True` continues, and its `rows` is
    the number of rows that are written already. A Writer that is garbage collected while open is
    abandoned with a ResourceWarning.

    columns    name -> encoding, or Columns; None: inferred by the first `write_batch`
    settings   shard limits, compression and checksums
    head       facts that a resumed pack must share with the first one
    running    checksums the source while it is read; see `Journal`
    guard      limits of requests to a remote target
    jobs       shards compressed and written at a time; a later call raises their errors
    playlist   write `playlist.yaml`; without it the format's own index is the commit, as in a
               dataset by the original library
    unnoted    typed rows that are in no shard of the journal: batches with their positions in the
               selection, in order
    raises     UsageError, UnfinishedError, BusyError: see `Target`; UsageError for an unknown name
    """

    @checked
    def __init__(
        self,
        path: Address,
        *,
        format: str = formats.DEFAULT,
        columns: Mapping[str, str] | Columns | None = None,
        settings: Settings | None = None,
        head: Mapping[str, Any] | None = None,
        running: SourceChecksum | None = None,
        resume: bool = False,
        overwrite: bool = False,
        guard: Guard | None = None,
        jobs: int = 1,
        playlist: bool = True,
    ) -> None:
        if jobs < 1:
            raise UsageError(f"jobs must be at least 1, got {jobs}")
        self._format, self.settings = formats.find(format), held_settings(settings or Settings())
        is_cut = self.settings.shard_bytes is not None or self.settings.shard_rows is not None
        self._inside = self._format.shards_in if is_cut else ""
        given = None if columns is None else self._arranged(columns)
        self.target = claim(path, resume=resume, overwrite=overwrite, guard=guard)
        self.columns: Columns | None = None
        self._chunks: list[Chunk] = []
        self._held: list[pa.RecordBatch] = []
        self._held_rows, self._held_size, self._base = 0, 0, 0
        # The last checked batch, and the sizes of its rows.
        self._weighed: tuple[pa.RecordBatch | None, IntArray] = (None, np.zeros(0, np.int64))
        self.unnoted = deque[tuple[pa.RecordBatch, IntArray]]()
        self._samples = _SampleBuffer()
        self._names: set[bytes] = set()  # keys in the unfinished shard, if the format needs them
        # Writing uncompressed bytes costs less than a thread.
        self._queue = ShardQueue(jobs if self.settings.compression else 1)
        self._ended = self.target.is_done
        self._writes_playlist = playlist
        self._is_abandoned = False
        # True while rows move between fields: an interrupt would lose them or write them twice.
        self._is_torn = False
        self.rows = self.next = 0
        self.taken = 0  # bytes of the rows written by this Writer, as stored in shards
        if self._ended:
            self.rows = self._rows_there()
            return
        try:
            self._begin(
                {
                    "flare": __version__,
                    "format": format,
                    "settings": asdict(self.settings),
                    **(head or {}),
                },
                running,
            )
            if given is not None:
                self._name_columns(given)
        except BaseException:
            self.target.abandon(keep=True)
            raise
        self._dropped = weakref.finalize(
            self, _drop, os.getpid(), self.target, self.failed, self._journal
        )
        self._dropped.atexit = False  # the lock dies with its process

    def _begin(self, head: dict[str, Any], running: SourceChecksum | None) -> None:
        self._journal = Journal(self.target.at, head, running)
        for entry in self._journal.shards:
            files = tuple(File(**file) for file in entry["files"])
            main, *beside = (self.target.at / file.name for file in files)
            self._chunks.append(Chunk(main, entry["rows"], files, self._format.name, tuple(beside)))
            self.rows += entry["rows"]
            self.next = entry["next"]
        self.failed = Failed(
            self.target.at, self._journal.shards[-1]["failed"] if self._chunks else None
        )
        if self._journal.columns is not None:
            self.columns = tuple(
                encodings.column(name, encoding) for name, encoding in self._journal.columns
            )

    def _rows_there(self) -> int:
        """Return the rows of a finished dataset; 0 if no playlist lists them."""
        with contextlib.suppress(FlareError):
            return sum(
                0 if one.rows is None else int(one.rows.sum())
                for one in playlists.read(self.target.at / playlists.PLAYLIST).streams
            )
        return 0

    def _check_open(self) -> None:
        """Raise UsageError if the Writer is closed or has lost rows."""
        if self._is_torn and not self._ended:
            raise rows_lost()
        if self._ended:
            raise UsageError(
                "the dataset is finished"
                if self.is_done or not self._is_abandoned
                else "the Writer was abandoned",
                where=self.target.shown,
                hint="Check `is_done` and `rows`, or use overwrite=True."
                if self.is_done
                else "Open another Writer.",
            )

    def _arranged(self, columns: Mapping[str, str] | Columns) -> Columns:
        return self._format.arrange(
            encodings.column(name, encoding) for name, encoding in column_pairs(columns)
        )

    def _name_columns(self, columns: Columns) -> None:
        if self.columns is None:
            self.columns = columns
            self._journal.note_columns([(column.name, column.encoding) for column in columns])
        elif columns != self.columns:
            raise UsageError(
                "the unfinished pack has other columns",
                where=self.target.shown,
                hint="Give --overwrite to begin anew.",
            )

    @property
    def format(self) -> str:
        """The name of the format."""
        return self._format.name

    @property
    def is_done(self) -> bool:
        """Whether the target was a finished dataset already, so that there is nothing to write."""
        return self.target.is_done

    @property
    def is_empty(self) -> bool:
        """Whether no row was written so far, neither to a shard nor to memory."""
        return not (self._chunks or len(self._queue) or self._held_rows or self._samples)

    @property
    def shards(self) -> int:
        """Shards finished so far."""
        return len(self._chunks)

    @property
    def size(self) -> int:
        """Bytes of the shards finished so far."""
        return sum(file.size or 0 for chunk in self._chunks for file in chunk.files)

    def name_columns(self, columns: Mapping[str, str] | Columns) -> Columns:
        """Set the columns, and return them in the order of the format."""
        self._name_columns(self._arranged(columns))
        return self.columns or ()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample: column -> Python value, or bytes stored as they are.

        raises  UsageError for a missing or unknown column, or if the dataset is finished;
                ValueFitError for a value that does not fit its encoding. ValueFitError with a row
                for an earlier sample that the format cannot store; only that sample is left out
        """
        self._check_open()
        if self.columns is None:
            raise UsageError("the columns are not known", hint="Give columns= to the Writer.")
        self._samples.add(self.columns, sample, self.rows + self._held_rows)
        if self._samples.is_full:
            self._write_samples()

    def _write_samples(self) -> None:
        """Write the buffered samples.

        If one cannot be stored, raise its error and drop only that one.
        """
        if not self._samples:
            return
        first, refused = self.rows + self._held_rows, -1
        try:
            self.write_typed(
                self._samples.batch(self.columns or (), first),
                np.arange(first, first + len(self._samples)),
            )
        except (ValueFitError, UnsafeError) as error:
            if error.row is not None and not error.address:
                refused = error.row - first
            raise
        finally:
            self._samples.remove(self.rows + self._held_rows - first, refused)

    def unheld(self, batch: pa.RecordBatch) -> tuple[int, FlareError] | None:
        """Return the first row that fits its encodings but not the format, and the error; or None."""
        if self._weighed[0] is batch:
            return None
        try:
            self._base, sizes = self._format.row_sizes(self.columns or (), batch, self.settings)
        except (ValueFitError, UnsafeError) as error:
            if error.row is None or error.address:
                raise
            return error.row, error
        self._weighed = batch, sizes
        return None

    def write_batch(
        self, batch: pa.RecordBatch | pa.Table, rows: IntArray | Sequence[int] | None = None
    ) -> None:
        """Write a batch or a table: each column is cast to its encoding, and every value is
        checked.

        Columns are found by name. Where the Writer has no columns yet, they are inferred from the
        first batch. A batch is written as a whole or, if a value does not fit, not at all.

        rows    int64 [rows of the batch], ascending: the row of the source that each one is, noted
                in the journal; by default the rows are counted
        raises  UsageError for a missing or unknown column; ValueFitError, naming row and column,
                for a null or for a value that the encoding or the format cannot hold; it names
                the Arrow type where that is not the encoding's own
        """
        self._check_open()
        batches = record_batches(batch)
        places = None if rows is None else _places(rows, batch.num_rows)
        names = batch.schema.names
        if self.columns is None:
            check_columns(names, names)
            if not batch.num_rows:
                return
            self.name_columns(chosen_encodings(batches[0], names, {}, {}, {}))
        columns = self.columns or ()
        check_columns(names, [column.name for column in columns])
        self._write_samples()  # rows keep the order in which they were given
        if places is None:
            first = self.rows + self._held_rows
            places = np.arange(first, first + batch.num_rows)
        typed = Typed(columns, None, self._format.holds_null)
        ready, start = [], 0
        for one in batches:
            its = places[start : start + one.num_rows]
            ready.append((fitted(typed, one, its), its))
            start += one.num_rows
        for one, its in ready if len(ready) > 1 else ():
            self._check_held(one, its)
        for one, its in ready:
            self.write_typed(one, its)

    def write_typed(self, batch: pa.RecordBatch, rows: IntArray) -> None:
        """Write columns that already have the types of their encodings, as from `Typed.convert`.

        The types are checked, the values are not.

        rows    int64 [rows of the batch]: the position of each row in the selection
        raises  ValueFitError with `row` for a row that the format cannot store: nothing of the
                batch is written. ValueFitError for a key that is in the shard already: earlier
                rows are written
        """
        self._check_open()
        for column, field in zip(self.columns or (), batch.schema, strict=True):
            wanted = encodings.field(column)
            if not field.equals(wanted):
                raise UsageError(
                    f"column {field.name!r}: expected {wanted.type} for {column.encoding}, "
                    f"got {field.type}",
                    column=field.name,
                )
        self._check_held(batch, rows)
        sizes, self._weighed = self._weighed[1], (None, np.zeros(0, np.int64))
        ends = np.cumsum(sizes)
        self.taken += int(ends[-1]) if len(ends) else 0
        limit = min(self.settings.shard_bytes or _SHARD_LIMIT, _SHARD_LIMIT)
        most = self.settings.shard_rows or 1 << 62
        start, before = 0, 0
        while start < batch.num_rows:
            room = limit - self._base - self._held_size
            stop = min(
                int(np.searchsorted(ends, before + room, "right")), start + most - self._held_rows
            )
            if stop <= start and not self._held_rows:
                stop = start + 1  # larger than a shard: it gets its own
            if stop > start:
                self._tell_apart(batch.slice(start, stop - start), rows[start:])
                self._is_torn = True
                part = batch.slice(start, stop - start)
                self.unnoted.append((part, rows[start:stop]))
                self._held.append(part)
                self._held_rows += stop - start
                self._held_size += int(ends[stop - 1]) - before
                self._is_torn = False
                start, before = stop, int(ends[stop - 1])
            if start < batch.num_rows:
                self._flush(int(rows[start]))

    def _check_held(self, batch: pa.RecordBatch, rows: IntArray) -> None:
        """Raise the error of the first row that the format cannot store."""
        if found := self.unheld(batch):
            raise found[1].changed(row=int(rows[found[0]]))

    def _tell_apart(self, batch: pa.RecordBatch, rows: IntArray) -> None:
        """Raise ValueFitError for a key that is in the unfinished shard already."""
        column = self._format.key_column
        if column not in batch.schema.names:
            return
        names = batch.column(column).cast(pa.large_binary()).to_pylist()
        if len(fresh := set(names)) == len(names) and self._names.isdisjoint(fresh):
            self._names |= fresh
            return
        fresh = set()
        for name, row in zip(names, rows.tolist(), strict=False):
            if name in self._names or name in fresh:
                shown = escape(name.decode("utf-8", "backslashreplace"))
                raise ValueFitError(
                    f"duplicate key {shown!r:.80} in the same shard",
                    row=row,
                    hint=_KEYS_HINT,
                )
            fresh.add(name)

    def _flush(self, next: int) -> None:
        """Queue the buffered rows as one shard; `next` is the first row of the shard after it."""
        self._is_torn = True
        number, size = len(self._chunks) + len(self._queue), self._held_size
        write = partial(self._write_shard, number, self._held)
        self.rows += self._held_rows
        self._held, self._held_rows, self._held_size, self._names = [], 0, 0, set()
        self._queue.add(write, next, size, self._note)
        self._is_torn = False

    def _note(self, chunk: Chunk, next: int) -> None:
        self._chunks.append(chunk)
        self.target.check()
        self._journal.note_shard(chunk.rows or 0, next, chunk.files, self.failed.settle(next))
        self.next = next
        self.failed.noted(next)
        while self.unnoted and self.unnoted[0][1][-1] < next:
            self.unnoted.popleft()

    def _write_shard(self, number: int, held: list[pa.RecordBatch]) -> Chunk:
        at = self.target.at
        chunk = self._format.write_shard(
            at / self._inside if self._inside else at,
            number,
            self.columns or (),
            held,
            self.settings,
        )
        if not self._inside:
            return chunk
        return replace(
            chunk,
            files=tuple(replace(file, name=f"{self._inside}/{file.name}") for file in chunk.files),
        )

    def keep(self) -> None:
        """Keep the scratch folder for a resume, even if no shard is finished."""
        self._journal.is_kept = True

    def source_noted(self) -> list[Any] | None:
        """Return the bytes of the source read so far and their checksum.

        None if the checksum was known before the pack started.
        """
        return self._journal.source_noted()

    def agrees(self, noted: Any) -> bool:
        """Return whether the source starts with the bytes that `source_noted` returned."""
        return self._journal.agrees(noted)

    def fail(self, failure: Failure) -> None:
        """List a row that is left out. Call it in row order, before later rows are written."""
        self.failed.add(failure)

    @checked
    def close(self, source: Mapping[str, Any] | None = None) -> str:
        """Write the last shard, the index and the playlist, and return the playlist's path.

        Further calls return the path again. If it raises, call `abandon` to release the target; a
        `with` block does both.

        source  the source that the playlist records
        """
        if self._is_abandoned or self._is_torn:
            self._check_open()
        if self._ended:
            return self.playlist
        self._write_samples()
        if self._held_rows:
            self._flush(1 << 62)
        self._queue.close(self._note)
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
            "Run the same command with --resume to write it again.",
        )
        self.target.check(now=True)
        if self._writes_playlist:
            playlists.write(
                self.target.at / playlists.PLAYLIST,
                Playlist((self._stream({**files, **failed}, source),)),
            )
        self.failed.close()
        self._journal.close()
        self._ended = True
        self._dropped.detach()
        self.target.finish()
        return self.playlist

    @property
    def playlist(self) -> str:
        """The path of the playlist, as a user would type it."""
        return self.target.playlist

    def _stream(self, files: dict[str, File], source: Mapping[str, Any] | None) -> Stream:
        stored = [chunk.files[0] for chunk in self._chunks]
        names = sorted({hashes.DEFAULT, *self.settings.hashes})
        zipped = self.settings.compression is not None
        headers = {
            key: value
            for key, value in (("compression", self.settings.compression), ("source", source))
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
        """Stop without a playlist. Finished shards stay for a resume; without any, nothing stays."""
        if self._ended:
            return
        self._ended = self._is_abandoned = True
        self._dropped.detach()
        with contextlib.suppress(Exception):  # the first error was raised already
            self._queue.close(self._note)
        _release(self.target, self.failed, self._journal)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Writer cannot be sent to another process",
            hint="Open a Writer in each process, each for its own folder.",
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self.close()
            except BaseException:
                self.abandon()
                raise
        else:
            self.abandon()


class _SampleBuffer:
    """Encoded samples that are not a batch yet; `len()` is their number."""

    def __init__(self) -> None:
        self._held: list[dict[str, Any]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether the samples should be written as a batch."""
        return len(self._held) >= MAX_BUFFERED_SAMPLES or self._size >= MAX_BUFFERED_BYTES

    def add(self, columns: Columns, sample: Mapping[str, Any], first: int) -> None:
        """Encode a sample; `first` is the row of the first buffered sample.

        raises  UsageError for a missing or unknown column; ValueFitError for a value that does not
                fit its encoding
        """
        try:
            keys = sample.keys()
        except AttributeError:
            found = type(sample).__name__
            raise UsageError(f"sample: expected a mapping, got {found}") from None
        if keys != {column.name for column in columns}:
            names = sorted(set(sample) ^ {column.name for column in columns})
            problem = "unknown" if names[0] in sample else "missing"
            raise UsageError(f"column {names[0]!r} is {problem} in the sample", column=names[0])
        row = {}
        for column in columns:
            try:
                row[column.name] = encodings.encode(
                    encodings.lookup(column.encoding), sample[column.name]
                )
            except FlareError as error:
                at = first + len(self._held)
                raise error.changed(address="", row=at).of_column(column.name) from None
        self._held.append(row)
        self._size += _sample_size(row)

    def batch(self, columns: Columns, first: int) -> pa.RecordBatch:
        """Return the samples as typed columns; `first` is the row of the first.

        raises  ValueFitError with the row of bytes that are not UTF-8
        """
        arrays = []
        for column in columns:
            encoding = encodings.lookup(column.encoding)
            try:
                arrays.append(
                    encodings.typed(
                        pa.array([sample[column.name] for sample in self._held], encoding.raw),
                        encoding,
                    )
                )
            except ValueFitError as error:
                raise error.at("", first).of_column(column.name) from None
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([encodings.field(column) for column in columns])
        )

    def remove(self, count: int, refused: int = -1) -> None:
        """Remove the first `count` samples, and the one at position `refused`."""
        self._held = [sample for i, sample in enumerate(self._held) if i >= count and i != refused]
        self._size = sum(map(_sample_size, self._held))


def _sample_size(row: Mapping[str, Any]) -> int:
    return sum(
        sum(map(len, stored)) if isinstance(stored, list) else len(stored)
        for stored in row.values()
    )


def _places(rows: IntArray | Sequence[int], count: int) -> IntArray:
    """Return row numbers as an array. Raises UsageError unless there are `count`, ascending."""
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
    target.abandon(keep=bool(journal.shards) or journal.is_kept)


def _drop(pid: int, target: Target, *held: Any) -> None:
    """Abandon the target of a garbage collected Writer; a forked copy of the Writer does nothing."""
    if os.getpid() != pid:
        return
    # Release first: the warning may be an error, and who sees it may open the target at once.
    target.run_finalizer(partial(_release, target, *held))
    warnings.warn(
        f"{target.shown}: a Writer was garbage collected without close()",
        ResourceWarning,
        stacklevel=2,
    )
