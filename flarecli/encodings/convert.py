"""Convert columns to an encoding: from another encoding, or from any Arrow type.

Stored bytes that are valid in both encodings are copied unchanged. Arrow's kernels convert numbers
and text. A number that is out of range cannot be converted. Documents, arrays and images are
decoded and encoded one by one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.bisect import failing_values
from flarecli.encodings import images, msgpack, number_text
from flarecli.encodings.columns import (
    check_text,
    decoded_dictionary,
    each_item,
    encoding_of,
    is_binary,
    is_list,
    is_number,
    is_text,
    is_utf8,
    large_list,
    raw_values,
    typed,
    value_type,
)
from flarecli.encodings.names import BINARY, TEXT, Encoding, lookup
from flarecli.encodings.values import as_json, decode, encode
from flarecli.errors import FlareError, UnsafeError, ValueFitError
from flarecli.units import format_size

__all__ = ["coerce", "natural", "plain", "source_of"]

Failures: TypeAlias = list[tuple[int, str]]  # (row, reason) of each value that cannot be converted
# The converted column, which has nulls in the failed rows, and the numbers of the failed rows.
Converted: TypeAlias = tuple[pa.Array, list[int]]
_RANGES = {
    f"{sign}int{bits}": f"{-(1 << bits - 1) if not sign else 0} to {(1 << bits - (not sign)) - 1}"
    for bits in (8, 16, 32, 64)
    for sign in ("", "u")
}
_RANGES["int"] = _RANGES["varint"] = _RANGES["int64"]
_RANGES["json_str"] = f"at most {format_size(number_text.MAX_JSON_TEXT_BYTES)} of JSON text"
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_SAME = (  # sets of encodings with the same stored bytes
    {"int", "int64"},
    {"jpeg_array", "jpegarray"},
    {"ndarray", "ndarray:"},
)
_SUPERSETS = {  # encoding -> other encodings that accept its stored bytes
    **dict.fromkeys(("json", "str_float", "str_decimal"), ("str",)),
    "str_int": ("str", "str_decimal"),
    "tree": ("msgpack",),
}
_NULLS = {"json": "null", "json_json": '"null"', "msgpack": b"\xc0", "tree": b"\xc0"}

_NATURAL = {
    "varint": "int",
    "msgpack_float": "float64",
    "str_int": "int",
    "json_int": "int",
    "str_float": "float64",
    "json_float": "float64",
    "json_str": "str",
    "json_json": "json",
}

_VALUE_ERRORS = (FlareError, ValueError, TypeError, OverflowError, RecursionError)
_KERNEL_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    UnicodeEncodeError,
    ValueError,
    OverflowError,
    RecursionError,
)
# A nested value that contains more values than this is not converted to Python objects.
MAX_VALUES = 1 << 22
_ARRAYS = ("ndarray", "array", "tree")
_DOCUMENTS = ("msgpack", "array", "tree")
_PER_DAY = {"day": 1, "s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
# days from 1970-01-01 to the end of local mean time in Liberia, the last country that used it
_LAST_MEAN_TIME = 737
# days since 1970: the first day of year 1, and the last day of year 9999
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FLOAT = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)$"
_AS_TEXT = (date, datetime, time, timedelta, Decimal, UUID)


def source_of(field: pa.Field) -> Encoding | None:
    """Return the encoding in the metadata of a field; None if there is none.

    An encoding that does not match the type of the field is ignored: many tools change the values
    of a column, but preserve the metadata.
    """
    name = encoding_of(field)
    if not name:
        return None
    encoding = lookup(name)
    kind = value_type(field.type)
    if encoding.item is not None:
        fits = is_list(kind)
    elif encoding.arrow in (TEXT, BINARY):
        fits = is_text(kind) or is_binary(kind)
    else:
        fits = kind.equals(encoding.arrow)
    return encoding if fits else None


def coerce(
    array: pa.Array, encoding: Encoding, source: Encoding | None = None
) -> tuple[pa.Array, Failures]:
    """Convert an Arrow column to the type of an encoding.

    source  encoding of the column; None to convert by the Arrow type: text may contain numbers or
            JSON, and bytes may contain any value
    return  the typed column, with nulls in the failed rows; and the (row, reason) of each failed
            row, in row order. A null is also a failure if the encoding cannot store nulls
    """
    if (
        pa.types.is_primitive(array.type)
        and array.type.equals(encoding.arrow)
        and source is None
        and array.null_count == 0
    ):
        return array, []  # already converted
    array = _without_storage_variants(array, encoding)
    is_null = array.is_null() if array.null_count else None
    failures: Failures = []
    if source is not None and source.item is None and not array.type.equals(source.arrow):
        array, failures = _with_reasons(array, source, _keep_bytes(array, source))
    if source is not None and source.name == "bytes":
        source = None
    out, more = _recode(array, encoding, source)
    failures = [*failures, *more]
    if is_null is not None and encoding.name in _NULLS:
        out = pc.if_else(is_null, pa.scalar(_NULLS[encoding.name], encoding.arrow), out)
    elif is_null is not None:
        failures += [(row, "is null") for row in pc.indices_nonzero(is_null).to_pylist()]
    return out, sorted(failures)


def _without_storage_variants(array: pa.Array, encoding: Encoding) -> pa.Array:
    """Convert an extension, run-end encoded, dictionary or view column to its plain type.

    A tensor column is returned unchanged if its values must be converted one by one.
    """
    is_tensor = (
        isinstance(array, pa.FixedShapeTensorArray)
        and encoding.item is None
        and not _has_kernel(array.type, encoding)
    )
    if isinstance(array, pa.ExtensionArray) and not is_tensor:
        array = array.storage
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        array = decoded_dictionary(array)
    if pa.types.is_string_view(array.type):  # Arrow's `if_else` does not support views
        return array.cast(TEXT)
    return array.cast(BINARY) if pa.types.is_binary_view(array.type) else array


def _recode(
    array: pa.Array, encoding: Encoding, source: Encoding | None
) -> tuple[pa.Array, Failures]:
    """Convert a column for `coerce`. The failures are unsorted and do not include nulls."""
    if array.null_count == len(array):
        return pa.nulls(len(array), encoding.arrow), []
    if source is not None and _keeps_bytes(source, encoding):
        return _with_reasons(array, encoding, _keep_bytes(array, encoding))
    if encoding.item is not None and is_list(array.type):
        return _items(array, encoding, encoding.item, None if source is None else source.item)
    if source is None:
        if _has_kernel(array.type, encoding):
            return _with_reasons(array, encoding, _convert_column(array, encoding, ""))
        return _convert_each(array, encoding, None)
    converted = _recode_number_text(array, source.name, encoding.name)
    if converted is not None:
        return _with_reasons(array, encoding, converted)
    if source.name == "msgpack" and encoding.arrow in _FLOATS:
        numbers = msgpack.parse_double_column(array)
        if numbers is not None:
            return _with_reasons(array, encoding, _convert_column(numbers, encoding, ""))
    if source.arrow.equals(BINARY) or source.item is not None:
        return _convert_each(array, encoding, source)
    values, kind, invalid = natural(array, source)
    texts = ("json", "json_json", "str", "json_str")
    if (kind.name == "json" and encoding.name not in texts) or not _has_kernel(
        values.type, encoding
    ):
        out, failures = _convert_each(values, encoding, kind)
        return out, [*failures, *((row, f"is not {source.name}") for row in invalid)]
    out, failed = _convert_column(values, encoding, "json" if kind.name == "json" else "text")
    return _with_reasons(array, encoding, (out, [*failed, *invalid]))


def _keeps_bytes(source: Encoding, encoding: Encoding) -> bool:
    """Return whether the stored bytes of `source` are valid for `encoding`."""
    one, other = source.name, encoding.name
    if one == other or other in _SUPERSETS.get(one, ()):
        return True
    if any(one in names and other in names for names in _SAME):
        return True
    return other == "bytes" and source.arrow in (TEXT, BINARY) and not one.startswith("json_")


def _with_reasons(
    array: pa.Array, encoding: Encoding, converted: Converted
) -> tuple[pa.Array, Failures]:
    """Return a converted column, and the (row, reason) of each failed row.

    array  the column before the conversion
    """
    out, failed = converted
    return out, [(row, _reason(array, row, encoding)) for row in failed]


def _reason(array: pa.Array, row: int, encoding: Encoding) -> str:
    if is_text(array.type) or is_binary(array.type):
        data = next(raw_values(array.slice(row, 1))) or b""
        if encoding.is_text and not is_utf8(data):
            return "is not UTF-8"
        shown = repr(bytes(data[:200]).decode("utf-8", "backslashreplace"))
    else:
        try:
            shown = str(array[row].as_py())
        except (ValueError, OverflowError):  # for example, a date that Python cannot represent
            shown = "the value"
    values = f" ({_RANGES[encoding.name]})" if encoding.name in _RANGES else ""
    return f"{_shorten(shown)} cannot be stored as {encoding.name}{values}"


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"


def _items(
    array: pa.Array, encoding: Encoding, item: Encoding, source: Encoding | None
) -> tuple[pa.Array, Failures]:
    """Convert all items of a list column at once; a row with an invalid item becomes null."""
    array = large_list(array)
    offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    offsets = offsets - offsets[0]
    items, item_failures = coerce(values, item, source)
    failures: dict[int, str] = {}
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    rows = np.searchsorted(offsets, [number for number, _ in item_failures], "right") - 1
    for row, (_, reason) in zip(rows.tolist(), item_failures, strict=True):
        if not is_null[row]:  # the items of a null list are not values of the column
            failures.setdefault(row, "contains a null" if reason == "is null" else reason)
    is_null[list(failures)] = True
    mask = pa.array(is_null) if is_null.any() else None
    out = pa.LargeListArray.from_arrays(pa.array(offsets), items, mask=mask)
    return out.cast(encoding.arrow), sorted(failures.items())


def plain(
    array: pa.Array, encoding: Encoding, kind: pa.DataType | None = None
) -> tuple[pa.Array, Encoding]:
    """Return a typed column in its natural Arrow type, and the encoding of that type.

    Integers stored as text become int64, floats stored as text become float64, and JSON strings
    become text. Other columns are returned unchanged. Nulls remain null.

    array   column in the Arrow type of the encoding
    kind    type of the column in the packed table; with uint64, integers stored as text become
            uint64
    raises  ValueFitError with the row of the first number that is invalid or exceeds 64 bits
    """
    out, target, invalid = natural(array, encoding, kind)
    if invalid:
        message = f"a value of {encoding.name} is not a valid {target.name}, or is too large"
        raise ValueFitError(message, row=invalid[0])
    return out, target


def natural(
    array: pa.Array, encoding: Encoding, kind: pa.DataType | None = None
) -> tuple[pa.Array, Encoding, list[int]]:
    """Return the results of `plain`, with nulls in place of invalid values, and the invalid rows.

    raises  ValueFitError for an invalid value in a column with a list encoding
    """
    stored = encoding if encoding.item is None else encoding.item
    name = _NATURAL.get(stored.name)
    if name is None:
        return array, encoding, []
    if encoding.item is not None:
        return each_item(array, lambda values: plain(values, stored)[0]), lookup(f"{name}[]"), []
    if not encoding.is_text:
        return array, lookup(name), []
    # For example, a string view is cast, because Arrow's kernels do not support string views.
    if not array.type.equals(encoding.arrow):
        array = array.cast(encoding.arrow)
    if name == "int":
        parse_int = _parse_json_int if encoding.name == "json_int" else int
        if kind is not None and value_type(kind).equals(pa.uint64()):
            out, invalid = number_text.ints(array, parse_int, pa.uint64())
            return out, lookup("uint64"), invalid
        out, invalid = number_text.ints(array, parse_int)
    elif name == "float64":
        parse_float = _parse_json_float if encoding.name == "json_float" else float
        out, invalid = number_text.floats(array, parse_float)
    else:
        out, invalid = number_text.parse_json_text(array)
    return out, lookup(name), invalid


def _parse_json_int(text: str) -> int:
    value = json.loads(text)
    if not isinstance(value, int):
        raise ValueError
    return int(value)


def _parse_json_float(text: str) -> float:
    value = json.loads(text)
    if not isinstance(value, (float, int)):
        raise ValueError
    return float(value)


# -- whole columns


def _has_kernel(kind: pa.DataType, encoding: Encoding) -> bool:
    """Return whether `_convert_column` can convert an Arrow type to an encoding."""
    name = encoding.name.partition(":")[0]
    if encoding.item is not None:
        return False
    if name in (*_DOCUMENTS, "ndarray"):
        return is_binary(kind) or (name == "msgpack" and bool(pa.types.is_floating(kind)))
    if name in ("json", "json_json"):
        return is_text(kind) or is_binary(kind) or is_number(kind)
    return True


def _keep_bytes(array: pa.Array, encoding: Encoding) -> Converted:
    """Cast a column of stored bytes to the Arrow type of an encoding, and check the value sizes.

    The bytes do not change.
    """
    if array.type.equals(TEXT) and encoding.arrow.equals(BINARY):
        return array.view(BINARY), []
    return _convert_or_bisect(
        array, encoding.arrow, lambda some: _check_size(some.cast(encoding.arrow), encoding)
    )


def _convert_column(array: pa.Array, encoding: Encoding, content: str) -> Converted:
    """Convert a column for which `_has_kernel` is true.

    content  content of a text column: "text" or "json"; "" if it is unknown
    """
    if encoding.is_text:
        return _TEXT_WRITERS[encoding.name](array, content)
    if encoding.arrow.equals(BINARY):
        if encoding.name == "msgpack" and pa.types.is_floating(array.type):
            return msgpack.float_bytes(array.cast(pa.float64())), []
        return _convert_or_bisect(
            array, BINARY, lambda some: _check_size(_to_binary(some), encoding)
        )
    return _numbers(array, encoding.arrow)


def _convert_or_bisect(
    array: pa.Array, target: pa.DataType, convert_part: Callable[[pa.Array], pa.Array]
) -> Converted:
    """Convert a column. If `convert_part` fails, find the invalid values by bisection."""
    try:
        return convert_part(array), []
    except _KERNEL_ERRORS:
        rows = [row for row, _ in failing_values(array, convert_part, _KERNEL_ERRORS)]
        failed = [row for row in rows if array[row].is_valid]
    if len(failed) + array.null_count == len(array):
        # `convert_part` may fail even for nulls, because Arrow may not support the conversion.
        return pa.nulls(len(array), target), failed
    mask = np.zeros(len(array), bool)
    mask[failed] = True
    kept = pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
    return convert_part(kept), failed


# -- bytes


def _to_binary(array: pa.Array) -> pa.Array:
    if is_text(array.type):
        return array.cast(TEXT).view(BINARY)
    if not is_binary(array.type):
        raise pa.ArrowInvalid(f"{array.type} is not bytes")
    return array.cast(BINARY)


def _check_size(array: pa.Array, encoding: Encoding) -> pa.Array:
    if encoding.size is not None and array.type.equals(BINARY):
        lengths = pc.binary_length(array)
        if not pc.all(pc.equal(lengths, encoding.size), min_count=0).as_py():
            raise pa.ArrowInvalid(f"not {encoding.size} bytes")
    return array


# -- numbers


def _numbers(array: pa.Array, target: pa.DataType) -> Converted:
    kind = array.type
    if is_text(kind):
        text = array.cast(TEXT)
        if pa.types.is_floating(target):
            values, failed = number_text.floats(text)
            out, more = _numbers(values, target)
            return out, sorted([*failed, *more])
        return number_text.ints(text, kind=target)
    return _convert_or_bisect(array, target, lambda some: _cast(some, target))


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    kind = array.type
    if is_binary(kind) or pa.types.is_nested(kind):
        raise pa.ArrowInvalid(f"{kind} is not a number")
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    if pa.types.is_floating(target) and (
        pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)
    ):
        array = array.cast(pa.float64(), safe=False)  # large integers lose digits, as in float()
    out = array.cast(target)
    if (
        pa.types.is_floating(target)
        and pa.types.is_floating(array.type)
        and target.bit_width < array.type.bit_width
    ):
        large = pc.and_(pc.is_inf(out.cast(pa.float32())), pc.invert(pc.is_inf(array)))
        if pc.any(large, min_count=0).as_py():
            raise pa.ArrowInvalid("a number became infinite")
    return out


# -- text


def _str(array: pa.Array, kind: str = "") -> Converted:
    return _convert_or_bisect(array, TEXT, _to_text)


def _to_text(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_floating(kind):
        return number_text.float_text(array.cast(pa.float64()))
    if pa.types.is_nested(kind):
        raise pa.ArrowInvalid(f"{kind} is not text")
    text = array.cast(TEXT)  # raises ArrowInvalid for bytes that are not UTF-8
    if is_text(kind):
        check_text(text)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        _check_years(array)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _exact_offsets(array, text)
    return text


def _exact_offsets(array: pa.Array, text: pa.Array) -> pa.Array:
    """Replace the text of a timestamp with its text in UTC if the offset in the text is not exact.

    Arrow writes offsets in whole minutes, but until 1972 some countries used local mean time, whose
    offsets have seconds.

    array  timestamps
    text   the timestamps as text, from Arrow
    """
    first = pc.min(array)
    if (
        not first.is_valid
        or first.cast(pa.int64()).as_py() >= _LAST_MEAN_TIME * (_PER_DAY[array.type.unit])
    ):
        return text
    read = text.cast(pa.timestamp("ns" if array.type.unit == "ns" else "us", array.type.tz))
    is_exact = pc.equal(read.cast(array.type), array)
    return pc.if_else(is_exact, text, array.cast(pa.timestamp(array.type.unit, "UTC")).cast(TEXT))


def _check_years(array: pa.Array) -> None:
    """Raise ArrowInvalid for a date outside the years 1 to 9999, whose text Arrow cannot parse."""
    kind = array.type
    unit = "day" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    ends = pc.min_max(array.cast(pa.int32() if unit == "day" else pa.int64())).as_py()
    if ends["min"] is not None and not (
        ends["min"] // _PER_DAY[unit] >= _FIRST_DAY and ends["max"] // _PER_DAY[unit] <= _LAST_DAY
    ):
        raise pa.ArrowInvalid("a year outside 1 to 9999")


def _then(first: Converted, step: Callable[[pa.Array], Converted]) -> Converted:
    out, failed = first
    out, more = step(out)
    return out, sorted([*failed, *more])


def _checked(array: pa.Array, pattern: str, parse: Callable[[str], Any]) -> Converted:
    """Replace invalid text with null. Valid text matches the pattern, or `parse` accepts it."""

    def same(value: str) -> str:
        parse(value)
        return value

    return number_text.patched(
        array, pc.match_substring_regex(array, pattern), lambda some: some, same
    )


def _decimal(value: str) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ValueError(value) from None


def _str_int(array: pa.Array, content: str) -> Converted:
    if pa.types.is_floating(array.type) or pa.types.is_boolean(array.type):
        return _then(_numbers(array, pa.int64()), _str)
    return _then(_str(array), lambda text: _checked(text, number_text.JSON_INT, int))


def _str_float(array: pa.Array, content: str) -> Converted:
    if is_number(array.type):
        numbers = array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array
        return _then(_numbers(numbers, pa.float64()), _str)
    return _then(_str(array), lambda text: _checked(text, number_text.JSON_FLOAT, float))


def _str_decimal(array: pa.Array, content: str) -> Converted:
    return _then(_str(array), lambda text: _checked(text, number_text.JSON_FLOAT, _decimal))


def _json(array: pa.Array, content: str) -> Converted:
    if pa.types.is_floating(array.type):
        return _then(_str(array), _json_floats)
    if is_number(array.type):
        return _str(array)
    if content == "json":
        return array, []
    if content == "text":
        return number_text.escape_json(array)
    return _then(_str(array), lambda text: _checked(text, number_text.JSON_FLOAT, json.loads))


def _json_floats(text: pa.Array) -> Converted:
    """Replace `nan` and `inf` in number text with `NaN` and `Infinity`, as in Python's JSON."""
    return pc.replace_substring(pc.replace_substring(text, "nan", "NaN"), "inf", "Infinity"), []


def _json_str(array: pa.Array, content: str) -> Converted:
    return _then(_str(array), number_text.escape_json)


def _json_json(array: pa.Array, content: str) -> Converted:
    return _then(_json(array, content), number_text.escape_json)


def _json_int(array: pa.Array, content: str) -> Converted:
    return _then(
        _str_int(array, content),
        lambda text: _recode_number_text(text, "str_int", "json_int") or (text, []),
    )


def _json_float(array: pa.Array, content: str) -> Converted:
    return _then(
        _str_float(array, content),
        lambda text: _recode_number_text(text, "str_float", "json_float") or (text, []),
    )


_TEXT_WRITERS: dict[str, Callable[[pa.Array, str], Converted]] = {
    "str": _str,
    "json": _json,
    "str_int": _str_int,
    "str_float": _str_float,
    "str_decimal": _str_decimal,
    "json_str": _json_str,
    "json_json": _json_json,
    "json_int": _json_int,
    "json_float": _json_float,
}
# (source, target) -> pattern of text that is valid in both, function to rewrite all other text
_NUMBER_TEXTS: dict[tuple[str, str], tuple[str, Callable[[str], str]]] = {
    ("str_int", "json_int"): (number_text.JSON_INT, lambda text: str(int(text))),
    ("json_int", "str_int"): (number_text.JSON_INT, lambda text: str(_parse_json_int(text))),
    ("str_float", "json_float"): (_FLOAT, lambda text: json.dumps(float(text))),
    ("json_float", "str_float"): (_FLOAT, lambda text: repr(_parse_json_float(text))),
}


def _recode_number_text(array: pa.Array, source: str, target: str) -> Converted | None:
    """Convert numbers stored as text to another text encoding, or to uint64.

    The result is None for a pair of encodings that this function does not support.
    """
    if source in ("str_int", "json_int") and target == "uint64":  # values may exceed int64
        parse = _parse_json_int if source == "json_int" else int
        return number_text.ints(array, parse, pa.uint64())
    if (source, target) not in _NUMBER_TEXTS:
        return None
    pattern, rewrite = _NUMBER_TEXTS[source, target]
    return number_text.patched(
        array, pc.match_substring_regex(array, pattern), lambda some: some, rewrite
    )


# -- conversion value by value


def _convert_each(
    array: pa.Array, encoding: Encoding, source: Encoding | None
) -> tuple[pa.Array, Failures]:
    """Convert the values of a column one by one; return the column and its failures.

    source  encoding of the column; None to convert by the Arrow type
    """
    read, write = _reader(source, encoding), _writer(encoding)
    out: list[Any] = []
    failures: Failures = []
    for row, value in enumerate(_values(array, encoding)):
        out.append(None)
        if value is None:
            continue
        if isinstance(value, _TooMany):
            failures.append((row, value.reason))
            continue
        try:
            sample = read(value)
        except UnsafeError:
            failures.append((row, "is a pickle; pickles are not decoded"))
            continue
        except _VALUE_ERRORS:
            failures.append((row, f"is not {'' if source is None else source.name}"))
            continue
        try:
            out[-1] = write(sample)
            if encoding.item is not None or (
                isinstance(sample, bytes) and not encoding.arrow.equals(BINARY)
            ):
                # `write` does not check bytes; `typed` raises an error for invalid text or numbers
                typed(pa.array(out[-1:], encoding.raw), encoding)
        except _VALUE_ERRORS:
            out[-1] = None
            failures.append((row, f"{_shown(sample)}cannot be stored as {encoding.name}"))
    return typed(pa.array(out, encoding.raw), encoding), failures


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > MAX_VALUES:
        return f"array of {value.size} values "
    if not isinstance(value, (str, int, float, list, dict, type(None))):
        return ""
    return f"{_shorten(str(value))} "


def _values(array: pa.Array, encoding: Encoding) -> Iterator[Any]:
    """Yield the value of each row as a Python object.

    A tensor becomes a numpy array. A list of numbers becomes a numpy array if the encoding stores
    arrays of the same dtype.
    """
    if isinstance(array, pa.FixedShapeTensorArray):
        tensors = iter(array.drop_null().to_numpy_ndarray())
        return (next(tensors) if valid else None for valid in array.is_valid().to_pylist())
    if (
        encoding.name.partition(":")[0] in _ARRAYS
        and is_list(array.type)
        and is_number(array.type.value_type)
        and not pa.types.is_boolean(array.type.value_type)
        and encoding.dtype in ("", np.dtype(array.type.value_type.to_pandas_dtype()).name)
    ):
        return _number_arrays(large_list(array))
    return _objects(array)


def _objects(array: pa.Array) -> Iterator[Any]:
    """Yield each value as a Python object, or _TooMany if it contains too many values."""
    if not pa.types.is_nested(array.type) or _count_values(array) <= MAX_VALUES:
        yield from array.to_pylist()
        return
    for row in range(len(array)):
        part = array.slice(row, 1)
        count = _count_values(part)
        yield _TooMany(count) if count > MAX_VALUES else part[0].as_py()


class _TooMany:
    """Placeholder for a nested value that is too large to convert to Python objects."""

    def __init__(self, count: int) -> None:
        self.reason = f"has {count} values; the maximum is {MAX_VALUES}"


def _count_values(array: pa.Array) -> int:
    """Return the number of values in a nested column, at all levels."""
    kind = array.type
    if pa.types.is_struct(kind):
        return sum(_count_values(child) for child in array.flatten())
    if pa.types.is_map(kind):
        start, stop = (array.offsets[at].as_py() for at in (0, len(array)))
        children = (array.keys, array.items)
        return sum(_count_values(child.slice(start, stop - start)) for child in children)
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return len(array) + _count_values(array.flatten())
    return len(array)


def _number_arrays(lists: pa.LargeListArray) -> Iterator[Any]:
    """Yield each list as a numpy array, or as a Python list if it contains nulls.

    A null list becomes None. Nulls are counted per list, so that the class of a value does not
    depend on the other rows in the batch.
    """
    numbers = lists.values.fill_null(0).to_numpy()
    null_counts = np.append(0, np.cumsum(lists.values.is_null().to_numpy(zero_copy_only=False)))
    valid = lists.is_valid().to_pylist()
    for row, (start, stop) in enumerate(itertools.pairwise(lists.offsets.to_pylist())):
        if not valid[row]:
            yield None
        elif null_counts[stop] > null_counts[start]:
            yield lists[row].as_py()
        else:
            yield numbers[start:stop]


def _reader(source: Encoding | None, encoding: Encoding) -> Callable[[Any], Any]:
    """Return a function that decodes a value from `source` to a value that `encoding` accepts."""
    if source is None:
        return _same
    name = source.name
    inner, target = _image_encoding(source), _image_encoding(encoding)
    if inner and inner == target:
        return _same if source.item is not None else lambda data: images.split(name, data)
    if source.item is not None:
        read = _reader(source.item, encoding)
        return lambda values: [read(value) for value in values]
    if not (source.is_text or source.arrow.equals(BINARY)) or name in (
        "bytes",
        "str",
        "str_decimal",
    ):
        return _same
    if (
        encoding.name in ("msgpack", "tree")
        and source.arrow.equals(BINARY)
        and not name.startswith(("ndarray", *_DOCUMENTS))
    ):
        return _same  # MessagePack stores the bytes of a file, such as an image, without decoding
    if source.is_text:
        return lambda text: decode(source, text.encode())
    return lambda data: decode(source, data)


def _same(value: Any) -> Any:
    return value


def _image_encoding(encoding: Encoding) -> str:
    """Return the encoding of the images if `encoding` stores a list of images; otherwise ""."""
    if encoding.item is not None:
        return encoding.item.name if encoding.item.name in ("jpeg", "png", "pil") else ""
    if encoding.name in ("jpeg_array", "jpegarray"):
        return "jpeg"
    return encoding.name[5:-1] if encoding.name.startswith("list[") else ""


def _writer(encoding: Encoding) -> Callable[[Any], Any]:
    """Return a function that encodes a Python value as stored bytes."""
    if encoding.name == "json":
        return lambda value: as_json(value, _json_default).encode()
    if encoding.name == "json_json":
        return lambda value: json.dumps(as_json(value, _json_default)).encode()
    return lambda value: encode(encoding, value)


def _json_default(value: Any) -> Any:
    """Convert a date, time, decimal, UUID or array for JSON. Raise TypeError for other values."""
    if isinstance(value, datetime) and (offset := value.utcoffset()) and offset.seconds % 60:
        value = value.astimezone(UTC)  # Arrow cannot parse an offset with seconds
    if isinstance(value, _AS_TEXT):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
