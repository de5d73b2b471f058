"""A dataset: rows at an address, whatever holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

from flarecli import encodings
from flarecli.encodings import BINARY
from flarecli.errors import FlareError, RowsError, UsageError, ValueFitError
from flarecli.model import Columns, Cursor, IntArray, Playlist, Row, Sample, Stream
from flarecli.read.resolve import resolve, select_streams
from flarecli.read.run import Run, begin
from flarecli.read.series import Series
from flarecli.storage import Guard

__all__ = ["Dataset", "open"]


def open(
    sources: str | Sequence[str],
    *,
    format: str | None = None,
    streams: Sequence[str] = (),
    guard: Guard | None = None,
    allow_pickle: bool = False,
    maps: bool = True,
) -> Dataset:
    """Open the dataset at one or several addresses; several are put behind one another.

    sources       a playlist, an MDS folder, a shard, a folder of files; local or HTTP(S); globs and braces
    streams       names of the streams to read; streams with the same number of rows are joined by column
    allow_pickle  decode `pkl` columns, which runs code that the data brings
    maps          False where files may be cut short while they are read
    raises        MissingError, FormatError, UnsafeError, UnfinishedError: see `resolve`
    """
    found = resolve(sources, format=format, guard=guard, maps=maps)
    return Dataset(select_streams(found, streams), found, allow_pickle)


class Dataset:
    """Rows by position: `data[i]`, `data[a:b]`, `data[[7, 3]]`, `data.rows(…)`, `data.batches(…)`.

    columns   name and encoding of each, in the order of the format
    schema    the Arrow schema of its batches: a number that the format keeps as text is a number there
    exact     the schema of the same batches as stored, where such a number is that text
    playlists what it was opened from
    raises    UsageError if streams cannot be joined by column
    """

    def __init__(self, streams: Sequence[Sequence[Stream]], playlists: Sequence[Playlist] = (), allow_pickle: bool = False) -> None:
        self.playlists, self.allow_pickle = tuple(playlists), allow_pickle
        self._series = [Series(parts) for parts in streams if parts]
        if not self._series:
            raise UsageError("no stream in it", where=playlists[0].at if playlists and playlists[0].at else "")
        self._owner: dict[str, Series] = {}
        for one in self._series:
            self._join(one)
        self.columns: Columns = tuple(column for one in self._series for column in one.columns)
        self.exact = pa.schema([encodings.field(column) for column in self.columns])
        self._encodings = {column.name: encodings.lookup(column.encoding) for column in self.columns}
        self.schema = pa.schema([_plain(pa.array([], field.type), field, self._encodings[field.name])[1] for field in self.exact])
        self._is_natural = self.schema.equals(self.exact, check_metadata=True)
        self._rows = self._series[0].rows

    def _join(self, one: Series) -> None:
        hint = "Name the streams to read with --stream."
        if one.rows != self._series[0].rows:
            first = self._series[0]
            raise UsageError(f"stream {one.name!r} has {one.rows} rows, {first.name!r} has {first.rows}", hint=hint)
        for column in one.columns:
            if column.name in self._owner:
                raise UsageError(f"streams {self._owner[column.name].name!r} and {one.name!r} both have a column {column.name!r}", hint=hint)
            self._owner[column.name] = one

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[Sample]:
        for start in range(0, self._rows, 64):
            yield from self[start : start + 64]

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | IntArray) -> list[Sample]: ...

    def __getitem__(self, index: Any) -> Sample | list[Sample]:
        """Give one sample, or a list of them: column -> Python value.

        raises  RowsError (an IndexError) outside the data; UnsafeError for a pickle unless it was allowed
        """
        if isinstance(index, (int, np.integer)):
            return self._decoded([int(index)])[0]
        if isinstance(index, slice):
            return self._decoded(list(range(self._rows)[index]))
        return self._decoded(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        return self._decoded(indices)

    def _decoded(self, indices: Sequence[int]) -> list[Sample]:
        return [{name: self._value(name, data, index) for name, data in row.items()} for row, index in zip(self.rows(indices), indices, strict=True)]

    def _value(self, name: str, data: Any, index: int) -> Any:
        if data is None:
            return None
        try:
            return encodings.decode(self._encodings[name], data, self.allow_pickle)
        except FlareError as error:
            raise type(error)(f"column {name!r}: {error.message}", where=f"row {index}", hint=error.hint) from None

    def rows(self, indices: Sequence[int] | IntArray, columns: Sequence[str] | None = None) -> list[Row]:
        """Give encoded rows, in the order asked: column -> bytes as the format stores them, nothing decoded.

        indices  each in [-rows, rows)
        raises   RowsError outside the data; UsageError for an unknown column
        """
        if len(indices) == 1 and columns is None and len(self._series) == 1 and -self._rows <= (row := int(indices[0])) < self._rows:
            return [self._series[0].read_row(row % self._rows)]
        at = np.asarray(indices, np.int64).reshape(-1)
        wrong = (at < -self._rows) | (at >= self._rows)
        if wrong.any():
            raise RowsError(f"row {int(at[wrong][0])} is outside the data, which has {self._rows} rows")
        at = np.where(at < 0, at + self._rows, at)
        names = self._names(columns)
        parts = [one.read_rows(at, own) for one, own in self._split(names)]
        if len(parts) == 1:
            return parts[0]
        return [{name: value for part in row for name, value in part.items()} for row in zip(*parts, strict=True)]

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return [column.name for column in self.columns]
        for name in columns:
            if name not in self._owner:
                known = ", ".join(column.name for column in self.columns)
                raise UsageError(f"no column {name!r}", hint=f"Choose from {known}.")
        return list(dict.fromkeys(columns))

    def _split(self, names: Sequence[str]) -> list[tuple[Series, list[str]]]:
        chosen = [(one, [name for name in names if self._owner[name] is one]) for one in self._series]
        return [pair for pair in chosen if pair[1]] or [(self._series[0], [])]

    def take(self, indices: Sequence[int] | IntArray, columns: Sequence[str] | None = None, exact: bool = False) -> pa.RecordBatch:
        """Give rows in the order asked as one batch of typed columns.

        exact   numbers kept as text stay that text, byte for byte
        raises  ValueFitError for a value that its column's type cannot hold
        """
        names = self._names(columns)
        rows = self.rows(indices, names)
        arrays = []
        for name in names:
            encoding = self._encodings[name]
            kind = pa.large_list(BINARY) if encoding.name.endswith("[]") else BINARY
            arrays.append(encodings.typed(pa.array([row[name] for row in rows], kind), encoding))
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.exact.field(name) for name in names]))
        return batch if exact else self._natural(batch, indices)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        start: int = 0,
        stop: int | None = None,
        size: int = 8192,
        exact: bool = False,
        views: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Give rows start..stop in order as batches of at most `size` rows and of bounded bytes.

        exact  numbers kept as text stay that text, byte for byte
        views  text and bytes may be views over the mapped shard: faster, and what many of Arrow's kernels do not take
        """
        first = start
        for batch in self._scan(self._names(columns), start, self._rows if stop is None else min(stop, self._rows), size, views):
            yield batch if exact else self._natural(batch, range(first, first + batch.num_rows))
            first += batch.num_rows

    def _scan(self, names: list[str], start: int, stop: int, size: int, views: bool) -> Iterator[pa.RecordBatch]:
        parts = self._split(names)
        if len(parts) == 1:
            one, own = parts[0]
            yield from one.scan(start, stop, own, size, views)
            return
        while start < stop:
            end = min(one.span(start, stop, size) for one, _ in parts)
            batches = [next(one.scan(start, end, own, size, views)) for one, own in parts]
            fields = {field.name: (field, array) for batch in batches for field, array in zip(batch.schema, batch.columns, strict=True)}
            yield pa.RecordBatch.from_arrays([fields[name][1] for name in names], schema=pa.schema([fields[name][0] for name in names]))
            start = end

    def _natural(self, batch: pa.RecordBatch, rows: Sequence[int] | IntArray) -> pa.RecordBatch:
        """Give numbers kept as text as numbers, JSON's strings without their quotes."""
        if self._is_natural:
            return batch
        arrays, fields = [], []
        for field, array in zip(batch.schema, batch.columns, strict=True):
            try:
                array, field = _plain(array, field, self._encodings[field.name])
            except ValueFitError as error:
                raise ValueFitError(f"column {field.name!r}: {error.message}", where=f"row {rows[int(error.where[1:-1])]}") from None
            arrays.append(array)
            fields.append(field)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if fields else batch

    @property
    def edges(self) -> IntArray:
        """The row at which each chunk of the first stream begins, and the end: int64 [chunks + 1]."""
        return self._series[0].starts

    def run(
        self,
        seed: int = 0,
        epoch: int = 0,
        order: str = "shuffle",
        rank: int = 0,
        ranks: int = 1,
        cursor: Cursor | None = None,
        window: int = 8,
    ) -> Run:
        """Give the samples of an epoch in a fixed order, those of one rank; see `Run`.

        order   `shuffle`: all rows among each other; `windows`: chunks, then rows inside `window` of them at a time, for data
                that is fetched; `sequential`
        cursor  go on from the `cursor` of another run, with as many ranks as there are now; it says seed, epoch and order
        raises  UsageError for a rank, an order or a place that is none
        """
        found, place = begin(self.edges, seed, epoch, order, window, cursor)
        return Run(self, found, place, rank, ranks)

    def batches(
        self, size: int = 8192, columns: Sequence[str] | None = None, start: int = 0, stop: int | None = None, views: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Give rows start..stop in order as typed batches of exactly `size` rows, the last one smaller; `views` as in `scan`."""
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in self.scan(columns, start, stop, size, views=views):
            while count + batch.num_rows >= size:
                cut = size - count
                yield pa.concat_batches([*held, batch.slice(0, cut)]) if held else batch.slice(0, cut)
                batch, held, count = batch.slice(cut), [], 0
            if batch.num_rows:
                held.append(batch)
                count += batch.num_rows
        if held:
            yield pa.concat_batches(held)


def _plain(array: pa.Array, field: pa.Field, encoding: encodings.Encoding) -> tuple[pa.Array, pa.Field]:
    natural, own = encodings.plain(array, encoding)
    return (array, field) if own is encoding else (natural, encodings.field(encodings.column(field.name, own.name)))
