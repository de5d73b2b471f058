"""Checks of parquet footers before Arrow uses them: it aborts the process on some invalid footers.

A footer is one struct in Thrift's compact protocol, followed by its length (4 bytes) and the magic.
The parts that could abort Arrow are compared: the type of a column in its chunks and in the schema,
the sizes of minimum and maximum, the counts of levels, and whether a chunk is encrypted.

    FileMetaData    2 schema, 4 row groups        RowGroup       1 chunks
    SchemaElement   1 type, 2 bytes, 5 children   ColumnChunk    3 metadata, 8 encryption
    ColumnMetaData  1 type, 12 statistics, 16 sizes
    Statistics      1, 2, 5, 6 minimum and maximum
    SizeStatistics  1 bytes of text, 2, 3 histograms of levels
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow.parquet as pq

from flarecli.storage import Location

__all__ = ["ColumnChunk", "column_chunks", "read_struct", "sound_leaves"]

MAX_FOOTER_BYTES = 32 << 20  # larger footers are not checked, because parsing takes seconds
MAX_DEPTH = 16  # of nested structs and lists
MAX_VALUES = 1 << 22  # in a footer; each takes at least a byte there, and 64 in memory
# size of a value by type: BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE
_SIZES = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
_BYTES, _FIXED = 6, 7  # BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY


def sound_leaves(at: Location, metadata: pq.FileMetaData) -> frozenset[int]:
    """Return the leaves of the schema that are valid in every row group; empty for large footers.

    raises  errors of reading the file
    """
    size = at.size()
    length = int.from_bytes(at.read(size - 8, size - 4), "little")
    if length > min(MAX_FOOTER_BYTES, size - 8):
        return frozenset()
    try:
        footer = _Reader(at.read(size - 8 - length, size - 8)).struct()
        elements = [element for element in footer[2] if not element.get(5)]
        groups = [[(chunk.get(8), chunk[3]) for chunk in group[1]] for group in footer[4]]
        if (
            any(len(group) != len(elements) for group in groups)
            or len(elements) != metadata.num_columns
        ):
            return frozenset()
        leaves = range(len(elements))
        return frozenset(
            leaf
            for leaf in leaves
            if all(
                _is_sound(group[leaf], elements[leaf], metadata.schema.column(leaf))
                for group in groups
            )
        )
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return frozenset()  # invalid; reading the rows reports it


class ColumnChunk(NamedTuple):
    """Location of the pages of a column in a row group, from the footer; `column` is the top-level
    name.
    """

    column: str
    is_bytes: bool
    values: int
    start: int
    stored: int


def column_chunks(at: Location) -> list[list[ColumnChunk]]:
    """Return the column chunks of each row group, parsed without Arrow; empty for an invalid
    footer.

    raises  errors of reading the file
    """
    size = at.size()
    length = int.from_bytes(at.read(size - 8, size - 4), "little")
    if length > min(MAX_FOOTER_BYTES, size - 8):
        return []
    try:
        footer = _Reader(at.read(size - 8 - length, size - 8)).struct()
        return [
            [_chunk(chunk[3]) for chunk in group[1] if not {8, 9} & chunk.keys()]  # not encrypted
            for group in footer[4]
        ]
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return []


def _chunk(metadata: dict[int, Any]) -> ColumnChunk:
    start = int(metadata[9])
    if 0 < (dictionary := int(metadata.get(11, 0))) < start:
        start = dictionary
    column = metadata[3][0].decode("utf-8", "replace")
    return ColumnChunk(column, metadata[1] == _BYTES, int(metadata[5]), start, int(metadata[7]))


def read_struct(data: bytes) -> tuple[dict[int, Any], int]:
    """Read one struct; return its fields by number, and its size in bytes.

    raises  IndexError or ValueError for truncated or invalid bytes
    """
    reader = _Reader(data)
    return reader.struct(), reader.at


def _is_sound(
    chunk: tuple[Any, dict[int, Any]], element: dict[int, Any], column: pq.ColumnSchema
) -> bool:
    (encryption, metadata), kind = chunk, element[1]
    if encryption is not None or metadata[1] != kind or kind not in (*_SIZES, _BYTES, _FIXED):
        return False
    values = [value for place, value in metadata.get(12, {}).items() if place in (1, 2, 5, 6)]
    size = element[2] if kind == _FIXED else _SIZES.get(kind)
    if not all(
        isinstance(value, bytes) and (size is None or len(value) == size) for value in values
    ):
        return False
    sizes = metadata.get(16, {})
    levels = ((2, column.max_repetition_level), (3, column.max_definition_level))
    return (1 not in sizes or kind == _BYTES) and all(
        len(sizes.get(place, ())) in (0, max_level + 1) for place, max_level in levels
    )


class _Reader:
    """Parser of Thrift's compact protocol with limits on depth, number and size of values."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._left = data, 0, MAX_VALUES

    @property
    def at(self) -> int:
        """Number of bytes read."""
        return self._at

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a struct by number."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            found[number] = head & 15 == 1 if head & 15 in (1, 2) else self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise ValueError("too many values, or too deep")
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._take(8)
        if kind == 8:
            return self._take(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            if count > len(self._data) - self._at:
                raise ValueError("a list is longer than the data")
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"unknown type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError("a value is longer than the data")
        self._at += size
        return self._data[self._at - size : self._at]

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
