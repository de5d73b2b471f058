"""JSON: one object per line, or one array of objects; objects are rows, and their members columns.

The first character determines which of both it is; the file name does not matter. Columns and types
are inferred from the first 4 MB: int64 (uint64 if needed), float64, bool, text, lists and structs.
Text that looks like a date stays text. A missing member is null; a member that is not in the first
rows is an error, and so is a value of another type, or an integer that float64 cannot represent.
"""

from __future__ import annotations

import copy
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.types as kinds

from flarecli.errors import FormatError
from flarecli.expansion import MAX_COLUMNS
from flarecli.ingest.decompress import Blocks
from flarecli.ingest.json_arrays import first_deep_line, member_names, split_array
from flarecli.ingest.source import check_columns
from flarecli.ingest.text_records import Piece, pieces

__all__ = ["Json"]

_ROWS = 8192
MAX_CELLS = 1 << 25  # rows times columns that are built at once
MAX_DEPTH = 64  # of nested brackets; Arrow uses stack for each
_DIGITS = re.compile(rb"[:\[,]\s*-?\d{16,}\s*[,}\]]")  # an integer that may not fit a double
_OTHER = re.compile(rb"^[ \t\r]*[^{ \t\r\n]", re.MULTILINE)  # a line without an object
_CHANGED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)")
_TWICE = re.compile(r"Column\(/(.*)\) was specified twice")
_ROW = re.compile(r"\.? in row \d+$")
_WORDS = {
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}


class Json:
    """One JSON file. The number of rows is unknown until it is read, unless it is 0."""

    def __init__(self, source: Blocks) -> None:
        self.at = source
        head = next((block.removeprefix(b"\xef\xbb\xbf") for block in source.blocks()), None)
        if head is None:
            raise FormatError("file is empty", where=source)
        self._is_array = head.lstrip()[:1] == b"["
        first = next(self._pieces(), None)
        self.rows = 0 if first is None else None
        if first is None:
            self.schema = pa.schema([])
            raise FormatError("the index has no rows", where=source)
        self.schema = self._infer_schema(first)
        check_columns(self.schema.names, source)

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file."""
        return self.at.blocks()

    def declared(self, types: Mapping[str, pa.DataType]) -> Json:
        """Return the file with some columns read as other types, to match other files of the index."""
        fields = [
            pa.field(field.name, types[field.name])
            if _can_become(field.type, types.get(field.name))
            else field
            for field in self.schema
        ]
        other = copy.copy(self)
        other.schema = pa.schema(fields)
        return other

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order. Raises FormatError with the row for an invalid object or value."""
        names = self.schema.names if columns is None else list(columns)
        rows = max(1, MAX_CELLS // max(1, sum(map(_leaves, self.schema.types))))
        for piece in self._pieces():
            for run in _runs(piece, rows):
                table = self._parse(run, self.schema)
                yield from table.select(names).combine_chunks().to_batches(_ROWS)

    def _pieces(self) -> Iterator[Piece]:
        """Yield pieces of one object per line; for an array, `line` counts its rows."""
        found = split_array(self.at) if self._is_array else pieces(self.at, "")
        return (piece for piece in found if piece.data.strip())

    # -- types

    def _infer_schema(self, piece: Piece) -> pa.Schema:
        """Infer columns and types from the first rows."""
        schema = pa.schema(
            [
                pa.field(field.name, _without_dates(field.type))
                for field in self._table(piece, None).schema
            ]
        )
        if _DIGITS.search(piece.data):
            for at, field in enumerate(schema):
                if field.type == pa.float64():
                    wider = schema.set(at, pa.field(field.name, pa.uint64()))
                    schema = schema if _read(piece.data, wider)[0] is None else wider
        self._parse(piece, schema)
        return schema

    def _check_members(self, piece: Piece) -> None:
        """Raise FormatError if the first rows have too many different members.

        Arrow builds a column of each, as long as the rows. The names of members are counted first,
        which is exact unless objects are nested; then the paths, by parsing.
        """
        names = member_names(piece.data)
        rows = piece.data.count(b"\n") + 1
        is_nested = piece.data.count(b"{") > rows
        if len(names) * rows <= MAX_CELLS and (
            len(names) <= MAX_COLUMNS and not (is_nested and len(names) ** 2 * rows > MAX_CELLS)
        ):
            return
        paths: set[tuple[str, ...]] = set()
        for seen, (number, line) in enumerate(_records(piece)):
            try:
                paths.update(_paths(json.loads(line, parse_int=float)))
            except ValueError:  # reported by the parser
                return
            if len(paths) > MAX_COLUMNS:
                raise self._row_error(
                    number,
                    f"more than {MAX_COLUMNS} different members up to this row",
                    "Store them as a list of names and values, or as JSON in one text.",
                )
            if len(paths) * seen > MAX_CELLS:
                raise self._row_error(
                    number,
                    f"{len(paths)} different members in {seen + 1} rows, with few per row",
                    "Store them as a list of names and values, or as JSON in one text.",
                )

    def _parse(self, piece: Piece, schema: pa.Schema) -> pa.Table:
        """Parse a piece as columns of the given types. Raises FormatError for an inexact float."""
        table = self._table(piece, schema)
        if _DIGITS.search(piece.data) and any(_has_doubles(kind) for kind in schema.types):
            for number, line in _records(piece):
                if not _DIGITS.search(line):
                    continue
                if reason := _no_object(line):  # Arrow accepts several rows on a line
                    raise self._row_error(number, reason)
                self._check_exact(json.loads(line, parse_int=Decimal), schema, number)
        return table

    def _check_exact(self, row: dict[str, Any], schema: pa.Schema, number: int) -> None:
        for field in schema:
            value = next(_inexact(row.get(field.name), field.type), None)
            if value is not None:
                raise self._row_error(
                    number,
                    f"column {field.name!r} contains {_cut(str(value))}, which float64 cannot represent",
                    "Write it as text, in quotes.",
                    field.name,
                )

    def _table(self, piece: Piece, schema: pa.Schema | None) -> pa.Table:
        deep = first_deep_line(piece.data, MAX_DEPTH)
        if deep >= 0:
            raise self._row_error(piece.line + deep, f"nested more than {MAX_DEPTH} levels deep")
        if schema is None:
            self._check_members(piece)
        table, _ = _read(piece.data, schema)
        if table is not None and not _OTHER.search(piece.data):
            lines = piece.data.count(b"\n") + (not piece.data.endswith(b"\n"))
            if table.num_rows in (lines, sum(1 for _ in _records(piece))):
                return table
        raise self._find_error(piece, schema)

    # -- what is wrong, and where

    def _find_error(self, piece: Piece, schema: pa.Schema | None) -> FormatError:
        """Find the first invalid row by bisection, and return its error."""
        rows = list(_records(piece))
        for number, line in rows:
            if reason := _no_object(line):
                return self._row_error(number, reason)

        def read_until(row: int) -> tuple[pa.Table | None, str]:
            return _read(b"\n".join(line for _, line in rows[: row + 1]), schema)

        # The types of the first rows decide whether a later row is valid: the first rows are read
        # together, and the last row is invalid if the others are valid.
        first = bisect_left(range(len(rows) - 1), True, key=lambda row: read_until(row)[0] is None)
        number, line = rows[first]
        _, error = read_until(first)
        return self._row_error(number, *_reason(error, json.loads(line, parse_int=_whole), schema))

    def _row_error(
        self, number: int, message: str, hint: str = "", column: str | None = None
    ) -> FormatError:
        if self._is_array:
            return FormatError(message, where=self.at, row=number, hint=hint, column=column)
        return FormatError(f"line {number}: {message}", where=self.at, hint=hint, column=column)


def _paths(value: Any) -> Iterator[tuple[str, ...]]:
    """Yield the path of each member of an object and of nested objects; lists are not part of a
    path.
    """
    todo: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while todo:
        path, node = todo.pop()
        if isinstance(node, dict):
            for name, member in node.items():
                yield (*path, name)
                if isinstance(member, (dict, list)):
                    todo.append(((*path, name), member))
        elif isinstance(node, list):
            todo += [(path, item) for item in node if isinstance(item, (dict, list))]


def _leaves(kind: pa.DataType) -> int:
    """Return the number of columns that Arrow builds for a type."""
    if not kinds.is_nested(kind):
        return 1
    return 1 + sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))


def _runs(piece: Piece, rows: int) -> Iterator[Piece]:
    """Split a piece into pieces of at most `rows` lines."""
    if piece.data.count(b"\n") <= rows:
        yield piece
        return
    lines = piece.data.split(b"\n")
    for start in range(0, len(lines), rows):
        data = b"\n".join(lines[start : start + rows])
        if data.strip():
            yield Piece(piece.line + start, data)


def _read(data: bytes, schema: pa.Schema | None) -> tuple[pa.Table | None, str]:
    """Return rows parsed by Arrow, or None and its error message."""
    parse = pa.json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "error"
    )
    read = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        return pa.json.read_json(pa.BufferReader(data), read, parse), ""
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError) as error:
        return None, str(error) or type(error).__name__


def _records(piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a piece with their row numbers."""
    return (
        (piece.line + i, line)
        for i, line in enumerate(piece.data.split(b"\n"))
        if line.strip(b" \t\r")  # white space in JSON, which excludes form feeds
    )


def _no_object(line: bytes) -> str:
    try:
        value = json.loads(line, object_pairs_hook=dict, parse_constant=float, parse_int=float)
    except ValueError as error:
        what = str(error).partition(": line")[0].partition(": char")[0].removesuffix(" at").lower()
        at = getattr(error, "colno", 1)
        return f"not JSON: {what} at character {at}"
    return "" if isinstance(value, dict) else f"expected an object, got {_word(value)}"


def _reason(
    error: str, row: dict[str, Any], schema: pa.Schema | None
) -> tuple[str, str, str | None]:
    """Return why a row does not match the rows before it, a hint, and the column."""
    if twice := _TWICE.search(error):
        return f"duplicate member {_path(twice[1])!r}", "", None
    if changed := _CHANGED.search(error):
        before, now = (_WORDS.get(word, word) for word in changed.groups()[1:])
        return (
            f"column {_path(changed[1])!r} contains {now}; earlier rows contain "
            f"{'only null' if before == 'null' else before}",
            "",
            _path(changed[1]),
        )
    if schema is not None:
        for name, value in row.items():
            if name not in schema.names:
                hint = "Move a row with all columns to the beginning."
                return f"column {name!r} is not in earlier rows", hint, name
            if (
                _read(json.dumps({name: value}).encode(), pa.schema([schema.field(name)]))[0]
                is None
            ):
                return (
                    f"column {name!r} contains {_short(value)}; expected {schema.field(name).type}",
                    "",
                    name,
                )
    return (
        f"cannot parse: {_ROW.sub('', error.splitlines()[0]).removeprefix('JSON parse error: ').lower()}"[
            :200
        ],
        "",
        None,
    )


def _path(text: str) -> str:
    return text.replace("/[]", "[]").replace("/", ".")


def _word(value: object) -> str:
    kind = {
        type(None): "null",
        bool: "boolean",
        int: "number",
        float: "number",
        str: "string",
        list: "array",
    }[type(value)]
    return _WORDS[kind]


def _short(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _whole(text: str) -> float:
    """Parse an integer; return infinity if Python refuses it for its length."""
    return int(text) if len(text) <= 640 else float(text)


# -- types


def _without_dates(kind: pa.DataType) -> pa.DataType:
    """Return an inferred type with text in place of dates and times."""
    if kinds.is_temporal(kind):
        return pa.string()
    if kinds.is_struct(kind):
        return pa.struct(
            [
                (kind.field(i).name, _without_dates(kind.field(i).type))
                for i in range(kind.num_fields)
            ]
        )
    return pa.list_(_without_dates(kind.value_type)) if kinds.is_list(kind) else kind


def _can_become(kind: pa.DataType, wanted: pa.DataType | None) -> bool:
    """Return whether a column can be parsed as another file's type: nulls as any, integers as
    floats.
    """
    if (
        wanted is None
        or kinds.is_temporal(wanted)
        or kinds.is_binary(wanted)
        or kinds.is_large_binary(wanted)
    ):
        return False
    return bool(kinds.is_null(kind) or (kinds.is_integer(kind) and kinds.is_floating(wanted)))


def _has_doubles(kind: pa.DataType) -> bool:
    """Return whether a type is or contains a float."""
    if kinds.is_nested(kind):
        return any(_has_doubles(kind.field(i).type) for i in range(kind.num_fields))
    return bool(kinds.is_floating(kind))


def _inexact(value: Any, kind: pa.DataType) -> Iterator[Decimal]:
    """Yield the integers below a value, as Decimals, that are in a float column but not exact as
    floats.
    """
    if kinds.is_struct(kind) and isinstance(value, dict):
        for i in range(kind.num_fields):
            yield from _inexact(value.get(kind.field(i).name), kind.field(i).type)
    elif kinds.is_list(kind) and isinstance(value, list):
        for item in value:
            yield from _inexact(item, kind.value_type)
    elif kinds.is_floating(kind) and isinstance(value, Decimal) and Decimal(float(value)) != value:
        yield value
