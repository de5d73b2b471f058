"""CSV and TSV as RFC 4180 has them: a header, quotes, embedded newlines; what does not fit is an error with its line.

The header names the columns. Which ones are numbers the first 16 MB tell: int64, float64 or bool where every value is
one and gives its text back (`007` and a 20-digit number stay text), else text. Keys, links and columns that the user
encodes as text are text whatever they look like. An empty field is null in a column of numbers, and empty text in others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from flarecli.errors import FormatError
from flarecli.ingest.source import arrow_errors, check_columns
from flarecli.ingest.text import CheckedText, line_of
from flarecli.storage import Location
from flarecli.units import format_size

__all__ = ["Delimited"]

_BLOCK = 16 << 20  # bytes; a record is no larger than this
_ROWS = 8192
_TYPES = (pa.int64(), pa.float64(), pa.bool_())
# what Arrow would read as such a value, and lose something of: leading zeros, digits beyond a double, 1 for true
_LOSSY = {pa.float64(): r"^[+-]?(?:0[0-9]|[0-9]{16,}$)", pa.bool_(): r"^[01]$"}


class Delimited:
    """One CSV or TSV file. How many rows it has only reading tells, but for none at all."""

    def __init__(self, at: Location, delimiter: str, text: Collection[str]) -> None:
        self.at, self.delimiter = at, delimiter
        self.what = "CSV" if delimiter == "," else "TSV"
        if at.size() == 0:
            raise FormatError("an empty file", where=at)
        names = _Reader(self).names
        check_columns(names, at)
        reader = _Reader(self, names)
        first = reader.next()
        while first is not None and not first.num_rows:
            first = reader.next()
        self.rows = 0 if first is None else None
        kinds = [pa.string() if first is None or name in text else _told(first.column(i)) for i, name in enumerate(names)]
        self.schema = pa.schema([pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)])

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Give the rows in order.

        raises  FormatError with the line of a ragged record, or of a value that is not of its column's type
        """
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        reader = _Reader(self, schema.names)
        row = 0
        while (block := reader.next()) is not None:
            for start in range(0, block.num_rows, _ROWS):
                part = block.slice(start, _ROWS)
                arrays = [self._typed(part.column(i), field, row + start) for i, field in enumerate(schema)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            row += block.num_rows

    def _typed(self, values: pa.Array, field: pa.Field, row: int) -> pa.Array:
        typed = _as_type(values, field.type)
        if typed is not None:
            return typed
        at = next(i for i in range(len(values)) if _as_type(values.slice(i, 1), field.type) is None)
        kind = {pa.int64(): "integers", pa.float64(): "numbers", pa.bool_(): "true or false"}[field.type]
        message = f"line {line_of(self.at, row + at + 2)}: column {field.name!r} holds {_short(values[at].as_py())}, the column is {kind}"
        raise FormatError(message, where=self.at, hint=f"Give --encode {field.name}=str to read it as text.")


class _Reader:
    """One pass over a file, every value as text; what Arrow says of its records becomes one line with a place."""

    def __init__(self, index: Delimited, columns: Sequence[str] = ()) -> None:
        self._at, self._what, self._ragged = index.at, index.what, list[Any]()
        self._file = CheckedText(index.at, index.delimiter)
        with self._errors():
            self._reader = csv.open_csv(
                pa.PythonFile(self._file, mode="r"),
                csv.ReadOptions(block_size=_BLOCK, use_threads=False),
                csv.ParseOptions(delimiter=index.delimiter, newlines_in_values=True, invalid_row_handler=self._refuse),
                csv.ConvertOptions(column_types={name: pa.string() for name in columns}, include_columns=columns, strings_can_be_null=False),
            )
        self.names = list(self._reader.schema.names)

    def _refuse(self, row: Any) -> str:
        self._ragged.append(row)
        return "error"

    def next(self) -> pa.RecordBatch | None:
        with self._errors():
            try:
                return self._reader.read_next_batch()
            except StopIteration:
                return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with arrow_errors(self._at, self._file, self._what):
                yield
        except FormatError as error:
            if self._ragged:
                row = self._ragged[0]
                fields = f"{row.actual_columns} field{'s' if row.actual_columns != 1 else ''}"
                message = f"line {line_of(self._at, row.number)} has {fields}, the header has {row.expected_columns}"
                raise FormatError(message, where=self._at, hint="Quote fields that hold a separator or a newline.") from None
            if "straddling" in error.message:
                raise FormatError(
                    f"a record is longer than {format_size(_BLOCK)}", where=self._at, hint="Look for a quote that is never closed."
                ) from None
            if "Empty CSV file" in error.message:
                raise FormatError("no header, or no line end after it", where=self._at, hint="Give it a header that names the columns.") from None
            raise


def _told(values: pa.Array) -> pa.DataType:
    """Tell what a column holds from its first values; text if there are none."""
    if pc.all(pc.equal(values, "")).as_py():
        return pa.string()
    return next((kind for kind in _TYPES if _as_type(values, kind) is not None), pa.string())


def _as_type(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Read text as a type, empty text as null; None if some value is not of that type, or would not give its text back."""
    if kind == pa.string():
        return values
    values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
    if kind in _LOSSY and pc.any(pc.match_substring_regex(values, _LOSSY[kind])).as_py():
        return None
    try:
        typed = values.cast(kind)
    except pa.ArrowInvalid:
        return None
    if kind == pa.int64() and pc.any(pc.not_equal(typed.cast(pa.string()), values)).as_py():
        return None
    return typed


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
