"""Convert Arrow columns to stored bytes and back."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.encodings import msgpack, number_text
from flarecli.encodings.names import BINARY, TEXT, Encoding, lookup
from flarecli.errors import ValueFitError
from flarecli.model import ENCODING, Column, IntArray

_NUMBERS = {  # encoding of variable-size numbers -> functions to write a column and to parse it
    "varint": (number_text.varint_bytes, number_text.parse_varints),
    "msgpack_float": (msgpack.float_bytes, msgpack.parse_float_column),
}

# Minimum size in bytes of a column for the ASCII check, and size of the head that is checked first.
# Most columns that are not ASCII have a non-ASCII character in the head.
ASCII_CHECK_BYTES, ASCII_HEAD_BYTES = 1 << 15, 1 << 12
_DECODED_BYTES = 1 << 20  # larger values are decoded in chunks

__all__ = [
    "check_text",
    "decoded_dictionary",
    "each_item",
    "encoding_of",
    "field",
    "is_binary",
    "is_list",
    "is_number",
    "is_text",
    "is_utf8",
    "large_list",
    "raw_values",
    "stored",
    "typed",
    "value_sizes",
    "value_type",
    "with_children",
]


def raw_values(array: pa.Array) -> Iterator[memoryview | None]:
    """Yield a view of each value in a column of bytes or text, and None for each null.

    Arrow's scalars would copy the bytes, and abort the process if memory is exhausted.
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
    """Return the size in bytes of each value: int64 [rows].

    Values are bytes, text, or lists of bytes or text; the result is None for other columns.
    """
    kind = array.type
    if pa.types.is_large_list(kind):
        inner = value_sizes(array.values)
        if inner is None:
            return None
        ends = np.concatenate([[0], np.cumsum(inner, dtype=np.int64)])
        return np.asarray(np.diff(ends[array.offsets.to_numpy()]), np.int64)
    if kind not in (BINARY, TEXT, pa.binary(), pa.string()):
        return None
    sizes = pc.fill_null(pc.binary_length(array), 0)
    return np.asarray(sizes.to_numpy(zero_copy_only=False), np.int64)


def field(column: Column) -> pa.Field:
    """Return the Arrow field of a column, with the name of the encoding in its metadata."""
    return pa.field(
        column.name, lookup(column.encoding).arrow, metadata={ENCODING: column.encoding.encode()}
    )


def encoding_of(field: pa.Field) -> str | None:
    """Return the encoding name in the metadata of an Arrow field; None if there is no name."""
    name = (field.metadata or {}).get(ENCODING)
    return None if name is None else name.decode()


def stored(array: pa.Array, encoding: Encoding) -> pa.Array:
    """Return the stored bytes of a typed column. The bytes of numbers are copied.

    array   column in the Arrow type of the encoding, without nulls
    return  large_binary [rows]; for a list encoding, a large_list of large_binary
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
    """Convert a column of stored bytes to a typed column; nulls remain null.

    array   column of type `encoding.raw`; for an encoding of fixed-size numbers, the column may
            also have the type fixed_size_binary
    raises  ValueFitError with the row of the first text value that is not UTF-8, or of the first
            number with the wrong size
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
            f"{len(data.as_buffer())} bytes cannot be stored as {encoding.name};"
            f" expected {encoding.size}",
            row=row,
        ) from None


def each_item(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Convert all items of a list column at once; null rows remain null.

    raises  ValueFitError from `convert`, with the row of the list that contains the item
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
    """Raise ArrowInvalid if a value in a large_string column is not UTF-8.

    A file may declare invalid bytes as text. The ASCII check comes first, because it is faster than
    the UTF-8 check, and most text is ASCII.
    """
    if not _is_ascii(text):
        text.validate(full=True)


def _is_ascii(text: pa.Array) -> bool:
    """Return whether a large_string column contains only ASCII characters and has valid offsets.

    The result is also False for a small column, which is not checked.
    """
    text.validate()  # raises an error if the first or the last offset is outside the data
    _, offsets, data = text.buffers()
    ends = (
        np.frombuffer(offsets, np.int64, len(text) + 1, 8 * text.offset)
        if len(text)
        else np.zeros(1, np.int64)
    )
    if ends[-1] - ends[0] < ASCII_CHECK_BYTES or (ends[1:] < ends[:-1]).any():
        return False
    signed = np.frombuffer(data, np.int8)[ends[0] : ends[-1]]
    return bool(signed[:ASCII_HEAD_BYTES].min() >= 0 and signed.min() >= 0)


def is_utf8(data: bytes | memoryview) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        if len(data) <= _DECODED_BYTES:
            str(data, "utf-8")
        else:
            steps = range(0, len(data), _DECODED_BYTES)
            for _ in codecs.iterdecode(
                (bytes(data[i : i + _DECODED_BYTES]) for i in steps), "utf-8"
            ):
                pass
    except UnicodeDecodeError:
        return False
    return True


# -- Arrow types


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a text type."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_binary(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a bytes type."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list type."""
    views = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or views
    )


def is_number(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is an integer, float or boolean type."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary type, and any other type unchanged."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def with_children(kind: pa.DataType, convert: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Convert the child types of a nested type; a type without children is returned unchanged.

    List views become lists. The child fields lose their nullability and metadata, and list items
    lose their names.
    """
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, convert(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(convert(kind.key_type), convert(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(convert(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(convert(kind.value_type))
    return pa.list_(convert(kind.value_type)) if is_list(kind) else kind


def decoded_dictionary(array: pa.DictionaryArray) -> pa.Array:
    """Decode a dictionary column. Values of a view type become large_string or large_binary."""
    values = array.dictionary
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        # Arrow cannot decode a dictionary whose values have a view type
        values = values.cast(TEXT if pa.types.is_string_view(values.type) else BINARY)
        array = pa.DictionaryArray.from_arrays(array.indices, values)
    return array.dictionary_decode()


def large_list(array: pa.Array) -> pa.Array:
    """Convert a column of any list type to large_list."""
    kind = array.type
    target = pa.large_list(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return array.cast(target)
    # Other list types are converted to Python lists first, because list views may store their items
    # in any order, and fixed-size lists have items in null rows.
    return pa.array(array.to_pylist(), target)
