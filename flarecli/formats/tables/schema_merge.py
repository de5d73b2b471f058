"""Table schemas: Arrow types without storage variants, and a common schema for several files.

The common schema has the column order of the first file. The type of a column is the common type of
its types in all files:

null, T                  T
integers                 the smallest type that represents both; none for uint64 and a signed type
floats                   the larger type
integer, float           float64; reading a value beyond 2^53 is an error
text or bytes            the large type if either type is large
fixed-size bytes         bytes of variable size
decimals                 a type with the digits of both, at most 38
date32, date64           date64
timestamps, same zone    the finer unit; reading a value that is out of range is an error
lists, structs, maps     the common types of their items
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from flarecli import encodings
from flarecli.bisect import failing_values
from flarecli.errors import FormatError

if TYPE_CHECKING:
    from flarecli.formats.tables.base import Part

__all__ = ["align", "common_type", "convert", "merge", "plain"]

_TEXT_HINT = "Pack the files one by one, or read the column as text: --encode {}=str."
_MISSING_HINT = "Use --allow-missing to fill missing columns with nulls."
_UNITS = ("s", "ms", "us", "ns")
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_PROMOTIONS = (
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.date32(), pa.date64()),
)


# -- several files


def merge(parts: Sequence[Part], allow_missing: bool) -> tuple[pa.Schema, tuple[Part, ...]]:
    """Return the common schema, and readers that use its types where possible.

    parts          readers of the files
    allow_missing  whether a file may lack columns; the missing values are null
    raises         FormatError that names two files whose columns differ or have no common type
    """
    types: dict[str, pa.DataType] = {}
    origins: dict[str, Part] = {}  # column -> file that determined its type
    for part in parts:
        for field in part.schema:
            if field.name not in types:
                if not allow_missing and part is not parts[0]:
                    reason = f"additional column {field.name!r}"
                    raise _columns_differ(part, parts[0], reason, _MISSING_HINT)
                types[field.name], origins[field.name] = field.type, part
                continue
            origin, known = origins[field.name], types[field.name]
            kind = common_type(known, field.type)
            if kind is None and origin.readable_as_text and part.readable_as_text:
                kind = pa.string()
            if kind is None:
                reason = f"column {field.name!r} is {field.type} instead of {known}"
                raise _columns_differ(part, origin, reason, _TEXT_HINT.format(field.name))
            if kind != known:
                types[field.name], origins[field.name] = kind, part
        present = set(part.schema.names)
        missing = [name for name in types if name not in present]
        if missing and not allow_missing:
            raise _columns_differ(part, parts[0], f"missing column {missing[0]!r}", _MISSING_HINT)
    return pa.schema(list(types.items())), tuple(part.with_types(types) for part in parts)


def _columns_differ(part: Part, other: Part, reason: str, hint: str) -> FormatError:
    message = f"columns differ from the columns of {other.at}: {reason}"
    return FormatError(message, where=part.at, hint=hint)


def align(batch: pa.RecordBatch, schema: pa.Schema, part: Part, row: int) -> pa.RecordBatch:
    """Convert a batch of one file to the common schema; missing columns are null.

    row     row number, in the file, of the batch's first row
    raises  FormatError with the row of a value that the common type cannot represent
    """
    if batch.schema.equals(schema):
        return batch
    arrays, present = [], set(batch.schema.names)
    for field in schema:
        if field.name not in present:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            arrays.append(convert(column, field.type))
        except pa.ArrowInvalid:
            convert_part = partial(convert, kind=field.type)
            at, _ = next(failing_values(column, convert_part, pa.ArrowInvalid))
            value = str(column[at].as_py())[:60]
            raise FormatError(
                f"column {field.name!r}: value {value} cannot be stored as {field.type}",
                where=part.at,
                row=row + at,
                column=field.name,
                hint=_TEXT_HINT.format(field.name),
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- types


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without storage variants: dictionaries, run-end encoding, views, extensions.

    Tensors of fixed shape are not changed.
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if kinds.is_nested(kind):
        return encodings.with_children(kind, plain)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def dictionary_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of the columns that are dictionaries or contain dictionaries.

    The index type of a dictionary column has at least 32 bits.
    """
    return {
        field.name: encodings.wide_dictionary(field.type)
        if kinds.is_dictionary(field.type)
        else field.type
        for field in schema
        if contains_type(field.type, kinds.is_dictionary)
    }


def contains_type(kind: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    """Return whether `is_wanted` is true for a type, or for a type that is nested in it."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if kinds.is_nested(kind) and not is_wanted(kind):
        return any(contains_type(kind.field(i).type, is_wanted) for i in range(kind.num_fields))
    return is_wanted(kind)


def is_list_view(kind: pa.DataType) -> bool:
    """Return whether a type is a list view or a large list view."""
    return bool(kinds.is_list_view(kind) or kinds.is_large_list_view(kind))


def convert(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array to a type that `plain` or `common_type` returned.

    Raises pa.ArrowInvalid for a value that the type cannot represent.
    """
    if array.type == kind:
        return array
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    if kinds.is_dictionary(array.type):
        array = encodings.decoded_dictionary(array)
    elif kinds.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if array.type == kind:
        return array
    if contains_type(array.type, is_list_view):
        return _without_list_views(array, kind)
    try:
        if contains_type(array.type, kinds.is_dictionary):
            # A cast of a slice of lists also decodes the items of all earlier rows, and these items
            # may be far larger than the slice. The copy contains only the items of the slice.
            array = array.take(pa.array(np.arange(len(array))))
        return array.cast(kind)
    except pa.ArrowNotImplementedError:
        return pa.array(array.to_pylist(), kind)


def _without_list_views(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert list views to lists.

    In Arrow 26.0.1, `cast` returns wrong values for slices and for overlapping or unordered views.
    """
    if not is_list_view(array.type) or kinds.is_nested(array.type.value_type):
        return pa.array(array.to_pylist(), kind)
    sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    mask = array.is_null() if array.null_count else None
    values = array.flatten()
    return pa.LargeListArray.from_arrays(pa.array(ends), values, mask=mask).cast(kind)


def common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the common type of two types; None if there is none.

    The docstring of this module lists the common types.
    """
    if first == second or kinds.is_null(second):
        return first
    if kinds.is_null(first):
        return second
    if kinds.is_integer(first) and kinds.is_integer(second):
        return _integer(first, second)
    if kinds.is_floating(first) and kinds.is_floating(second):
        return max(first, second, key=lambda kind: kind.bit_width)
    if (kinds.is_integer(first) and kinds.is_floating(second)) or (
        kinds.is_floating(first) and kinds.is_integer(second)
    ):
        return pa.float64()
    for small, large in _PROMOTIONS:
        if {first, second} == {small, large}:
            return large
    if kinds.is_fixed_size_binary(first) and kinds.is_fixed_size_binary(second):
        return pa.binary()
    if kinds.is_decimal(first) and kinds.is_decimal(second):
        scale = max(first.scale, second.scale)
        digits = max(first.precision - first.scale, second.precision - second.scale) + scale
        return pa.decimal128(digits, scale) if digits <= 38 else None
    if kinds.is_timestamp(first) and kinds.is_timestamp(second):
        unit = max(first.unit, second.unit, key=_UNITS.index)
        return pa.timestamp(unit, first.tz) if first.tz == second.tz else None
    return _nested(first, second)


def _integer(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    signs = kinds.is_signed_integer(first), kinds.is_signed_integer(second)
    bits = max(first.bit_width, second.bit_width)
    if signs[0] == signs[1]:
        return (_SIGNED if signs[0] else _UNSIGNED)[bits]
    signed, unsigned = (first, second) if signs[0] else (second, first)
    return _SIGNED.get(max(signed.bit_width, 2 * unsigned.bit_width))


def _nested(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if kinds.is_map(first) and kinds.is_map(second):
        key = common_type(first.key_type, second.key_type)
        item = common_type(first.item_type, second.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if kinds.is_struct(first) and kinds.is_struct(second):
        names = [child.name for child in first]
        if names != [child.name for child in second]:
            return None
        types = [common_type(a.type, b.type) for a, b in zip(first, second, strict=True)]
        return None if None in types else pa.struct(list(zip(names, types, strict=True)))
    if _is_list(first) and _is_list(second):
        value = common_type(first.value_type, second.value_type)
        if value is None:
            return None
        is_large = kinds.is_large_list(first) or kinds.is_large_list(second)
        return pa.large_list(value) if is_large else pa.list_(value)
    return None


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))
