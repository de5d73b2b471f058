"""Random access to the rows of a table: decoded batches in a bounded cache.

A table is read forward from a start, such as the first row of a row group. The position after the
last batch is kept, so reading rows in order decodes every batch once. Decoded batches are kept in
one cache for the whole process.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import pyarrow as pa

from flarecli import lifetimes
from flarecli.errors import FormatError
from flarecli.expansion import check_decoded
from flarecli.formats.tables.base import Part

__all__ = ["TableRows"]

MAX_CACHED_BYTES = 128 << 20  # decoded batches of all tables in the process
Columns = tuple[str, ...]


class _Cache:
    """Decoded batches of all tables, least recently used first. Any thread may use the cache."""

    def __init__(self) -> None:
        self._lock, self._bytes = threading.Lock(), 0
        self._batches: OrderedDict[tuple[int, Columns, int], pa.RecordBatch] = OrderedDict()

    def find(self, key: tuple[int, Columns, int]) -> pa.RecordBatch | None:
        """Return a batch and mark it as recently used."""
        with self._lock:
            batch = self._batches.get(key)
            if batch is not None:
                self._batches.move_to_end(key)
            return batch

    def add(self, key: tuple[int, Columns, int], batch: pa.RecordBatch) -> None:
        """Add a batch, and evict old batches while the cache is too large."""
        with self._lock:
            if key in self._batches:
                return
            self._batches[key] = batch
            self._bytes += batch.nbytes
            while len(self._batches) > 1 and self._bytes > MAX_CACHED_BYTES:
                _, evicted = self._batches.popitem(last=False)
                self._bytes -= evicted.nbytes

    def remove(self, number: int | None = None) -> None:
        """Remove the batches of one table; None: of all tables."""
        with self._lock:
            for key in [key for key in self._batches if number is None or key[0] == number]:
                self._bytes -= self._batches.pop(key).nbytes


_cache = _Cache()
_numbers = itertools.count()


def _forked() -> None:
    """Replace the cache in a forked child, because a thread that holds its lock is not there."""
    global _cache
    _cache = _Cache()


def _forget(number: int | None = None) -> None:
    _cache.remove(number)


os.register_at_fork(after_in_child=_forked)
lifetimes.register("decoded tables", _forget)


class TableRows:
    """Reader of the rows of one table, in any order.

    part  reader of the file
    rows  number of rows in the table
    """

    def __init__(self, part: Part, rows: int) -> None:
        self.part, self.rows = part, rows
        self._number = next(_numbers)
        self._lock = threading.Lock()
        self._starts: dict[Columns, list[int]] = {}  # first rows of the batches that were decoded
        self._ahead: dict[Columns, tuple[int, Iterator[tuple[int, pa.RecordBatch]]]] = {}
        weakref.finalize(self, _forget, self._number).atexit = False

    def read(self, start: int, stop: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """Return rows start..stop, at least one row, as one or more batches.

        raises  FormatError for invalid data, or if the table has fewer rows than expected;
                IntegrityError if the decoded size of the rows exceeds the limit
        """
        names, out, size = tuple(columns), list[pa.RecordBatch](), 0
        while start < stop:
            first, batch = self._batch(start, names)
            part = batch.slice(start - first, stop - start)
            size += part.nbytes
            if size > 1 << 24 and self.part.location is not None:
                check_decoded(size, self.part.location.size(), self.part.at)
            out.append(part)
            start += part.num_rows
        return out

    def _batch(self, row: int, names: Columns) -> tuple[int, pa.RecordBatch]:
        """Return the decoded batch that contains a row, and the number of its first row."""
        with self._lock:
            starts = self._starts.setdefault(names, [])
            at = bisect_right(starts, row) - 1
            found = _cache.find((self._number, names, starts[at])) if at >= 0 else None
            if found is not None and row < starts[at] + found.num_rows:
                return starts[at], found
            position, batches = self._ahead.pop(names, (-1, iter(())))
            start = self.part.start_before(row)
            if not start <= position <= row:
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
