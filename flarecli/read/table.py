"""Table (rows of joined streams), Shards (for prefetching), and parsers for row numbers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.arguments import shown
from flarecli.errors import RowsError, UsageError
from flarecli.model import Columns, IntArray, Row
from flarecli.read.fingerprint import checksum_of
from flarecli.read.shards import GatheredRows, Series

__all__ = ["Shards", "Table", "parse_rows", "row_numbers"]

_PART = re.compile(
    r"\s*(?:(-?\d{1,18})|(-?\d{1,18})?:(-?\d{1,18})?(?::(-?\d{1,18})?)?)\s*", re.ASCII
)


def row_numbers(indices: Sequence[int] | IntArray) -> IntArray:
    """Return row numbers as int64 [k], without checking their range.

    raises  UsageError unless `indices` is a flat list of integers; RowsError for a row number that
            exceeds int64
    """
    try:
        rows = np.asarray(indices)
    except ValueError:  # nested lists of different lengths
        rows = np.zeros((0, 0))
    if rows.ndim != 1:
        hint = "Pass a flat list of integers, as in data[[7, 3]]."
        if isinstance(indices, str):  # a column name, as in pandas
            hint = f"Select a column with data.select([{shown(indices)}])."
        raise UsageError(f"expected a list of row numbers, got {type(indices).__name__}", hint=hint)
    # booleans and floats that are converted to integers would select the wrong rows
    if rows.dtype.kind not in "iu" and len(rows):
        hint = "Convert the mask with numpy.flatnonzero(mask)." if rows.dtype.kind == "b" else ""
        raise UsageError(f"expected row numbers, got values of type {rows.dtype.name}", hint=hint)
    if rows.dtype == np.uint64 and len(rows) and rows.max() >= 1 << 63:  # int64 would overflow
        raise RowsError(f"row {int(rows.max())} is above the limit of 2^63 - 1")
    return rows.astype(np.int64, copy=False)


def parse_rows(spec: str, rows: int) -> list[range]:
    """Parse a row specification such as `3,10:20` for a dataset of `rows` rows.

    return  ranges inside [0, rows), in the order of the specification; a single row is a range of
            length 1
    raises  UsageError for an invalid specification; RowsError for a single row outside the data
    """
    out = []
    for part in spec.split(","):
        match = _PART.fullmatch(part)
        if not match:
            raise UsageError(
                f"invalid rows: {spec!r}", hint="Use a form such as 5, 10:20, -5:, ::100 or 3,1,4."
            )
        if match[1] is not None:
            row = int(match[1])
            if not -rows <= row < rows:
                raise RowsError(
                    f"row {row} is outside the data, which has {rows} row{'s' * (rows != 1)}"
                )
            row %= rows
            out.append(range(row, row + 1))
        else:
            start, stop, step = (None if text is None else int(text) for text in match.groups()[1:])
            if step == 0:
                raise UsageError(f"invalid rows: {spec!r} has step 0")
            out.append(range(rows)[slice(start, stop, step)])
    return out


class Table:
    """The rows of one or several series, whose columns are joined. A Table can be pickled.

    columns  columns of all series. Within a series, the columns are in the order of the format
    order    names of the same columns. Within a series, the names are in the order of the packed
             table; if the playlist does not list this order, they are in the order of the format
    raises   UsageError if the row counts differ, or if two columns have the same name
    """

    def __init__(self, series: Sequence[Series], selected: IntArray | None = None) -> None:
        self.series = tuple(series)
        self._selected = selected  # int64 [rows], ascending: row numbers in the series; None: all
        self._owner: dict[str, Series] = {}  # column -> series
        for part in self.series:
            self._add(part)
        self.columns: Columns = tuple(column for part in self.series for column in part.columns)
        self.order = [
            name
            for part in self.series
            for name in part.schema or [column.name for column in part.columns]
        ]
        self.rows = self.series[0].rows if selected is None else len(selected)

    def _add(self, series: Series) -> None:
        hint = "Choose the streams to read with --stream."
        first = self.series[0]
        if series.rows != first.rows:
            raise UsageError(
                f"stream {series.name!r} has {series.rows} rows, but {first.name!r} has {first.rows}",
                hint=hint,
            )
        for column in series.columns:
            if column.name in self._owner:
                raise UsageError(
                    f"streams {self._owner[column.name].name!r} and {series.name!r} both have a "
                    f"column {column.name!r}",
                    hint=hint,
                    column=column.name,
                )
            self._owner[column.name] = series

    def only(self, rows: IntArray) -> Table:
        """Return a table with only the given rows, which are int64 [k] and ascending."""
        return Table(self.series, rows if self._selected is None else self._selected[rows])

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column; columns without a type are omitted."""
        return {name: kind for part in self.series for name, kind in part.types.items()}

    @cached_property
    def fields(self) -> dict[str, pa.Field]:
        """Return the Arrow field of each column whose format stores Arrow types."""
        return {name: field for part in self.series for name, field in part.fields.items()}

    def take(self, indices: Sequence[int] | IntArray, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return rows in the order of `indices` as Arrow arrays: column name -> array.

        Columns whose format does not store Arrow types are omitted.
        """
        rows, out = self.series_rows(indices), dict[str, pa.Array]()
        for series, own_names in self._split(names):
            table = series.take(rows, own_names or [])
            out |= {name: table.column(name).combine_chunks() for name in table.schema.names}
        return out

    @property
    def is_whole(self) -> bool:
        """Return whether the table consists of all rows of a single series."""
        return len(self.series) == 1 and self._selected is None

    @cached_property
    def checksum(self) -> str:
        """Return one checksum of the shard listings and the selected row numbers."""
        return self.checksum_with(self.stream_checksums.values())

    @property
    def stream_checksums(self) -> dict[str, str]:
        """Return the checksum of each series' list of shards: name of the series -> checksum."""
        return {series.name: str(series.checksum(series.rows)) for series in self.series}

    def checksum_with(self, stream_checksums: Iterable[str]) -> str:
        """Return the checksum that the table has if its series have these checksums, in order."""
        selected = b"" if self._selected is None else self._selected.astype("<i8").tobytes()
        return _checksum(list(stream_checksums), selected)

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return whether `checksum` is the checksum of exactly the first `rows` rows."""
        if self._selected is not None or not 0 <= rows <= self.rows:
            return False
        parts = [series.checksum(rows) or "" for series in self.series]
        return all(parts) and checksum == _checksum(parts, b"")

    @property
    def edges(self) -> IntArray:
        """Return the first row of each chunk of the first stream, and then the number of rows.

        return  int64 [chunks + 1]
        """
        starts = self.series[0].starts
        return starts if self._selected is None else np.searchsorted(self._selected, starts)

    def series_rows(self, indices: Sequence[int] | IntArray) -> IntArray:
        """Convert row numbers of this table to row numbers of its series: int64 [k].

        A table of selected rows has its own row numbers. A negative number counts from the end.

        raises  RowsError for a row outside the data; UsageError for invalid row numbers
        """
        rows = row_numbers(indices)
        # as uint64, a negative row number is above all valid row numbers
        if len(rows) and rows.view(np.uint64).max() >= self.rows:
            wrong = (rows < -self.rows) | (rows >= self.rows)
            if wrong.any():
                raise RowsError(
                    f"row {int(rows[wrong][0])} is outside the data, which has {self.rows} "
                    f"row{'s' * (self.rows != 1)}"
                )
            rows = np.where(rows < 0, rows + self.rows, rows)
        return rows if self._selected is None else self._selected[rows]

    def read(
        self,
        indices: Sequence[int] | IntArray,
        names: Sequence[str] | None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[Row]:
        """Return encoded rows in the order of `indices`. If `names` is None, read all columns."""
        is_list = type(indices) is list or (type(indices) is np.ndarray and indices.ndim == 1)
        if len(self.series) == 1 and ranges is None and is_list and len(indices) == 1:
            row = indices[0]  # fast path for a single row
            if type(row) in (int, np.int64) and 0 <= row < self.rows:
                at = int(row if self._selected is None else self._selected[row])
                return [self.series[0].read_row(at, names)]
        rows = self.series_rows(indices)
        parts = []
        for series, own_names in self._split(names):
            own_ranges = ranges
            if ranges is not None and own_names is not None:
                own_ranges = {name: ranges[name] for name in own_names if name in ranges}
            parts.append(series.read_rows(rows, own_names, own_ranges))
        if len(parts) == 1:
            return parts[0]
        return [
            {name: value for part in row for name, value in part.items()}
            for row in zip(*parts, strict=True)
        ]

    def read_columns(
        self, indices: Sequence[int] | IntArray, names: Sequence[str] | None
    ) -> Mapping[str, Sequence[Any]]:
        """Return encoded columns: name -> stored bytes of each row, in the order of `indices`."""
        if len(indices) > 1 and (rows := self.gather(indices, len(indices), names)) is not None:
            return rows.columns(0, rows.rows)
        encoded = self.read(indices, names)
        names = [column.name for column in self.columns] if names is None else names
        return {name: [row[name] for row in encoded] for name in names}

    def gather(
        self, indices: Sequence[int] | IntArray, least: int, names: Sequence[str] | None
    ) -> GatheredRows | None:
        """Gather rows, or a prefix of at least `least` rows; see `Series.gather`."""
        if len(self.series) > 1:
            return None
        return self.series[0].gather(self.series_rows(indices), least, names)

    def _split(self, names: Sequence[str] | None) -> list[tuple[Series, Sequence[str] | None]]:
        """Group column names by series: a list of (series, names of columns of this series).

        A series without any of the columns is omitted. If `names` is empty, the result has only the
        first series.
        """
        if len(self.series) == 1:
            return [(self.series[0], names)]
        names = [column.name for column in self.columns] if names is None else names
        split = [
            (series, [name for name in names if self._owner[name] is series])
            for series in self.series
        ]
        return [(series, own_names) for series, own_names in split if own_names] or [
            (self.series[0], [])
        ]

    def scan(
        self, names: Sequence[str], start: int, stop: int, size: int, views: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield stored rows start..stop in batches of at most `size` rows.

        The size of a batch in bytes is also limited.
        """
        selected = self._selected
        if selected is None:
            yield from self._scan(names, start, stop, size, views)
            return
        while start < stop:  # read consecutive rows, and select the requested rows from them
            rows = selected[start : min(stop, start + size)]
            first = int(rows[0])
            batch = next(self._scan(names, first, int(rows[-1]) + 1, size, False))
            rows = rows[: np.searchsorted(rows, first + batch.num_rows)]
            yield batch.take(pa.array(rows - first))
            start += len(rows)

    def _scan(
        self, names: Sequence[str], start: int, stop: int, size: int, views: bool
    ) -> Iterator[pa.RecordBatch]:
        parts = self._split(names)
        if len(parts) == 1:
            series, own_names = parts[0]
            yield from series.scan(start, stop, own_names, size, views)
            return
        while start < stop:
            end = min(series.batch_end(start, stop, size) for series, _ in parts)
            batches = [
                next(series.scan(start, end, own_names, size, views)) for series, own_names in parts
            ]
            fields = {
                field.name: (field, array)
                for batch in batches
                for field, array in zip(batch.schema, batch.columns, strict=True)
            }
            yield pa.RecordBatch.from_arrays(
                [fields[name][1] for name in names],
                schema=pa.schema([fields[name][0] for name in names]),
            )
            start = end

    def large_values(
        self, names: Sequence[str], start: int, stop: int, max_bytes: int
    ) -> dict[int, dict[str, int]]:
        """Return the sizes of values larger than `max_bytes`: row -> column -> size in bytes.

        Only rows start..stop are searched. The values are not read; values of formats that do not
        store value sizes are omitted. A table of selected rows returns an empty dict.
        """
        out: dict[int, dict[str, int]] = {}
        if start >= stop or self._selected is not None:
            return out
        for series, _ in self._split(names):
            for i in range(series.position(start), series.position(stop - 1) + 1):
                for row, name, size in series.large_values(i, max_bytes):
                    row += series.edges[i]
                    if start <= row < stop and name in names:
                        out.setdefault(row, {})[name] = size
        return dict(sorted(out.items()))

    # -- chunks that contain the given rows

    def chunks(self, start: int, stop: int) -> Iterator[tuple[Series, int]]:
        """Yield each chunk that contains any of the rows start..stop.

        A chunk is yielded as a tuple (the series with the chunk, position in this series).
        """
        if start >= stop:
            return
        first, last = start, stop - 1
        if self._selected is not None:
            first, last = int(self._selected[first]), int(self._selected[last])
        for series in self.series:
            for i in range(series.position(first), series.position(last) + 1):
                yield series, i

    def chunks_of(self, rows: IntArray) -> Iterator[tuple[Series, int]]:
        """Yield each chunk that contains any of the given rows.

        A chunk is yielded as a tuple (the series with the chunk, position in this series).

        rows  row numbers, int64 [k]
        """
        rows = self.series_rows(rows)
        for series in self.series:
            for i in np.unique(np.searchsorted(series.starts, rows, "right") - 1).tolist():
                yield series, i


def _checksum(parts: Sequence[str], selected: bytes) -> str:
    return checksum_of([*(part.encode() for part in parts), selected])


class Shards:
    """The shards of a dataset, or of all datasets in a mix, for prefetching.

    A range of rows that is passed to a method must be inside one table.

    tables  pairs (number of the table's first row, table), ascending
    """

    def __init__(self, tables: Sequence[tuple[int, Table]]) -> None:
        self._tables = tables
        self._firsts = [first for first, _ in tables]
        self._series = [series for _, table in tables for series in table.series]

    @property
    def room(self) -> int:
        """Return the maximum number of bytes to prefetch, which is the lowest limit of any cache.

        The result is 0 without a cache.
        """
        rooms = (min(series.room for series in table.series) for _, table in self._tables)
        return min((room for room in rooms if room), default=0)

    def expect_epoch(self, min_bytes: int) -> None:
        """Announce that most rows will be read, so that mapped shards use large memory pages.

        The call has no effect if the total size of the shards is below `min_bytes`, or if the size
        of a shard is not listed. A table is skipped if fewer than half of its rows are selected.
        """
        sizes = [series.stored for series in self._series]
        total = sum(sizes)
        if min(sizes) < 0 or total < min_bytes:
            return
        for _, table in self._tables:
            if 2 * table.rows >= table.series[0].rows:
                for series in table.series:
                    series.expect(total)

    def weight(self, start: int, stop: int) -> int:
        """Return the total size in bytes, as listed, of the shards that contain rows start..stop.

        A shard without a listed size counts as 0 bytes.
        """
        return sum(series.weight(i) for series, i in self._chunks(start, stop))

    def fetch(self, start: int, stop: int, is_needed: Callable[[], bool]) -> None:
        """Download the shards that contain rows start..stop into the cache.

        If a shard does not fit into the cache, its bytes are kept in memory until `release`, if
        possible.

        is_needed  function that returns False after the run has released the rows
        """
        for series, i in self._chunks(start, stop):
            series.fetch(i, passing=True, is_needed=is_needed)

    def fetch_rows(self, rows: IntArray, passing: bool = False) -> None:
        """Download the shards that contain the given rows, int64 [k], into the cache.

        passing  True: if a shard does not fit into the cache, keep its bytes in memory until
                 `release`, if possible
        """
        tables = np.searchsorted(self._firsts, rows, "right") - 1
        for k in np.unique(tables).tolist():
            first, table = self._tables[k]
            for series, i in table.chunks_of(rows[tables == k] - first):
                series.fetch(i, passing)

    def release(self, start: int, stop: int) -> None:
        """Close the shards that contain rows start..stop, and release the shards' bytes."""
        for series, i in self._chunks(start, stop):
            series.release(i)

    def release_all(self) -> None:
        """Release the bytes of all shards that were fetched with `passing`."""
        for series in self._series:
            series.release_all()

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[Series, int]]:
        first, table = self._tables[bisect_right(self._firsts, start) - 1]
        return table.chunks(start - first, stop - first)
