"""Random access to the rows of a table: decoded batches in a bounded cache.

A reader starts at a row such as the first row of a row group, and decodes batches in order. It
stays open after each batch, so that reading rows in order decodes each batch once. For other rows,
only the pages that contain them are decoded, if the file lists the rows of its pages. One cache for
the whole process keeps decoded batches and pages.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

import pyarrow as pa

from flarecli import lifetimes
from flarecli.errors import FormatError
from flarecli.expansion import check_decoded
from flarecli.formats.tables.base import Part

__all__ = ["TableRows"]

MAX_CACHED_BYTES = 128 << 20  # maximum total size of decoded batches in the process
# Maximum number of rows that are decoded only to reach a requested row. If more rows would have to
# be decoded, the pages of the requested row are read instead.
NEAR_ROWS = 8192
MAX_OPEN_READERS = 2  # maximum number of open readers per table; each reads different columns
Columns = tuple[str, ...]
# Cache key: (number of the table, columns, first row). For decoded pages, `columns` is the name of
# one column; for a batch, it is a tuple of names.
_Key = tuple[int, Columns | str, int]


class _Cache:
    """Cache of decoded batches of all tables, least recently used first. It is thread-safe.

    ended  numbers of the tables that were garbage collected. Finalizers only append to this queue.
           They cannot take the lock, because their thread may already hold it
    """

    def __init__(self) -> None:
        self.ended = deque[int]()
        self._batches: OrderedDict[_Key, pa.RecordBatch] = OrderedDict()
        self._bytes = 0
        self.reset()

    def reset(self) -> None:
        """Empty the cache of a forked child, where the thread that held the lock may not exist."""
        self._lock = threading.Lock()
        self.clear()

    def find(self, key: _Key) -> pa.RecordBatch | None:
        """Return a batch, and mark it as recently used; None if it is not in the cache."""
        with self._lock:
            batch = self._batches.get(key)
            if batch is not None:
                self._batches.move_to_end(key)
            return batch

    def add(self, key: _Key, batch: pa.RecordBatch) -> None:
        """Add a batch, and evict the least recently used batches while the cache is too large."""
        with self._lock:
            while self.ended:
                self._remove(self.ended.popleft())
            if key in self._batches:
                return
            self._batches[key] = batch
            self._bytes += batch.nbytes
            while len(self._batches) > 1 and self._bytes > MAX_CACHED_BYTES:
                _, evicted = self._batches.popitem(last=False)
                self._bytes -= evicted.nbytes

    def clear(self) -> None:
        """Remove the batches of all tables."""
        with self._lock:
            self._batches.clear()
            self._bytes = 0

    def _remove(self, number: int) -> None:
        for key in [key for key in self._batches if key[0] == number]:
            self._bytes -= self._batches.pop(key).nbytes


_cache = _Cache()
_numbers = itertools.count()


lifetimes.after_fork(_cache.reset)
lifetimes.register("decoded tables", _cache.clear)


class TableRows:
    """Reader of the rows of one table, in any order.

    part  reader of the file
    rows  number of rows in the table
    """

    def __init__(self, part: Part, rows: int) -> None:
        self.part, self.rows = part, rows
        self._number = next(_numbers)
        self._lock = threading.Lock()
        self._starts: dict[Columns, list[int]] = {}  # columns -> first row of each decoded batch
        # columns -> next row and open reader; the most recently used reader is last
        self._ahead: dict[Columns, tuple[int, Iterator[tuple[int, pa.RecordBatch]]]] = {}
        weakref.finalize(self, _cache.ended.append, self._number).atexit = False

    def read(self, start: int, stop: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """Return rows start..stop as one or more batches; `stop` must be greater than `start`.

        raises  FormatError for invalid data, or if the table has fewer rows than expected;
                IntegrityError if the decoded size of the rows exceeds the limit
        """
        names, out, size = tuple(columns), list[pa.RecordBatch](), 0
        while start < stop:
            first, batch = self._batch(start, stop, names)
            part = batch.slice(start - first, stop - start)
            size += part.nbytes
            if size > 1 << 24 and self.part.location is not None:
                check_decoded(size, self.part.location.size(), self.part.at)
            out.append(part)
            start += part.num_rows
        return out

    def _batch(self, row: int, stop: int, names: Columns) -> tuple[int, pa.RecordBatch]:
        """Return a decoded batch that contains `row`: (number of its first row, batch).

        stop  row number after the last row that the caller needs
        """
        with self._lock:
            starts = self._starts.setdefault(names, [])
            at = bisect_right(starts, row) - 1
            found = _cache.find((self._number, names, starts[at])) if at >= 0 else None
            if found is not None and row < starts[at] + found.num_rows:
                return starts[at], found
            position, batches = self._ahead.get(names, (-1, iter(())))
            start = self.part.start_before(row)
            is_near = start <= position <= row < position + NEAR_ROWS
            if not is_near and start < row and (paged := self._paged(row, stop, names)) is not None:
                return row, paged
            self._ahead.pop(names, None)
            if not start <= position <= row:
                while len(self._ahead) >= MAX_OPEN_READERS:
                    del self._ahead[next(iter(self._ahead))]
                batches = self.part.batches_from(start, names)
            for first, batch in batches:
                if not batch.num_rows:
                    continue
                if first not in starts[bisect_right(starts, first) - 1 :][:1]:
                    insort(starts, first)
                _cache.add((self._number, names, first), batch)
                if row < first + batch.num_rows:
                    self._ahead[names] = first + batch.num_rows, batches
                    return first, batch
        raise FormatError(
            f"file has fewer than {self.rows} rows; row {row} is missing", where=self.part.at
        )

    def _paged(self, row: int, stop: int, names: Columns) -> pa.RecordBatch | None:
        """Return a batch that starts at `row`; read only the pages that contain its rows.

        The batch ends at `stop` or earlier; see `Parquet.page_runs`.

        return  None if the pages cannot be read separately
        """
        located = self.part.page_runs(row, stop, names)
        if located is None:
            return None
        first, stop, runs = located
        keys = {run: (self._number, run.column, first + run.start) for run in runs}
        arrays = {run: found.column(0) for run in runs if (found := _cache.find(keys[run]))}
        missing = [run for run in runs if run not in arrays]
        read = self.part.read_runs(row, missing) if missing else []
        if read is None:
            return None
        for run, array in read:
            arrays[run] = array
            _cache.add(keys[run], pa.RecordBatch.from_arrays([array], [run.column]))
        columns = []
        for name in names:
            parts = []
            for run in runs:
                if run.column == name:
                    offset = max(0, row - first - run.start)
                    length = stop - first - run.start - offset
                    parts.append(arrays[run].slice(offset, length))
            columns.append(pa.concat_arrays(parts) if len(parts) > 1 else parts[0])
        return pa.RecordBatch.from_arrays(columns, list(names))
