"""Arrow columns to stored bytes and back, whole columns at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from flarecli.encodings import msgpack, number_text
from flarecli.encodings.names import BINARY, TEXT, Encoding, lookup
from flarecli.errors import ValueFitError
from flarecli.model import ENCODING, Column, IntArray

_NUMBERS = {  # of variable size: writer and parser of a column
    "varint": (number_text.varint_bytes, number_text.parse_varints),
    "msgpack_float": (msgpack.float_bytes, msgpack.parse_float_column),
}

_LARGE, _HEAD = (
    1 << 15,
    1 << 12,
)  # bytes that are worth a look at whether all of them are ASCII, and of them the first

__all__ = [
    "check_text",
    "each_item",
    "encoding_of",
    "field",
    "is_utf8",
    "raw_values",
    "stored",
    "typed",
    "value_sizes",
]


def raw_values(array: pa.Array) -> Iterator[memoryview | None]:
    """Give the bytes of each value of a column of bytes or text, without a copy.

    Not by its scalars: Arrow copies the bytes into each, and ends the process where there is no memory for that.
    """
    kind = array.type
    if not (pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
        array = array.cast(BINARY)
    valid = array.is_valid().to_pylist() if array.null_count else None
    _, ends, data = array.buffers()
    bounds = np.frombuffer(ends, np.int64)[array.offset :][: len(array) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    for row, (start, stop) in enumerate(itertools.pairwise(bounds)):
        yield view[start:stop] if valid is None or valid[row] else None


def value_sizes(array: pa.Array) -> IntArray | None:
    """Return the bytes of each value of a column of bytes or text, or of lists of them: int64 [rows]; None for other columns."""
    kind = array.type
    if pa.types.is_large_list(kind):
        inner = value_sizes(array.values)
        if inner is None:
            return None
        ends = np.concatenate([[0], np.cumsum(inner, dtype=np.int64)])
        return np.diff(ends[array.offsets.to_numpy()])
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not wide and not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        return None
    if not len(array):
        return np.zeros(0, np.int64)
    ends = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return np.diff(ends[array.offset : array.offset + len(array) + 1])


def field(column: Column) -> pa.Field:
    """Give the Arrow field of a column: its type, and its encoding's name in the metadata."""
    return pa.field(
        column.name, lookup(column.encoding).arrow, metadata={ENCODING: column.encoding.encode()}
    )


def encoding_of(field: pa.Field) -> str | None:
    """Read the encoding's name from an Arrow field; None when it carries none."""
    name = (field.metadata or {}).get(ENCODING)
    return None if name is None else name.decode()


def stored(array: pa.Array, encoding: Encoding) -> pa.Array:
    """Give the stored bytes of a typed column, without nulls; numbers cost a copy, text and bytes none.

    array   of the encoding's own type, no nulls
    return  large_binary [rows]; of a list large_list of it
    """
    if encoding.item is not None:
        item = encoding.item
        return each_item(array, lambda values: stored(values, item))
    if encoding.name in _NUMBERS:
        return _NUMBERS[encoding.name][0](array)
    if encoding.size is not None and not encoding.arrow.equals(BINARY):
        return array.view(pa.binary(encoding.size)).cast(BINARY)
    return array.view(BINARY) if array.type.equals(TEXT) else array


def typed(array: pa.Array, encoding: Encoding) -> pa.Array:
    """Give a typed column of stored bytes; null where those are.

    array   large_binary, or fixed-size binary of the encoding's size for a number; of a list large_list of it (`encoding.raw`)
    raises  ValueFitError naming the first row whose text is not UTF-8, or whose number is not as long as it must be
    """
    if encoding.item is not None:
        item = encoding.item
        return each_item(array, lambda values: typed(values, item))
    if encoding.is_text:
        text = array.view(TEXT)
        try:
            check_text(text)
        except pa.ArrowInvalid:
            row = next(
                i for i, data in enumerate(array) if data.is_valid and not is_utf8(data.as_py())
            )
            raise ValueFitError(f"{encoding.name} is not UTF-8", row=row) from None
        return text
    if encoding.name in _NUMBERS:
        return _NUMBERS[encoding.name][1](array)
    if encoding.size is not None and not encoding.arrow.equals(BINARY):
        return (
            array if pa.types.is_fixed_size_binary(array.type) else _fixed(array, encoding)
        ).view(encoding.arrow)
    return array


def _fixed(array: pa.Array, encoding: Encoding) -> pa.Array:
    try:
        return array.cast(pa.binary(encoding.size))
    except pa.ArrowInvalid:
        row, data = next(
            (i, data)
            for i, data in enumerate(array)
            if data.is_valid and len(data.as_buffer()) != encoding.size
        )
        raise ValueFitError(
            f"{len(data.as_buffer())} bytes are not {encoding.name}, which takes {encoding.size}",
            row=row,
        ) from None


def each_item(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Convert all items of a list column in one go; null rows have none.

    raises  ValueFitError of `convert`, naming the row of the item that it named
    """
    offsets = array.offsets.to_numpy()
    values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    try:
        items = convert(values)
    except ValueFitError as error:
        row = int(np.searchsorted(offsets - offsets[0], error.row or 0, "right")) - 1
        raise error.changed(row=row) from None
    out = pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), items)
    return (
        out
        if not array.null_count
        else pa.LargeListArray.from_arrays(out.offsets, items, mask=array.is_null())
    )


def check_text(text: pa.Array) -> None:
    """Raise ArrowInvalid unless every value of a large_string column is UTF-8, as files may claim of what is not.

    Most text is ASCII, and that all bytes are is told in a fifth of the time.
    """
    if not _is_ascii(text):
        text.validate(full=True)


def _is_ascii(text: pa.Array) -> bool:
    """Whether nothing but ASCII lies between the first offset and the last, which rise; large columns alone are looked at."""
    text.validate()  # the first and the last lie in the data
    _, offsets, data = text.buffers()
    ends = (
        np.frombuffer(offsets, np.int64, len(text) + 1, 8 * text.offset)
        if len(text)
        else np.zeros(1, np.int64)
    )
    if ends[-1] - ends[0] < _LARGE or (ends[1:] < ends[:-1]).any():
        return False
    signed = np.frombuffer(data, np.int8)[ends[0] : ends[-1]]
    return bool(signed[:_HEAD].min() >= 0 and signed.min() >= 0)


def is_utf8(data: bytes) -> bool:
    """Whether bytes are text."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
