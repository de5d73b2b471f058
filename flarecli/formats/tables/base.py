"""Base classes of the table readers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from flarecli import expansion
from flarecli.errors import FormatError
from flarecli.formats.tables.decompress import Blocks, TextFile
from flarecli.formats.tables.schema_merge import dictionary_types, is_list_view, plain
from flarecli.formats.tables.text_records import Piece
from flarecli.model import ENCODING
from flarecli.storage import Location

if TYPE_CHECKING:
    import numpy.typing as npt

    from flarecli.formats.tables.parquet_pages import PageRun

__all__ = ["Part", "TextPart", "check_columns", "value_sizes"]


class Part(ABC):
    """Reader of one table file.

    at                location of the file, or the bytes of a text file
    schema            columns and their types
    rows              number of rows; None if unknown until the rows are read
    dictionaries      column -> dictionary type in the file; `schema` has the type of the values
    encodings         column -> encoding name from the file's metadata; the name may be invalid.
                      Empty for most files
    readable_as_text  whether every column can be read as text, exactly as stored in the file
    group_name        name of a group of rows in the file, such as `row group`; empty if the file
                      has no groups
    """

    at: Location | Blocks
    schema: pa.Schema
    rows: int | None = None
    dictionaries: Mapping[str, pa.DataType] = MappingProxyType({})
    encodings: Mapping[str, str] = MappingProxyType({})
    readable_as_text = False
    group_name = ""

    def set_schema(self, schema: pa.Schema) -> None:
        """Set the columns, dictionaries and encodings from the schema that is stored in the file.

        raises  FormatError if there are no columns, too many columns, or duplicate names
        """
        check_columns(schema.names, self.at)
        self.schema = pa.schema([(field.name, plain(field.type)) for field in schema])
        self.dictionaries = dictionary_types(schema)
        self.encodings = {
            field.name: name.decode("utf-8", "replace")
            for field in schema
            if (name := (field.metadata or {}).get(ENCODING)) is not None
        }

    @abstractmethod
    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, as batches.

        columns  columns to read, in this order; None: all columns
        """

    @property
    def group_starts(self) -> list[int]:
        """The rows, in order, at which `batches_from` can start.

        If the file has groups, the number of rows follows as the last item.
        """
        return [0]

    def start_before(self, row: int) -> int:
        """Return the last row, at or before `row`, at which `batches_from` can start."""
        starts = self.group_starts
        return starts[max(0, bisect_right(starts, row) - 1)]

    def facts(self) -> dict[str, int | str]:
        """Return facts about the file for the output of `inspect`: name -> value."""
        return {}

    def place(self, start: int) -> str:
        """Return a message prefix with the number and the rows of the group that starts at `start`.

        The prefix is empty if the file has no groups.
        """
        if not self.group_name:
            return ""
        number = bisect_right(self.group_starts, start) - 1
        first, stop = self.group_starts[number : number + 2]
        return f"{self.group_name} {number} (rows {first} to {stop - 1}): "

    def batches_from(
        self, start: int, columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches in order, each with the number of its first row.

        start  row that `start_before` returned
        """
        row = 0
        for batch in self.batches(columns):
            yield row, batch
            row += batch.num_rows

    def page_runs(
        self, row: int, stop: int, columns: Sequence[str]
    ) -> tuple[int, int, list[PageRun]] | None:
        """Return the pages that contain rows row..stop; None if unknown.

        See `Parquet.page_runs`.
        """
        return None

    def read_runs(self, row: int, runs: Sequence[PageRun]) -> list[tuple[PageRun, pa.Array]] | None:
        """Return (run, values) for each run of pages. See `Parquet.read_runs`."""
        return None

    def count(self) -> int:
        """Return the number of rows. Raises FormatError for invalid data."""
        if self.rows is not None:
            return self.rows
        return sum(batch.num_rows for _, batch in self.batches_from(0, self.schema.names[:1]))

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes that the checksum of the file covers."""
        return self.at.blocks()

    def with_types(self, types: Mapping[str, pa.DataType]) -> Part:
        """Return a reader of the same file that uses the given types where possible.

        types  column name -> common type of the column in all files of the table
        """
        return self

    @property
    def location(self) -> Location | None:
        """The location of the file; None for standard input."""
        return self.at if isinstance(self.at, Location) else self.at.location

    def selected(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of the given columns, in the given order; None: all columns."""
        if columns is None:
            return self.schema
        return pa.schema([self.schema.field(name) for name in columns])


class TextPart(Part):
    """Reader of a text file, which has no list of row positions.

    The first pass splits the file into pieces of complete records, such as 4 MB of lines, and
    stores the position of each piece. A later pass can start at any piece. Compressed files, text
    encodings other than UTF-8, and JSON arrays are always read from the beginning.
    """

    at: Blocks

    @property
    def is_seekable(self) -> bool:
        """Whether a pass may start in the middle of the file."""
        return isinstance(self.at, TextFile) and not self.at.compression

    def can_read_as(self, kind: pa.DataType, other: pa.DataType) -> bool:
        """Return whether a column of the inferred type `kind` can also be read as `other`."""
        raise NotImplementedError

    def with_types(self, types: Mapping[str, pa.DataType]) -> Part:
        """Return a copy that reads columns as the given types, if possible."""
        part = copy.copy(self)
        part.schema = pa.schema(
            [
                field.with_type(types[field.name])
                if self.can_read_as(field.type, types[field.name])
                else field
                for field in self.schema
            ]
        )
        return part

    def parsed_pieces(
        self, columns: Sequence[str], begin: Piece | None = None
    ) -> Iterator[tuple[Piece, Iterator[pa.RecordBatch]]]:
        """Yield each piece of the file with the batches of its rows.

        begin  the first piece to read; only its position is used. None: the first piece of the file
        """
        raise NotImplementedError

    @cached_property
    def _positions(self) -> tuple[list[int], list[Piece]]:
        """Two lists about the pieces that were read, in file order: the first row of each piece,
        and each piece with its data removed.
        """
        return [0], [Piece(0, b"")]

    @property
    def group_starts(self) -> list[int]:
        """The first row of each piece that was read."""
        return self._positions[0]

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order. Raises FormatError for an invalid row."""
        names = self.schema.names if columns is None else columns
        return (batch for _, batches in self.parsed_pieces(names) for batch in batches)

    def batches_from(
        self, start: int, columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches, beginning with the piece whose first row is `start`."""
        rows, positions = self._positions
        begin = positions[bisect_right(rows, start) - 1] if start else None
        for piece, batches in self.parsed_pieces(columns, begin):
            if self.is_seekable and start > rows[-1]:
                rows.append(start)
                positions.append(Piece(piece.line, b"", piece.start))
            for batch in batches:
                yield start, batch
                start += batch.num_rows


def check_columns(
    names: Sequence[str], at: object, hint: str = "Rename one of the columns in the table."
) -> None:
    """Raise FormatError if there are no columns, too many columns, or duplicate names.

    hint  hint of the error about duplicate names
    """
    if not names:
        raise FormatError("table has no columns", where=at)
    expansion.check_columns(len(names), at)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FormatError(
                f"duplicate column {name!r}",
                where=at,
                hint=hint,
                column=name,
            )
        seen.add(name)


# -- sizes

_VIEWS = (pa.string_view(), pa.binary_view())
_BYTES = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


def value_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.float64]:
    """Return the decoded size of each row in Arrow's memory in bytes, without null bitmaps.

    The sizes depend only on the values, not on the batch; the sizes of unions are upper bounds.
    Values of dictionary, view and run-end encoded types may share bytes. Shared bytes count once
    for each value.

    return  float64 [rows], because the sizes that hostile data declares may exceed int64
    """
    return np.asarray(sum(map(_sizes, batch.columns), np.zeros(len(batch))), np.float64)


def _sizes(array: pa.Array) -> npt.NDArray[np.float64]:
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    kind = array.type
    if len(array) == 0:
        return np.zeros(0)
    if kinds.is_dictionary(kind):
        sizes = _sizes(array.dictionary)
        indices = array.indices.fill_null(0).to_numpy()
        return sizes[indices] if len(sizes) else np.zeros(len(array))
    if kinds.is_run_end_encoded(kind):
        values, ends = array.values, array.run_ends.to_numpy()
        indices = np.searchsorted(ends, array.offset + np.arange(len(array)), "right")
        return np.asarray(_sizes(values)[np.minimum(indices, len(values) - 1)])
    if kind in _VIEWS:
        views = np.frombuffer(array.buffers()[1], "<i4").reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0].astype(np.float64)
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0) + 4
    if kind in _BYTES:
        return np.asarray(pc.fill_null(pc.binary_length(array), 0).to_numpy(), np.float64) + 4
    if kinds.is_struct(kind):
        return np.asarray(sum(map(_sizes, array.flatten()), np.zeros(len(array))))
    if kinds.is_fixed_size_list(kind):
        count = kind.list_size
        items = array.values.slice(array.offset * count, len(array) * count)
        return np.asarray(_sizes(items).reshape(len(array), count).sum(axis=1))
    if kinds.is_union(kind):  # an upper bound for each row: the size of all rows
        return np.full(len(array), float(array.get_total_buffer_size()))
    if kinds.is_nested(kind):  # a list, a list view or a map
        offsets = array.offsets.to_numpy()
        is_view = is_list_view(kind)
        starts = offsets if is_view else offsets[:-1]
        stops = offsets + array.sizes.to_numpy() if is_view else offsets[1:]
        first, last = int(starts.min()), int(stops.max())
        items = _sizes(array.values.slice(first, last - first))
        totals = np.concatenate([[0.0], np.cumsum(items)])
        return np.asarray(totals[stops - first] - totals[starts - first] + 4)
    width = 0 if kinds.is_null(kind) else -(-kind.bit_width // 8)
    return np.full(len(array), float(width))
