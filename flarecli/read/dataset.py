"""Open a dataset: random access, batches, selections and epochs over the rows of its streams."""

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
from flarecli.access import CacheOptions
from flarecli.arguments import (
    Address,
    Addresses,
    address_texts,
    checked,
    name_list,
    shown,
    whole,
)
from flarecli.encodings import BINARY
from flarecli.errors import UsageError, ValueFitError
from flarecli.model import Columns, IntArray, Playlist, Row, Sample, Stream
from flarecli.read.decode import Decoder, How, NotDecoded, collated, stacked
from flarecli.read.epoch import WINDOW, Data
from flarecli.read.epoch_order import Epoch
from flarecli.read.protocols import LocatedBatches
from flarecli.read.resolve import resolve, select_streams
from flarecli.read.shards import Series
from flarecli.read.table import Shards, Table, row_numbers
from flarecli.suggest import choose

__all__ = ["Dataset", "open"]

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
        self._table = Table(series)
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
            return self.__getitems__([int(index)])[0]
        if isinstance(index, slice):
            return self.__getitems__(self._sliced(index))
        if isinstance(index, (np.generic, SupportsIndex)) and np.asarray(index).ndim == 0:
            scalar = np.asarray(index).item()  # of numpy or torch
            return self.__getitems__([scalar])[0]
        return self.__getitems__(index)

    def _compile(self) -> ReadSample:
        """Return a fast reader of one sample of a mapped shard.

        It returns None for rows that `__getitems__` must read. If decoding fails, it also returns
        None, and `__getitems__` reports the row and the column.
        """
        series, columns = self._table.series[0], self._chosen
        edges, position, count = series.edges, bisect_right, len(self)
        readers = series.row_readers(columns)
        decoders = []
        for name, one in self._decoders.items():
            if (decode := one.compiled()) is not None:
                decoders.append((name, decode))

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

        self._read_sample = read_sample if self._table.is_whole else lambda row: None
        return self._read_sample

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
        rows, names = self.rows(indices), list(self._decoders)
        if not names:
            return [{} for _ in rows]
        if len(rows) == 1:  # faster than by columns
            with contextlib.suppress(Exception):  # `_values` below reports the row and the column
                return [{name: one.value(rows[0][name]) for name, one in self._decoders.items()}]
        values = [self._values(name, [row[name] for row in rows], indices) for name in names]
        return [dict(zip(names, one, strict=True)) for one in zip(*values, strict=True)]

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
            row_numbers(indices)  # raises UsageError for an invalid list
            raise
        return self._batch(stored, indices)

    def locate(self, rows: IntArray, least: int) -> LocatedBatches | None:
        """Locate the first rows of int64 [k] in memory: at least `least`, or None."""
        located = self._table.locate(rows, least, self._chosen)
        if located is None:
            return None
        return LocatedBatches(
            located.rows,
            lambda start, stop: self._batch(located.columns(start, stop), rows[start:stop]),
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
        bounds = {name: (one.start, one.stop) for name, one in self._checked(ranges).items()}
        encoded = self._table.read([row], self._chosen, bounds)[0]
        values = {name: self._values(name, [encoded[name]], [row])[0] for name in self._decoders}
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
    def shards(self) -> Shards:
        """The shards of all streams, to prefetch and release them."""
        return Shards([(0, self._table)])

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


@checked
def open(
    sources: Addresses,
    *,
    format: str | None = None,
    streams: Sequence[str] = (),
    retries: int = 8,
    timeout: float | str = 30.0,
    deadline: float | str = 600.0,
    allow_private: bool = False,
    allow_local: bool = False,
    allow_host: str | Sequence[str] = (),
    allow_pickle: bool = False,
    maps: bool = True,
    decode: Mapping[str, How] | None = None,
    cache: Address | None = None,
    cache_limit: int | str = "10GB",
) -> Dataset:
    """Open the dataset at one or several addresses; several are concatenated.

    sources       playlists, MDS folders, shards or folders of files; local, HTTP(S) or in a bucket;
                  globs, braces and pathlib paths are allowed
    streams       names of the streams to read; streams of equal length are joined by column
    retries       retries of transient errors, per object
    timeout       maximum wait for the next byte: seconds, or a text such as `30s`
    deadline      maximum time for one object, retries included: seconds, or a text such as `10m`
    allow_private the data may name private and loopback addresses
    allow_local   the data may name file://, paths outside its folder and symbolic links
    allow_host    private hosts and networks that the data may name, such as `10.0.0.7:8080` or
                  `10.1.0.0/16`
    allow_pickle  decode `pkl` columns; this runs code that the data contains
    maps          pass False if files may be truncated while they are read
    decode        column -> False for the stored bytes, or a function of them; see `Dataset.decoded`
    cache         folder that caches downloads, with at most `cache_limit` bytes: a number or `10GB`
    raises        MissingError, FormatError, UnsafeError, UnfinishedError: see `resolve`
    """
    options = CacheOptions(
        retries=retries,
        timeout=timeout,
        deadline=deadline,
        allow_private=allow_private,
        allow_local=allow_local,
        allow_host=allow_host,
        cache=cache,
        cache_limit=cache_limit,
    )
    addresses = address_texts(sources)
    guard = options.guard(addresses)
    playlists = resolve(addresses, format=format, guard=guard, maps=maps)
    data = Dataset(select_streams(playlists, streams), playlists, allow_pickle)
    return data.decoded(decode) if decode else data
