"""Series (the rows of many shards as one sequence), and the limit on open shards per process."""

from __future__ import annotations

import contextlib
import functools
import mmap
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flarecli import encodings, formats, lifetimes, playlists
from flarecli.errors import FlareError, FormatError, UsageError
from flarecli.formats import LargeValue, byte_ranges
from flarecli.formats.tables import typed_field
from flarecli.lazy import pa
from flarecli.model import Chunk, Columns, IntArray, Row, Shard, Stream, joined_columns, total
from flarecli.playlists.fill import described
from flarecli.read.fingerprint import listing_checksum
from flarecli.storage import expect, files_limit, keep_freed

__all__ = ["GatheredRows", "Series"]

Ranges: TypeAlias = Mapping[str, tuple[int, int]]
_OpenShard: TypeAlias = "tuple[weakref.ref[Series], int]"  # series, position in the series

# Limits on the open shards of a process: the number of mapped files, which is lower if the limit on
# open files is low, and the approximate memory.
_MAX_FILES, _MAX_OPEN_BYTES = 4096, 1 << 30
# Bytes that count for an open shard in addition to its tables. More bytes count for a file with
# Arrow types, because the size of its metadata is unknown, and for a remote shard, because a cached
# copy uses disk space until the shard is closed, even if the cache has evicted the copy.
_SHARD_BYTES, _LARGE_SHARD_BYTES = 1 << 18, 1 << 21
_BATCH_BYTES = 16 << 20  # approximate maximum bytes per batch in a scan
_MIN_SHARD_ROWS = 8  # with fewer rows per shard, reading single rows is faster than reading columns
# Approximate memory of the rows to gather in one call: the larger of _GATHER_BYTES and the memory
# of _GATHER_SHARD_ROWS rows per shard, but at most _MAX_GATHER_BYTES.
_GATHER_BYTES, _MAX_GATHER_BYTES, _GATHER_SHARD_ROWS = 4 << 20, 16 << 20, 256
_VALUE_BYTES = 100  # approximate memory of a value of variable size, in addition to its bytes
_MAX_GATHERED_FILES = 1024  # maximum number of mapped files from which two threads gather rows


class Series:
    """A concatenation of streams that have the same columns.

    A Series can be pickled. Open shards are not pickled, so each process opens its own shards. The
    position of a chunk is its number, counted from 0 across all streams.

    rows     the number of rows of all streams
    columns  the columns of every stream
    raises   UsageError if columns differ; any error from opening a shard whose row count is not
             listed
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        # If there is only one file, it is not opened here to find its types, because `fields` opens
        # the file later.
        is_single = sum(map(len, streams)) == 1 and streams[0].columns is None
        self.streams = tuple(streams if is_single else described(streams))
        self.name = self.streams[0].name
        # the position of the first chunk of each stream, then the number of chunks
        self._firsts = [0, *accumulate(len(stream) for stream in self.streams)]
        self._open: dict[int, Shard] = {}
        self._readers: dict[tuple[str, ...] | None, dict[int, Callable[[int], Row]]] = {}
        self._expected = 0  # bytes that will be read; see `expect`
        self._advised: set[int] = set()  # positions of shards passed to `_advise`
        # downloaded chunks, kept here because `chunk` would check the address again
        self._fetched: dict[int, Chunk] = {}
        self._fetch_locks: dict[int, threading.Lock] = {}
        self._passing: set[int] = set()  # positions of chunks to release; see `fetch`
        self._lock = threading.Lock()
        _all_series.add(self)
        self.columns: Columns = ()  # `_columns` may call `shard`, which reads this attribute
        self.columns = self._columns()
        self.starts = self._starts()  # int64 [chunks + 1]: the first row of each chunk
        self.edges = self.starts.data  # memoryview of `starts`; indexing returns Python integers

    def __reduce__(self) -> tuple[object, ...]:
        return Series, (self.streams,)

    @property
    def rows(self) -> int:
        """Return the number of rows of all streams."""
        return int(self.starts[-1])

    @property
    def chunks(self) -> int:
        """Return the number of chunks of all streams."""
        return self._firsts[-1]

    def _columns(self) -> Columns:
        """Return the listed columns, or the columns of the first shard if none are listed."""
        out: Columns | None = None
        for stream, first in zip(self.streams, self._firsts, strict=False):
            columns = stream.columns
            if columns is None:
                columns = self.shard(first).columns if len(stream) else ()
            if out is not None and columns != out and len(stream):
                raise UsageError(
                    f"the columns of stream {stream.name!r} differ from the columns of the previous "
                    "stream",
                    where=stream.at,
                    hint="Read the streams separately, or pack them again with the same columns.",
                )
            out = joined_columns(out, [columns]) if out and len(stream) else out or columns
        return out or ()

    def _starts(self) -> IntArray:
        parts = [np.zeros(1, np.int64)]
        for stream, first in zip(self.streams, self._firsts, strict=False):
            if stream.rows is None:
                rows = np.full(len(stream), -1, np.int64)
            else:
                rows = stream.rows.astype(np.int64)  # a copy, which is completed below
            for i in np.flatnonzero(rows < 0).tolist():
                rows[i] = self.shard(first + i).rows
            parts.append(rows)
        rows = np.concatenate(parts)
        if rows.sum(dtype=np.float64) >= 1 << 61 and total(rows) >= 1 << 62:
            raise FormatError(f"too many rows are listed: {total(rows)}", where=self.streams[0].at)
        return np.cumsum(rows, dtype=np.int64)

    @property
    def schema(self) -> Mapping[str, Any]:
        """Return the Arrow type of each column, as listed in the playlist header `schema`.

        The types and the order of the columns are those of the packed table. The mapping is empty
        if no types are listed, or if the streams list different types. The types of a stream
        without rows are ignored if another stream has rows.
        """
        streams = [stream for stream in self.streams if len(stream)] or self.streams
        listed = [stream.headers.get(playlists.SCHEMA) for stream in streams]
        first: Any = listed[0] if listed else None
        is_same = first is not None and all(one == first for one in listed)
        return first if is_same and first.keys() == {one.name for one in self.columns} else {}

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column, from the format or else from `schema`."""
        if self.is_typed:
            return {field.name: field.type for field in self.fields.values()}
        return {name: encodings.parse_type(header) for name, header in self.schema.items()}

    @property
    def is_typed(self) -> bool:
        """Return whether the formats of all streams store Arrow types."""
        return all(formats.facts(stream.format).typed for stream in self.streams)

    @functools.cached_property
    def fields(self) -> dict[str, pa.Field]:
        """Return the Arrow field of each column; empty if the format stores no Arrow types."""
        if not self.is_typed:
            return {}
        types = self.streams[0].types
        if not types and self.chunks:
            shard = self.shard(0)
            types = _format(shard).types(shard)
        return {
            one.name: typed_field(one, types.get(one.name, encodings.lookup(one.encoding).arrow))
            for one in self.columns
        }

    def checksum(self, rows: int) -> str | None:
        """Return the listing checksum of the shards that contain the first `rows` rows.

        The result is None if the first `rows` rows end inside a shard.
        """
        count = int(np.searchsorted(self.starts, rows)) if rows < self.rows else self.chunks
        if self.starts[count] != rows:
            return None
        return listing_checksum(self.streams, self.columns, np.diff(self.starts[: count + 1]))

    def load(self) -> None:
        """Import the format modules, so that forked processes share them."""
        for stream in self.streams:
            if stream.format:
                formats.find(stream.format)

    # -- chunks

    def _listed(self, i: int) -> tuple[Stream, int]:
        """Return the stream that contains a chunk, and the position of the chunk in the stream."""
        k = bisect_right(self._firsts, i) - 1
        return self.streams[k], i - self._firsts[k]

    def chunk(self, i: int) -> Chunk:
        """Return the chunk at a position."""
        stream, k = self._listed(i)
        return stream.chunk(k)

    def position(self, row: int) -> int:
        """Return the position of the chunk that contains a row."""
        # `bisect` is faster than numpy, which would release the interpreter lock
        return bisect_right(self.edges, row) - 1

    def weight(self, i: int) -> int:
        """Return the listed size of a chunk in bytes; 0 if no size is listed."""
        stream, k = self._listed(i)
        if stream.sizes is None or stream.sizes[k] < 0:
            return 0
        companions = stream.parts[k] if stream.parts else ()
        return int(stream.sizes[k]) + sum(file.size or 0 for file in companions)

    @property
    def stored(self) -> int:
        """Return the total listed size of all chunks in bytes; -1 if any size is not listed."""
        out = 0
        for stream in self.streams:
            sizes = stream.stored
            if sizes is None or (sizes < 0).any():
                return -1
            out += total(sizes)
        return out

    @property
    def room(self) -> int:
        """Return the maximum number of bytes to prefetch; 0 if a stream has no cache."""
        return min(stream.at.store.room for stream in self.streams)

    @property
    def is_mapped(self) -> bool:
        """Return whether the first shard of each stream is local and not compressed.

        Always False for formats that store Arrow types.
        """
        return not self.is_typed and all(
            stream.at.is_local and not (len(stream) and byte_ranges.suffix(stream.chunk(0)))
            for stream in self.streams
        )

    # -- open shards

    def shard(self, i: int) -> Shard:
        """Return the shard at a position; open it if necessary.

        raises  any error from opening the shard, for example if its columns differ from the listed
                columns
        """
        if (shard := self._open.get(i)) is not None:
            return shard
        chunk = self._fetched.get(i) or self.chunk(i)
        columns = self._listed(i)[0].columns or self.columns or None
        with self._lock:
            expected = 0 if i in self._advised else self._expected
            self._advised.update((i,) if expected else ())
        if expected:
            # Advise the kernel before `open_shard` reads mapped bytes, because bytes that are read
            # before the advice are loaded into small pages.
            with contextlib.suppress(FlareError):  # `open_shard` raises the same error
                _advise(chunk, expected)
        keep_freed()
        shard = formats.find(chunk.format or "").open_shard(chunk, columns)
        with self._lock:
            self._open[i] = shard
        _open_shards.add(self, i, shard)
        return shard

    def shard_facts(self, i: int) -> Mapping[str, int | str]:
        """Return facts about a shard for `inspect`; empty for formats that store no Arrow types."""
        return _format(self.shard(i)).shard_facts(self.shard(i)) if self.is_typed else {}

    def large_values(self, i: int, max_bytes: int) -> list[LargeValue]:
        """Return the values larger than `max_bytes` in a chunk, if its format stores value sizes.

        A chunk whose listed size is at most `max_bytes` is not opened.
        """
        is_compressed = self._listed(i)[0].raw_sizes is not None
        if not is_compressed and 0 < self.weight(i) <= max_bytes:
            return []
        shard = self.shard(i)
        return _format(shard).large_values(shard, max_bytes)

    def expect(self, total_bytes: int) -> None:
        """Request large pages for the memory maps of all chunks, because all chunks will be read.

        total_bytes  total listed size of all files that will be read, including those of other
                     Series
        """
        with self._lock:
            self._expected, opened = total_bytes, [*self._open.values()]
            self._advised.update(self._open)
        for shard in opened:
            _advise(shard.chunk, total_bytes)

    def close(self) -> None:
        """Close all open shards of this series."""
        for i in list(self._open):
            self.close_shard(i)

    def close_shard(self, i: int) -> None:
        """Close the shard at a position, if it is open. Reading its rows reopens the shard."""
        with self._lock:
            shard = self._open.pop(i, None)
            for readers in self._readers.values():
                readers.pop(i, None)
            self._fetched.pop(i, None)
            self._fetch_locks.pop(i, None)
            self._advised.discard(i)
        _open_shards.remove(self, i)
        if shard is not None:
            shard.memo.clear()  # an object in the memo may refer to the shard and keep it in memory
            for at in (shard.chunk.at, *shard.chunk.companions):
                at.forget()

    # -- prefetch

    def fetch(
        self, i: int, passing: bool = False, is_needed: Callable[[], bool] | None = None
    ) -> None:
        """Download a chunk into the cache once.

        By default, a chunk that does not fit into the cache is not downloaded.

        passing    True: if the chunk does not fit into the cache, keep its bytes in memory instead,
                   if possible. The caller must call `release` when it no longer needs the chunk
        is_needed  function that returns False if the run has already called `release`. The chunk
                   is then not downloaded again. None means that the chunk is always needed
        """
        if i in self._fetched:
            return
        with self._lock:
            fetch_lock = self._fetch_locks.setdefault(i, threading.Lock())
        # The cache has its own lock for all processes, which can only be polled. Threads of this
        # process wait for `fetch_lock` first, because waiting without polling is faster.
        with fetch_lock:
            if i in self._fetched or (is_needed is not None and not is_needed()):
                return
            chunk = self.chunk(i)
            if passing:
                self._passing.add(i)
            for at, file in zip_longest((chunk.at, *chunk.companions), chunk.files):
                at.store.keep(at.path, file.size if file else None, passing)
            self._fetched[i] = chunk
            if passing and i not in self._passing:  # the chunk was released during the download
                self._release(i, chunk)

    def release(self, i: int) -> None:
        """Close the shard of a chunk that a run no longer needs, and release the chunk's bytes."""
        chunk = self._fetched.get(i) or self.chunk(i)
        self.close_shard(i)
        self._release(i, chunk)

    def release_all(self) -> None:
        """Release the bytes of all chunks that were fetched with `passing`.

        Open shards remain open.
        """
        for i in list(self._passing):
            self._release(i, self.chunk(i))

    def _release(self, i: int, chunk: Chunk) -> None:
        self._passing.discard(i)
        for at in (chunk.at, *chunk.companions):
            at.store.passed(at.path)

    # -- rows

    def read_rows(
        self, rows: IntArray, columns: Sequence[str] | None = None, ranges: Ranges | None = None
    ) -> list[Row]:
        """Return encoded rows in the order of `rows`; the rows of one shard are read together.

        rows    row numbers, int64 [k], each in [0, self.rows)
        ranges  list column -> (start, stop) of the items to read
        """
        positions = np.searchsorted(self.starts, rows, "right") - 1
        own_rows: list[int] = (rows - self.starts[positions]).tolist()
        by_shard: dict[int, list[int]] = {}  # position of a chunk -> indices into `rows`
        for k, i in enumerate(positions.tolist()):
            by_shard.setdefault(i, []).append(k)
        out: list[Row] = [{}] * len(own_rows)
        for i, at in sorted(by_shard.items()):
            shard = self.shard(i)
            encoded = _format(shard).read_rows(shard, [own_rows[k] for k in at], columns, ranges)
            if len(by_shard) == 1:
                return encoded
            for k, row in zip(at, encoded, strict=True):
                out[k] = row
        return out

    def take(self, rows: IntArray, columns: Sequence[str]) -> pa.Table:
        """Return columns in the order of `rows`, for a format that stores Arrow types.

        rows  row numbers, int64 [k], each in [0, self.rows)
        """
        order = np.unique(rows)
        parts = list[pa.RecordBatch]()
        for run in np.split(order, np.flatnonzero(np.diff(order) != 1) + 1) if len(order) else ():
            parts += self.scan(int(run[0]), int(run[-1]) + 1, columns, len(run))
        schema = pa.schema([self.fields[name] for name in columns])
        return pa.Table.from_batches(parts, schema).take(pa.array(np.searchsorted(order, rows)))

    def read_row(self, row: int, columns: Sequence[str] | None = None) -> Row:
        """Return one encoded row. `row` must be in [0, self.rows)."""
        i = self.position(row)
        shard = self.shard(i)
        return _format(shard).read_rows(shard, (row - self.edges[i],), columns)[0]

    def row_readers(self, columns: tuple[str, ...] | None) -> dict[int, Callable[[int], Row]]:
        """Return the fast row readers of open shards: position -> function(row number in shard)."""
        return self._readers.setdefault(columns, {})

    def add_reader(self, i: int, columns: tuple[str, ...] | None) -> None:
        """Add the fast row reader of a shard to `row_readers(columns)`, if the shard is mapped."""
        shard = self.shard(i)
        if _is_mapped(shard):
            reader = _format(shard).row_reader(shard, columns)
            with self._lock:
                if self._open.get(i) is shard:
                    self._readers.setdefault(columns, {})[i] = reader

    def gather(
        self, rows: IntArray, least: int, columns: Sequence[str] | None = None
    ) -> GatheredRows | None:
        """Gather the stored values of `rows`, or of a prefix of `rows`, in the order of `rows`.

        rows    row numbers, int64 [k], each in [0, self.rows)
        least   minimum number of rows to gather. More rows are gathered only if the rows are small
                and their shards are mapped, because rows of shards that are not mapped would have
                to be downloaded or copied
        return  None if the format or the store cannot gather rows, or if each shard contains only a
                few of the rows
        """
        if len(rows) > least:
            rows = rows[: max(least, self._gathered_rows(int(rows[0]), columns))]
        order = rows.argsort()
        ascending = rows[order]
        positions = self.starts.searchsorted(ascending, "right") - 1
        own_rows = ascending - self.starts[positions]
        # index in `positions` at which each shard begins; the last item is the number of rows
        edges = [0, *((positions[1:] != positions[:-1]).nonzero()[0] + 1).tolist(), len(rows)]
        if len(rows) < _MIN_SHARD_ROWS * (len(edges) - 1):
            return None
        back = np.empty_like(order)  # the position of each requested row in `ascending`
        back[order] = np.arange(len(order))
        parts, group = list[byte_ranges.GatheredColumns](), list[Shard]()
        max_shards = files_limit(_MAX_GATHERED_FILES) // 2
        for k, i in enumerate(positions[edges[:-1]].tolist(), 1):
            group.append(shard := self.shard(i))
            is_mapped = _is_mapped(shard)
            if len(rows) > least and not is_mapped:
                return self.gather(rows[:least], least, columns)
            # A shard that is not mapped ends its group, so that the bytes of at most one such shard
            # are in memory.
            if is_mapped and len(group) < max_shards and k < len(edges) - 1:
                continue
            own_edges = edges[k - len(group) : k + 1]
            # the rows of a single group are copied in the requested order, without `_in_order`
            part_order = back if len(group) == len(edges) - 1 else slice(None)
            part = _gathered(group, own_rows, own_edges, columns, part_order)
            if part is None:
                return None
            parts.append(part)
            group = []
        found = parts[0]
        if len(parts) > 1:
            found = {name: _in_order([part[name] for part in parts], back) for name in found}
        return GatheredRows(found, len(rows))

    def _gathered_rows(self, row: int, columns: Sequence[str] | None) -> int:
        """Return the number of rows to gather in one call; 0 means as few rows as possible.

        The number increases with the number of shards, so that enough of the gathered rows are in
        each shard for an array operation. A memory limit applies; the average row size in the shard
        that contains `row` is used for all rows.
        """
        i = self.position(row)
        size = self.weight(i) // max(1, self.edges[i + 1] - self.edges[i])
        if not size or not _is_mapped(self.shard(i)):
            return 0
        values = sum(
            one.size is None for one in self.columns if columns is None or one.name in columns
        )
        row_bytes = size + _VALUE_BYTES * values
        of_shards = min(_MAX_GATHER_BYTES // row_bytes, _GATHER_SHARD_ROWS * self.chunks)
        return max(_GATHER_BYTES // row_bytes, of_shards)

    def scan(
        self, start: int, stop: int, columns: Sequence[str] | None, size: int, views: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows start..stop in batches of at most `size` rows.

        The size of a batch in bytes is also limited. All rows of a batch are from one shard.
        """
        while start < stop:
            end = self.batch_end(start, stop, size)
            i = self.position(start)
            shard, first = self.shard(i), self.edges[i]
            yield _format(shard).read_batch(shard, start - first, end - first, columns, views)
            start = end

    def batch_end(self, start: int, stop: int, size: int) -> int:
        """Return the end row (exclusive) of the batch that `scan` yields for the row `start`."""
        i = self.position(start)
        shard = self.shard(i)
        files = zip(shard.chunk.files, (shard.chunk.at, *shard.chunk.companions), strict=True)
        weight = sum(file.raw_size or file.size or at.size() for file, at in files)
        step = max(1, _BATCH_BYTES // max(1, weight // max(1, shard.rows)))
        return int(min(start + min(size, step), self.edges[i + 1], stop))


def _format(shard: Shard) -> formats.Format:
    return formats.find(shard.chunk.format or "")


def _gathered(
    shards: Sequence[Shard],
    rows: IntArray,
    edges: Sequence[int],
    columns: Sequence[str] | None,
    order: IntArray | slice,
) -> byte_ranges.GatheredColumns | None:
    """Return the stored values of rows in shards; see `Format.gather_columns`."""
    form = _format(shards[0])
    if any(shard.chunk.format != shards[0].chunk.format for shard in shards):
        return None
    own_edges = [edge - edges[0] for edge in edges]
    return form.gather_columns(shards, rows[edges[0] : edges[-1]], own_edges, columns, order)


def _is_mapped(shard: Shard) -> bool:
    return shard.chunk.at.is_local and not byte_ranges.suffix(shard.chunk)


def _advise(chunk: Chunk, total_bytes: int) -> None:
    """Advise the kernel to use large pages for the memory maps of a chunk.

    Compressed files are skipped, because they are not mapped.
    """
    for at in () if byte_ranges.suffix(chunk) else (chunk.at, *chunk.companions):
        if at.is_local and (view := at.map()) is not None:
            expect(view, total_bytes)


class GatheredRows:
    """Copies of the stored values of rows in several shards, in the requested order.

    columns  the columns of the rows
    rows     number of rows
    """

    def __init__(self, columns: byte_ranges.GatheredColumns, rows: int) -> None:
        self.rows, self._columns = rows, columns

    def columns(self, start: int, stop: int) -> dict[str, Any]:
        """Return copies of the stored bytes of rows start..stop.

        return  column -> numpy array [rows] of dtype void if all values have the same size,
                otherwise a list of bytes
        """
        return {name: self._copied(name, start, stop) for name in self._columns}

    def _copied(self, name: str, start: int, stop: int) -> Any:
        column = self._columns[name]
        if isinstance(column, np.ndarray):
            return column if stop - start == self.rows else column[start:stop].copy()
        values = column[start:stop]
        return values if isinstance(values, list) else values.to_pylist()


def _in_order(parts: Sequence[Any], back: IntArray) -> Any:
    """Concatenate the parts of a column; return the values at the positions `back`, in this order.

    parts  see `GatheredColumns`
    """
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)[back]
    if all(isinstance(part, pa.Array) for part in parts):
        # `pa.array` would import pandas
        indices = pa.Array.from_buffers(pa.int64(), len(back), [None, pa.py_buffer(back)])
        return pa.concat_arrays(parts).take(indices)
    values = list[bytes]()
    for part in parts:
        values += part if isinstance(part, list) else part.to_pylist()
    return [*map(values.__getitem__, back.tolist())]


# -- the open shards of the process


class _OpenShards:
    """The open shards of the process, oldest first. The oldest are closed if a limit is exceeded.

    files  number of mapped files
    bytes  approximate memory of the shards, without the mapped files
    """

    def __init__(self) -> None:
        # (series, position in the series) -> number of mapped files, and memory in bytes
        self._shards: dict[_OpenShard, tuple[int, int]] = {}
        self.files = self.bytes = 0
        self.lock = threading.Lock()

    def add(self, series: Series, i: int, shard: Shard) -> None:
        """Add an open shard, and close the oldest open shards while a limit is exceeded."""
        files = 1 + len(shard.chunk.companions) if shard.chunk.at.may_map else 0
        is_small = shard.chunk.at.is_local and not series.is_typed
        size = (_SHARD_BYTES if is_small else _LARGE_SHARD_BYTES) + _table_bytes(shard)
        limit, evicted = files_limit(_MAX_FILES), list[_OpenShard]()
        key = weakref.ref(series), i
        with self.lock:
            self._remove(key)  # two threads may have opened the shard
            self._shards[key] = files, size
            self.files, self.bytes = self.files + files, self.bytes + size
            while len(self._shards) > 1 and (self.bytes > _MAX_OPEN_BYTES or self.files > limit):
                evicted.append(next(iter(self._shards)))
                self._remove(evicted[-1])
        _close(evicted)

    def remove(self, series: Series, i: int) -> None:
        """Remove the entry of a closed shard.

        Such an entry would count as an open shard. If the shard were opened again, the eviction of
        the old entry would close it.
        """
        with self.lock:
            self._remove((weakref.ref(series), i))

    def _remove(self, key: _OpenShard) -> None:
        files, size = self._shards.pop(key, (0, 0))
        self.files, self.bytes = self.files - files, self.bytes - size

    def close(self) -> None:
        """Close the shards of all datasets."""
        with self.lock:
            closed = list(self._shards)
            self._shards.clear()
            self.files = self.bytes = 0
        _close(closed)


def _table_bytes(shard: Shard) -> int:
    """Return the memory of the tables in a shard's layout; tables in a mapped file need none."""
    return sum(
        table.nbytes
        for table in shard.layout.values()
        if isinstance(table, np.ndarray) and not _is_in_map(table)
    )


def _is_in_map(table: npt.NDArray[Any]) -> bool:
    base: Any = table
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap)


def _close(shards: Iterable[_OpenShard]) -> None:
    for reference, i in shards:
        if (series := reference()) is not None:
            series.close_shard(i)


_all_series: weakref.WeakSet[Series] = weakref.WeakSet()
_open_shards = _OpenShards()


def _forked() -> None:
    """Replace the locks in a forked child process.

    A thread of the parent process may hold a lock. The child process has no such thread, so the
    lock would never be released.
    """
    _open_shards.lock = threading.Lock()
    for series in _all_series:
        series._lock = threading.Lock()
        series._fetch_locks = {}


lifetimes.after_fork(_forked)
lifetimes.register("open shards", _open_shards.close)
