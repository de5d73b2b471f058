"""Dataset: random access, batches, selections and epochs over the rows of one or more streams."""

from __future__ import annotations

import contextlib
import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, TypeAlias, overload

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
from flarecli.read.protocols import Data
from flarecli.read.shards import Series
from flarecli.read.table import Joined, numbers_of
from flarecli.suggest import choose

__all__ = ["Dataset"]

ReadSample: TypeAlias = "Callable[[int], Sample | None]"


class Dataset(Data):
    """Rows by position: `data[i]`, `data[a:b]`, `data[[7, 3]]`, `data.rows(…)`, `data.batches(…)`.

    columns   name and encoding of each column, in the order of the format
    schema    Arrow schema of the batches; numbers that the format stores as text are numbers
    exact     Arrow schema of the batches as stored; numbers stored as text are text
    playlists the playlists of the dataset
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
                "playlist contains no streams",
                where=playlists[0].at if playlists and playlists[0].at else "",
            )
        self._table = Joined(series)
        self.columns: Columns = self._table.columns
        self.exact = pa.schema([encodings.field(column) for column in self.columns])
        self._encodings = {
            column.name: encodings.lookup(column.encoding) for column in self.columns
        }
        self._decoders = {name: Decoder(one, allow_pickle) for name, one in self._encodings.items()}
        self._chosen: tuple[str, ...] | None = None  # columns; None: all
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
        columns = ", ".join(f"{one.name!r} {one.encoding}" for one in self.columns)
        return f"<Dataset: {len(self)} rows of {columns}>"

    def __iter__(self) -> Iterator[Sample]:
        for start in range(0, len(self), 64):
            yield from self[start : start + 64]

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | IntArray) -> list[Sample]: ...

    def __getitem__(self, index: Any) -> Sample | list[Sample]:
        """Return one sample or a list of samples: column -> Python value.

        raises  RowsError (an IndexError) for a row outside the data; UsageError for an index that
                is not an integer; UnsafeError for a pickle, unless pickles are allowed
        """
        if type(index) is int:
            sample = (self._read_sample or self._compile())(index)
            if sample is not None:
                return sample
        if isinstance(index, (int, np.integer)):
            return self._decoded([int(index)])[0]
        if isinstance(index, slice):
            return self._decoded(self._sliced(index))
        if isinstance(index, (np.generic, SupportsIndex)) and np.asarray(index).ndim == 0:
            return self._decoded(numbers_of([np.asarray(index).item()]))[
                0
            ]  # a numpy or torch scalar
        return self._decoded(index)

    def _compile(self) -> ReadSample:
        """Return a fast reader of one sample of a mapped shard.

        It returns None for rows that `_decoded` must read. If decoding fails, it also returns None,
        and `_decoded` reports the row and the column.
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
                f"expected a slice of integers, got {shown(index)}",
                hint="Pass a slice such as data[10:20] or data[::100].",
            ) from None

    def __getitems__(self, indices: Sequence[int] | IntArray) -> list[Sample]:
        return self._decoded(indices)

    def _decoded(self, indices: Sequence[int] | IntArray) -> list[Sample]:
        rows, names = self.rows(indices), list(self._decoders)
        if len(rows) == 1:  # fast path; errors are raised by the slow path, with row and column
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
        """Return rows as one batch: column -> values.

        Numbers and arrays of one shape become an array [rows, …], other values a list. Raises the
        errors of reading a row.
        """
        try:
            stored = self._table.read_columns(indices, self._chosen)
        except TypeError:
            numbers_of(indices)  # raises UsageError for an invalid list
            raise
        return self._batch(stored, indices)

    def found(self, rows: IntArray, least: int) -> Found | None:
        """Locate the first rows of int64 [k] in memory: at least `least`, or None."""
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
        """Whether `collated` only copies bytes of local, uncompressed, mapped files."""
        return all(one.copies for one in self._decoders.values()) and all(
            one.is_mapped for one in self._table.series
        )

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch; numbers have the dtype of the dataset's column, if any.

        raises  UsageError if the samples have different columns
        """
        return collated(samples, self.dtypes)

    @property
    def dtypes(self) -> dict[str, str | None]:
        """The numpy dtype of each column in a batch; None if its values are not numbers."""
        return {name: decoder.dtype for name, decoder in self._decoders.items()}

    def read(self, row: int, ranges: Mapping[str, range] | None = None) -> Sample:
        """Return one sample, and of columns of lists only a range of the items, with one read.

        ranges  column -> positions in its list, such as `range(32, 42)`; cut at the end of the list
        raises  UsageError for a column that is not a list and for a descending range; RowsError for
                a row outside the data
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
                f"ranges is {shown(ranges)}: expected a dict of ranges",
                hint='Pass a dict such as {"frames": range(32, 42)}.',
            )
        self._names(list(ranges))
        for name, one in ranges.items():
            if self._encodings[name].item is None:
                raise UsageError(f"cannot read a range of column {name!r}: not a list", column=name)
            if not 0 <= one.start <= one.stop or one.step < 1:
                raise UsageError(
                    f"invalid range {one.start}:{one.stop}:{one.step} of column {name!r}",
                    hint="Pass an ascending range of positions from 0.",
                    column=name,
                )
        return ranges

    def rows(
        self, indices: Sequence[int] | IntArray, columns: Sequence[str] | None = None
    ) -> list[Row]:
        """Return encoded rows in the order of `indices`: column -> bytes as stored.

        indices  each in [-rows, rows)
        raises   RowsError for a row outside the data; UsageError for an unknown column
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
        """Return rows in the order of `indices` as one typed batch.

        exact   keep numbers that are stored as text as text
        raises  ValueFitError for a value outside the range of its column's type
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
        """Yield rows start..stop in order as batches of at most `size` rows and of bounded bytes.

        exact  keep numbers that are stored as text as text
        views  text and bytes may be Arrow views over the mapped shard: faster, but many Arrow
               kernels do not support views
        raises UsageError for a negative start or stop, a size below 1 or an unknown column
        """
        try:
            start, last, size = (
                whole(start),
                len(self) if stop is None else min(whole(stop), len(self)),
                whole(size),
            )
        except TypeError:
            raise UsageError(
                f"rows {shown(start)} to {shown(stop)} in batches of {shown(size)}: "
                "expected integers"
            ) from None
        if start < 0 or last < 0 or size < 1:
            raise UsageError(
                f"rows {start} to {last} in batches of {size}: expected at least 0, 0 and 1"
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
        """Convert numbers stored as text to numbers, and JSON strings to text."""
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
        """The xxh3_128 of the listing: columns, and rows, size and checksums of each shard.

        If a list has no checksums of its shards, their names are used instead. Rows chosen by
        `where` are covered; addresses, columns chosen by `select` and decoders are not.
        """
        return self._table.checksum

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return whether `checksum` is the checksum of exactly the first `rows` rows."""
        return self._table.begins_with(checksum, rows)

    @property
    def edges(self) -> IntArray:
        """The first row of each chunk of the first stream, then the end: int64 [chunks + 1]."""
        return self._table.edges

    # -- selections

    def select(self, columns: Sequence[str]) -> Dataset:
        """Return a dataset of some columns, in this order. Raises UsageError for an unknown column."""
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
        """Return the dataset of the rows for which an SQL condition is true, in their order.

        The columns of the condition are read once.

        raises  UsageError for an invalid condition, or one that fails on a row
        """
        # longer than every column name, so it cannot clash
        position = "row of the data".ljust(1 + max(map(len, self.schema.names), default=0))
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
                "expected a condition, not a SELECT statement",
                hint="Pass a condition such as \"aes > 4 and lang = 'en'\".",
            )
        parts = [batch.column(position).to_numpy() for batch in batches]
        out = copy.copy(self)
        out._table = self._table.only(np.concatenate(parts) if parts else np.zeros(0, np.int64))
        return out

    @checked
    def decoded(self, how: Mapping[str, How]) -> Dataset:
        """Return the dataset with other decoders.

        how     column -> True: decode by its encoding, False: the stored bytes, or a function of
                the stored bytes
        raises  UsageError for an unknown column
        """
        self._names(list(how))
        for name, one in how.items():
            if not callable(one) and one is not True and one is not False:
                raise UsageError(
                    f"decoder of column {name!r} is {shown(one)}: "
                    "expected a function, True or False",
                    column=name,
                )
        out = copy.copy(self)
        out._decoders = {
            name: replace(one, how=how.get(name, one.how)) for name, one in self._decoders.items()
        }
        return out

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows as one Arrow table, in memory."""
        schema = pa.schema([self.schema.field(name) for name in self._names(columns)])
        return pa.Table.from_batches(list(self.scan(columns)), schema)

    # -- epochs

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
        """Return an iterator over the samples of one rank in an epoch; see `Run`.

        order   `shuffle`: a permutation of all rows; `windows`: shuffled chunks, with the rows of
                `window` chunks mixed, for remote data; `sequential`
        cursor  resume at the `cursor` of another run, with any number of ranks; it sets seed,
                epoch, order and window
        raises  UsageError for an invalid rank or order, and for a cursor of other data
        """
        return Run(self, beginning(seed, epoch, order, window, cursor), rank, ranks)

    @checked
    def order(self, seed: int, epoch: int, order: str, window: int = WINDOW) -> Epoch:
        """Return the order of an epoch. Raises UsageError for an unknown order."""
        return Epoch(np.asarray(self.edges), seed, epoch, order, window)

    def close(self) -> None:
        """Close all open shards. Reading a row afterwards opens its shard again."""
        for one in self._table.series:
            one.close()

    def load(self) -> None:
        """Import the code of the formats, so that forked processes share it."""
        for one in self._table.series:
            one.load()

    @property
    def room(self) -> int:
        """Cache bytes available for prefetched shards; 0 without a cache."""
        return min(one.room for one in self._table.series)

    @property
    def stored(self) -> int:
        """Total bytes of the shards as listed; -1 if a size is not listed."""
        sizes = [one.stored for one in self._table.series]
        return -1 if min(sizes) < 0 else sum(sizes)

    def expect(self, together: int) -> None:
        """Announce that most rows will be read: mapped shards then use large pages.

        together  bytes of all data that will be read; large pages are used if they fit into memory
        """
        if 2 * len(self) >= self._table.series[0].rows:
            for one in self._table.series:
                one.expect(together)

    def weight(self, start: int, stop: int) -> int:
        """Return the listed bytes of the shards of rows start..stop."""
        return sum(one.weight(i) for one, chunks in self._table.spans(start, stop) for i in chunks)

    def fetch(self, start: int, stop: int) -> None:
        """Download the shards of rows start..stop into the cache, or into memory until `release`."""
        for one, chunks in self._table.spans(start, stop):
            for i in chunks:
                one.fetch(i, passing=True)

    def have(self, rows: IntArray, passing: bool = False) -> None:
        """Download the shards of these rows, int64 [k], into the cache.

        passing  keep shards that the cache cannot keep in memory until `release`, like `fetch`
        """
        for one, chunks in self._table.holding(rows):
            for i in chunks:
                one.fetch(i, passing)

    def release(self, start: int, stop: int) -> None:
        """Release the shards of rows start..stop: memory, and cached copies that were evicted."""
        for one, chunks in self._table.spans(start, stop):
            for i in chunks:
                one.passed(i)

    def release_all(self) -> None:
        """Release all shards that runs keep in memory."""
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
        """Yield rows start..stop as typed batches of exactly `size` rows; the last may be smaller.

        views  as in `scan`
        """
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
    """Yield the same rows in batches of exactly `size` rows; the last may be smaller."""
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
