"""Arrow types of the packed table: write them to the playlist, and convert columns back to them.

An encoding may store a value as another type: a timestamp as text, a struct as JSON, a boolean as
uint8. The playlist lists the Arrow type of each column in the packed table, so batches have the
same types and values as that table. A type is written as a name (`int32`, `bool`, `date32`,
`duration[us]`) or as a mapping with one key:

    {timestamp: [us, UTC]}      {decimal128: [10, 2]}      {fixed_size_binary: 16}
    {list: int32}               {large_list: int32}        {fixed_size_list: [float32, 3]}
    {struct: {x: double, y: double}}    {map: [string, int32]}
    {dictionary: [int32, string, false]}   index type, value type, whether the order matters
    {tensor: [float32, [3, 224, 224]]}     a tensor of fixed shape

All text types of Arrow are written as `string`, all bytes types as `binary`, and list views as
lists. The index of a dictionary has at least 32 bits. The playlist stores no item names of lists,
and no nullability or metadata of nested fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import time
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.bisect import failing_values
from flarecli.encodings.columns import (
    each_item,
    is_list,
    is_text,
    large_list,
    value_sizes,
    with_children,
)
from flarecli.encodings.names import BINARY, TEXT, Encoding
from flarecli.encodings.values import decode
from flarecli.errors import FlareError, UsageError, ValueFitError
from flarecli.expansion import MAX_DECODED_VALUE

__all__ = [
    "duration_nanoseconds",
    "is_restorable",
    "nested_converter",
    "parse_type",
    "restore",
    "type_header",
    "wide_dictionary",
    "without_dictionaries",
    "without_variants",
]

# Maximum number of types in a header, and maximum depth of nested types. Each level of nested types
# uses two of the 16 levels that a playlist may have.
MAX_NODES, MAX_DEPTH = 1000, 5
MAX_FIXED_SIZE = 1 << 24  # maximum items or bytes in a value of a fixed-size type
MAX_NULL_BYTES = 1 << 29  # maximum memory in one batch for nulls of fixed-size types
_DOCUMENT_BYTES = 1 << 20  # approximate size of the documents that are decoded together
_DOCUMENTS = ("json", "msgpack", "array", "tree", "ndarray")
_UNITS = ("s", "ms", "us", "ns")
_NAMES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    **{
        f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")()
        for bits in (8, 16, 32, 64)
        for sign in ("", "u")
    },
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": TEXT,
    "binary": BINARY,
    "date32": pa.date32(),
    "date64": pa.date64(),
    "time32[s]": pa.time32("s"),
    "time32[ms]": pa.time32("ms"),
    "time64[us]": pa.time64("us"),
    "time64[ns]": pa.time64("ns"),
    **{f"timestamp[{unit}]": pa.timestamp(unit) for unit in _UNITS},
    **{f"duration[{unit}]": pa.duration(unit) for unit in _UNITS},
}
_DECIMALS = {
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}
_TIMEDELTA = re.compile(
    r"(?:(-?\d{1,9}) days?,? ?)?\+?(\d{1,2}):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII
)
Convert: TypeAlias = Callable[[Any], Any]
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


# -- Arrow types in the headers of a playlist


def without_variants(kind: pa.DataType) -> pa.DataType:
    """Replace a type with the standard type that a playlist lists for it.

    An extension type becomes its storage type, except for a tensor. A run-end encoded type becomes
    the type of its values. Text becomes large_string, bytes become large_binary, and list views
    become lists. The index of a dictionary has at least 32 bits. The types of nested fields are
    replaced too. These fields lose their metadata, and list items lose their names.
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.fixed_shape_tensor(kind.value_type, kind.shape)
    if isinstance(kind, pa.BaseExtensionType):
        return without_variants(kind.storage_type)
    if is_text(kind):
        return TEXT
    if pa.types.is_large_binary(kind) or pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return BINARY
    if pa.types.is_run_end_encoded(kind):
        return without_variants(kind.value_type)
    if pa.types.is_dictionary(kind):
        values = without_variants(kind.value_type)
        return wide_dictionary(pa.dictionary(kind.index_type, values, kind.ordered))
    return with_children(kind, without_variants)


def wide_dictionary(kind: pa.DictionaryType) -> pa.DataType:
    """Return a dictionary type with an index of at least 32 bits.

    A smaller index may be too small for the values of all files or batches together.
    """
    index = kind.index_type if kind.index_type.bit_width >= 32 else pa.int32()
    return pa.dictionary(index, kind.value_type, kind.ordered)


def without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """Replace each dictionary type in a type with the type of the dictionary's values."""
    if pa.types.is_dictionary(kind):
        return without_dictionaries(kind.value_type)
    return with_children(kind, without_dictionaries)


def type_header(kind: pa.DataType) -> Any:
    """Return the playlist header of a type from `without_variants`.

    The result is None if a playlist cannot describe the type, or if `parse_type` would reject the
    header because of its size.
    """
    header = _header(kind)
    try:
        return header if header is not None and parse_type(header).equals(kind) else None
    except UsageError:
        return None


def _header(kind: pa.DataType) -> Any:
    for name, known in _NAMES.items():
        if kind.equals(known):
            return name
    if isinstance(kind, pa.FixedShapeTensorType):
        return {"tensor": [_header(kind.value_type), kind.shape]}
    if pa.types.is_timestamp(kind):
        return {"timestamp": [kind.unit, kind.tz]}
    if pa.types.is_decimal(kind):
        return {f"decimal{kind.bit_width}": [kind.precision, kind.scale]}
    if pa.types.is_fixed_size_binary(kind):
        return {"fixed_size_binary": kind.byte_width}
    if pa.types.is_dictionary(kind):
        index, values = _header(kind.index_type), _header(kind.value_type)
        return None if values is None else {"dictionary": [index, values, kind.ordered]}
    if pa.types.is_struct(kind):
        fields = {field.name: _header(field.type) for field in kind}
        is_known = len(fields) == len(kind) and None not in fields.values()
        return {"struct": fields} if is_known else None
    if pa.types.is_map(kind):
        pair = [_header(kind.key_type), _header(kind.item_type)]
        return None if None in pair else {"map": pair}
    if not is_list(kind):
        return None
    item = _header(kind.value_type)
    if item is None:
        return None
    if pa.types.is_fixed_size_list(kind):
        return {"fixed_size_list": [item, kind.list_size]}
    return {"large_list" if pa.types.is_large_list(kind) else "list": item}


def parse_type(header: Any) -> pa.DataType:
    """Parse a type from its playlist header. Raises UsageError if the header is invalid."""
    return _Parser().parse(header, 0)


class _Parser:
    """Parser for one type header. It counts the nested types in the header."""

    def __init__(self) -> None:
        self._nodes = 0

    def parse(self, header: Any, depth: int, copies: int = 1) -> pa.DataType:
        """Parse a type that may be nested in another type.

        copies  product of the sizes of all fixed-size lists that contain this type
        """
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise UsageError(f"type has more than {MAX_NODES} nested types or {MAX_DEPTH} levels")
        if isinstance(header, str):
            if header in _NAMES:
                return _NAMES[header]
        elif isinstance(header, Mapping) and len(header) == 1:
            ((name, value),) = header.items()
            try:
                return self._nested(name, value, depth + 1, copies)
            except FlareError:
                raise
            except (
                AttributeError,
                KeyError,
                TypeError,
                ValueError,
                OverflowError,
                pa.ArrowException,
            ):
                pass
        raise UsageError(f"unknown type {header!r:.60}")

    def _nested(self, name: str, value: Any, depth: int, copies: int) -> pa.DataType:
        """Parse a header that is a mapping. May raise any exception if the header is invalid."""
        if name in _DECIMALS:
            precision, scale = map(_int, value)
            if abs(scale) > precision:  # Arrow's casts crash for a huge scale
                raise ValueError
            return _DECIMALS[name](precision, scale)
        match name:
            case "timestamp":
                unit, zone = value
                if not _text(zone):
                    raise ValueError
                kind = pa.timestamp(unit, zone)
                pa.scalar(0, kind).as_py()  # raises an error for an unknown time zone
                return kind
            case "tensor":
                item, shape = value
                if not shape or not isinstance(item, str):
                    raise ValueError
                _size(math.prod(_size(length) for length in shape) * copies)
                return pa.fixed_shape_tensor(self.parse(item, depth), shape)
            case "fixed_size_binary":
                _size(_size(value) * copies)
                return pa.binary(value)
            case "list":
                return pa.list_(self.parse(value, depth, copies))
            case "large_list":
                return pa.large_list(self.parse(value, depth, copies))
            case "fixed_size_list":
                item, size = value
                return pa.list_(self.parse(item, depth, _size(_size(size) * copies)), size)
            case "struct":
                return pa.struct(
                    [(_text(key), self.parse(one, depth, copies)) for key, one in value.items()]
                )
            case "map":
                key, item = value
                return pa.map_(self.parse(key, depth, copies), self.parse(item, depth, copies))
            case "dictionary":
                index, values, is_ordered = value
                kinds = self.parse(index, depth), self.parse(values, depth, copies)
                return wide_dictionary(pa.dictionary(*kinds, is_ordered is True))
        raise ValueError


def _int(value: Any) -> int:
    if type(value) is not int:
        raise ValueError
    return value


def _size(value: Any) -> int:
    if not 1 <= _int(value) <= MAX_FIXED_SIZE:
        raise ValueError
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


# -- values


def is_restorable(encoding: Encoding, kind: pa.DataType) -> bool:
    """Return whether `restore` can convert a column from an encoding to a type."""
    try:
        restore(pa.nulls(0, encoding.arrow), kind, encoding)
    except (FlareError, pa.ArrowException):
        return False
    return True


class _NullBytes:
    """Limit for the memory of nulls in one batch.

    In a column of a fixed-size type, Arrow allocates the same memory for a null as for a value.
    """

    def __init__(self) -> None:
        self._left = MAX_NULL_BYTES

    def allocate(self, count: int, kind: pa.DataType) -> None:
        """Add the memory of `count` nulls; raise ValueFitError if the total exceeds the limit."""
        self._left -= count * _fixed_bytes(kind)
        if self._left < 0:
            raise ValueFitError(f"the null values of {kind} need too much memory", row=0)


def _fixed_bytes(kind: pa.DataType) -> int:
    """Return the size in bytes of a null of this type."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return _fixed_bytes(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _fixed_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_fixed_bytes(field.type) for field in kind)
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    return 8


def restore(array: pa.Array, kind: pa.DataType, encoding: Encoding) -> pa.Array:
    """Convert a column of a dataset to its type in the packed table; nulls remain null.

    array   column that `plain` returned: nested values are documents, such as JSON text, and
            durations are integers as text
    raises  ValueFitError with the row of the first value that the type cannot represent
    """
    if array.type.equals(kind):
        return array
    is_nested = pa.types.is_nested(kind) or isinstance(kind, pa.FixedShapeTensorType)
    if is_nested and not pa.types.is_nested(array.type) and not pa.types.is_null(array.type):
        convert = partial(_parse_documents, kind=kind, encoding=encoding, nulls=_NullBytes())
    else:
        convert = partial(_cast, kind=kind, nulls=_NullBytes())
    try:
        return convert(array)
    except (pa.ArrowInvalid, ValueFitError) as failure:
        if isinstance(failure, ValueFitError) and failure.row is not None:
            raise
        failing = failing_values(array, convert, (pa.ArrowInvalid, ValueFitError))
        row, error = next(failing, (0, failure))
    if isinstance(error, ValueFitError) and error.row is None:
        raise error.changed(row=row)
    raise ValueFitError(f"a value is not a valid {kind}", row=row)


def _cast(array: pa.Array, kind: pa.DataType, nulls: _NullBytes) -> pa.Array:
    """Convert a column with Arrow's kernels. Raises ArrowInvalid if a value cannot be converted."""
    own = array.type
    if own.equals(kind):
        return array
    if pa.types.is_null(kind):
        if array.null_count < len(array):
            raise pa.ArrowInvalid("a value in a column of nulls")
        return pa.nulls(len(array))
    if pa.types.is_null(own):
        nulls.allocate(len(array), kind)
        return pa.nulls(len(array), kind)
    if pa.types.is_dictionary(kind):
        return _cast(array, kind.value_type, nulls).dictionary_encode().cast(kind)
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        # Arrow's own cast converts the hidden values of null rows, which may be invalid. `flatten`
        # replaces these values with nulls.
        fields = [
            _cast(values, field.type, nulls)
            for values, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    if is_list(own) and is_list(kind):
        lists = each_item(large_list(array), lambda items: _cast(items, kind.value_type, nulls))
        return (
            _fixed_size(lists, kind, nulls)
            if pa.types.is_fixed_size_list(kind)
            else lists.cast(kind)
        )
    if pa.types.is_map(own) and pa.types.is_map(kind):
        keys = _cast(array.keys, kind.key_type, nulls)
        items = _cast(array.items, kind.item_type, nulls)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=array.is_null())
    if is_text(own):
        if pa.types.is_timestamp(kind):
            # Arrow rejects text with more fractional digits than the unit of `kind` allows.
            # Therefore, the text is first parsed as microseconds or nanoseconds.
            return array.cast(pa.timestamp(_fine_unit(kind), kind.tz)).cast(kind)
        if pa.types.is_time(kind):
            unit = _fine_unit(kind)
            day, space = pa.scalar("1970-01-01", own), pa.scalar(" ", own)
            text = pc.binary_join_element_wise(day, array, space)
            return text.cast(pa.timestamp(unit)).cast(pa.time64(unit)).cast(kind)
        if pa.types.is_duration(kind):
            return array.cast(pa.int64()).cast(kind)
    if pa.types.is_fixed_size_binary(kind):
        nulls.allocate(array.null_count, kind)
    return array.cast(kind)


def _fixed_size(lists: pa.LargeListArray, kind: pa.DataType, nulls: _NullBytes) -> pa.Array:
    """Convert lists of equal size to fixed-size lists. The items of a null list become null.

    Arrow's own cast leaves the items of a null list uninitialized.
    """
    size, is_null = kind.list_size, lists.is_null().to_numpy(zero_copy_only=False)
    nulls.allocate(lists.null_count, kind)
    if (np.diff(lists.offsets.to_numpy())[~is_null] != size).any():
        raise pa.ArrowInvalid("list of another size")
    mask = None
    if lists.null_count:
        mask = lists.is_null()
        empty = pa.LargeListArray.from_arrays([0, size], pa.nulls(size, kind.value_type))
        lists = pc.if_else(mask, empty[0], lists)
    return pa.FixedSizeListArray.from_arrays(lists.flatten(), type=kind, mask=mask)


def _fine_unit(kind: pa.DataType) -> str:
    return "ns" if kind.unit == "ns" else "us"


# -- documents


def _parse_documents(
    array: pa.Array, kind: pa.DataType, encoding: Encoding, nulls: _NullBytes
) -> pa.Array:
    """Decode documents, such as JSON text, to a type, about _DOCUMENT_BYTES at a time.

    raises  ArrowInvalid or ValueFitError for a document that is invalid or does not match `kind`
    """
    if encoding.name.partition(":")[0] not in _DOCUMENTS:
        raise pa.ArrowInvalid(f"{encoding.name} is not an encoding of documents")
    is_tensor = isinstance(kind, pa.FixedShapeTensorType)
    stored = kind.storage_type if is_tensor else kind
    python = _tensor_reader(kind) if is_tensor else nested_converter(kind, _python_value)
    parsed = _parsed_type(stored)
    # An array needs no limit, because its values do not become Python objects.
    max_bytes = None if encoding.name.startswith("ndarray") else MAX_DECODED_VALUE
    sizes = value_sizes(array)
    ends = np.zeros(0, np.int64) if sizes is None else np.cumsum(sizes)
    parts, start = [pa.nulls(0, stored)], 0
    while start < len(array):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _DOCUMENT_BYTES, "right")))
        values = []
        for document in array.slice(start, stop - start):
            data = document.as_buffer()
            if data is not None and max_bytes is not None and data.size > max_bytes:
                raise ValueFitError(
                    f"document has {data.size} bytes; the maximum is {max_bytes}",
                    hint="Read the column as it is stored, with exact=True.",
                )
            try:
                value = None if data is None else decode(encoding, data.to_pybytes())
                values.append(value if value is None or python is None else python(value))
            except (
                FlareError,
                ValueError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
            ):
                raise pa.ArrowInvalid("invalid document") from None
        if is_tensor:
            nulls.allocate(sum(value is None for value in values), kind)
        try:
            part = pa.array(values, parsed)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            raise pa.ArrowInvalid("document of another type") from None
        parts.append(_cast(part, stored, nulls))
        start = stop
    out = pa.concat_arrays(parts)
    return out if stored is kind else pa.ExtensionArray.from_storage(kind, out)


def _tensor_reader(kind: pa.FixedShapeTensorType) -> Callable[[Any], Any]:
    """Return a function that flattens a tensor, given as an array or as nested lists.

    The function raises ValueError for a tensor of another shape.
    """
    dtype, shape = kind.value_type.to_pandas_dtype(), tuple(kind.shape)

    def flat(value: Any) -> Any:
        array = np.asarray(value, dtype)
        if array.shape != shape:
            raise ValueError
        return array.reshape(-1)

    return flat


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type of decoded documents: dates, timestamps and decimals are text."""
    if pa.types.is_dictionary(kind):
        return _parsed_type(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_parsed_type(kind.value_type))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return pa.string()
    return pa.float64() if pa.types.is_floating(kind) else with_children(kind, _parsed_type)


def _python_value(kind: pa.DataType) -> Convert | None:
    """Return a function that converts a time or duration to a value that Arrow accepts.

    The values come from a decoded document, such as JSON or MessagePack. The result is None for all
    other types, because Arrow accepts their values unchanged.
    """
    if pa.types.is_time(kind):
        return time.fromisoformat
    if pa.types.is_duration(kind):
        nanoseconds = NANOSECONDS[kind.unit]
        return lambda text: duration_nanoseconds(text) // nanoseconds
    return None


def nested_converter(
    kind: pa.DataType, convert_of: Callable[[pa.DataType], Convert | None]
) -> Convert | None:
    """Return a function that converts a decoded value and all values in it.

    The pairs of a map become tuples. The function does not accept None. The result is None if no
    value needs a conversion.

    convert_of  function that returns the conversion for a type without children, or None
    """
    if pa.types.is_dictionary(kind):
        return nested_converter(kind.value_type, convert_of)
    if pa.types.is_map(kind):
        key, item = (
            _optional(nested_converter(one, convert_of)) for one in (kind.key_type, kind.item_type)
        )
        return lambda value: [(key(k), item(v)) for k, v in value]
    if pa.types.is_struct(kind):
        fields = [
            (field.name, _optional(convert))
            for field in kind
            if (convert := nested_converter(field.type, convert_of))
        ]
        if not fields:
            return None
        return lambda value: value | {name: convert(value.get(name)) for name, convert in fields}
    if is_list(kind) and (convert := nested_converter(kind.value_type, convert_of)):
        convert_item = _optional(convert)
        return lambda value: [convert_item(item) for item in value]
    return convert_of(kind)


def _optional(convert: Convert | None) -> Convert:
    """Return a function that calls `convert` for every value except None.

    It returns None unchanged. If `convert` is None, it returns every value unchanged.
    """
    return lambda value: value if value is None or convert is None else convert(value)


def duration_nanoseconds(text: str) -> int:
    """Parse a duration that Python or pandas formatted with `str(timedelta)`; return nanoseconds.

    raises  ValueError for text in another form
    """
    match = _TIMEDELTA.fullmatch(text)
    if match is None:
        raise ValueError
    days, hours, minutes, seconds, fraction = match.groups()
    whole = (int(days or 0) * 24 + int(hours)) * 3600 + int(minutes) * 60 + int(seconds)
    return whole * 10**9 + int((fraction or "").ljust(9, "0"))
