"""Parquet footers and page headers, parsed without Arrow.

Both are checked before Arrow reads them, because Arrow aborts the process on some invalid footers,
and allocates the size that a page header declares. A footer is one struct in Thrift's compact
protocol, followed by its length (4 bytes) and the magic. Each page starts with a struct in the same
protocol (source: parquet-format, parquet.thrift):

    FileMetaData           2 schema, 4 row groups
    SchemaElement          1 type, 2 size in bytes, 5 number of children
    RowGroup               1 column chunks
    ColumnChunk            3 metadata, 8 and 9 encryption
    ColumnMetaData         1 type, 3 path, 5 number of values, 7 stored bytes, 9 first data page,
                           11 dictionary page, 12 statistics, 16 size statistics
    Statistics             1, 2, 5, 6 minimum and maximum
    SizeStatistics         1 bytes of text, 2, 3 histograms of levels
    PageHeader             1 type, 2 decompressed bytes, 3 stored bytes, 5 data page,
                           7 dictionary page, 8 data page of version 2
    DataPageHeader         1 number of values, 2 encoding
    DictionaryPageHeader   1 number of values
    DataPageHeaderV2       1 number of values, 4 encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from flarecli.errors import FormatError
from flarecli.storage import Location

__all__ = ["ColumnChunk", "Page", "column_chunks", "pages", "valid_leaves"]

MAX_FOOTER_BYTES = 32 << 20  # larger footers are not checked, because parsing takes seconds
MAX_DEPTH = 16  # nesting levels of structs and lists
MAX_VALUES = 1 << 22  # values in a struct; each uses at least 1 byte on disk and 64 in memory
HEADER_BYTES, MAX_HEADER_BYTES = 1 << 8, 1 << 24  # page header sizes: first read; Arrow's maximum
_INVALID = (ValueError, IndexError, KeyError, TypeError, AttributeError)
# type -> size of a value in bytes: BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE
_SIZES = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
_BYTE_ARRAY, _FIXED_LEN_BYTE_ARRAY = 6, 7  # types
_DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 2, 7  # page type, encoding


class ColumnChunk(NamedTuple):
    """The pages of a column in a row group, according to the footer.

    column    name of the top-level column
    path      names of the nested columns from the top-level column to the values, joined by dots
    is_bytes  whether the type is BYTE_ARRAY
    values    number of values
    start     offset of the first page in the file
    stored    size of all pages in bytes
    """

    column: str
    path: str
    is_bytes: bool
    values: int
    start: int
    stored: int


class Page(NamedTuple):
    """Decompressed size in bytes and number of values of a page.

    is_dictionary  whether the page is a dictionary
    is_delta       whether values refer to earlier values (DELTA_BYTE_ARRAY)
    """

    size: int
    values: int
    is_dictionary: bool
    is_delta: bool


# -- footers


def valid_leaves(at: Location, metadata: pq.FileMetaData) -> frozenset[int]:
    """Return the leaf columns of the schema whose statistics are safe to read with Arrow.

    The checks cover the types in the chunks and in the schema, the sizes of minimum and maximum,
    and the numbers of levels. The result is empty if the footer is invalid or too large to check.

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
    except _INVALID:
        return frozenset()  # reading the rows reports the error


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


def column_chunks(at: Location) -> list[list[ColumnChunk]]:
    """Return the column chunks of each row group, except encrypted chunks.

    The result is empty if the footer is invalid or too large to check.

    raises  FlareError if the file cannot be read
    """
    try:
        return [
            [_column_chunk(chunk[3]) for chunk in group[1] if not {8, 9} & chunk.keys()]
            for group in _read_footer(at)[4]
        ]
    except _INVALID:
        return []


def _column_chunk(metadata: dict[int, Any]) -> ColumnChunk:
    start = int(metadata[9])
    if 0 < (dictionary := int(metadata.get(11, 0))) < start:
        start = dictionary
    path = [name.decode("utf-8", "replace") for name in metadata[3]]
    is_bytes = metadata[1] == _BYTE_ARRAY
    return ColumnChunk(path[0], ".".join(path), is_bytes, int(metadata[5]), start, int(metadata[7]))


def _read_footer(at: Location) -> dict[int, Any]:
    """Parse the footer. Raises ValueError or IndexError if it is invalid or too large."""
    size = at.size()
    length = int.from_bytes(at.read(size - 8, size - 4), "little")
    if length > min(MAX_FOOTER_BYTES, size - 8):
        raise ValueError("the footer is too large")
    return _Reader(at.read(size - 8 - length, size - 8)).read_struct()


# -- page headers


def pages(at: Location, size: int, chunk: ColumnChunk) -> Iterator[Page]:
    """Yield the pages that Arrow would read from a column chunk, as described by their headers.

    The headers are checked because a footer may declare less data than the pages contain.

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
        yield page
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
    return Page(size, int(data[1]), False, encoding == _DELTA_BYTE_ARRAY)


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


# -- Thrift


class _Reader:
    """Parser of Thrift's compact protocol, with limits on the depth and number of values.

    Its methods raise IndexError or ValueError for truncated or invalid bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.position, self._values_left = data, 0, MAX_VALUES

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a struct by number."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

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
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            if count > len(self._data) - self.position:
                raise ValueError("a list is longer than the data")
            return [self._value(head & 15, depth + 1) for _ in range(count)]
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
