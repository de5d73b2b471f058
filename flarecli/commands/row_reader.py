"""Reading of dataset rows, with checks of value sizes against `--max-object`.

If the tables of the shards contain the sizes of values, values that are too large are not read.
`flarecli.write` is imported only if a value may be too large, because it loads many modules.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from flarecli.commands.row_order import Order
from flarecli.encodings import BINARY, TEXT
from flarecli.errors import FlareError
from flarecli.model import IntArray, Stream
from flarecli.read import Dataset

if TYPE_CHECKING:
    from flarecli.write import Failure

__all__ = ["RowReader", "ValueLimit", "small_batches"]

_BLOCK_STEPS = 1 << 16  # number of steps whose row numbers are computed together
_TAKE_ROWS, _TAKE_BYTES = 64, 16 << 20  # maximum rows and bytes per `take`
# If runs of consecutive rows have at least this average length, scans are faster than `take`.
_MIN_RUN_ROWS = 16


@dataclass(frozen=True)
class ValueLimit:
    """The maximum size of a value in a dataset.

    parts      the streams of the dataset, as returned by `select_streams`
    max_bytes  value of `--max-object`
    """

    data: Dataset
    parts: Sequence[Sequence[Stream]]
    max_bytes: int

    @cached_property
    def row_bytes(self) -> int:
        """Return the average row size in bytes according to the listed sizes, but at least 1."""
        size = sum(
            int(np.maximum(stream.sizes if stream.raw_sizes is None else stream.raw_sizes, 0).sum())
            for one in self.parts
            for stream in one
            if stream.sizes is not None
        )
        return max(1, size // max(1, len(self.data)))

    def reader(self, columns: Collection[str], exact: bool = False) -> RowReader:
        """Return a reader that may replace values above the limit with NUL bytes.

        columns  columns in which values may be replaced; the caller must check the rows with
                 `checked` or `too_large` before it uses these columns
        exact    whether numbers that are stored as text are returned as text
        """
        can_exceed = any(
            _can_exceed(stream, self.max_bytes) for one in self.parts for stream in one
        )
        return RowReader(self, columns if can_exceed else (), exact)

    def checked(self, pairs: Iterable[tuple[IntArray, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a reader, up to the first row with a value above the limit.

        raises  ReachError at this row
        """
        for rows, batch in pairs:
            failure, before = _first_large(batch, self.max_bytes)
            if before.num_rows:
                yield before
            if failure is not None:
                from flarecli.commands.provenance import shard_of

                file, row = shard_of(self.data, self.parts[0], int(rows[failure.row]))
                raise _error(replace(failure, file=file, file_row=row), file)


def small_batches(
    batches: Iterable[pa.RecordBatch], max_bytes: int, address: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches, up to the first row with a value of more than `max_bytes`.

    Unlike `ValueLimit.checked`, this function needs no row numbers.

    address  address of the source, for the error
    raises   ReachError at this row
    """
    for batch in batches:
        failure, before = _first_large(batch, max_bytes)
        if before.num_rows or failure is None:
            yield before
        if failure is not None:
            raise _error(failure, address).changed(row=None)


def _first_large(batch: pa.RecordBatch, max_bytes: int) -> tuple[Failure | None, pa.RecordBatch]:
    """Return the failure of the first row with a value above the limit, and all rows before it.

    return  if there is no such row: None and the whole batch
    """
    if batch.nbytes <= max_bytes:
        return None, batch
    from flarecli.write import too_large

    failures = too_large(batch, np.arange(batch.num_rows), None, max_bytes)
    if not failures:
        return None, batch
    first = min(failures)
    return failures[first], batch.slice(0, first)


def _error(failure: Failure, address: str) -> FlareError:
    from flarecli.write import error_of

    error = error_of(failure, address).of_column(failure.column)
    return error.changed(hint=failure.hint)  # without the default hint, which recommends --on-error


def _can_exceed(stream: Stream, max_bytes: int) -> bool:
    """Return whether a file of a shard has more than `max_bytes`, or has no listed size."""
    sizes = stream.sizes if stream.raw_sizes is None else stream.raw_sizes
    if sizes is None or int(sizes.min(initial=0)) < 0 or int(sizes.max(initial=0)) > max_bytes:
        return True
    companions = (file.size for files in stream.parts for file in files)
    return any(size is None or size > max_bytes for size in companions)


class RowReader:
    """Row reader for a dataset. Values above the size limit are not read.

    A row with large values (values above the limit) is returned as a separate batch, in which each
    large value is replaced with the same number of NUL bytes. The NUL bytes occupy no memory,
    because the system allocates memory only when bytes are written. Before the caller uses the
    values, it must reject such rows with `too_large`, which compares the sizes of values.

    columns  columns in which values may be replaced
    exact    whether numbers that are stored as text are returned as text
    """

    def __init__(self, limit: ValueLimit, columns: Collection[str], exact: bool) -> None:
        data = limit.data
        self._data, self._limit, self._exact = data, limit, exact
        self._edges: list[int] = data.edges.tolist()
        schema = data.exact if exact else data.schema
        # Exclude columns whose values are converted, because the size of a stored value is not the
        # size of the converted value.
        self._fields = {
            stored.name: stored
            for stored in data.exact
            if stored.name in columns
            and _has_size(stored.type)
            and stored.equals(schema.field(stored.name), check_metadata=True)
        }
        self._found: dict[tuple[int, tuple[str, ...]], Mapping[int, Mapping[str, int]]] = {}

    def read(
        self, order: Order, columns: Sequence[str], start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[IntArray, pa.RecordBatch]]:
        """Yield row numbers and typed batches of bounded size for steps start..stop of an order.

        Consecutive rows are read by scans, other rows by `take`.
        """
        stop = len(order) if stop is None else stop
        take_rows = max(1, min(_TAKE_ROWS, _TAKE_BYTES // self._limit.row_bytes))
        for begin in range(start, stop, _BLOCK_STEPS):
            rows = order.rows(begin, min(begin + _BLOCK_STEPS, stop))
            breaks = np.flatnonzero(np.diff(rows) != 1) + 1
            if len(rows) < _MIN_RUN_ROWS * len(breaks):
                for k in range(0, len(rows), take_rows):
                    yield from self.take(columns, rows[k : k + take_rows])
                continue
            for run in np.split(rows, breaks):
                yield from self.scan(columns, int(run[0]), int(run[-1]) + 1)

    def scan(
        self, columns: Sequence[str], start: int, stop: int
    ) -> Iterator[tuple[IntArray, pa.RecordBatch]]:
        """Yield rows start..stop as row numbers and typed batches."""
        for first, last, sizes in self._runs(columns, start, stop):
            if sizes:
                yield np.array([first]), self._without(columns, first, sizes)
                continue
            for batch in self._data.scan(columns, first, last, exact=self._exact):
                yield np.arange(first, first + batch.num_rows), batch
                first += batch.num_rows

    def take(
        self, columns: Sequence[str], rows: IntArray
    ) -> Iterator[tuple[IntArray, pa.RecordBatch]]:
        """Yield the given rows, in the given order, as row numbers and typed batches."""
        first = 0
        for i, row in enumerate(rows.tolist() if self._fields else ()):
            sizes = self._sizes(columns, row)
            if sizes and first < i:
                yield rows[first:i], self._data.take(rows[first:i], columns, self._exact)
            if sizes:
                yield rows[i : i + 1], self._without(columns, row, sizes)
                first = i + 1
        if first < len(rows):
            yield rows[first:], self._data.take(rows[first:], columns, self._exact)

    def _runs(
        self, columns: Sequence[str], start: int, stop: int
    ) -> Iterator[tuple[int, int, Mapping[str, int]]]:
        """Yield (start, stop, sizes) for ranges of rows.

        Each row with large values is a separate range, and `sizes` contains the sizes of these
        values. For all other ranges, `sizes` is empty.
        """
        if not self._fields:
            yield start, stop, {}
            return
        while start < stop:
            shard = bisect_right(self._edges, start) - 1
            end = min(stop, self._edges[shard + 1])
            for row, sizes in self._of_shard(columns, shard).items():
                if start <= row < end:
                    yield start, row, {}
                    yield row, row + 1, sizes
                    start = row + 1
            yield start, end, {}
            start = end

    def _sizes(self, columns: Sequence[str], row: int) -> Mapping[str, int]:
        """Return the sizes of the large values in a row: column -> bytes."""
        return self._of_shard(columns, bisect_right(self._edges, row) - 1).get(row, {})

    def _of_shard(self, columns: Sequence[str], shard: int) -> Mapping[int, Mapping[str, int]]:
        """Return the sizes of the large values in a shard, in row order: row -> column -> bytes."""
        names = tuple(name for name in columns if name in self._fields)
        key = shard, names
        if names and key not in self._found:
            start, stop = self._edges[shard], self._edges[shard + 1]
            self._found[key] = self._data.large_values(names, start, stop, self._limit.max_bytes)
        return self._found[key] if names else {}

    def _without(
        self, columns: Sequence[str], row: int, sizes: Mapping[str, int]
    ) -> pa.RecordBatch:
        """Return a row in which each large value is replaced with the same number of NUL bytes.

        sizes  sizes of the large values: column -> bytes
        """
        others = [name for name in columns if name not in sizes]
        read = next(self._data.scan(others, row, row + 1, exact=self._exact)) if others else None
        arrays, fields = [], []
        for name in columns:
            if read is None or name in sizes:
                fields.append(self._fields[name])
                arrays.append(_zeros(fields[-1].type, sizes[name]))
            else:
                fields.append(read.schema.field(name))
                arrays.append(read.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _has_size(kind: pa.DataType) -> bool:
    """Return whether a type is text, bytes, or a list of text or bytes."""
    item = kind.value_type if pa.types.is_large_list(kind) else kind
    return item in (BINARY, TEXT)


def _zeros(kind: pa.DataType, size: int) -> pa.Array:
    """Return an array with one value of `size` NUL bytes, without using memory for these bytes."""
    ends, zeros = np.array([0, size], np.int64), np.zeros(size, np.uint8)
    is_list = pa.types.is_large_list(kind)
    item = kind.value_type if is_list else kind
    value = pa.Array.from_buffers(item, 1, [None, pa.py_buffer(ends), pa.py_buffer(zeros)])
    offsets = pa.array([0, 1], pa.int64())
    return pa.LargeListArray.from_arrays(offsets, value, type=kind) if is_list else value
