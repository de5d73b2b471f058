"""CSV and TSV as RFC 4180 has them: quotes, embedded newlines, a header; ragged rows and bad text are errors with a place.

The header names the columns; their types are told from the first 16 MB. Keys, links and columns that the user
encodes as text are text whatever they look like: `007` stays `007`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv

from flarecli.errors import FormatError
from flarecli.ingest.source import LocationFile, arrow_errors
from flarecli.storage import Location

__all__ = ["Delimited"]

_BLOCK = 16 << 20  # a row is no larger than this; types are told from the first one
_ROWS = 8192
_VALUE = re.compile(r"CSV column #(\d+): Row #(\d+): CSV conversion error to (\w+).*: invalid value (.*)")


class _Text(LocationFile):
    """A file that is checked to be UTF-8 without NUL while it is read from start to end."""

    def __init__(self, at: Location) -> None:
        super().__init__(at)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._seen, self._lines, self._quotes = 0, 1, 0

    def read(self, size: int | None = -1) -> bytes:
        start = self._position
        data = super().read(size)
        if start != self._seen:
            return data  # Arrow streams, and reads no byte twice
        pending = len(self._decoder.getstate()[0])
        try:
            self._decoder.decode(data, final=self._position >= self._size)
        except UnicodeDecodeError as error:
            place = start - pending + error.start
            self._refuse(f"not UTF-8 at byte {place}", data[: max(0, error.start - pending)])
        if (nul := data.find(b"\0")) >= 0:
            self._refuse(f"a NUL at byte {start + nul}", data[:nul])
        self._seen = self._position
        self._lines += data.count(b"\n")
        self._quotes += data.count(b'"')
        if self._position >= self._size and self._quotes % 2 and data:
            self.error = FormatError("a quote is never closed", where=self._at, hint='Double each quote inside a value: "".')
            raise self.error
        return data

    def _refuse(self, what: str, before: bytes) -> None:
        line = self._lines + before.count(b"\n")
        self.error = FormatError(f"{what}, in line {line}", where=self._at, hint="Save it as UTF-8 text.")
        raise self.error


class Delimited:
    """One CSV or TSV file; how many rows it has, only reading tells."""

    rows = None

    def __init__(self, at: Location, delimiter: str, text: Collection[str]) -> None:
        self.at, self._delimiter, self._text = at, delimiter, set(text)
        if at.size() == 0:
            raise FormatError("an empty file", where=at)
        reader = _Reader(self)
        # a column without any value so far may get one: it is read as text
        self._text |= {field.name for field in reader.schema if pa.types.is_null(field.type)}
        self.schema = pa.schema([pa.field(f.name, pa.string() if f.name in self._text else f.type) for f in reader.schema])

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Give the rows in order.

        raises  FormatError with the record for a ragged one, or for a value that is not of its column's type
        """
        reader = _Reader(self)
        while (block := reader.next()) is not None:
            part = block if columns is None else block.select(list(columns))
            for start in range(0, part.num_rows, _ROWS):
                yield part.slice(start, _ROWS)


class _Reader:
    """One pass over a file; what Arrow says of its rows becomes one line with a place."""

    def __init__(self, index: Delimited) -> None:
        self._at, self._ragged, self._file = index.at, list[Any](), _Text(index.at)
        self._what = "CSV" if index._delimiter == "," else "TSV"
        with self._errors():
            self._reader = csv.open_csv(
                pa.PythonFile(self._file, mode="r"),
                csv.ReadOptions(block_size=_BLOCK, use_threads=False),
                csv.ParseOptions(delimiter=index._delimiter, newlines_in_values=True, invalid_row_handler=self._refuse),
                csv.ConvertOptions(column_types={name: pa.string() for name in index._text}, strings_can_be_null=False),
            )
        self.schema: pa.Schema = self._reader.schema

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
                message = f"record {row.number} has {row.actual_columns} fields, the header has {row.expected_columns}"
                raise FormatError(message, where=self._at, hint="Quote fields that hold a separator or a newline.") from None
            match = _VALUE.search(error.message)
            if match:
                column = self.schema.names[int(match[1])]
                message = f"record {match[2]}: column {column!r} holds {match[4]}, which is no {match[3]}"
                raise FormatError(message, where=self._at, hint=f"Give --encode {column}=str to read it as text.") from None
            raise
