"""Values of a dataset above `--max-object`: they are found in the tables of the shards, not read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from flarecli.encodings import BINARY, TEXT
from flarecli.errors import FlareError
from flarecli.formats import facts
from flarecli.model import BoolArray, IntArray, Stream
from flarecli.read import Dataset

__all__ = ["LargeValues"]


class LargeValues:
    """Read rows of a dataset without their values above the limit.

    A row with large values is a batch of its own, with the same number of zero bytes in place of
    each large value. They take no memory, because the system allocates memory when bytes are
    written. The caller refuses such rows with `too_large`, by the size of their values, before it
    uses the values.

    streams  parts of the first stream of the dataset
    columns  columns that the caller does not use before it refuses rows
    exact    as in `Dataset.scan`
    """

    def __init__(
        self,
        data: Dataset,
        streams: Sequence[Stream],
        max_bytes: int,
        columns: Collection[str],
        exact: bool = False,
    ) -> None:
        self._data, self._streams, self._exact = data, streams, exact
        self._max_bytes, self._edges = max_bytes, data.edges.tolist()
        schema = data.exact if exact else data.schema
        # A value that is converted when it is read has another size than its stored bytes.
        self._fields = {
            stored.name: stored
            for stored in data.exact
            if stored.name in columns
            and _has_size(stored.type)
            and stored.equals(schema.field(stored.name), check_metadata=True)
        }
        self._is_small = np.concatenate([_are_small(stream, max_bytes) for stream in streams])
        self._found: dict[int, Mapping[int, Mapping[str, int]]] = {}

    def scan(
        self, columns: Sequence[str], start: int, stop: int
    ) -> Iterator[tuple[IntArray, pa.RecordBatch]]:
        """Yield the numbers of rows start..stop, and the rows as typed batches."""
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
        """Yield row numbers, in the order of `rows`, and these rows as typed batches."""
        first = 0
        for i, row in enumerate(rows.tolist()):
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
        """Yield runs of rows of one shard, (start, stop, sizes): rows without large values with no
        sizes, and each row with large values with their sizes.
        """
        while start < stop:
            shard = bisect_right(self._edges, start) - 1
            end = min(stop, self._edges[shard + 1])
            for row in self._of_shard(shard):
                if start <= row < end and (sizes := self._sizes(columns, row)):
                    yield start, row, {}
                    yield row, row + 1, sizes
                    start = row + 1
            yield start, end, {}
            start = end

    def _sizes(self, columns: Sequence[str], row: int) -> dict[str, int]:
        """Return column -> bytes of the large values of a row."""
        sizes = self._of_shard(bisect_right(self._edges, row) - 1).get(row, {})
        return {name: sizes[name] for name in columns if name in sizes}

    def _of_shard(self, shard: int) -> Mapping[int, Mapping[str, int]]:
        """Return row -> column -> bytes of the large values of a shard, in row order."""
        if self._is_small[shard] or not self._fields:
            return {}
        if shard not in self._found:
            self._found[shard] = self._find(shard)
        return self._found[shard]

    def _find(self, number: int) -> Mapping[int, Mapping[str, int]]:
        first, out = self._edges[number], dict[int, dict[str, int]]()
        for stream in self._streams:
            if number < len(stream):
                break
            number -= len(stream)
        chunk = stream.chunk(number)
        form = facts(chunk.format)
        try:
            shard = form.open_shard(chunk, stream.columns or self._data.columns or None)
            values = sorted(form.large_values(shard, self._max_bytes))
        except FlareError:  # reading the rows raises the same error
            return out
        for row, column, size in values:
            if column in self._fields:
                out.setdefault(first + row, {})[column] = size
        return out

    def _without(
        self, columns: Sequence[str], row: int, sizes: Mapping[str, int]
    ) -> pa.RecordBatch:
        """Return a row with zero bytes in place of its large values."""
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
    """Return whether values of a type are text or bytes, or lists of them."""
    item = kind.value_type if pa.types.is_large_list(kind) else kind
    return item in (BINARY, TEXT)


def _are_small(stream: Stream, max_bytes: int) -> BoolArray:
    """Return whether each chunk is listed with at most `max_bytes`. bool [chunks]"""
    sizes, raw_sizes = stream.stored, stream.raw_sizes
    if sizes is None:
        return np.zeros(len(stream), bool)
    largest = sizes if raw_sizes is None else np.maximum(sizes, raw_sizes)
    return (sizes >= 0) & (largest <= max_bytes)


def _zeros(kind: pa.DataType, size: int) -> pa.Array:
    """Return one value of `size` zero bytes that were never written."""
    ends, zeros = np.array([0, size], np.int64), np.zeros(size, np.uint8)
    is_list = pa.types.is_large_list(kind)
    item = kind.value_type if is_list else kind
    value = pa.Array.from_buffers(item, 1, [None, pa.py_buffer(ends), pa.py_buffer(zeros)])
    offsets = pa.array([0, 1], pa.int64())
    return pa.LargeListArray.from_arrays(offsets, value, type=kind) if is_list else value
