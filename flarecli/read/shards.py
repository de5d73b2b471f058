"""One stream of rows over many shards: which shard holds a row, shards opened when first needed, many rows at once."""

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
_BATCH_BYTES = 16 << 20  # what a scan holds at once, roughly
_TOGETHER = 8  # rows of a shard that are worth finding by columns
_AT_ONCE = 8 << 20  # bytes of rows that are found at once, reckoned, but for the least
_HELD = 256  # twice the shards that are held besides those that are open, where the system gives handles for so many


SHARDS = 512  # whose tables are kept
_FILES = 1024  # of them mapped, where the system gives handles for so many
_BLOCK = 1 << 24  # bytes
_lock = threading.Lock()
_order: deque[tuple[weakref.ref[Series], int, int]] = (
    deque()
)  # who holds it, its position, its files; the first opened first
_files = 0


class Series:
    """Streams with the same columns, one behind the other. Picklable; its shards are opened again in each process.

    rows     how many rows there are in all
    columns  the same in every stream
    raises   UsageError if the columns differ; whatever opening a shard raises, when a listing says no rows
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = tuple(streams)
        self.name = self.streams[0].name
        self._firsts = np.cumsum(
            [0, *(len(stream) for stream in self.streams)]
        )  # position of each stream's first chunk
        self._begins: list[int] = self._firsts.tolist()
        self._open: dict[int, Shard] = {}
        self._readers: dict[tuple[str, ...] | None, dict[int, Callable[[int], Row]]] = {}
        self._expected = 0  # bytes that will be read, with these
        self._asked: set[int] = set()  # shards for which that was said
        self._fetched: dict[
            int, Chunk
        ] = {}  # to make a chunk takes as long as to open it: its address is checked
        self._turns: dict[int, threading.Lock] = {}  # of threads that fetch a chunk
        self._passing: set[int] = set()  # what runs have asked for and not passed
        self._lock = threading.Lock()
        _all.add(self)
        self.columns = self._columns()
        self.starts = self._starts()  # int64 [chunks + 1]: the row at which each chunk begins
        self.edges = memoryview(self.starts)  # the same, whose items are Python's own integers

    def __reduce__(self) -> tuple[object, ...]:
        return Series, (self.streams,)

    @property
    def rows(self) -> int:
        """Rows in all."""
        return int(self.starts[-1])

    @property
    def chunks(self) -> int:
        """Chunks in all."""
        return int(self._firsts[-1])

    def _columns(self) -> Columns:
        """Ask the listing, or the first shard where it does not say."""
        out: Columns | None = None
        for stream, first in zip(self.streams, self._firsts.tolist(), strict=False):
            own = stream.columns
            if own is None:
                own = self.shard(first).columns if len(stream) else ()
            if out is not None and own != out and len(stream):
                hint = "Read them one by one, or pack them again with the same columns."
                raise UsageError(
                    f"stream {stream.name!r} has other columns than the one before",
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
            raise FormatError(f"{sum(rows.tolist())} rows are listed", where=self.streams[0].at)
        return np.cumsum(rows, dtype=np.int64)

    def checksum(self, rows: int) -> str | None:
        """Return the checksum of what is listed of the first `rows` rows; None if no shard ends there."""
        shards = int(np.searchsorted(self.starts, rows)) if rows < self.rows else self.chunks
        if self.starts[shards] != rows:
            return None
        return listing_checksum(self.streams, self.columns, np.diff(self.starts[: shards + 1]))

    def load(self) -> None:
        """Load the code that reading takes."""
        for stream in self.streams:
            if stream.format:
                formats.find(stream.format)

    def chunk(self, i: int) -> Chunk:
        """Make the chunk at a position."""
        k = bisect_right(self._begins, i) - 1
        return self.streams[k].chunk(i - self._begins[k])

    def at(self, row: int) -> int:
        """Give the position of the chunk that holds a row; by no call of numpy, which would let go of the interpreter: others wait for this."""
        return bisect_right(self.edges, row) - 1

    def shard(self, i: int) -> Shard:
        """Open the shard at a position; its own columns must be the listed ones."""
        with self._lock:
            if (shard := self._open.get(i)) is not None:
                return shard
        chunk = self._fetched.get(i) or self.chunk(i)
        columns = (
            self.streams[bisect_right(self._begins, i) - 1].columns
            or getattr(self, "columns", None)
            or None
        )
        with self._lock:
            expected = 0 if i in self._asked else self._expected
            self._asked.update((i,) if expected else ())
        if (
            expected
        ):  # before its table is read, which would bring the first megabytes in small pages
            with contextlib.suppress(FlareError):  # opening it says so
                _expect(chunk, expected)
        keep_freed()
        shard = formats.find(chunk.format or "").open_shard(chunk, columns)
        with self._lock:
            self._open[i] = shard
        _note(self, i, shard)
        return shard

    @property
    def room(self) -> int:
        """Bytes that a run may have at hand of the cache before its shards, now; 0 without one."""
        return min(stream.at.store.room for stream in self.streams)

    @property
    def is_mapped(self) -> bool:
        """Whether its shards are local and not compressed, by the name of the first of each stream."""
        return all(
            stream.at.is_local and not (len(stream) and spans.suffix(stream.chunk(0)))
            for stream in self.streams
        )

    @property
    def stored(self) -> int:
        """Bytes of all chunks, from what is listed; -1 where that does not say."""
        sizes = [stream.stored for stream in self.streams]
        return (
            -1
            if any(one is None or (one < 0).any() for one in sizes)
            else sum(total(one) for one in sizes if one is not None)
        )

    def expect(self, together: int) -> None:
        """Say that all chunks will be read, among so many bytes."""
        with self._lock:
            self._expected, held = together, [*self._open.values()]
            self._asked.update(self._open)
        for shard in held:
            _expect(shard.chunk, together)

    def weight(self, i: int) -> int:
        """Reckon the bytes of a chunk, from what is listed; 0 where nothing is."""
        k = bisect_right(self._begins, i) - 1
        stream, i = self.streams[k], i - self._begins[k]
        if stream.sizes is None or stream.sizes[i] < 0:
            return 0
        return int(stream.sizes[i]) + sum(
            file.size or 0 for file in (stream.parts[i] if stream.parts else ())
        )

    def fetch(self, i: int, passing: bool = False) -> None:
        """Fetch a chunk whole into the cache before its store, unless it was; what the cache cannot keep is left where it is.

        passing  a run reads it in one place alone, and `passed` will say when that is over
        """
        if i in self._fetched:
            return
        with self._lock:
            turn = self._turns.setdefault(i, threading.Lock())
        with (
            turn
        ):  # who waits here is woken at once; between processes the cache asks again and again
            if i in self._fetched:
                return
            chunk = self.chunk(i)
            if passing:
                self._passing.add(i)
            for at, file in zip_longest((chunk.at, *chunk.beside), chunk.files):
                at.store.keep(at.path, file.size if file else None, passing)
            self._fetched[i] = chunk
            if passing and i not in self._passing:  # a run ended meanwhile
                self._pass(i, chunk)

    def passed(self, i: int) -> None:
        """Let go of a chunk that a run has passed."""
        chunk = self._fetched.get(i) or self.chunk(i)
        self.let_go(i)
        self._pass(i, chunk)

    def pass_all(self) -> None:
        """Let go of all chunks in memory that runs have not passed; shards that are open stay so."""
        for i in list(self._passing):
            self._pass(i, self.chunk(i))

    def _pass(self, i: int, chunk: Chunk) -> None:
        self._passing.discard(i)
        for at in (chunk.at, *chunk.beside):
            at.store.passed(at.path)

    def close(self) -> None:
        """Close all shards that are open."""
        for i in list(self._open):
            self.let_go(i)

    def let_go(self, i: int) -> None:
        """Close the shard at a position, if it is open; it is opened again when it is needed."""
        with self._lock:
            shard = self._open.pop(i, None)
            for readers in self._readers.values():
                readers.pop(i, None)
            self._fetched.pop(i, None)
            self._turns.pop(i, None)
            self._asked.discard(i)
        if shard is not None:
            shard.memo.clear()  # a format may hold it elsewhere
            for at in (shard.chunk.at, *shard.chunk.beside):
                at.forget()

    def read_rows(
        self, rows: IntArray, columns: Sequence[str] | None = None, ranges: Ranges | None = None
    ) -> list[Row]:
        """Give encoded rows in the order asked; those of one shard are read together.

        rows    int64 [k], each in [0, rows)
        ranges  column of lists -> (start, stop): the items to read, of formats whose columns can be lists
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
        """Find rows in memory, in the order asked, from the first on; None where the format or the store cannot, or few of them lie together.

        rows   int64 [k], each in [0, rows)
        least  so many at any rate; more as long as they are few bytes, since what is on a disk is read ahead, and lie in local shards that are
               not compressed: others may have to be fetched, or are copied when they are found
        """
        if len(rows) > least:
            i = self.at(int(rows[0]))
            size = self.weight(i) // max(1, self.edges[i + 1] - self.edges[i])
            rows = rows[: max(least, _AT_ONCE // size if size and _is_mapped(self.shard(i)) else 0)]
        where: IntArray = self.starts.searchsorted(rows, "right") - 1
        own, order = rows - self.starts[where], where.argsort(kind="stable")
        where = where[order]
        firsts: list[int] = [
            0,
            *((where[1:] != where[:-1]).nonzero()[0] + 1).tolist(),
        ]  # in that order, of each shard
        if len(rows) < _TOGETHER * len(firsts) or len(firsts) > files_limit(_HELD) // 2:
            return None
        bounds, parts = [*firsts, len(rows)], list[spans.Lying]()
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
        """Give the position of each row in its shard, and the shards: each with the places in `rows` of what it holds."""
        where: IntArray = np.searchsorted(self.starts, rows, "right") - 1
        own: list[int] = (rows - self.starts[where]).tolist()
        shards: dict[int, list[int]] = {}
        for k, i in enumerate(where.tolist()):
            shards.setdefault(i, []).append(k)
        return own, shards

    def read_row(self, row: int, columns: Sequence[str] | None = None) -> Row:
        """Give one encoded row, with as little around it as there can be; `row` is in [0, rows)."""
        i = bisect_right(self.edges, row) - 1
        shard = self.shard(i)
        return formats.find(shard.chunk.format or "").read_rows(
            shard, (row - self.edges[i],), columns
        )[0]

    def row_readers(self, columns: tuple[str, ...] | None) -> dict[int, Callable[[int], Row]]:
        """Return the direct readers of open shards by position; closing a shard removes its reader."""
        return self._readers.setdefault(columns, {})

    def add_reader(self, i: int, columns: tuple[str, ...] | None) -> None:
        """Make the direct reader of a shard, if it is mapped."""
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
        """Give rows start..stop as batches of at most `size` rows, none across two shards, each of bounded bytes."""
        while start < stop:
            end = self.span(start, stop, size)
            i = int(np.searchsorted(self.starts, start, "right")) - 1
            shard, first = self.shard(i), int(self.starts[i])
            yield formats.find(shard.chunk.format or "").read_batch(
                shard, start - first, end - first, columns, views
            )
            start = end

    def span(self, start: int, stop: int, size: int) -> int:
        """Give the row at which a batch that begins at `start` ends: `size` rows, one shard, bounded bytes at most."""
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
    """Ask for what is read of a chunk in large pages, if it is mapped: what is compressed is not."""
    for at in () if spans.suffix(chunk) else (chunk.at, *chunk.beside):
        if at.is_local and (view := at.map()) is not None:
            expect(view, together)


def _note(holder: Series, i: int, shard: Shard) -> None:
    """Note that a shard was opened, and close others until there is room."""
    global _files
    files = 1 + len(shard.chunk.beside) if shard.chunk.at.may_map else 0
    limit, over = files_limit(_FILES), []
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
    """Let the allocator keep what is given back, for the next batch. Once a process is enough.

    glibc gives the end of its heap back to the system as soon as 128 KB of it are free, and a batch of small rows is ten times that: most
    would come in fresh pages, which is a third of what reading rows of 20 KB costs, and five sixths in a virtual machine (measured). A large
    block that is freed tells it what sizes come and go: from then on it keeps twice as much. No page of this one is touched. Other
    allocators do as they did.
    """
    bytes(_BLOCK)


def _forked() -> None:
    """In a child no other thread holds a lock."""
    global _lock
    _lock = threading.Lock()
    for one in _all:
        one._lock = threading.Lock()
        one._turns = {}


os.register_at_fork(after_in_child=_forked)
lifetimes.register("open shards", close_shards)
