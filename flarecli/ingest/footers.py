"""Whether what a parquet footer says of a column can be looked at: Arrow ends the process on some of what cannot be.

A footer is one struct in Thrift's compact protocol, with four bytes of its length and the magic behind it. Of it the
parts that Arrow's own objects would stumble over are held against each other: the type of a column in its chunks and
in the schema, the bytes of the smallest and largest value, the counts of levels, and whether a chunk is encrypted.

    FileMetaData    2 schema, 4 row groups        RowGroup       1 chunks
    SchemaElement   1 type, 2 bytes, 5 children   ColumnChunk    3 metadata, 8 how it is encrypted
    ColumnMetaData  1 type, 12 statistics, 16 sizes
    Statistics      1, 2, 5, 6 smallest and largest
    SizeStatistics  1 bytes of text, 2, 3 histograms of levels
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow.parquet as pq

from flarecli.storage import Location

__all__ = ["ColumnChunk", "column_chunks", "read_struct", "sound_leaves"]

_MOST = 32 << 20  # bytes of a footer that is looked at: to do so takes about 50 µs for each chunk
_DEEP, _VALUES = (
    16,
    1 << 22,
)  # structs and lists inside each other; values in all: an empty struct is one byte there and sixty-four here
_SIZES = {
    0: 1,
    1: 4,
    2: 8,
    3: 12,
    4: 4,
    5: 8,
}  # bytes of a value by type: BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE
_BYTES, _FIXED = 6, 7  # BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY


def sound_leaves(at: Location, metadata: pq.FileMetaData) -> frozenset[int]:
    """Give the leaves of the schema whose chunks can be looked at in every row group; none for a footer of more than 32 MB.

    raises  what reading raises
    """
    size = at.size()
    length = int.from_bytes(at.read(size - 8, size - 4), "little")
    if length > min(_MOST, size - 8):
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
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
    ):  # not what a footer is: whoever reads the rows says so
        return frozenset()


class ColumnChunk(NamedTuple):
    """Where the pages of one column of one row group lie, as the footer says; `column` is the top of its path."""

    column: str
    is_bytes: bool
    values: int
    start: int
    stored: int


def column_chunks(at: Location) -> list[list[ColumnChunk]]:
    """Return the column chunks of each row group, read without Arrow; nothing for a footer that cannot be read so.

    raises  what reading raises
    """
    size = at.size()
    length = int.from_bytes(at.read(size - 8, size - 4), "little")
    if length > min(_MOST, size - 8):
        return []
    try:
        footer = _Reader(at.read(size - 8 - length, size - 8)).struct()
        return [
            [_chunk(chunk[3]) for chunk in group[1] if not {8, 9} & chunk.keys()]  # not encrypted
            for group in footer[4]
        ]
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return []


def _chunk(said: dict[int, Any]) -> ColumnChunk:
    start = int(said[9])
    if 0 < (dictionary := int(said.get(11, 0))) < start:
        start = dictionary
    column = said[3][0].decode("utf-8", "replace")
    return ColumnChunk(column, said[1] == _BYTES, int(said[5]), start, int(said[7]))


def read_struct(data: bytes) -> tuple[dict[int, Any], int]:
    """Read one struct and return its fields by number, and how many bytes it takes.

    raises  IndexError or ValueError for bytes that end too early, or are no struct
    """
    reader = _Reader(data)
    return reader.struct(), reader.at


def _is_sound(
    chunk: tuple[Any, dict[int, Any]], element: dict[int, Any], column: pq.ColumnSchema
) -> bool:
    (sealed, said), kind = chunk, element[1]
    if sealed is not None or said[1] != kind or kind not in (*_SIZES, _BYTES, _FIXED):
        return False
    values = [value for place, value in said.get(12, {}).items() if place in (1, 2, 5, 6)]
    wanted = element[2] if kind == _FIXED else _SIZES.get(kind)
    if not all(
        isinstance(value, bytes) and (wanted is None or len(value) == wanted) for value in values
    ):
        return False
    sizes = said.get(16, {})
    levels = ((2, column.max_repetition_level), (3, column.max_definition_level))
    return (1 not in sizes or kind == _BYTES) and all(
        len(sizes.get(place, ())) in (0, most + 1) for place, most in levels
    )


class _Reader:
    """Values of Thrift's compact protocol; none is larger than the bytes that are left, and there is a bound to how many there are."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._left = data, 0, _VALUES

    @property
    def at(self) -> int:
        """How many bytes were read."""
        return self._at

    def struct(self, deep: int = 0) -> dict[int, Any]:
        """Give the fields of a struct by number."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            found[number] = head & 15 == 1 if head & 15 in (1, 2) else self._value(head & 15, deep)
        return found

    def _value(self, kind: int, deep: int) -> Any:
        self._left -= 1
        if deep > _DEEP or self._left < 0:
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
                raise ValueError("a list longer than what is left")
            return [self._value(head & 15, deep + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(deep + 1)
        raise ValueError(f"no value of parquet is of kind {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError("bytes beyond the end")
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
                raise ValueError("a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
