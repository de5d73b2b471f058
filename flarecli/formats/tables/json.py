"""JSON: one object per line, or one array of objects. Objects are rows, and members are columns.

The first character of the file, not its name, determines the layout. Columns and types are inferred
from the first 4 MB: int64 (uint64 if needed), float64, bool, text, lists and structs. Text that
looks like a date stays text. A missing member is null. In later rows, a new member is an error. A
value of another type, and an integer that a float64 column cannot represent, are also errors.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.types as kinds

from flarecli.errors import EmptyTableError, FormatError
from flarecli.expansion import MAX_COLUMNS
from flarecli.formats.tables.base import TextPart, check_columns
from flarecli.formats.tables.decompress import Blocks
from flarecli.formats.tables.dialect import decoded
from flarecli.formats.tables.schema_merge import contains_type
from flarecli.formats.tables.text_records import (
    BOM,
    Piece,
    first_deep_line,
    json_array_pieces,
    member_names,
    pieces,
)

__all__ = ["Json"]

_ROWS = 8192
MAX_CELLS = 1 << 25  # maximum number of values, rows x columns, of one parsed table
MAX_DEPTH = 64  # levels of nested brackets; Arrow uses stack space for each level
# matches an integer that may be inexact as a double
_LONG_INTEGER = re.compile(rb"[:\[,]\s*-?\d{16,}\s*[,}\]]")
# matches the start of a line that is neither blank nor an object
_NOT_AN_OBJECT = re.compile(rb"^[ \t\r]*[^{ \t\r\n]", re.MULTILINE)
_TYPE_CHANGED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)")
_DUPLICATE = re.compile(r"Column\(/(.*)\) was specified twice")
_ROW = re.compile(r"\.? in row \d+$")
_MEMBERS_HINT = "Store them as a list of names and values, or as JSON in one text."
_TYPE_NAMES = {
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_PYTHON_TYPE_NAMES = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
}


class Json(TextPart):
    """Reader of a JSON file. The number of rows is unknown until the file is read."""

    at: Blocks

    def __init__(self, source: Blocks) -> None:
        head = next(iter(source.blocks()), None)
        if head is None:
            raise EmptyTableError("file is empty", where=source)
        self.at, head = decoded(source, head)
        self._is_array = head.removeprefix(BOM).lstrip()[:1] == b"["
        first = next(self._pieces(), None)
        if first is None:
            raise EmptyTableError("table has no rows", where=source)
        self.schema = self._infer_schema(first)
        check_columns(self.schema.names, source)

    @property
    def is_seekable(self) -> bool:
        """Whether a pass may start in the middle of the file."""
        return super().is_seekable and not self._is_array

    def can_read_as(self, kind: pa.DataType, other: pa.DataType) -> bool:
        """Return whether values of the inferred type `kind` can also be parsed as `other`."""
        if kinds.is_temporal(other) or kinds.is_binary(other) or kinds.is_large_binary(other):
            return False
        return bool(kinds.is_null(kind) or (kinds.is_integer(kind) and kinds.is_floating(other)))

    def parsed_pieces(
        self, columns: Sequence[str], begin: Piece | None = None
    ) -> Iterator[tuple[Piece, Iterator[pa.RecordBatch]]]:
        """Yield each piece with the batches of its rows.

        Raises FormatError with the row number for an invalid object or value.
        """
        for piece in self._pieces(begin):
            yield piece, self._batches(piece, list(columns))

    def _batches(self, piece: Piece, names: list[str]) -> Iterator[pa.RecordBatch]:
        max_rows = max(1, MAX_CELLS // max(1, sum(map(_count_arrays, self.schema.types))))
        for part in _split(piece, max_rows):
            table = self._table(part, self.schema)
            self._check_integers(part, self.schema)
            yield from table.select(names).combine_chunks().to_batches(_ROWS)

    def _pieces(self, begin: Piece | None = None) -> Iterator[Piece]:
        """Yield pieces with one object per line. In a JSON array, `Piece.line` is a row number.

        Raises FormatError for a row that is nested too deeply for Arrow's parser.
        """
        found = json_array_pieces(self.at) if self._is_array else pieces(self.at, "", begin=begin)
        for piece in found:
            deep = first_deep_line(piece.data, MAX_DEPTH)
            if deep >= 0:
                message = f"nested more than {MAX_DEPTH} levels deep"
                raise self._row_error(piece.line + deep, message)
            if piece.data.strip():
                yield piece

    # -- types

    def _infer_schema(self, piece: Piece) -> pa.Schema:
        """Infer columns and types from the first rows."""
        inferred = self._table(piece, None).schema
        schema = pa.schema([(field.name, _without_dates(field.type)) for field in inferred])
        floats = [at for at, field in enumerate(schema) if field.type == pa.float64()]
        if floats and _LONG_INTEGER.search(piece.data):
            for at in floats:
                wider = schema.set(at, pa.field(schema.field(at).name, pa.uint64()))
                schema = schema if _read(piece.data, wider)[0] is None else wider
        if schema != inferred:
            self._table(piece, schema)
        self._check_integers(piece, schema)
        return schema

    def _check_members(self, piece: Piece) -> None:
        """Raise FormatError if the first rows have too many different members.

        Arrow builds a full column for each member, so many different members need much memory.
        First, the distinct member names are counted, which is fast. If this count is too high or
        may be inexact because of nested objects, the rows are parsed to count the member paths.
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
            except ValueError:  # Arrow's parser reports this error later
                return
            if len(paths) > MAX_COLUMNS:
                message = f"more than {MAX_COLUMNS} different members up to this row"
                raise self._row_error(number, message, _MEMBERS_HINT)
            if len(paths) * seen > MAX_CELLS:
                message = f"{len(paths)} different members in {seen + 1} rows, with few per row"
                raise self._row_error(number, message, _MEMBERS_HINT)

    def _check_integers(self, piece: Piece, schema: pa.Schema) -> None:
        """Raise FormatError if a float column contains an integer that a float cannot represent."""
        has_floats = any(contains_type(kind, kinds.is_floating) for kind in schema.types)
        if not has_floats or not _LONG_INTEGER.search(piece.data):
            return
        for number, line in _records(piece):
            if not _LONG_INTEGER.search(line):
                continue
            if reason := _syntax_error(line):  # Arrow accepts several rows in one line
                raise self._row_error(number, reason)
            self._check_exact(json.loads(line, parse_int=Decimal), schema, number)

    def _check_exact(self, row: dict[str, Any], schema: pa.Schema, number: int) -> None:
        """Raise FormatError if a row contains an integer that its float column cannot represent."""
        for field in schema:
            for value in _inexact_integers(row.get(field.name), field.type):
                message = (
                    f"column {field.name!r} contains {_shorten(str(value))}, "
                    "which float64 cannot represent"
                )
                raise self._row_error(number, message, "Write it as text, in quotes.", field.name)

    def _table(self, piece: Piece, schema: pa.Schema | None) -> pa.Table:
        if schema is None:
            self._check_members(piece)
        # this check precedes Arrow's parser, which crashes if `null` is the first row
        if not _NOT_AN_OBJECT.search(piece.data):
            table, _ = _read(piece.data, schema)
            lines = piece.data.count(b"\n") + (not piece.data.endswith(b"\n"))
            if table is not None and table.num_rows in (lines, sum(1 for _ in _records(piece))):
                return table
        raise self._find_error(piece, schema)

    # -- errors

    def _find_error(self, piece: Piece, schema: pa.Schema | None) -> FormatError:
        """Find the first invalid row by bisection, and return its error."""
        rows = list(_records(piece))
        for number, line in rows:
            if reason := _syntax_error(line):
                text = line.strip()
                spans_lines = text.startswith(b"{") and not text.endswith(b"}")
                hint = "Write each object on one line, or all objects in one array."
                return self._row_error(number, reason, hint if spans_lines else "")

        def read_until(row: int) -> tuple[pa.Table | None, str]:
            return _read(b"\n".join(line for _, line in rows[: row + 1]), schema)

        # A row may be invalid only because of the types in earlier rows, so Arrow parses each row
        # together with all earlier rows. Bisection finds the shortest range that Arrow rejects; the
        # last row of this range is the first invalid row.
        first = bisect_left(range(len(rows) - 1), True, key=lambda row: read_until(row)[0] is None)
        number, line = rows[first]
        _, error = read_until(first)
        row = json.loads(line, parse_int=_parse_int)
        earlier = "items" if first == 0 and schema is None else "rows"
        return self._row_error(number, *_explain(error, row, schema, earlier))

    def _row_error(
        self, number: int, message: str, hint: str = "", column: str | None = None
    ) -> FormatError:
        if self._is_array:
            return FormatError(message, where=self.at, row=number, hint=hint, column=column)
        return FormatError(f"line {number}: {message}", where=self.at, hint=hint, column=column)


def _paths(value: Any) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all members of an object, including nested members.

    A path contains only the names of members, and no list indices.
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


def _count_arrays(kind: pa.DataType) -> int:
    """Return the number of arrays that Arrow builds for a type."""
    return 1 + sum(_count_arrays(kind.field(i).type) for i in range(kind.num_fields))


def _split(piece: Piece, max_rows: int) -> Iterator[Piece]:
    """Split a piece into pieces of at most `max_rows` lines."""
    if piece.data.count(b"\n") <= max_rows:
        yield piece
        return
    lines = piece.data.split(b"\n")
    for start in range(0, len(lines), max_rows):
        data = b"\n".join(lines[start : start + max_rows])
        if data.strip():
            yield Piece(piece.line + start, data)


def _read(data: bytes, schema: pa.Schema | None) -> tuple[pa.Table | None, str]:
    """Parse rows with Arrow; return the table and an empty string, or None and Arrow's message."""
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
        if line.strip(b" \t\r")  # JSON white space does not include form feeds
    )


def _syntax_error(line: bytes) -> str:
    """Return the reason why a line is not a JSON object, or an empty string if it is an object."""
    try:
        value = json.loads(line, object_pairs_hook=dict, parse_constant=float, parse_int=float)
    except ValueError as error:
        reason = str(error).partition(": line")[0].partition(": char")[0].removesuffix(" at")
        return f"not JSON: {reason.lower()} at character {getattr(error, 'colno', 1)}"
    if isinstance(value, dict):
        return ""
    return f"expected an object, got {_PYTHON_TYPE_NAMES[type(value)]}"


def _explain(
    error: str, row: dict[str, Any], schema: pa.Schema | None, earlier: str
) -> tuple[str, str, str | None]:
    """Explain why a row does not match earlier rows; return the reason, a hint, and the column.

    error    message from Arrow's parser
    earlier  noun for the message: `rows`, or `items` if the items of one list do not match
    """
    if match := _DUPLICATE.search(error):
        return f"duplicate member {_format_path(match[1])!r}", "", None
    if match := _TYPE_CHANGED.search(error):
        path, before, now = match.groups()
        column = _format_path(path)
        before = "only null" if before == "null" else _TYPE_NAMES.get(before, before)
        now = _TYPE_NAMES.get(now, now)
        return f"column {column!r} contains {now}; earlier {earlier} contain {before}", "", column
    if schema is not None:
        for name, value in row.items():
            if name not in schema.names:
                hint = "Move a row with all columns to the beginning."
                return f"column {name!r} is not in earlier rows", hint, name
            field = schema.field(name)
            if _read(json.dumps({name: value}).encode(), pa.schema([field]))[0] is None:
                shown = _shorten(json.dumps(value, ensure_ascii=False))
                return f"column {name!r} contains {shown}; expected {field.type}", "", name
    reason = _ROW.sub("", error.splitlines()[0]).removeprefix("JSON parse error: ").lower()
    return f"cannot parse: {reason}"[:200], "", None


def _format_path(path: str) -> str:
    """Convert a member path from Arrow's notation, such as `a/[]/b`, to `a[].b`."""
    return path.replace("/[]", "[]").replace("/", ".")


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _parse_int(text: str) -> float:
    """Parse an integer; return infinity if the number has more than 640 characters."""
    return int(text) if len(text) <= 640 else float(text)


# -- types


def _without_dates(kind: pa.DataType) -> pa.DataType:
    """Return an inferred type with text in place of dates and times."""
    if kinds.is_temporal(kind):
        return pa.string()
    if kinds.is_struct(kind):
        return pa.struct([(child.name, _without_dates(child.type)) for child in kind])
    return pa.list_(_without_dates(kind.value_type)) if kinds.is_list(kind) else kind


def _inexact_integers(value: Any, kind: pa.DataType) -> Iterator[Decimal]:
    """Yield each integer in `value` that the float types in `kind` cannot represent exactly.

    value  parsed JSON, in which integers are Decimals
    """
    if kinds.is_struct(kind) and isinstance(value, dict):
        for child in kind:
            yield from _inexact_integers(value.get(child.name), child.type)
    elif kinds.is_list(kind) and isinstance(value, list):
        for item in value:
            yield from _inexact_integers(item, kind.value_type)
    elif kinds.is_floating(kind) and isinstance(value, Decimal) and Decimal(float(value)) != value:
        yield value
