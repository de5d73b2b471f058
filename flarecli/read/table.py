"""A table: the columns of one or more streams of equal length, and optionally a selection of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.errors import RowsError, UsageError
from flarecli.model import Columns, IntArray, Row
from flarecli.read.fingerprint import checksum_of
from flarecli.read.gather import Stock
from flarecli.read.shards import Series

__all__ = ["Joined", "numbers_of"]


def numbers_of(indices: Sequence[int] | IntArray) -> IntArray:
    """Return row numbers as int64 [k], without checking their range.

    raises  UsageError unless they are a flat list of integers; RowsError for one above int64
    """
    try:
        given = np.asarray(indices)
    except ValueError:  # lists of several lengths
        given = np.zeros((0, 0))
    if given.ndim != 1:
        raise UsageError(
            f"expected a list of row numbers, got {type(indices).__name__}",
            hint="Pass a flat list of integers, as in data[[7, 3]].",
        )
    if given.dtype.kind not in "iu" and len(given):  # converted to int64 they name other rows
        hint = "Convert the mask with numpy.flatnonzero(mask)." if given.dtype.kind == "b" else ""
        raise UsageError(f"expected row numbers, got values of type {given.dtype.name}", hint=hint)
    if given.dtype == np.uint64 and len(given) and given.max() >= 1 << 63:  # it would wrap around
        raise RowsError(f"row {int(given.max())} is above the limit of 2^63 - 1")
    return given.astype(np.int64, copy=False)


def _joined(parts: Sequence[str], picked: bytes) -> str:
    return checksum_of([*(one.encode() for one in parts), picked])


class Joined:
    """The rows of one or several series with different columns. Picklable.

    columns  the columns of all series, in order
    raises   UsageError if the numbers of rows differ, or if two columns have the same name
    """

    def __init__(self, series: Sequence[Series], picked: IntArray | None = None) -> None:
        self.series = tuple(series)
        self._picked = picked  # int64 [rows], ascending: the selected rows of the series; None: all
        self._owner: dict[str, Series] = {}
        for one in self.series:
            self._join(one)
        self.columns: Columns = tuple(column for one in self.series for column in one.columns)
        self.rows = self.series[0].rows if picked is None else len(picked)
        self._checksum = ""  # computed on first use

    def _join(self, one: Series) -> None:
        hint = "Choose the streams to read with --stream."
        first = self.series[0]
        if one.rows != first.rows:
            raise UsageError(
                f"stream {one.name!r} has {one.rows} rows, {first.name!r} has {first.rows}",
                hint=hint,
            )
        for column in one.columns:
            if column.name in self._owner:
                raise UsageError(
                    f"streams {self._owner[column.name].name!r} and {one.name!r} both have a "
                    f"column {column.name!r}",
                    hint=hint,
                    column=column.name,
                )
            self._owner[column.name] = one

    def only(self, rows: IntArray) -> Joined:
        """Return the table of some of these rows; int64 [k], ascending."""
        return Joined(self.series, rows if self._picked is None else self._picked[rows])

    @property
    def checksum(self) -> str:
        """The checksum of the listing and of the selected rows."""
        if not self._checksum:
            parts = [str(one.checksum(one.rows)) for one in self.series]
            picked = b"" if self._picked is None else np.asarray(self._picked, "<i8").tobytes()
            self._checksum = _joined(parts, picked)
        return self._checksum

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return whether `checksum` is the checksum of exactly the first `rows` rows."""
        if self._picked is not None or not 0 <= rows <= self.rows:
            return False
        parts = [one.checksum(rows) for one in self.series]
        return checksum == _joined([one for one in parts if one is not None], b"") and all(parts)

    @property
    def edges(self) -> IntArray:
        """The first row of each chunk of the first stream, then the end: int64 [chunks + 1]."""
        starts = self.series[0].starts
        return starts if self._picked is None else np.searchsorted(self._picked, starts)

    def places(self, indices: Sequence[int] | IntArray) -> IntArray:
        """Return the rows of the series for rows of this table: int64 [k].

        raises  RowsError for a row outside the data; UsageError for invalid row numbers
        """
        at = numbers_of(indices)
        if len(at) and at.view(np.uint64).max() < self.rows:  # none is below 0 either
            return at if self._picked is None else self._picked[at]
        wrong = (at < -self.rows) | (at >= self.rows)
        if wrong.any():
            raise RowsError(
                f"row {int(at[wrong][0])} is outside the data, which has {self.rows} rows"
            )
        at = np.where(at < 0, at + self.rows, at)
        return at if self._picked is None else self._picked[at]

    def _alone(self, indices: Sequence[int] | IntArray) -> int | None:
        """Return the row if `indices` is one valid row; otherwise None, and `places` checks it."""
        try:
            row = indices[0] if len(indices) == 1 else None
        except (TypeError, LookupError):
            return None
        if (
            isinstance(row, (int, np.integer))
            and not isinstance(row, bool)
            and -self.rows <= row < self.rows
        ):
            return int(row) % self.rows
        return None

    def read(
        self,
        indices: Sequence[int] | IntArray,
        names: Sequence[str] | None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[Row]:
        """Return encoded rows in the order of `indices`; `names` None: all columns."""
        if len(self.series) == 1:
            if ranges is None and (row := self._alone(indices)) is not None:
                return [
                    self.series[0].read_row(
                        row if self._picked is None else int(self._picked[row]), names
                    )
                ]
            return self.series[0].read_rows(self.places(indices), names, ranges)
        at = self.places(indices)
        parts = [
            one.read_rows(
                at, own, {name: ranges[name] for name in own if name in ranges} if ranges else None
            )
            for one, own in self._split(names)
        ]
        return (
            parts[0]
            if len(parts) == 1
            else [
                {name: value for part in row for name, value in part.items()}
                for row in zip(*parts, strict=True)
            ]
        )

    @property
    def is_plain(self) -> bool:
        """Whether the table is one whole series."""
        return len(self.series) == 1 and self._picked is None

    def read_columns(
        self, indices: Sequence[int] | IntArray, names: Sequence[str] | None
    ) -> Mapping[str, Sequence[Any]]:
        """Return encoded rows as columns: name -> bytes of each row, in the order of `indices`."""
        if len(self.series) == 1 and len(indices) > 1:
            found = self.series[0].stock(self.places(indices), len(indices), names)
            if found is not None:
                return found.columns(0, found.rows)
        rows = self.read(indices, names)
        return {
            name: [row[name] for row in rows]
            for name in ([column.name for column in self.columns] if names is None else names)
        }

    def stock(self, rows: IntArray, least: int, names: Sequence[str] | None) -> Stock | None:
        """Locate the first rows of int64 [k] in memory; see `Series.stock`."""
        return (
            self.series[0].stock(self.places(rows), least, names) if len(self.series) == 1 else None
        )

    def _split(self, names: Sequence[str] | None) -> list[tuple[Series, list[str]]]:
        names = [column.name for column in self.columns] if names is None else names
        chosen = [
            (one, [name for name in names if self._owner[name] is one]) for one in self.series
        ]
        return [pair for pair in chosen if pair[1]] or [(self.series[0], [])]

    def scan(
        self, names: Sequence[str], start: int, stop: int, size: int, views: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows start..stop in order as stored, in batches of at most `size` rows and bounded
        bytes.
        """
        picked = self._picked
        if picked is None:
            yield from self._scan(names, start, stop, size, views)
            return
        while start < stop:  # whole batches are read, then the selected rows are taken from them
            first, last = int(picked[start]), int(picked[min(stop, start + size) - 1]) + 1
            batch = next(self._scan(names, first, last, size, False))
            end = min(
                stop,
                start + int(np.searchsorted(picked[start : start + size], first + batch.num_rows)),
            )
            yield batch.take(pa.array(picked[start:end] - first))
            start = end

    def _scan(
        self, names: Sequence[str], start: int, stop: int, size: int, views: bool
    ) -> Iterator[pa.RecordBatch]:
        parts = self._split(names)
        if len(parts) == 1:
            one, own = parts[0]
            yield from one.scan(start, stop, own, size, views)
            return
        while start < stop:
            end = min(one.span(start, stop, size) for one, _ in parts)
            batches = [next(one.scan(start, end, own, size, views)) for one, own in parts]
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

    # -- chunks of rows

    def spans(self, start: int, stop: int) -> Iterator[tuple[Series, range]]:
        """Yield each series and the positions of its chunks of rows start..stop."""
        if start >= stop:
            return
        first, last = (
            (start, stop - 1)
            if self._picked is None
            else (int(self._picked[start]), int(self._picked[stop - 1]))
        )
        for one in self.series:
            yield one, range(one.at(first), one.at(last) + 1)

    def holding(self, rows: IntArray) -> Iterator[tuple[Series, list[int]]]:
        """Yield each series and the positions of its chunks of these rows, int64 [k]."""
        at = self.places(rows)
        for one in self.series:
            chunks: list[int] = np.subtract(np.searchsorted(one.starts, at, "right"), 1).tolist()
            yield one, sorted(set(chunks))
