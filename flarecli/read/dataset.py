"""Dataset (random access, batches, selections, epochs) and `open`, which opens a dataset."""

from __future__ import annotations

import contextlib
import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np
import pyarrow as pa

from flarecli import encodings, playlists, sql
from flarecli.access import CacheOptions
from flarecli.arguments import (
    Address,
    Addresses,
    address_texts,
    check_minimum,
    checked,
    name_list,
    shown,
)
from flarecli.encodings import BINARY
from flarecli.errors import FlareError, MissingLibraryError, UsageError, ValueFitError
from flarecli.formats import TableOptions
from flarecli.model import Columns, IntArray, Playlist, Row, Sample, Stream
from flarecli.playlists import pin_of, same_rows, version_name, version_number, version_of
from flarecli.read.batch import GatheredBatches
from flarecli.read.decode import (
    DecodeFailure,
    Decoder,
    DecodeRule,
    arrow_dtype,
    collate_samples,
    has_arrow_values,
    number_array,
    stack_values,
)
from flarecli.read.epoch import WINDOW, Data
from flarecli.read.epoch_order import Epoch
from flarecli.read.resolve import resolve, select_streams
from flarecli.read.shards import Series
from flarecli.read.split import check_fractions, key_hashes, part_rows, row_hashes
from flarecli.read.table import Shards, Table, row_numbers
from flarecli.suggest import choose

__all__ = ["Dataset", "open"]

MAX_HTML_ROWS = 5
_MAX_VERSIONS = 100  # maximum number of versions, and of pins, that `version_with` searches
ReadSample: TypeAlias = "Callable[[int], Sample | None]"


class Dataset(Data):
    """A dataset whose rows are read by number: `data[i]`, `data[a:b]` or `data[[7, 3]]`.

    Samples contain the values of the packed table. For example, a timestamp that is stored as text
    is returned as a datetime, and a boolean that is stored as a number is returned as True or
    False.

    columns   name and encoding of each column, in the order of the packed table if the playlist
              lists this order, otherwise in the order of the format
    schema    Arrow schema of the batches. The types are stored by the format or listed in the
              playlist; without such types, numbers that are stored as text have numeric types
    exact     Arrow schema of the stored columns, without conversion: numbers that are stored as
              text have a text type
    playlists the playlists of the dataset
    raises    UsageError if streams cannot be joined row by row
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
        by_name = {column.name: column for column in self._table.columns}
        self.columns: Columns = tuple(by_name[name] for name in self._table.order)
        fields = self._table.fields
        self.exact = pa.schema(
            [fields.get(column.name) or encodings.field(column) for column in self.columns]
        )
        self._encodings = {
            column.name: encodings.lookup(column.encoding) for column in self.columns
        }
        self._decoders = {
            name: Decoder(encoding, allow_pickle) for name, encoding in self._encodings.items()
        }
        # column names; None means all columns, in the order of the format
        self._selected: tuple[str, ...] | None = None
        if self.columns != self._table.columns:
            self._selected = tuple(self._table.order)
        self._read_sample: ReadSample | None = None
        self._set_schema()
        for name, (_, kind) in self._conversions.items():
            if kind is not None and encodings.packed_value(self._encodings[name], kind) is not None:
                self._decoders[name] = replace(self._decoders[name], kind=kind)

    def _set_schema(self) -> None:
        """Derive the batch schema from the schema of the stored columns."""
        # column to convert -> encoding after the conversion, and type of the column in the packed
        # table (None if this type is not restored)
        self._conversions: dict[str, tuple[encodings.Encoding, pa.DataType | None]] = {}
        fields = []
        for field in self.exact:
            if field.name in self._table.fields:  # the format stores the type
                fields.append(field)
                continue
            stored = self._encodings[field.name]
            natural = encodings.plain(pa.nulls(0, field.type), stored)[1]
            if natural is not stored:
                field = encodings.field(encodings.column(field.name, natural.name))
            kind = self._table.types.get(field.name)
            if kind is not None and (
                field.type.equals(kind) or not encodings.is_restorable(natural, kind)
            ):
                kind = None
            if kind is not None or natural is not stored:
                self._conversions[field.name] = natural, kind
            # A field of type `kind` has no metadata that names the encoding, because the encoding
            # has another type.
            fields.append(field if kind is None else pa.field(field.name, kind))
        self.schema = pa.schema(fields)

    @property
    def column_names(self) -> list[str]:
        """Return the names of the columns, in order."""
        return [column.name for column in self.columns]

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of rows and the number of columns."""
        return len(self), len(self.columns)

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Return the Arrow type of each column, from the playlist or the format.

        Columns without such a type are omitted.
        """
        return self._table.types

    def __len__(self) -> int:
        return self._table.rows

    def __repr__(self) -> str:
        columns = ", ".join(f"{column.name!r} {column.encoding}" for column in self.columns)
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
            scalar = np.asarray(index).item()  # a numpy or torch scalar
            return self.__getitems__([scalar])[0]
        return self.__getitems__(index)

    def _compile(self) -> ReadSample:
        """Create and cache a function that quickly reads single samples of mapped shards.

        The function returns None for a row that only `__getitems__` can read, and for a row that
        cannot be decoded. The caller then calls `__getitems__`, which reports the row and the
        column.
        """
        series, columns = self._table.series[0], self._selected
        edges, search, count = series.starts.tolist(), bisect_right, len(self)
        readers = series.row_readers(columns)
        unpackers, decoders = [], []
        for name, decoder in self._decoders.items():
            if (unpack := decoder.unpacker()) is not None:
                unpackers.append((name, unpack))
            elif (decode := decoder.compiled()) is not None:
                decoders.append((name, decode))

        def read_sample(row: int) -> Sample | None:
            i = search(edges, row) - 1
            try:
                sample: Sample = readers[i](row - edges[i])
                for name, unpack in unpackers:
                    (sample[name],) = unpack(sample[name])
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

        is_fast = self._table.is_whole and not self._table.fields
        self._read_sample = read_sample if is_fast else lambda row: None
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

    @property
    def _arrow_columns(self) -> list[str]:
        """Return the columns whose Arrow values are converted to Python values.

        The values of all other columns are decoded from their stored bytes.
        """
        return [
            name
            for name, decoder in self._decoders.items()
            if name in self._table.fields
            and decoder.rule is True
            and has_arrow_values(self._table.fields[name])
        ]

    def __getitems__(self, indices: Sequence[int] | IntArray) -> list[Sample]:
        if arrow := self._arrow_columns:
            return self._typed_samples(indices, arrow)
        rows, names = self.rows(indices), list(self._decoders)
        if not names:
            return [{} for _ in rows]
        if len(rows) == 1:  # decoding by column is slower for a single row
            with contextlib.suppress(Exception):  # `_values` below reports the row and the column
                return [
                    {name: decoder.value(rows[0][name]) for name, decoder in self._decoders.items()}
                ]
        columns = [self._values(name, [row[name] for row in rows], indices) for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def _typed_samples(
        self, indices: Sequence[int] | IntArray, arrow: Sequence[str]
    ) -> list[Sample]:
        columns = {
            name: self._python_values(name, array, indices)
            for name, array in self._table.take(indices, arrow).items()
        }
        others = [name for name in self._decoders if name not in columns]
        rows = self.rows(indices, others) if others else []
        for name in others:
            columns[name] = self._values(name, [row[name] for row in rows], indices)
        ordered = [columns[name] for name in self._decoders]
        return [
            dict(zip(self._decoders, values, strict=True)) for values in zip(*ordered, strict=True)
        ]

    def _values(
        self, name: str, data: Sequence[Any], indices: Sequence[int] | IntArray
    ) -> list[Any]:
        """Return the decoded values of a column. Errors name the column and the row."""
        try:
            return self._decoders[name].values(data)
        except DecodeFailure as failure:
            raise failure.located(name, int(indices[failure.index])) from failure.__cause__

    def _python_values(
        self, name: str, array: pa.Array, indices: Sequence[int] | IntArray
    ) -> list[Any]:
        """Return the Python values of a column. Errors name the column and the row."""
        try:
            return encodings.python_values(array)
        except ValueFitError as error:
            raise error.changed(row=indices[error.row or 0]).of_column(name) from None

    def collated(self, indices: Sequence[int] | IntArray) -> dict[str, Any]:
        """Return rows as one batch: column -> array [rows, …] or list.

        Numbers, and arrays of the same shape, become one array. Other values become a list.

        raises  the same errors as `__getitem__`
        """
        if arrow := self._arrow_columns:
            return self._typed_collated(indices, arrow)
        try:
            stored = self._table.read_columns(indices, self._selected)
        except TypeError:
            row_numbers(indices)  # raises UsageError for an invalid list
            raise
        return self._batch(stored, indices)

    def _typed_collated(
        self, indices: Sequence[int] | IntArray, arrow: Sequence[str]
    ) -> dict[str, Any]:
        arrays = self._table.take(indices, arrow)
        out = {name: number_array(array) for name, array in arrays.items()}
        for name, array in arrays.items():
            if out[name] is None:
                dtype = arrow_dtype(self._table.fields[name].type)
                out[name] = stack_values(self._python_values(name, array, indices), dtype)
        others = [name for name in self._decoders if name not in arrays]
        if others:
            out |= self._batch(self._table.read_columns(indices, others), indices, others)
        return {name: out[name] for name in self._decoders}

    def gather(self, rows: IntArray, least: int) -> GatheredBatches | None:
        """Gather the stored values of `rows`, or of a prefix of `rows`.

        rows    row numbers, int64 [k]
        least   minimum number of rows to gather
        return  None if `collated` is as fast as gathering the rows
        """
        gathered = self._table.gather(rows, least, self._selected)
        if gathered is None:
            return None
        return GatheredBatches(
            gathered.rows,
            lambda start, stop: self._batch(gathered.columns(start, stop), rows[start:stop]),
        )

    def _batch(
        self,
        stored: Mapping[str, Any],
        indices: Sequence[int] | IntArray,
        names: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        out = dict[str, Any]()
        for name in self._decoders if names is None else names:
            decoder, data = self._decoders[name], stored[name]
            array = decoder.array(data)
            out[name] = stack_values(self._values(name, data, indices)) if array is None else array
        return out

    @property
    def is_copied(self) -> bool:
        """Return whether `collated` only copies bytes from local, uncompressed, mapped files."""
        return all(decoder.copies for decoder in self._decoders.values()) and all(
            series.is_mapped for series in self._table.series
        )

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch; numbers have the dtype of their column in the dataset.

        raises  UsageError if the samples have different columns
        """
        return collate_samples(samples, self.dtypes)

    @property
    def dtypes(self) -> dict[str, str | None]:
        """Return the numpy dtype of each column in a batch; None if the values are not numbers."""
        arrow = self._arrow_columns
        return {
            name: arrow_dtype(self._table.fields[name].type) if name in arrow else decoder.dtype
            for name, decoder in self._decoders.items()
        }

    def read(self, row: int, ranges: Mapping[str, range] | None = None) -> Sample:
        """Return one sample. Read only the given ranges of the list columns in `ranges`.

        ranges  column -> range of positions in the list, such as `range(32, 42)`; positions after
                the end of the list are ignored
        raises  UsageError for a column that is not a list, and for a range that is descending or
                starts below 0; RowsError for a row outside the data
        """
        if ranges is None or (isinstance(ranges, Mapping) and not ranges):
            return self[row]
        self._check_ranges(ranges)
        bounds = {name: (items.start, items.stop) for name, items in ranges.items()}
        encoded = self._table.read([row], self._selected, bounds)[0]
        values = {name: self._values(name, [encoded[name]], [row])[0] for name in self._decoders}
        return {
            name: value[:: ranges[name].step] if name in ranges else value
            for name, value in values.items()
        }

    def _check_ranges(self, ranges: Mapping[str, range]) -> None:
        if not isinstance(ranges, Mapping) or not all(
            isinstance(items, range) for items in ranges.values()
        ):
            raise UsageError(
                f"ranges: expected a dict of ranges, got {shown(ranges)}",
                hint='Pass a dict such as {"frames": range(32, 42)}.',
            )
        self._names(list(ranges))
        for name, items in ranges.items():
            if self._encodings[name].item is None:
                raise UsageError(
                    f"column {name!r} is not a list; only lists support ranges", column=name
                )
            if not 0 <= items.start <= items.stop or items.step < 1:
                raise UsageError(
                    f"invalid range {items.start}:{items.stop}:{items.step} of column {name!r}",
                    hint="Pass an ascending range that starts at 0 or above.",
                    column=name,
                )

    def rows(
        self, indices: Sequence[int] | IntArray, columns: Sequence[str] | None = None
    ) -> list[Row]:
        """Return encoded rows in the order of `indices`: each row maps columns to stored bytes.

        indices  row numbers in [-rows, rows)
        raises   RowsError for a row outside the data; UsageError for an unknown column
        """
        return self._table.read(
            indices, self._selected if columns is None else self._names(columns)
        )

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        """Return the column names without duplicates; None means all columns.

        raises  UsageError for an unknown name
        """
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

        exact   True: do not convert numbers that are stored as text
        raises  ValueFitError for a value outside the range of its column's type
        """
        names = self._names(columns)
        typed = [name for name in names if name in self._table.fields]
        taken = self._table.take(indices, typed) if typed else {}
        rows = self.rows(indices, [name for name in names if name not in taken])
        arrays = []
        for name in names:
            if name in taken:
                arrays.append(taken[name])
                continue
            encoding = self._encodings[name]
            stored_type = pa.large_list(BINARY) if encoding.name.endswith("[]") else BINARY
            stored = pa.array([row[name] for row in rows], stored_type)
            arrays.append(encodings.typed(stored, encoding))
        batch = pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([self.exact.field(name) for name in names])
        )
        return batch if exact else self._natural(batch, indices)

    @checked
    def scan(
        self,
        columns: Sequence[str] | None = None,
        start: int = 0,
        stop: int | None = None,
        size: int = 8192,
        exact: bool = False,
        views: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows start..stop in order, in batches of at most `size` rows.

        The size of a batch in bytes is also limited, so a batch of large rows has fewer rows.

        exact   True: do not convert numbers that are stored as text
        views   True: where possible, return text and bytes as Arrow view types, which refer to the
                mapped shard instead of copying values. Many Arrow kernels do not support view types
        raises  UsageError for a negative start or stop, a size below 1 or an unknown column
        """
        check_minimum(0, start=start, stop=stop)
        check_minimum(1, size=size)
        last = len(self) if stop is None else min(stop, len(self))
        batches = self._table.scan(self._names(columns), start, last, size, views)
        return batches if exact else self._all_natural(batches, start)

    def _all_natural(
        self, batches: Iterator[pa.RecordBatch], first: int
    ) -> Iterator[pa.RecordBatch]:
        """Convert the columns of batches to the types of `schema`.

        first  number of the first row, for error messages
        """
        for batch in batches:
            yield self._natural(batch, range(first, first + batch.num_rows))
            first += batch.num_rows

    def _natural(self, batch: pa.RecordBatch, rows: Sequence[int] | IntArray) -> pa.RecordBatch:
        """Convert the stored columns of a batch to the types of `schema`."""
        if not self._conversions or not batch.num_columns:
            return batch
        arrays, fields = batch.columns, list(batch.schema)
        for i, field in enumerate(batch.schema):
            if field.name not in self._conversions:
                continue
            natural, kind = self._conversions[field.name]
            try:
                arrays[i], _ = encodings.plain(arrays[i], self._encodings[field.name], kind)
                if kind is not None:
                    arrays[i] = encodings.restore(arrays[i], kind, natural)
            except ValueFitError as error:
                row = int(rows[error.row or 0])
                raise error.changed(address="", row=row).of_column(field.name) from None
            fields[i] = self.schema.field(field.name)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def large_values(
        self, columns: Sequence[str], start: int, stop: int, max_bytes: int
    ) -> dict[int, dict[str, int]]:
        """Return the sizes of values larger than `max_bytes`: row -> column -> size in bytes.

        Only rows start..stop are searched. The values are not read; values of formats that do not
        store value sizes are omitted.
        """
        return self._table.large_values(columns, start, stop, max_bytes)

    @property
    def checksum(self) -> str:
        """Return the xxh3_128 of the columns, and of each shard's row count, size and checksums.

        If no checksums are listed, the names of the shards are used instead. The checksum does not
        depend on addresses, on `select` or on decoders. Each selection of rows, such as the result
        of `where`, has its own checksum.
        """
        return self._table.checksum

    @property
    def version(self) -> int | None:
        """Return the number of the dataset's version; None if the dataset was never changed.

        Later changes of the dataset do not affect an open Dataset.
        """
        return version_of(self.playlists[0]) if len(self.playlists) == 1 else None

    @property
    def pinned(self) -> str:
        """Return the address of a playlist of this version that later changes do not replace.

        The result is the address of the numbered playlist, or of the pin from which the dataset was
        opened. It is empty if the dataset has no versions, or if several datasets were opened
        together.
        """
        at = self.playlists[0].at if len(self.playlists) == 1 else None
        if at is None or pin_of(at.name) is not None:
            return str(at or "")
        number = self.version
        return "" if number is None else str(at.folder / version_name(number))

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return whether `checksum` is the checksum of exactly the first `rows` rows."""
        return self._table.begins_with(checksum, rows)

    @property
    def stream_checksums(self) -> dict[str, str]:
        """Return the checksum of each stream's list of shards: stream name -> checksum."""
        return self._table.stream_checksums

    def same_row_checksums(self) -> list[str]:
        """Return the checksums of the earlier versions with the same rows, newest first.

        An earlier version has the same rows if all later changes are compactions.
        """
        if len(self.playlists) != 1:
            return []
        names = [series.name for series in self._table.series]
        return [
            self._table.checksum_with(one[name] for name in names)
            for one in reversed(same_rows(self.playlists[0]))
            if one.keys() >= set(names)
        ]

    def is_compaction_of(self, checksum: str) -> bool:
        """Return whether `checksum` belongs to an earlier version with the same rows."""
        return checksum in self.same_row_checksums()

    def version_with(self, checksum: str) -> str:
        """Return the address of the newest version with this checksum; empty if none is found.

        If no numbered playlist has the checksum, the pins are searched.
        """
        at = self.playlists[0].at if len(self.playlists) == 1 else None
        if at is None or not self.pinned:
            return ""
        selected = [series.name for series in self._table.series]
        if len(selected) == len(self.playlists[0].streams):
            selected = []  # no streams were selected, so `open` reads all streams of each version
        with contextlib.suppress(FlareError):  # a folder on a web server cannot be listed
            names = at.folder.names()
            numbers = sorted(filter(None, map(version_number, names)), reverse=True)
            pins = [name for name in names if pin_of(name) and version_number(name) is None]
            numbered = map(version_name, numbers[:_MAX_VERSIONS])
            for name in (*numbered, *pins[:_MAX_VERSIONS]):
                with contextlib.suppress(FlareError):  # the playlist was pruned or is invalid
                    streams = select_streams([playlists.read(at.folder / name)], selected)
                    found = Dataset(streams).stream_checksums
                    if self._table.checksum_with(found.values()) == checksum:
                        return str(at.folder / name)
        return ""

    @property
    def edges(self) -> IntArray:
        """Return the first row of each chunk of the first stream, and then the number of rows.

        return  int64 [chunks + 1]
        """
        return self._table.edges

    # -- selections

    def select(self, columns: Sequence[str]) -> Dataset:
        """Return a dataset with only these columns, in this order.

        raises  UsageError for an unknown column
        """
        names = self._names(columns)
        out = copy.copy(self)
        by_name = {column.name: column for column in self.columns}
        out.columns = tuple(by_name[name] for name in names)
        out._decoders = {name: self._decoders[name] for name in names}
        out._selected = tuple(names)
        out.exact = pa.schema([self.exact.field(name) for name in names])
        out._set_schema()
        return out

    @checked
    def where(self, condition: str) -> Dataset:
        """Return a dataset with the rows for which an SQL condition is true, in unchanged order.

        The columns that the condition uses are read once.

        raises  UsageError if the condition is invalid or fails on a row
        """
        return self._only(self.matching(condition))

    def matching(self, condition: str) -> IntArray:
        """Return the numbers of the rows for which an SQL condition is true: int64, ascending.

        raises  UsageError if the condition is invalid or fails on a row
        """
        # longer than all other column names, so the name is unique
        number = "row number".ljust(1 + max(map(len, self.schema.names), default=0))
        names = sql.columns_of(condition, self.schema.names) or self.schema.names[:1]
        fields = [self.schema.field(name) for name in names]
        schema = pa.schema([*fields, pa.field(number, pa.int64())])

        def numbered() -> Iterator[pa.RecordBatch]:
            first = 0
            for batch in self.scan(names):
                numbers = pa.array(np.arange(first, first + batch.num_rows))
                yield batch.append_column(number, numbers)
                first += batch.num_rows

        selected, batches = sql.select(schema, numbered(), condition, known=self.schema.names)
        if selected is not schema:
            raise UsageError(
                "expected a condition, not a SELECT statement",
                hint="Pass a condition such as \"aes > 4 and lang = 'en'\".",
            )
        rows = [batch.column(number).to_numpy() for batch in batches]
        return np.concatenate(rows) if rows else np.zeros(0, np.int64)

    def _only(self, rows: IntArray) -> Dataset:
        """Return a dataset with only the given rows, which are int64 [k] and ascending."""
        out = copy.copy(self)
        out._table = self._table.only(rows)
        return out

    @checked
    def head(self, rows: int = 5) -> Dataset:
        """Return a dataset with the first `rows` rows."""
        check_minimum(0, rows=rows)
        return self._only(np.arange(min(rows, len(self))))

    @checked
    def shard(self, num_shards: int, index: int) -> Dataset:
        """Split the rows into `num_shards` consecutive parts of equal size; return part `index`.

        If the rows cannot be divided equally, the first parts have one more row than the others.

        raises  UsageError for an index outside 0 to num_shards - 1
        """
        check_minimum(1, num_shards=num_shards)
        if not 0 <= index < num_shards:
            raise UsageError(f"index: expected 0 to {num_shards - 1}, got {index}")
        size, more = divmod(len(self), num_shards)
        start = index * size + min(index, more)
        return self._only(np.arange(start, start + size + (index < more)))

    def filter(self, function: Callable[[Sample], object]) -> Dataset:
        """Return a dataset with the samples for which a function returns a true value.

        `filter` decodes all rows once; `where` reads only the columns of its condition.
        """
        kept = [row for row, sample in enumerate(self) if function(sample)]
        return self._only(np.array(kept, np.int64))

    @checked
    def split(
        self, fractions: Mapping[str, float], *, seed: int = 0, key: str | None = None
    ) -> dict[str, Dataset]:
        """Split the rows at random, and return a dataset for each name.

        Each row is assigned to a dataset by a hash of the row number and the seed. Rows that are
        appended later do not change this assignment. With `key`, the hash of the key is used
        instead, so all rows with the same key are in the same dataset.

        fractions  name -> approximate share of the rows, such as {"train": 0.9, "val": 0.1}
        key        column whose values are the keys; the column is read once
        raises     UsageError for fractions whose sum is not 1, or an unknown column
        """
        check_fractions(fractions)
        if key is None:
            hashes = row_hashes(len(self), seed)
        else:
            (name,) = self._names([key])
            hashes = key_hashes((batch.column(0) for batch in self.scan([name])), seed)
        return {name: self._only(rows) for name, rows in part_rows(hashes, fractions).items()}

    @checked
    def decoded(self, how: Mapping[str, DecodeRule]) -> Dataset:
        """Return a dataset with other decoders for the given columns.

        how     column -> True (use the decoder of the encoding), False (return the stored bytes),
                or a function that decodes the stored bytes
        raises  UsageError for an unknown column
        """
        self._names(list(how))
        for name, rule in how.items():
            if not callable(rule) and rule is not True and rule is not False:
                raise UsageError(
                    f"decoder for column {name!r}: expected a function, True or False, "
                    f"got {shown(rule)}",
                    column=name,
                )
        out = copy.copy(self)
        out._decoders = {
            name: replace(decoder, rule=how.get(name, decoder.rule))
            for name, decoder in self._decoders.items()
        }
        return out

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows as one Arrow table, in memory."""
        schema = pa.schema([self.schema.field(name) for name in self._names(columns)])
        return pa.Table.from_batches(list(self.scan(columns)), schema)

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows as a pandas DataFrame. Raises MissingLibraryError without pandas."""
        try:
            return self.to_arrow(columns).to_pandas()
        except ModuleNotFoundError:
            raise MissingLibraryError(
                "the library pandas is not installed", hint="Run `pip install pandas`."
            ) from None

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return an ArrowArrayStream in a PyCapsule; the stream reads the rows on demand.

        Through this method, pandas, Polars, DuckDB and pyarrow accept a dataset as a table.
        """
        reader = pa.RecordBatchReader.from_batches(self.schema, self.scan())
        return reader.__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """Return the first rows as an HTML table, for notebooks; images are thumbnails."""
        from flarecli.read.notebook import html_table

        encoded = [name for name in self._decoders if self._encodings[name].arrow.equals(BINARY)]
        first_rows = self.decoded(dict.fromkeys(encoded, False))[:MAX_HTML_ROWS]
        return html_table(f"{len(self)} rows, {len(self.columns)} columns", first_rows)

    # -- epochs

    @checked
    def order(self, seed: int, epoch: int, order: str, window: int = WINDOW) -> Epoch:
        """Return the row order of an epoch. Raises UsageError if `order` is unknown."""
        return Epoch(np.asarray(self.edges), seed, epoch, order, window)

    def close(self) -> None:
        """Close all open shards. Reading a row afterwards opens its shard again."""
        for series in self._table.series:
            series.close()

    def load(self) -> None:
        """Import the format modules, so that forked processes share them."""
        for series in self._table.series:
            series.load()

    @property
    def shards(self) -> Shards:
        """Return the shards of all streams, so that the caller can prefetch and release them."""
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
        """Yield rows start..stop as typed batches of `size` rows; the last batch may be smaller.

        views  True: return text and bytes as Arrow view types where possible; see `scan`
        """
        return _of_size(self.scan(columns, start, stop, size, views=views), size)


def _of_size(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Regroup batches into batches of `size` rows; the last batch may be smaller."""
    pending: list[pa.RecordBatch] = []
    count = 0  # pending rows
    for batch in batches:
        while count + batch.num_rows >= size:
            head = batch.slice(0, size - count)
            yield pa.concat_batches([*pending, head]) if pending else head
            batch, pending, count = batch.slice(size - count), [], 0
        if batch.num_rows:
            pending.append(batch)
            count += batch.num_rows
    if pending:
        yield pa.concat_batches(pending)


@checked
def open(
    sources: Addresses,
    *,
    format: str | None = None,
    input: str | None = None,
    csv: Sequence[str] = (),
    streams: Sequence[str] = (),
    retries: int = 8,
    timeout: float | str = 30.0,
    deadline: float | str = 600.0,
    allow_private: bool = False,
    allow_local: bool = False,
    allow_host: str | Sequence[str] = (),
    allow_pickle: bool = False,
    maps: bool = True,
    decode: Mapping[str, DecodeRule] | None = None,
    cache: Address | None = None,
    cache_limit: int | str = 10 * 10**9,
) -> Dataset:
    """Open the dataset at an address; datasets at several addresses are concatenated.

    sources       playlists, MDS folders, shards or folders of files; local, HTTP(S) or in a bucket;
                  globs, braces and pathlib paths are allowed
    format        shard format, such as `webdataset`, if no playlist or index lists the shards
    input         kind of all sources, such as `csv`, even if they have other file extensions; None:
                  the kind of each source is detected
    csv           settings for CSV files, such as `["delimiter=;", "header=no"]`
    streams       names of the streams to read; streams of equal length are joined row by row
    retries       maximum number of retries after transient errors, per object
    timeout       maximum time that a transfer may stall: seconds, or a string such as `30s`; an
                  HTTP transfer counts as stalled below 1 kB/s
    deadline      maximum time per object, including retries: seconds, or a string such as `10m`
    allow_private allow the data to refer to private and loopback addresses
    allow_local   allow the data to refer to file:// URLs, to paths outside the folder of the data,
                  and to symbolic links
    allow_host    private hosts and networks that the data may refer to: `10.0.0.7:8080` or
                  `10.1.0.0/16`
    allow_pickle  decode `pkl` columns, which runs code from the data
    maps          map local files into memory; pass False if files may be truncated during reading
    decode        column -> decoder; see `Dataset.decoded`
    cache         folder in which downloads are cached
    cache_limit   maximum size of the cache: bytes, or a string such as `10GB`
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
    tables = TableOptions(input=input, csv=csv)
    addresses = address_texts(sources)
    guard = options.guard(addresses)
    playlists = resolve(
        addresses,
        format=tables.source_format(format),
        guard=guard,
        maps=maps,
        table=tables.table_headers(),
    )
    data = Dataset(select_streams(playlists, streams), playlists, allow_pickle)
    return data.decoded(decode) if decode else data
