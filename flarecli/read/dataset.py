"""A dataset: rows at an address, whatever holds them."""

from __future__ import annotations

import contextlib
import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, overload

import numpy as np
import pyarrow as pa

from flarecli import encodings, sql
from flarecli.arguments import checked, name_list, shown, whole
from flarecli.encodings import BINARY
from flarecli.errors import UsageError, ValueFitError
from flarecli.model import Columns, Cursor, IntArray, Playlist, Row, Sample, Stream
from flarecli.read.decode import Decoder, How, NotDecoded, collated, stacked
from flarecli.read.epoch import WINDOW, Run, beginning
from flarecli.read.epoch_order import Epoch
from flarecli.read.gather import Found
from flarecli.read.protocols import Closable
from flarecli.read.shards import Series
from flarecli.read.table import Joined, numbers_of
from flarecli.suggest import choose

__all__ = ["Dataset"]

ReadSample: TypeAlias = "Callable[[int], Sample | None]"


class Dataset(Closable):
    """Rows by position: `data[i]`, `data[a:b]`, `data[[7, 3]]`, `data.rows(…)`, `data.batches(…)`.

    columns   name and encoding of each, in the order of the format
    schema    the Arrow schema of its batches: a number that the format keeps as text is a number there
    exact     the schema of the same batches as stored, where such a number is that text
    playlists what it was opened from
    raises    UsageError if streams cannot be joined by column
    """

    def __init__(
        self,
        streams: Sequence[Sequence[Stream]],
        playlists: Sequence[Playlist] = (),
        allow_pickle: bool = False,
    ) -> None:
        self.playlists, self.allow_pickle = tuple(playlists), allow_pickle
        series = [Series(parts) for parts in streams if parts]
        if not series:
            raise UsageError(
                "no stream in it", where=playlists[0].at if playlists and playlists[0].at else ""
            )
        self._table = Joined(series)
        self.columns: Columns = self._table.columns
        self.exact = pa.schema([encodings.field(column) for column in self.columns])
        self._encodings = {
            column.name: encodings.lookup(column.encoding) for column in self.columns
        }
        self._decoders = {name: Decoder(one, allow_pickle) for name, one in self._encodings.items()}
        self._chosen: tuple[str, ...] | None = None  # columns, unless all
        self._read_sample: ReadSample | None = None
        self._describe()

    def _describe(self) -> None:
        self.schema = pa.schema(
            [
                _plain(pa.nulls(0, field.type), field, self._encodings[field.name])[1]
                for field in self.exact
            ]
        )
        self._is_natural = self.schema.equals(self.exact, check_metadata=True)

    def __len__(self) -> int:
        return self._table.rows

    def __repr__(self) -> str:
        return f"<Dataset: {len(self)} rows of {', '.join(f'{one.name!r} {one.encoding}' for one in self.columns)}>"

    def __iter__(self) -> Iterator[Sample]:
        for start in range(0, len(self), 64):
            yield from self[start : start + 64]

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | IntArray) -> list[Sample]: ...

    def __getitem__(self, index: Any) -> Sample | list[Sample]:
        """Give one sample, or a list of them: column -> Python value.

        raises  RowsError (an IndexError) outside the data; UsageError for what is no position; UnsafeError for a pickle unless it was allowed
        """
        if type(index) is int:
            sample = (self._read_sample or self._compile())(index)
            if sample is not None:
                return sample
        if isinstance(index, (int, np.integer)):
            return self._decoded([int(index)])[0]
        if isinstance(index, slice):
            return self._decoded(self._sliced(index))
        if getattr(index, "ndim", 1) == 0:  # one number, as numpy and torch have it
            return self._decoded(numbers_of([index.item()]))[0]
        return self._decoded(index)

    def _compile(self) -> ReadSample:
        """Return the direct way to one sample of a mapped shard; decoding is chosen once per column.

        It returns None for rows that `_decoded` must read, and for those that fail: `_decoded`
        reads them again and reports the row and the column.
        """
        series, columns = self._table.series[0], self._chosen
        edges, position, count = series.edges, bisect_right, len(self)
        readers = series.row_readers(columns)
        compiled = [(name, one.compiled()) for name, one in self._decoders.items()]
        decoders = [(name, decode) for name, decode in compiled if decode is not None]

        def read_sample(row: int) -> Sample | None:
            i = position(edges, row) - 1
            try:
                sample: Sample = readers[i](row - edges[i])
                for name, decode in decoders:
                    sample[name] = decode(sample[name])
            except KeyError:
                if 0 <= row < count and i not in readers:
                    series.add_reader(i, columns)
            except Exception:
                return None
            else:
                return sample
            return None

        direct: ReadSample = read_sample if self._table.is_plain else lambda row: None
        self._read_sample = direct
        return direct

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_read_sample": None}

    def _sliced(self, index: slice) -> range:
        try:
            return range(len(self))[index]
        except (TypeError, ValueError):
            raise UsageError(
                f"{shown(index)} is no slice of rows",
                hint="Give whole numbers, such as data[10:20] or data[::100].",
            ) from None

    def __getitems__(self, indices: Sequence[int] | IntArray) -> list[Sample]:
        return self._decoded(indices)

    def _decoded(self, indices: Sequence[int] | IntArray) -> list[Sample]:
        rows, names = self.rows(indices), list(self._decoders)
        if (
            len(rows) == 1
        ):  # as little around it as there can be; what fails is done again, and says where
            with contextlib.suppress(Exception):
                return [
                    {name: decoder.value(rows[0][name]) for name, decoder in self._decoders.items()}
                ]
        values = [self._values(name, [row[name] for row in rows], indices) for name in names]
        return (
            [dict(zip(names, one, strict=True)) for one in zip(*values, strict=True)]
            if names
            else [{} for _ in rows]
        )

    def _values(
        self, name: str, data: Sequence[Any], indices: Sequence[int] | IntArray
    ) -> list[Any]:
        try:
            return self._decoders[name].values(data)
        except NotDecoded as failed:
            raise failed.named(name, int(indices[failed.at])) from failed.__cause__

    def collated(self, indices: Sequence[int] | IntArray) -> dict[str, Any]:
        """Give rows as one batch: column -> array [rows, …] of numbers and of arrays of one shape, a list of whatever else.

        raises  as reading a row does
        """
        try:
            stored = self._table.read_columns(indices, self._chosen)
        except TypeError:
            numbers_of(indices)  # says what is no list of positions
            raise
        return self._batch(stored, indices)

    def found(self, rows: IntArray, least: int) -> Found | None:
        """Find rows in memory, int64 [k], from the first on: at least so many of them, or None; more if little is copied now."""
        stock = self._table.stock(rows, least, self._chosen)
        return (
            None
            if stock is None
            else Found(
                stock.rows,
                lambda start, stop: self._batch(stock.columns(start, stop), rows[start:stop]),
            )
        )

    def _batch(
        self, stored: Mapping[str, Any], indices: Sequence[int] | IntArray
    ) -> dict[str, Any]:
        out = dict[str, Any]()
        for name, decoder in self._decoders.items():
            data = stored[name]
            array = decoder.array(data)
            out[name] = stacked(self._values(name, data, indices)) if array is None else array
        return out

    @property
    def is_copied(self) -> bool:
        """Whether `collated` does little but copy bytes of local, uncompressed, mapped files."""
        return all(one.copies for one in self._decoders.values()) and all(
            one.is_mapped for one in self._table.series
        )

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Give samples, of whatever columns, as one batch; numbers of columns that are here have the dtype that they have here.

        raises  UsageError if two samples have other columns
        """
        return collated(samples, self.dtypes)

    @property
    def dtypes(self) -> dict[str, str | None]:
        """The numpy dtype that each column has in a batch, where that is numbers; else None."""
        return {name: decoder.dtype for name, decoder in self._decoders.items()}

    def read(self, row: int, ranges: Mapping[str, range] | None = None) -> Sample:
        """Give one sample; of a column of lists, only a range of its items: what lies there is one read.

        ranges  column -> positions in its list, `range(32, 42)`; past its end there is nothing
        raises  UsageError for a column without lists, a range that goes down; RowsError outside the data
        """
        if ranges is None or (isinstance(ranges, Mapping) and not ranges):
            return self[row]
        wanted = {name: (one.start, one.stop) for name, one in self._checked(ranges).items()}
        found = self._table.read([row], self._chosen, wanted)[0]
        values = {name: self._values(name, [found[name]], [row])[0] for name in self._decoders}
        return {
            name: value[:: ranges[name].step] if name in ranges else value
            for name, value in values.items()
        }

    def _checked(self, ranges: Mapping[str, range]) -> Mapping[str, range]:
        if not isinstance(ranges, Mapping) or not all(
            isinstance(one, range) for one in ranges.values()
        ):
            raise UsageError(
                f"ranges is {shown(ranges)}: a dict of ranges is wanted",
                hint='Write it like {"frames": range(32, 42)}.',
            )
        self._names(list(ranges))
        for name, one in ranges.items():
            if self._encodings[name].item is None:
                raise UsageError(
                    f"column {name!r} is no list, so no range of it can be read", column=name
                )
            if not 0 <= one.start <= one.stop or one.step < 1:
                raise UsageError(
                    f"{one.start}:{one.stop}:{one.step} is no range of column {name!r}",
                    hint="Give positions that go up.",
                    column=name,
                )
        return ranges

    def rows(
        self, indices: Sequence[int] | IntArray, columns: Sequence[str] | None = None
    ) -> list[Row]:
        """Give encoded rows, in the order asked: column -> bytes as the format stores them, nothing decoded.

        indices  each in [-rows, rows)
        raises   RowsError outside the data; UsageError for an unknown column
        """
        return self._table.read(indices, self._chosen if columns is None else self._names(columns))

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return [column.name for column in self.columns]
        names = list(dict.fromkeys(name_list(columns)))
        for name in names:
            if name not in self._decoders:
                raise UsageError(
                    f"no column {name!r}",
                    hint=choose(name, [column.name for column in self.columns], "Choose from"),
                    column=name,
                )
        return names

    def take(
        self,
        indices: Sequence[int] | IntArray,
        columns: Sequence[str] | None = None,
        exact: bool = False,
    ) -> pa.RecordBatch:
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
        batch = pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([self.exact.field(name) for name in names])
        )
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
        raises UsageError for a start or a stop below 0, a size below 1, an unknown column
        """
        try:
            start, last, size = (
                whole(start),
                len(self) if stop is None else min(whole(stop), len(self)),
                whole(size),
            )
        except TypeError:
            raise UsageError(
                f"rows {shown(start)} to {shown(stop)} in batches of {shown(size)}: whole numbers are wanted"
            ) from None
        if start < 0 or last < 0 or size < 1:
            raise UsageError(
                f"rows {start} to {last} in batches of {size}: at least 0, 0 and 1 are wanted"
            )
        batches = self._table.scan(self._names(columns), start, last, size, views)
        return batches if exact else self._all_natural(batches, start)

    def _all_natural(
        self, batches: Iterator[pa.RecordBatch], first: int
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._natural(batch, range(first, first + batch.num_rows))
            first += batch.num_rows

    def _natural(self, batch: pa.RecordBatch, rows: Sequence[int] | IntArray) -> pa.RecordBatch:
        """Give numbers kept as text as numbers, JSON's strings without their quotes."""
        if self._is_natural:
            return batch
        arrays, fields = [], []
        for field, array in zip(batch.schema, batch.columns, strict=True):
            try:
                array, field = _plain(array, field, self._encodings[field.name])
            except ValueFitError as error:
                row = int(rows[error.row or 0])
                raise error.changed(address="", row=row).of_column(field.name) from None
            arrays.append(array)
            fields.append(field)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if fields else batch

    @property
    def checksum(self) -> str:
        """The xxh3_128 of what is listed: columns, and rows, size and checksums of each shard.

        Datasets with equal checksums have the same rows in the same order, as far as their lists
        tell. Where a list has no checksums of shards, names stand in for them. Addresses, columns
        chosen by `select` and decoders are not covered; rows chosen by `where` are.
        """
        return self._table.checksum

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return whether the first `rows` rows are all of the data that has this checksum."""
        return self._table.begins_with(checksum, rows)

    @property
    def edges(self) -> IntArray:
        """The row at which each chunk of the first stream begins, and the end: int64 [chunks + 1]."""
        return self._table.edges

    # -- less of the same data

    def select(self, columns: Sequence[str]) -> Dataset:
        """Give the same rows with fewer columns, in the order named. Raises UsageError for an unknown column."""
        names = self._names(columns)
        out = copy.copy(self)
        by_name = {column.name: column for column in self.columns}
        out.columns = tuple(by_name[name] for name in names)
        out._decoders = {name: self._decoders[name] for name in names}
        out._chosen = tuple(names)
        out.exact = pa.schema([self.exact.field(name) for name in names])
        out._describe()
        return out

    @checked
    def where(self, condition: str) -> Dataset:
        """Give the rows that an SQL condition is true for, in their order; the columns that it looks at are read through once.

        raises  UsageError for what is no condition, or fails on a row
        """
        position = "row of the data".ljust(
            1 + max(map(len, self.schema.names), default=0)
        )  # no column's name, and no condition's by accident
        names = sql.columns_of(condition, self.schema.names) or self.schema.names[:1]
        schema, first = (
            pa.schema([self.schema.field(name) for name in names]).append(
                pa.field(position, pa.int64())
            ),
            0,
        )

        def numbered() -> Iterator[pa.RecordBatch]:
            nonlocal first
            for batch in self.scan(names):
                yield batch.append_column(
                    position, pa.array(np.arange(first, first + batch.num_rows))
                )
                first += batch.num_rows

        kept, batches = sql.select(schema, numbered(), condition, known=self.schema.names)
        if kept is not schema:
            raise UsageError(
                "where takes a condition, not a SELECT",
                hint="Write it like \"aes > 4 and lang = 'en'\".",
            )
        parts = [batch.column(position).to_numpy() for batch in batches]
        out = copy.copy(self)
        out._table = self._table.only(np.concatenate(parts) if parts else np.zeros(0, np.int64))
        return out

    @checked
    def decoded(self, how: Mapping[str, How]) -> Dataset:
        """Give the same rows with other values: `{column: False}` gives its stored bytes, `{column: function}` what that makes of them.

        raises  UsageError for an unknown column
        """
        self._names(list(how))
        for name, one in how.items():
            if not callable(one) and one is not True and one is not False:
                raise UsageError(
                    f"column {name!r} is decoded by {shown(one)}: a function, True or False is wanted",
                    column=name,
                )
        out = copy.copy(self)
        out._decoders = {
            name: replace(one, how=how.get(name, one.how)) for name, one in self._decoders.items()
        }
        return out

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Give all rows as one Arrow table, in memory."""
        schema = pa.schema([self.schema.field(name) for name in self._names(columns)])
        return pa.Table.from_batches(list(self.scan(columns)), schema)

    # -- in the order of training

    @checked
    def run(
        self,
        seed: int = 0,
        epoch: int = 0,
        order: str = "shuffle",
        rank: int = 0,
        ranks: int = 1,
        cursor: Cursor | None = None,
        window: int = WINDOW,
    ) -> Run:
        """Give the samples of an epoch in a fixed order, those of one rank; see `Run`.

        order   `shuffle`: all rows among each other; `windows`: chunks, then rows inside `window` of them at a time, for data
                that is fetched; `sequential`
        cursor  go on from the `cursor` of another run, with as many ranks as there are now; it says seed, epoch, order and window
        raises  UsageError for a rank, an order or a place that is none, or one of other data
        """
        return Run(self, beginning(seed, epoch, order, window, cursor), rank, ranks)

    @checked
    def order(self, seed: int, epoch: int, order: str, window: int = WINDOW) -> Epoch:
        """Give an epoch: which row each of its steps has. Raises UsageError for an order that is none."""
        return Epoch(np.asarray(self.edges), seed, epoch, order, window)

    def close(self) -> None:
        """Close the shards that are open; a row that is read afterwards opens its shard again."""
        for one in self._table.series:
            one.close()

    def load(self) -> None:
        """Load the code that reading takes, before processes are forked: each of them would do it again."""
        for one in self._table.series:
            one.load()

    @property
    def room(self) -> int:
        """Bytes that the cache before its shards may hold; 0 without one."""
        return min(one.room for one in self._table.series)

    @property
    def stored(self) -> int:
        """Bytes of its shards, from what is listed; -1 where that does not say."""
        sizes = [one.stored for one in self._table.series]
        return -1 if min(sizes) < 0 else sum(sizes)

    def expect(self, together: int) -> None:
        """Say that most rows will be read, in whatever order, among `together` bytes: if memory has room for all, shards come in large pages."""
        if 2 * len(self) >= self._table.series[0].rows:
            for one in self._table.series:
                one.expect(together)

    def weight(self, start: int, stop: int) -> int:
        """Reckon the bytes of the shards that hold rows start..stop, from what is listed."""
        return sum(one.weight(i) for one, chunks in self._table.spans(start, stop) for i in chunks)

    def fetch(self, start: int, stop: int) -> None:
        """Fetch the shards that hold rows start..stop, whole, into the cache, or into memory until `release`; those that are there cost nothing."""
        for one, chunks in self._table.spans(start, stop):
            for i in chunks:
                one.fetch(i, passing=True)

    def have(self, rows: IntArray, passing: bool = False) -> None:
        """Fetch the shards that hold these rows, int64 [k], whole into the cache, where they are not at hand; `passing`: as `fetch` does."""
        for one, chunks in self._table.holding(rows):
            for i in chunks:
                one.fetch(i, passing)

    def release(self, start: int, stop: int) -> None:
        """Let go of those shards in memory, and of the copies in the cache that have left it since."""
        for one, chunks in self._table.spans(start, stop):
            for i in chunks:
                one.passed(i)

    def release_all(self) -> None:
        """Let go of whatever shards runs have left in memory."""
        for one in self._table.series:
            one.pass_all()

    @checked
    def batches(
        self,
        size: int = 8192,
        columns: Sequence[str] | None = None,
        start: int = 0,
        stop: int | None = None,
        views: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Give rows start..stop in order as typed batches of exactly `size` rows, the last one smaller; `views` as in `scan`."""
        return _of_size(self.scan(columns, start, stop, size, views=views), size)


def _plain(
    array: pa.Array, field: pa.Field, encoding: encodings.Encoding
) -> tuple[pa.Array, pa.Field]:
    natural, own = encodings.plain(array, encoding)
    return (
        (array, field)
        if own is encoding
        else (natural, encodings.field(encodings.column(field.name, own.name)))
    )


def _of_size(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Give the same rows in batches of exactly `size` rows, the last one smaller."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while count + batch.num_rows >= size:
            cut = size - count
            yield pa.concat_batches([*held, batch.slice(0, cut)]) if held else batch.slice(0, cut)
            batch, held, count = batch.slice(cut), [], 0
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield pa.concat_batches(held)
