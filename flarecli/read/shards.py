"""The rows of many shards as one sequence, and the open shards of the process."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import TypeAlias

import numpy as np

from flarecli import formats, lifetimes
from flarecli.errors import FlareError, FormatError, UsageError
from flarecli.formats import byte_ranges as spans
from flarecli.lazy import pa
from flarecli.model import Chunk, Columns, IntArray, Row, Shard, Stream, total
from flarecli.read.fingerprint import listing_checksum
from flarecli.read.gather import Stock
from flarecli.storage import expect, files_limit

__all__ = ["Series", "keep_freed"]

Ranges: TypeAlias = Mapping[str, tuple[int, int]]

_all: weakref.WeakSet[Series] = weakref.WeakSet()
_BATCH_BYTES = 16 << 20  # approximate size of a batch of a scan
_MIN_SHARD_ROWS = 8  # rows per shard from which reading by columns is faster
_GATHER_BYTES = 8 << 20  # approximate size of the rows that are located at once
_MAX_GATHERED_FILES = 256  # twice the shards whose maps a Stock keeps open, if handles permit


SHARDS = 512  # open shards of the process, with their tables in memory
_MAX_FILES = 1024  # mapped files of open shards, if handles permit
_TRIM_BLOCK_BYTES = 1 << 24
_lock = threading.Lock()
# open shards, oldest first: the series, the position in it, the number of files
_order: deque[tuple[weakref.ref[Series], int, int]] = deque()
_files = 0


class Series:
    """Concatenated streams with the same columns. Picklable: each process opens its own shards.

    rows     the number of rows of all streams
    columns  the columns of every stream
    raises   UsageError if the columns differ; the errors of opening a shard, if a list has no rows
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = tuple(streams)
        self.name = self.streams[0].name
        # the first chunk of each stream
        self._firsts = np.cumsum([0, *(len(stream) for stream in self.streams)])
        self._begins: list[int] = self._firsts.tolist()
        self._open: dict[int, Shard] = {}
        self._readers: dict[tuple[str, ...] | None, dict[int, Callable[[int], Row]]] = {}
        self._expected = 0  # bytes that will be read; see `expect`
        self._advised: set[int] = set()  # shards that `_expect` was called for
        self._fetched: dict[int, Chunk] = {}  # kept, because making a chunk checks its address
        self._fetch_locks: dict[int, threading.Lock] = {}
        self._passing: set[int] = set()  # fetched by runs and not released
        self._lock = threading.Lock()
        _all.add(self)
        self.columns: Columns = ()  # `_columns` opens a shard if none are listed
        self.columns = self._columns()
        self.starts = self._starts()  # int64 [chunks + 1]: the first row of each chunk
        self.edges = self.starts.data  # indexing returns Python integers

    def __reduce__(self) -> tuple[object, ...]:
        return Series, (self.streams,)

    @property
    def rows(self) -> int:
        """The number of rows of all streams."""
        return int(self.starts[-1])

    @property
    def chunks(self) -> int:
        """The number of chunks of all streams."""
        return int(self._firsts[-1])

    def _columns(self) -> Columns:
        """Return the listed columns; if none are listed, those of the first shard."""
        out: Columns | None = None
        for stream, first in zip(self.streams, self._firsts.tolist(), strict=False):
            own = stream.columns
            if own is None:
                own = self.shard(first).columns if len(stream) else ()
            if out is not None and own != out and len(stream):
                hint = "Read the streams separately, or pack them again with the same columns."
                raise UsageError(
                    f"the columns of stream {stream.name!r} differ from those of the previous "
                    "stream",
                    where=stream.at,
                    hint=hint,
                )
            out = own if out is None or not out else out
        return out or ()

    def _starts(self) -> IntArray:
        parts = [np.zeros(1, np.int64)]
        for stream, first in zip(self.streams, self._firsts.tolist(), strict=False):
            rows = (
                np.full(len(stream), -1, np.int64)
                if stream.rows is None
                else stream.rows.astype(np.int64)
            )
            for i in np.flatnonzero(rows < 0).tolist():
                rows[i] = self.shard(first + i).rows
            parts.append(rows)
        rows = np.concatenate(parts)
        if rows.sum(dtype=np.float64) >= 1 << 61 and sum(rows.tolist()) >= 1 << 62:
            raise FormatError(
                f"too many rows: {sum(rows.tolist())} are listed", where=self.streams[0].at
            )
        return np.cumsum(rows, dtype=np.int64)

    def checksum(self, rows: int) -> str | None:
        """Return the checksum of the listing of the first `rows` rows; None if no shard ends there."""
        shards = int(np.searchsorted(self.starts, rows)) if rows < self.rows else self.chunks
        if self.starts[shards] != rows:
            return None
        return listing_checksum(self.streams, self.columns, np.diff(self.starts[: shards + 1]))

    def load(self) -> None:
        """Import the code of the formats."""
        for stream in self.streams:
            if stream.format:
                formats.find(stream.format)

    def chunk(self, i: int) -> Chunk:
        """Return the chunk at a position."""
        k = bisect_right(self._begins, i) - 1
        return self.streams[k].chunk(i - self._begins[k])

    def at(self, row: int) -> int:
        """Return the position of the chunk of a row."""
        # no call of numpy: releasing the interpreter lock here costs more than the search
        return bisect_right(self.edges, row) - 1

    def shard(self, i: int) -> Shard:
        """Return the open shard at a position. Raises if its columns differ from the listed ones."""
        with self._lock:
            if (shard := self._open.get(i)) is not None:
                return shard
        chunk = self._fetched.get(i) or self.chunk(i)
        columns = self.streams[bisect_right(self._begins, i) - 1].columns or self.columns or None
        with self._lock:
            expected = 0 if i in self._advised else self._expected
            self._advised.update((i,) if expected else ())
        if expected:  # before the table is read, which would use small pages
            with contextlib.suppress(FlareError):  # `open_shard` raises the same error
                _expect(chunk, expected)
        keep_freed()
        shard = formats.find(chunk.format or "").open_shard(chunk, columns)
        with self._lock:
            self._open[i] = shard
        _note(self, i, shard)
        return shard

    @property
    def room(self) -> int:
        """Cache bytes currently available for prefetched shards; 0 without a cache."""
        return min(stream.at.store.room for stream in self.streams)

    @property
    def is_mapped(self) -> bool:
        """Whether shards are local and uncompressed, judged by the first name of each stream."""
        return all(
            stream.at.is_local and not (len(stream) and spans.suffix(stream.chunk(0)))
            for stream in self.streams
        )

    @property
    def stored(self) -> int:
        """Total bytes of the chunks as listed; -1 if a size is not listed."""
        sizes = [stream.stored for stream in self.streams]
        return (
            -1
            if any(one is None or (one < 0).any() for one in sizes)
            else sum(total(one) for one in sizes if one is not None)
        )

    def expect(self, together: int) -> None:
        """Announce that all chunks will be read, as part of `together` bytes."""
        with self._lock:
            self._expected, held = together, [*self._open.values()]
            self._advised.update(self._open)
        for shard in held:
            _expect(shard.chunk, together)

    def weight(self, i: int) -> int:
        """Return the listed bytes of a chunk; 0 if they are not listed."""
        k = bisect_right(self._begins, i) - 1
        stream, i = self.streams[k], i - self._begins[k]
        if stream.sizes is None or stream.sizes[i] < 0:
            return 0
        return int(stream.sizes[i]) + sum(
            file.size or 0 for file in (stream.parts[i] if stream.parts else ())
        )

    def fetch(self, i: int, passing: bool = False) -> None:
        """Download a chunk into the cache, once. A chunk that does not fit is not downloaded.

        passing  a run reads the chunk only in one window, and will call `passed` after it
        """
        if i in self._fetched:
            return
        with self._lock:
            fetch_lock = self._fetch_locks.setdefault(i, threading.Lock())
        with fetch_lock:  # the cache's own lock between processes polls, so it is slower
            if i in self._fetched:
                return
            chunk = self.chunk(i)
            if passing:
                self._passing.add(i)
            for at, file in zip_longest((chunk.at, *chunk.beside), chunk.files):
                at.store.keep(at.path, file.size if file else None, passing)
            self._fetched[i] = chunk
            if passing and i not in self._passing:  # the run ended during the download
                self._pass(i, chunk)

    def passed(self, i: int) -> None:
        """Release a chunk after the window of a run."""
        chunk = self._fetched.get(i) or self.chunk(i)
        self.let_go(i)
        self._pass(i, chunk)

    def pass_all(self) -> None:
        """Release all chunks that runs keep in memory; open shards stay open."""
        for i in list(self._passing):
            self._pass(i, self.chunk(i))

    def _pass(self, i: int, chunk: Chunk) -> None:
        self._passing.discard(i)
        for at in (chunk.at, *chunk.beside):
            at.store.passed(at.path)

    def close(self) -> None:
        """Close all open shards of this series."""
        for i in list(self._open):
            self.let_go(i)

    def let_go(self, i: int) -> None:
        """Close the shard at a position, if it is open. Using it opens it again."""
        with self._lock:
            shard = self._open.pop(i, None)
            for readers in self._readers.values():
                readers.pop(i, None)
            self._fetched.pop(i, None)
            self._fetch_locks.pop(i, None)
            self._advised.discard(i)
        if shard is not None:
            shard.memo.clear()  # the format may keep a reference to the shard
            for at in (shard.chunk.at, *shard.chunk.beside):
                at.forget()

    def read_rows(
        self, rows: IntArray, columns: Sequence[str] | None = None, ranges: Ranges | None = None
    ) -> list[Row]:
        """Return encoded rows in the order of `rows`; the rows of one shard are read together.

        rows    int64 [k], each in [0, rows)
        ranges  column of lists -> (start, stop): read only these items
        """
        if not len(rows):
            return []
        own, shards = self._by_shard(rows)
        if len(shards) == 1:
            return self._of_shard(next(iter(shards)), own, columns, ranges)
        out: list[Row] = [{}] * len(own)
        for i in sorted(shards):
            at = shards[i]
            for k, row in zip(
                at, self._of_shard(i, [own[k] for k in at], columns, ranges), strict=True
            ):
                out[k] = row
        return out

    def stock(
        self, rows: IntArray, least: int, columns: Sequence[str] | None = None
    ) -> Stock | None:
        """Locate the first rows in memory, in the order of `rows`.

        Return None if the format or the store cannot locate rows, or if the rows are spread over
        too many shards.

        rows   int64 [k], each in [0, rows)
        least  the number of rows to locate; more are located if they are small and all in mapped
               shards (locating rows of other shards downloads or copies them)
        """
        if len(rows) > least:
            i = self.at(int(rows[0]))
            size = self.weight(i) // max(1, self.edges[i + 1] - self.edges[i])
            rows = rows[
                : max(least, _GATHER_BYTES // size if size and _is_mapped(self.shard(i)) else 0)
            ]
        where: IntArray = self.starts.searchsorted(rows, "right") - 1
        own, order = rows - self.starts[where], where.argsort(kind="stable")
        where = where[order]
        firsts: list[int] = [
            0,
            *((where[1:] != where[:-1]).nonzero()[0] + 1).tolist(),
        ]  # in that order, of each shard
        if (
            len(rows) < _MIN_SHARD_ROWS * len(firsts)
            or len(firsts) > files_limit(_MAX_GATHERED_FILES) // 2
        ):
            return None
        bounds, parts = [*firsts, len(rows)], list[spans.LocatedRows]()
        for first, stop in pairwise(bounds):
            shard = self.shard(int(where[first]))
            if len(rows) > least and not _is_mapped(shard):
                return self.stock(rows[:least], least, columns)
            found = formats.find(shard.chunk.format or "").read_columns(
                shard, own if len(firsts) == 1 else own[order[first:stop]], columns
            )
            if found is None:
                return None
            parts.append(found)
        return Stock(parts, [stop - first for first, stop in pairwise(bounds)], order)

    def _by_shard(self, rows: IntArray) -> tuple[list[int], dict[int, list[int]]]:
        """Return the position of each row in its shard, and shard -> indices into `rows`."""
        where: IntArray = np.searchsorted(self.starts, rows, "right") - 1
        own: list[int] = (rows - self.starts[where]).tolist()
        shards: dict[int, list[int]] = {}
        for k, i in enumerate(where.tolist()):
            shards.setdefault(i, []).append(k)
        return own, shards

    def read_row(self, row: int, columns: Sequence[str] | None = None) -> Row:
        """Return one encoded row; `row` is in [0, rows). Fast path of `read_rows`."""
        i = bisect_right(self.edges, row) - 1
        shard = self.shard(i)
        return formats.find(shard.chunk.format or "").read_rows(
            shard, (row - self.edges[i],), columns
        )[0]

    def row_readers(self, columns: tuple[str, ...] | None) -> dict[int, Callable[[int], Row]]:
        """Return position -> fast row reader of open shards; closing a shard removes its reader."""
        return self._readers.setdefault(columns, {})

    def add_reader(self, i: int, columns: tuple[str, ...] | None) -> None:
        """Add the fast row reader of a shard, if the shard is mapped."""
        shard = self.shard(i)
        if _is_mapped(shard):
            reader = formats.find(shard.chunk.format or "").row_reader(shard, columns)
            with self._lock:
                if self._open.get(i) is shard:
                    self._readers.setdefault(columns, {})[i] = reader

    def _of_shard(
        self, i: int, rows: list[int], columns: Sequence[str] | None, ranges: Ranges | None
    ) -> list[Row]:
        shard = self.shard(i)
        return formats.find(shard.chunk.format or "").read_rows(shard, rows, columns, ranges)

    def scan(
        self, start: int, stop: int, columns: Sequence[str] | None, size: int, views: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows start..stop as batches of one shard, at most `size` rows and bounded bytes."""
        while start < stop:
            end = self.span(start, stop, size)
            i = int(np.searchsorted(self.starts, start, "right")) - 1
            shard, first = self.shard(i), int(self.starts[i])
            yield formats.find(shard.chunk.format or "").read_batch(
                shard, start - first, end - first, columns, views
            )
            start = end

    def span(self, start: int, stop: int, size: int) -> int:
        """Return the end of the batch that starts at `start`: one shard, `size` rows, bounded
        bytes.
        """
        i = int(np.searchsorted(self.starts, start, "right")) - 1
        shard = self.shard(i)
        weight = sum(
            (file.raw_size or file.size or at.size())
            for file, at in zip(
                shard.chunk.files, (shard.chunk.at, *shard.chunk.beside), strict=True
            )
        )
        step = max(1, int(_BATCH_BYTES // max(1, weight // max(1, shard.rows))))
        return min(start + min(size, step), int(self.starts[i + 1]), stop)


def _is_mapped(shard: Shard) -> bool:
    return shard.chunk.at.is_local and not spans.suffix(shard.chunk)


def _expect(chunk: Chunk, together: int) -> None:
    """Advise large pages for the maps of a chunk; compressed files are not mapped."""
    for at in () if spans.suffix(chunk) else (chunk.at, *chunk.beside):
        if at.is_local and (view := at.map()) is not None:
            expect(view, together)


def _note(holder: Series, i: int, shard: Shard) -> None:
    """Register an open shard, and close the oldest ones until the limits are met."""
    global _files
    files = 1 + len(shard.chunk.beside) if shard.chunk.at.may_map else 0
    limit, over = files_limit(_MAX_FILES), []
    with _lock:
        _order.append((weakref.ref(holder), i, files))
        _files += files
        while len(_order) > 1 and (len(_order) > SHARDS or _files > limit):
            other, at, taken = _order.popleft()
            _files -= taken
            over.append((other(), at))
    for other_holder, at in over:
        if other_holder is not None:
            other_holder.let_go(at)


def close_shards() -> None:
    """Close the shards of all datasets."""
    global _files
    with _lock:
        closed, _files = list(_order), 0
        _order.clear()
    for holder, at, _ in closed:
        if (one := holder()) is not None:
            one.let_go(at)


@functools.cache
def keep_freed() -> None:
    """Make glibc keep freed memory for the next batch, once per process.

    glibc returns the top of its heap to the system once 128 KB of it are free, so every batch would
    fault in new pages. Freeing a large mmapped block raises M_MMAP_THRESHOLD to its size and
    M_TRIM_THRESHOLD to twice that (source: mallopt(3)). The block itself is never touched.
    """
    bytes(_TRIM_BLOCK_BYTES)


def _forked() -> None:
    """Replace the locks in a forked child: their owners do not exist there."""
    global _lock
    _lock = threading.Lock()
    for one in _all:
        one._lock = threading.Lock()
        one._fetch_locks = {}


os.register_at_fork(after_in_child=_forked)
lifetimes.register("open shards", close_shards)
