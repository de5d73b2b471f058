"""Parquet footers and page headers, parsed without Arrow.

Footers and page headers are checked before Arrow reads them, because some invalid footers abort the
process, and because Arrow allocates the size that a page header declares. A footer is one struct in
Thrift's compact protocol, followed by its length (4 bytes) and the magic. Each page starts with a
struct in the same protocol. This module uses the following fields; the numbers are Thrift field ids
(source: parquet-format, parquet.thrift):

    FileMetaData           2: schema; 4: row groups
    SchemaElement          1: type; 2: size in bytes; 5: number of children
    RowGroup               1: column chunks
    ColumnChunk            2: offset in the file; 3: metadata; 4, 5: offset and length of the offset
                           index; 8, 9: encryption
    ColumnMetaData         1: type; 3: path; 5: number of values; 7: stored size in bytes;
                           9: offset of the first data page; 11: offset of the dictionary page;
                           12: statistics; 16: size statistics
    Statistics             1, 5: maximum; 2, 6: minimum
    SizeStatistics         1: size of the text in bytes; 2, 3: histograms of levels
    PageHeader             1: type; 2: decompressed size in bytes; 3: stored size in bytes;
                           5: data page; 7: dictionary page; 8: data page of version 2
    DataPageHeader         1: number of values; 2: encoding
    DictionaryPageHeader   1: number of values
    DataPageHeaderV2       1: number of values; 3: number of rows; 4: encoding
    OffsetIndex            1: page locations
    PageLocation           1: offset; 2: size with the header; 3: number of the first row
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from flarecli.errors import FormatError
from flarecli.storage import Location

__all__ = [
    "INVALID_FOOTER",
    "ColumnChunk",
    "Footer",
    "LeafSlice",
    "Page",
    "PageRows",
    "column_chunks",
    "pages",
    "parse_offset_index",
    "read_tail",
    "valid_leaves",
]

MAX_FOOTER_BYTES = 32 << 20  # larger footers are not checked, because parsing takes seconds
MAX_DEPTH = 16  # nesting levels of structs and lists
MAX_VALUES = 1 << 22  # values per parser; each uses at least 1 byte on disk and 64 in memory
# bytes of the first read of a page header; maximum size of a page header in Arrow
HEADER_BYTES, MAX_HEADER_BYTES = 1 << 8, 1 << 24
INVALID_FOOTER = (ValueError, IndexError, KeyError, TypeError, AttributeError)
# type -> size of a value in bytes: BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE
_SIZES = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
_BYTE_ARRAY, _FIXED_LEN_BYTE_ARRAY = 6, 7  # types
_DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 2, 7  # number of a page type; number of an encoding


class ColumnChunk(NamedTuple):
    """The pages of a leaf column in a row group, according to the footer.

    column    name of the top-level column
    path      names from the top-level column to the leaf column, joined by dots
    is_bytes  whether the type is BYTE_ARRAY
    values    number of values
    start     file offset of the first page
    stored    stored size of all pages in bytes
    data      file offset of the first data page
    offsets   file offset and length of the offset index; None if there is no offset index
    """

    column: str
    path: str
    is_bytes: bool
    values: int
    start: int
    stored: int
    data: int
    offsets: tuple[int, int] | None


class Page(NamedTuple):
    """A page, as described by its header.

    size           decompressed size in bytes
    values         number of values
    is_dictionary  whether the page is a dictionary
    is_delta       whether values refer to earlier values (DELTA_BYTE_ARRAY)
    start, stop    byte range in the file, including the header
    rows           number of rows; -1 if the header does not contain it
    """

    size: int
    values: int
    is_dictionary: bool
    is_delta: bool
    start: int = 0
    stop: int = 0
    rows: int = -1


class PageRows(NamedTuple):
    """A data page: its first row in the row group, and its byte range in the file."""

    row: int
    start: int
    stop: int


# -- footers


def valid_leaves(at: Location, metadata: pq.FileMetaData) -> frozenset[int]:
    """Return the numbers of the leaf columns whose statistics Arrow can read safely.

    Each column chunk must have the type in the schema. The sizes of its minimum, its maximum and
    its level histograms must be valid. The result is empty if the footer is invalid or too large to
    check.

    raises  FlareError if the file cannot be read
    """
    try:
        footer = _read_footer(at)
        elements = [element for element in footer[2] if not element.get(5)]
        groups = [[(chunk.get(8), chunk[3]) for chunk in group[1]] for group in footer[4]]
        if len(elements) != metadata.num_columns:
            return frozenset()
        if any(len(group) != len(elements) for group in groups):
            return frozenset()
        return frozenset(
            leaf
            for leaf, element in enumerate(elements)
            if all(
                _is_valid(*group[leaf], element, metadata.schema.column(leaf)) for group in groups
            )
        )
    except INVALID_FOOTER:
        return frozenset()  # the error is reported when the rows are read


def _is_valid(
    encryption: Any, chunk: dict[int, Any], element: dict[int, Any], column: pq.ColumnSchema
) -> bool:
    kind = element[1]
    if kind not in (*_SIZES, _BYTE_ARRAY, _FIXED_LEN_BYTE_ARRAY):
        return False
    if encryption is not None or chunk[1] != kind:
        return False
    size = element[2] if kind == _FIXED_LEN_BYTE_ARRAY else _SIZES.get(kind)
    statistics = chunk.get(12, {})
    for number in {1, 2, 5, 6} & statistics.keys():
        value = statistics[number]
        if not isinstance(value, bytes) or (size is not None and len(value) != size):
            return False
    sizes = chunk.get(16, {})
    levels = ((2, column.max_repetition_level), (3, column.max_definition_level))
    return (1 not in sizes or kind == _BYTE_ARRAY) and all(
        len(sizes.get(number, ())) in (0, max_level + 1) for number, max_level in levels
    )


def column_chunks(tail: bytes) -> list[list[ColumnChunk]]:
    """Return the column chunks of each row group, except encrypted chunks.

    The result is empty if the footer is invalid or too large to check.

    tail  result of `read_tail`
    """
    try:
        return [
            [_column_chunk(chunk) for chunk in group[1] if not {8, 9} & chunk.keys()]
            for group in _Reader(_footer_in(tail)).read_struct()[4]
        ]
    except INVALID_FOOTER:
        return []


def _column_chunk(chunk: dict[int, Any]) -> ColumnChunk:
    metadata = chunk[3]
    start = data = int(metadata[9])
    if 0 < (dictionary := int(metadata.get(11, 0))) < start:
        start = dictionary
    path = [name.decode("utf-8", "replace") for name in metadata[3]]
    is_bytes = metadata[1] == _BYTE_ARRAY
    offsets = (int(chunk[4]), int(chunk[5])) if {4, 5} <= chunk.keys() else None
    values, stored = int(metadata[5]), int(metadata[7])
    return ColumnChunk(path[0], ".".join(path), is_bytes, values, start, stored, data, offsets)


def _read_footer(at: Location) -> dict[int, Any]:
    """Parse the footer. Raises ValueError or IndexError if it is invalid or too large."""
    return _Reader(_footer_in(read_tail(at))).read_struct()


def read_tail(at: Location) -> bytes:
    """Return the end of a file: the footer, its length and the magic.

    If the footer exceeds MAX_FOOTER_BYTES, return only the last 8 bytes of the file.
    """
    size = at.size()
    length = int.from_bytes(at.read(max(0, size - 8), max(0, size - 4)), "little")
    start = size - 8 - length if length <= MAX_FOOTER_BYTES else size - 8
    return at.read(max(0, start), size)


def _footer_in(tail: bytes) -> bytes:
    """Return the footer in the result of `read_tail`. Raises ValueError if it is incomplete."""
    if len(tail) - 8 != int.from_bytes(tail[-8:-4], "little"):
        raise ValueError("the footer is too large")
    return tail[:-8]


# -- page headers


def pages(at: Location, size: int, chunk: ColumnChunk) -> Iterator[Page]:
    """Yield the pages that Arrow would read from a column chunk, as described by their headers.

    Page headers are checked, because pages may contain more data than the footer declares.

    size    size of the file in bytes
    raises  FormatError for an invalid header
    """
    start, values_left = max(0, chunk.start), chunk.values
    end = min(size, start + chunk.stored)
    while start < end and values_left > 0:
        header, length = _read_header(at, start, end)
        try:
            page = _page(header)
            stored = int(header[3])
        except (LookupError, TypeError, ValueError) as error:
            raise FormatError(f"page at byte {start}: invalid header", where=at) from error
        if stored < 0 or page.size < 0 or page.values < 0:
            raise FormatError(f"page at byte {start}: negative size in the header", where=at)
        if stored > size - start - length:  # Arrow allocates this size before it reads the page
            raise FormatError(
                f"page at byte {start} is {stored} bytes; the file ends at byte {size}",
                where=at,
            )
        yield page._replace(start=start, stop=start + length + stored)
        if not page.is_dictionary:
            values_left -= page.values
        start += length + stored


def _page(header: dict[int, Any]) -> Page:
    size = int(header[2])
    if header[1] == _DICTIONARY_PAGE:
        return Page(size, int(header[7][1]), True, False)
    data = header.get(5) or header.get(8)
    if data is None:  # an index page, which Arrow skips
        return Page(0, 0, False, False)
    encoding = data[2] if 5 in header else data[4]
    rows = -1 if 5 in header else int(data[3])
    return Page(size, int(data[1]), False, encoding == _DELTA_BYTE_ARRAY, rows=rows)


def _read_header(at: Location, start: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the header of the page at an offset, and its length in bytes."""
    size = HEADER_BYTES
    while True:
        try:
            reader = _Reader(at.read(start, min(end, start + size)))
            return reader.read_struct(), reader.position
        except (IndexError, ValueError) as error:
            if start + size >= end or size >= MAX_HEADER_BYTES:
                raise FormatError(f"page at byte {start}: invalid header", where=at) from error
            size *= 16


# -- page indexes and slices


def parse_offset_index(data: bytes, chunk: ColumnChunk, rows: int) -> list[PageRows] | None:
    """Return the data pages in an offset index; None if the index does not match the column chunk.

    rows  number of rows in the row group
    """
    try:
        found = [
            PageRows(int(page[3]), int(page[1]), int(page[1]) + int(page[2]))
            for page in _Reader(data).read_struct()[1]
        ]
    except INVALID_FOOTER:
        return None
    end, is_valid = chunk.data, bool(found) and found[0].row == 0
    for page, after in zip(found, [*(one.row for one in found[1:]), rows], strict=True):
        is_valid = is_valid and page.row < after and end <= page.start < page.stop
        end = page.stop
    return found if is_valid and end <= chunk.start + chunk.stored else None


class LeafSlice(NamedTuple):
    """Some pages of a column chunk, copied to a small file: a dictionary page and data pages.

    values      number of values in the data pages
    dictionary  offset of the dictionary page in the small file; None if there is no such page
    data        offset of the first data page in the small file
    stored      stored size of all copied pages in bytes
    """

    values: int
    dictionary: int | None
    data: int
    stored: int


class Footer:
    """Footer of a Parquet file, from which `slice` creates the footers of small files.

    Raises ValueError or IndexError for an invalid footer.

    tail  result of `read_tail`
    """

    def __init__(self, tail: bytes) -> None:
        self._data = _footer_in(tail)
        self._fields = {one[0]: one for one in _Reader(self._data).read_spans()}
        self._groups = _Reader(self._data, self._fields[4][2]).read_elements()
        self._parsed: dict[int, tuple[_Span, list[tuple[int, int, dict[int, _Span]]]]] = {}

    def slice(self, group: int, leaves: Mapping[int, LeafSlice], rows: int) -> bytes:
        """Return the footer of a small file with `rows` rows in one row group.

        group   number of the row group in the original file
        leaves  number of a leaf column -> its pages in the small file; the other leaf columns of
                the small file cannot be read
        """
        size, chunks = self._group(group)
        columns = [
            self._chunk(fields, leaves[number]) if number in leaves else self._data[start:stop]
            for number, (start, stop, fields) in enumerate(chunks)
        ]
        row_group = _Writer().list(1, columns).raw(size, self._data).int64(3, rows).end()
        out = _Writer()
        for number in (1, 2):
            out.raw(self._fields[number], self._data)
        out.int64(3, rows).list(4, [row_group])
        for number in (5, 6, 7):
            if number in self._fields:
                out.raw(self._fields[number], self._data)
        return out.end()

    def _group(self, number: int) -> tuple[_Span, list[tuple[int, int, dict[int, _Span]]]]:
        """Return the size field of a row group, and each column chunk's byte range and metadata."""
        if number in self._parsed:
            return self._parsed[number]
        fields = {one[0]: one for one in _Reader(self._data, self._groups[number][0]).read_spans()}
        chunks = []
        for start, stop in _Reader(self._data, fields[1][2]).read_elements():
            chunk = {one[0]: one for one in _Reader(self._data, start).read_spans()}
            metadata = _Reader(self._data, chunk[3][2]).read_spans()
            chunks.append((start, stop, {one[0]: one for one in metadata}))
        return self._parsed.setdefault(number, (fields[2], chunks))

    def _chunk(self, fields: Mapping[int, _Span], leaf: LeafSlice) -> bytes:
        out = _Writer()
        for number in (1, 2, 3, 4):
            out.raw(fields[number], self._data)
        out.int64(5, leaf.values).raw(fields[6], self._data)
        out.int64(7, leaf.stored).int64(9, leaf.data)
        if leaf.dictionary is not None:
            out.int64(11, leaf.dictionary)
        return _Writer().int64(2, 0).struct(3, out.end()).end()


# -- Thrift

_Span = tuple[int, int, int, int]  # field number, type, start and stop of the value


class _Writer:
    """Writer of a struct in Thrift's compact protocol. Field numbers must be in ascending order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._number = 0

    def raw(self, field: _Span, data: bytes) -> _Writer:
        """Copy a field of another struct. `data` contains the bytes of that struct."""
        number, kind, start, stop = field
        return self._field(number, kind, data[start:stop])

    def int64(self, number: int, value: int) -> _Writer:
        """Write an integer."""
        return self._field(number, 6, _varint(value << 1))

    def struct(self, number: int, data: bytes) -> _Writer:
        """Write a struct."""
        return self._field(number, 12, data)

    def list(self, number: int, structs: Sequence[bytes]) -> _Writer:
        """Write a list of structs."""
        return self._field(number, 9, b"\xfc" + _varint(len(structs)) + b"".join(structs))

    def _field(self, number: int, kind: int, data: bytes) -> _Writer:
        self._parts += [bytes([(number - self._number) << 4 | kind]), data]
        self._number = number
        return self

    def end(self) -> bytes:
        """Return the bytes of the struct."""
        return b"".join(self._parts) + b"\0"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


class _Reader:
    """Parser of Thrift's compact protocol, with limits on the depth and number of values.

    Its methods raise IndexError or ValueError for truncated or invalid bytes.
    """

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data, self.position, self._values_left = data, position, MAX_VALUES

    def read_spans(self) -> list[_Span]:
        """Return the number, the type and the byte range of each field of a struct."""
        out = list[_Span]()
        for number, kind in self._field_heads():
            start = self.position
            if kind not in (1, 2):
                self._value(kind, 0)
            out.append((number, kind, start, self.position))
        return out

    def read_elements(self) -> list[tuple[int, int]]:
        """Return the byte range of each struct in a list."""
        kind, count = self._list_head()
        if kind != 12:
            raise ValueError("not a list of structs")
        out = list[tuple[int, int]]()
        for _ in range(count):
            start = self.position
            self.read_struct(1)
            out.append((start, self.position))
        return out

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a struct by number."""
        return {
            number: kind == 1 if kind in (1, 2) else self._value(kind, depth)
            for number, kind in self._field_heads()
        }

    def _field_heads(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the type of each field. A bool has type 1 if true, 2 if false."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            yield number, head & 15

    def _list_head(self) -> tuple[int, int]:
        """Read the type and the number of the elements of a list."""
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        if count > len(self._data) - self.position:
            raise ValueError("a list is longer than the data")
        return head & 15, count

    def _value(self, kind: int, depth: int) -> Any:
        self._values_left -= 1
        if depth > MAX_DEPTH or self._values_left < 0:
            raise ValueError("too many or too deeply nested values")
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            item, count = self._list_head()
            return [self._value(item, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.read_struct(depth + 1)
        raise ValueError(f"unknown type {kind}")

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self.position:
            raise ValueError("a value is longer than the data")
        self.position += size
        return self._data[self.position - size : self.position]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number has more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
