"""CSV and TSV reader. The default dialect is RFC 4180 with a header.

Errors contain the line number. The first line contains the column names. However, the file has no
header if all fields in the first line are numbers and at least two fields are equal. The type of a
column is inferred from the first 4 MB: int64, float64 or bool if every value can be converted
without loss, and text otherwise (`007` and a 20-digit number stay text). Key columns, columns of
addresses and columns that the user encodes as text are always read as text. In a number or bool
column, an empty field is null. In a text column, an empty field is an empty string.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from flarecli import expansion
from flarecli.errors import FormatError
from flarecli.formats.tables.base import TextPart, check_columns
from flarecli.formats.tables.decompress import Blocks
from flarecli.formats.tables.dialect import DEFAULT, Dialect, detected, without_quoted
from flarecli.formats.tables.text_records import BOM, Piece, pieces, records
from flarecli.names import shell_quoted
from flarecli.units import format_count

__all__ = ["Delimited"]

_ROWS = 8192
_NUMBER = r"(?a)[+-]?\d{1,40}(?:\.\d{1,40})?"
_DECIMAL_COMMA = r"^[+-]?[0-9]+,[0-9]+$"
_THOUSANDS = r"^[+-]?[0-9]{1,3},[0-9]{3}$"
_EXPECTED = {pa.int64(): "integers", pa.float64(): "numbers", pa.bool_(): "true or false"}
_NULL_TEXTS = ("NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "\\N")
_TYPES = {*_EXPECTED, pa.string()}
# Type -> pattern of text that Arrow would convert to this type with loss: a number with leading
# zeros or too many digits, and 0 or 1 as a bool.
_LOSSY = {pa.float64(): r"^[+-]?(?:0[0-9]|[0-9]{16,}$)", pa.bool_(): r"^[01]$"}


class Delimited(TextPart):
    """Reader of a CSV or TSV file. `rows` is 0 if the file has no rows, and None otherwise.

    lacks_header  whether flare detected that the first record contains values, not column names
    """

    at: Blocks
    lacks_header = False
    readable_as_text = True

    def __init__(
        self, source: Blocks, delimiter: str, text: Collection[str], dialect: Dialect = DEFAULT
    ) -> None:
        """Read the header and infer the column types.

        delimiter  default delimiter for the file suffix; the dialect may override it
        text       columns that are always read as text
        """
        self._file = source
        self.at, self._dialect, self._sep_line = detected(source, dialect, delimiter)
        self._names = self._header()
        hint = (
            "Rename one of the columns, or use --csv header=no if the first line contains values."
        )
        check_columns(self._names, source, hint)
        first = next(self._tables(self._names), None)
        self.rows = 0 if first is None else None
        types = [
            pa.string()
            if first is None or name in text
            else _infer_type(first[1].column(i), self._dialect)
            for i, name in enumerate(self._names)
        ]
        self.schema = pa.schema(list(zip(self._names, types, strict=True)))
        # Names of text columns whose first values are numbers with a decimal comma.
        self.decimal_commas = [
            name
            for i, name in enumerate(self._names)
            if first is not None
            and self._dialect.decimal == "."
            and types[i] == pa.string()
            and name not in text
            and _has_decimal_commas(first[1].column(i))
        ]

        # Text column -> strings that other programs write for null, such as `NA`. All other values
        # of the column are numbers or bools.
        self.null_texts = {
            name: found
            for i, name in enumerate(self._names)
            if first is not None
            and types[i] == pa.string()
            and name not in text
            and (found := _null_texts(first[1].column(i), self._dialect))
        }

    def can_read_as(self, kind: pa.DataType, other: pa.DataType) -> bool:
        """Return whether values of a CSV file can be parsed as the type `other`."""
        return other in _TYPES

    def parsed_pieces(
        self, columns: Sequence[str], begin: Piece | None = None
    ) -> Iterator[tuple[Piece, Iterator[pa.RecordBatch]]]:
        """Yield each piece with the batches of its rows.

        raises  FormatError with the line number of a record with the wrong number of fields, or of
                an invalid value
        """
        schema = self.selected(columns)
        for piece, table in self._tables(schema.names, begin):
            yield piece, self._batches(piece, table, schema)

    def _batches(
        self, piece: Piece, table: pa.Table, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for start in range(0, table.num_rows, _ROWS):
            part = table.slice(start, _ROWS)
            arrays = [
                self._convert(part.column(i), field, piece, start) for i, field in enumerate(schema)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file in their original encoding."""
        return self._file.blocks()

    def _header(self) -> list[str]:
        piece = next(self._pieces(), None)
        if piece is None:
            raise FormatError("file has no header with column names", where=self.at)
        first = piece.data[: self._first_record(piece)]
        header = first.strip(b"\r\n") + b"\n"
        # count the columns before parsing, because the parser uses 9 kB of memory per column
        delimiter = self._dialect.delimiter.encode()
        if header.count(delimiter) >= expansion.MAX_COLUMNS:
            separators = without_quoted(header, self._dialect.quote).count(delimiter)
            expansion.check_columns(separators + 1, self.at)
        try:
            read = csv.ReadOptions(use_threads=False, block_size=len(header) + 1)
            found = csv.open_csv(pa.BufferReader(header), read, self._parse_options([])).schema
        except pa.ArrowInvalid as error:
            raise self._parse_error(piece, [], error) from None
        has_header = self._dialect.has_header
        if has_header is None:
            self.lacks_header = _are_values(found.names)
            has_header = not self.lacks_header
            self._dialect = replace(self._dialect, has_header=has_header)
        self._head = first if has_header else b""
        return list(found.names) if has_header else [f"column_{i}" for i in range(len(found.names))]

    def _pieces(self, begin: Piece | None = None) -> Iterator[Piece]:
        """Yield the pieces of the file that are not blank, without the `sep=` line."""
        found = pieces(self.at, self._dialect.delimiter, self._dialect.quote, begin)
        is_first = begin is None
        for piece in found:
            if is_first and piece.data.startswith(self._sep_line):
                piece = piece.after(len(self._sep_line))
            is_first = False
            if not piece.is_blank:
                yield piece

    def _first_record(self, piece: Piece) -> int:
        """Return the offset at which the first record of a piece ends."""
        return next(end for _, _, end in records(piece.data, self._dialect.quote))

    def _line(self, piece: Piece, record: int) -> int:
        """Return the line number at which a record of a piece starts."""
        found = records(piece.data, self._dialect.quote)
        return piece.line + next(lines for lines, _, _ in islice(found, record, None))

    def _body(self, begin: Piece | None = None) -> Iterator[Piece]:
        """Yield the pieces of the file, without the header record."""
        for number, piece in enumerate(self._pieces(begin)):
            is_first = self._dialect.has_header and not number and begin is None
            end = self._first_record(piece) if is_first else 0
            if is_first and piece.data[:end] != self._head:
                raise FormatError(
                    "the header changed while the file was being read",
                    where=self.at,
                    hint="Run the command again when no other process is writing to the file.",
                )
            rest = piece.after(end) if end else piece
            if not rest.is_blank:
                yield rest

    def _parse_options(self, ragged: list[Any]) -> csv.ParseOptions:
        """Return the options for Arrow's parser.

        ragged  list to which the parser appends a row with the wrong number of fields
        """

        def refuse(row: Any) -> str:
            ragged.append(row)
            return "error"

        return csv.ParseOptions(
            delimiter=self._dialect.delimiter,
            quote_char=self._dialect.quote or False,
            newlines_in_values=True,
            invalid_row_handler=refuse,
        )

    def _tables(
        self, columns: Sequence[str], begin: Piece | None = None
    ) -> Iterator[tuple[Piece, pa.Table]]:
        """Yield each piece with a table of its rows, in which all values are text."""
        convert = csv.ConvertOptions(
            column_types={name: pa.string() for name in columns},
            include_columns=list(columns),
            strings_can_be_null=False,
            check_utf8=False,
        )
        for piece in self._body(begin):
            read = csv.ReadOptions(
                use_threads=False, block_size=len(piece.data) + 4, column_names=self._names
            )
            ragged: list[Any] = []
            # Arrow removes a leading BOM. Here, a BOM is part of a value, so add another BOM.
            data = BOM + piece.data if piece.data.startswith(BOM) else piece.data
            try:
                table = csv.read_csv(
                    pa.BufferReader(data), read, self._parse_options(ragged), convert
                )
            except pa.ArrowInvalid as error:
                raise self._parse_error(piece, ragged, error) from None
            yield piece, table.combine_chunks()

    def _parse_error(self, piece: Piece, ragged: list[Any], error: Exception) -> FormatError:
        if not ragged:
            return FormatError(f"cannot parse: {str(error).splitlines()[0][:200]}", where=self.at)
        row = ragged[0]
        line, fields = self._line(piece, row.number - 1), format_count(row.actual_columns, "field")
        first = "header" if self._dialect.has_header else "first line"
        hint = "Quote fields that contain a separator or a newline."
        if self._dialect.has_header and self._names[0].startswith("#"):
            hint = (
                "If the first line is a comment, remove it; "
                "otherwise, quote fields that contain a separator or a newline."
            )
        return FormatError(
            f"line {line} has {fields}; the {first} has {row.expected_columns}",
            where=self.at,
            hint=hint,
        )

    def _convert(
        self, values: pa.ChunkedArray, field: pa.Field, piece: Piece, row: int
    ) -> pa.Array:
        array = values.combine_chunks()
        typed = _as_type(array, field.type, self._dialect)
        if typed is not None:
            return typed
        at = next(
            i
            for i in range(len(array))
            if _as_type(array.slice(i, 1), field.type, self._dialect) is None
        )
        value = array[at].as_py()
        value = repr(value if len(value) <= 40 else f"{value[:39]}…")
        raise FormatError(
            f"line {self._line(piece, row + at)}: column {field.name!r} contains {value}; "
            f"expected {_EXPECTED[field.type]}",
            where=self.at,
            column=field.name,
            hint=f"Use --encode {shell_quoted(f'{field.name}=str')} to read the column as text.",
        )


def _are_values(first: Sequence[str]) -> bool:
    """Return whether the first record contains values, not column names.

    The record contains values if all its fields are numbers and at least two fields are equal.
    """
    return len(set(first)) < len(first) and all(re.fullmatch(_NUMBER, field) for field in first)


def _has_decimal_commas(values: pa.ChunkedArray) -> bool:
    """Return whether all non-empty values are numbers with a decimal comma.

    The result is False if the comma could be a thousands separator in every value.
    """
    texts = values.filter(pc.not_equal(values, ""))
    has_commas = pc.all(pc.match_substring_regex(texts, _DECIMAL_COMMA), min_count=1).as_py()
    return bool(has_commas) and not pc.all(pc.match_substring_regex(texts, _THOUSANDS)).as_py()


def _null_texts(values: pa.ChunkedArray, dialect: Dialect) -> list[str]:
    """Return the strings in a column that other programs write for null, such as `NA`.

    The result is empty unless all other values are numbers or bools.
    """
    if not pc.any(pc.is_in(values, pa.array(_NULL_TEXTS))).as_py():
        return []
    found = [one for one in _NULL_TEXTS if pc.any(pc.equal(values, one)).as_py()]
    with_nulls = replace(dialect, nulls=(*dialect.nulls, *found))
    return [] if _infer_type(values, with_nulls) == pa.string() else found


def _infer_type(values: pa.ChunkedArray, dialect: Dialect) -> pa.DataType:
    """Return the type inferred from the first values of a column; text if all values are empty."""
    array = values.combine_chunks()
    if pc.all(_is_null(array, dialect, empty=True)).as_py():
        return pa.string()
    return next(
        (kind for kind in _EXPECTED if _as_type(array, kind, dialect) is not None), pa.string()
    )


def _is_null(values: pa.Array, dialect: Dialect, *, empty: bool) -> pa.Array:
    """Return a mask of null values: bool [rows]. If `empty` is true, empty strings are null."""
    nulls = ("", *dialect.nulls) if empty else dialect.nulls
    return pc.is_in(values, pa.array(nulls, pa.string()))


def _as_type(values: pa.Array, kind: pa.DataType, dialect: Dialect) -> pa.Array | None:
    """Parse strings as a type. Strings that the dialect defines as null become null.

    The result is None if a value is invalid or cannot be converted without loss.
    """
    if kind == pa.string() and not dialect.nulls:
        return values
    is_null = _is_null(values, dialect, empty=kind != pa.string())
    values = pc.if_else(is_null, pa.scalar(None, pa.string()), values)
    if kind == pa.string():
        return values
    if kind == pa.float64() and dialect.decimal == ",":
        if pc.any(pc.match_substring(values, ".")).as_py():
            return None
        values = pc.replace_substring(values, ",", ".")
    if kind in _LOSSY and pc.any(pc.match_substring_regex(values, _LOSSY[kind])).as_py():
        return None
    try:
        typed = values.cast(kind)
    except pa.ArrowInvalid:
        return None
    if kind == pa.int64() and pc.any(pc.not_equal(typed.cast(pa.string()), values)).as_py():
        return None
    return typed
