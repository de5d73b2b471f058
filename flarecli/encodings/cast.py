"""Cast whole columns to an encoding with Arrow's kernels: numbers, text and bytes.

Each function returns the column, with null for each value that does not fit, and the rows of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.bisect import failing_rows
from flarecli.encodings import msgpack, number_text
from flarecli.encodings.columns import check_text
from flarecli.encodings.names import BINARY, TEXT, Encoding

__all__ = [
    "keep_bytes",
    "convert",
    "is_binary",
    "is_list",
    "is_text",
    "is_whole",
    "large_list",
    "recode_number_text",
]

Converted: TypeAlias = "tuple[pa.Array, list[int]]"
_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    UnicodeEncodeError,
    ValueError,
    OverflowError,
    RecursionError,
)
_DOCUMENTS = ("msgpack", "tree", "array", "ndarray")


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of the type are text."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values of the type are bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of the type are lists of one type."""
    views = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or views
    )


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of the type are integers, floats or booleans."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def large_list(array: pa.Array) -> pa.Array:
    """Return a list column of any kind as large_list."""
    kind = array.type
    target = pa.large_list(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return array.cast(target)
    # items of views may have any order, and null rows of a fixed size have items
    return pa.array(array.to_pylist(), target)


def is_whole(kind: pa.DataType, encoding: Encoding) -> bool:
    """Return whether this module converts a column of a type to an encoding as a whole.

    Other columns are convert value by value.
    """
    name = encoding.name.partition(":")[0]
    if encoding.item is not None:
        return False
    if name in _DOCUMENTS:
        return is_binary(kind) or (name == "msgpack" and bool(pa.types.is_floating(kind)))
    if name in ("json", "json_json"):
        return is_text(kind) or is_binary(kind) or is_number(kind)
    return True


def keep_bytes(array: pa.Array, encoding: Encoding) -> Converted:
    """Return stored bytes unchanged, cast from another type or checked for their size."""
    if array.type.equals(encoding.arrow):
        return _convert_or_bisect(array, encoding.arrow, lambda some: _check_size(some, encoding))
    if array.type.equals(TEXT) and encoding.arrow.equals(BINARY):
        return array.view(BINARY), []
    return _convert_or_bisect(
        array, encoding.arrow, lambda some: _check_size(some.cast(encoding.arrow), encoding)
    )


def convert(array: pa.Array, encoding: Encoding, kind: str) -> Converted:
    """Convert a column for which `is_whole` is true.

    kind  content of a text column: "text" or "json"; "" if unknown, then as the encoding needs
    """
    if encoding.is_text:
        return _WRITERS[encoding.name](array, kind)
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
    """Convert a column; if that fails, find the invalid values by bisection."""
    try:
        return convert_part(array), []
    except _ERRORS:
        failed = _failing(array, convert_part)
    if len(failed) + array.null_count == len(array):
        return pa.nulls(len(array), target), failed  # the type may have no conversion at all
    mask = np.zeros(len(array), bool)
    mask[failed] = True
    kept = pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
    return convert_part(kept), failed


def _failing(array: pa.Array, convert_part: Callable[[pa.Array], pa.Array]) -> list[int]:
    """Return the rows that cannot be converted, without nulls."""

    def error_of(start: int, stop: int) -> Exception | None:
        try:
            convert_part(array[start:stop])
        except _ERRORS as error:
            return error
        return None

    rows = (row for row, _ in failing_rows(0, len(array), error_of))
    return [row for row in rows if array[row].is_valid]


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
        array = array.cast(pa.float64(), safe=False)  # may lose digits, as float() does
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
    is_short = pa.types.is_string(kind) and not array.null_count
    text = _widen(array) if is_short else array.cast(TEXT)  # casting bytes checks UTF-8
    if is_text(kind):
        check_text(text)
    return text


def _widen(text: pa.StringArray) -> pa.LargeStringArray:
    """Cast text without nulls to large_string; faster than Arrow because only offsets are
    converted.
    """
    _, offsets, data = text.buffers()
    wide = np.frombuffer(offsets or bytes(4), np.int32, len(text) + 1, 4 * text.offset).astype(
        np.int64
    )
    return pa.LargeStringArray.from_buffers(
        len(text), pa.py_buffer(wide), data or pa.py_buffer(b"")
    )


def _then(first: Converted, step: Callable[[pa.Array], Converted]) -> Converted:
    out, failed = first
    out, more = step(out)
    return out, sorted([*failed, *more])


def _checked(array: pa.Array, pattern: str, parse: Callable[[str], Any]) -> Converted:
    """Keep text that matches a pattern or that `parse` accepts."""

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


def _str_int(array: pa.Array, kind: str) -> Converted:
    if pa.types.is_floating(array.type) or pa.types.is_boolean(array.type):
        return _then(_numbers(array, pa.int64()), _str)
    return _then(_str(array), lambda text: _checked(text, number_text.JSON_INT, int))


def _str_float(array: pa.Array, kind: str) -> Converted:
    if is_number(array.type):
        return _then(
            _numbers(
                array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array, pa.float64()
            ),
            _str,
        )
    return _then(_str(array), lambda text: _checked(text, number_text.JSON_FLOAT, float))


def _str_decimal(array: pa.Array, kind: str) -> Converted:
    return _then(_str(array), lambda text: _checked(text, number_text.JSON_FLOAT, _decimal))


def _json(array: pa.Array, kind: str) -> Converted:
    if is_number(array.type):
        return _then(
            _str(array),
            lambda text: (_json_floats(text) if pa.types.is_floating(array.type) else text, []),
        )
    if kind == "json":
        return array, []
    if kind == "text":
        return number_text.escape_json(array)
    return _then(_str(array), lambda text: _checked(text, number_text.JSON_FLOAT, json.loads))


def _json_floats(text: pa.Array) -> pa.Array:
    """Return the text of floats with JSON's NaN and Infinity."""
    return pc.replace_substring(pc.replace_substring(text, "nan", "NaN"), "inf", "Infinity")


def _json_str(array: pa.Array, kind: str) -> Converted:
    return _then(_str(array), number_text.escape_json)


def _json_json(array: pa.Array, kind: str) -> Converted:
    return _then(_json(array, kind), number_text.escape_json)


def _json_int(array: pa.Array, kind: str) -> Converted:
    return _then(
        _str_int(array, kind),
        lambda text: recode_number_text(text, "str_int", "json_int") or (text, []),
    )


def _json_float(array: pa.Array, kind: str) -> Converted:
    return _then(
        _str_float(array, kind),
        lambda text: recode_number_text(text, "str_float", "json_float") or (text, []),
    )


_WRITERS: dict[str, Callable[[pa.Array, str], Converted]] = {
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
_FLOAT = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)$"


def recode_number_text(array: pa.Array, source: str, target: str) -> Converted | None:
    """Convert text of numbers to another text encoding, or to uint64; None for other pairs of
    encodings.

    Text that both encodings write alike is kept.
    """
    if source in ("str_int", "json_int") and target == "uint64":  # may exceed int64
        return number_text.ints(
            array, _json_number(int) if source == "json_int" else int, pa.uint64()
        )
    if (source, target) in (("str_int", "json_int"), ("json_int", "str_int")):
        parse = _json_number(int) if source == "json_int" else int
        return number_text.patched(
            array,
            pc.match_substring_regex(array, number_text.JSON_INT),
            lambda some: some,
            lambda value: str(parse(value)),
        )
    if (source, target) == ("str_float", "json_float"):
        return number_text.patched(
            array,
            pc.match_substring_regex(array, _FLOAT),
            lambda some: some,
            lambda value: json.dumps(float(value)),
        )
    if (source, target) == ("json_float", "str_float"):
        number = _json_number(float)
        return number_text.patched(
            array,
            pc.match_substring_regex(array, _FLOAT),
            lambda some: some,
            lambda value: repr(number(value)),
        )
    return None


def _json_number(kind: Callable[[Any], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = json.loads(text)
        if not isinstance(value, (int, float)) or (kind is int and isinstance(value, float)):
            raise ValueError(text)
        return kind(value)

    return parse
