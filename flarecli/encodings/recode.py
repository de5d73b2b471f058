"""Columns of one encoding, or of whatever an index holds, brought to another."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flarecli.encodings.columns import is_utf8 as _is_utf8
from flarecli.encodings.names import BINARY, TEXT, Encoding

__all__ = ["coerce"]

_RANGES = {
    f"{sign}int{bits}": f"{-(1 << bits - 1) if not sign else 0} to {(1 << bits - (not sign)) - 1}" for bits in (8, 16, 32, 64) for sign in ("", "u")
}


def coerce(array: pa.Array, encoding: Encoding, source: Encoding | None = None) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Bring any Arrow column to the encoding's type, and say which values it cannot hold.

    return  the typed column, null where a value failed; (row in the column, reason) of each failure, in order
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    failures = [(int(i), "is null") for i in pc.indices_nonzero(array.is_null())] if array.null_count else []
    try:
        return _converted(array, encoding), failures
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError, ValueError, OverflowError, RecursionError):
        pass
    bad = _failing(array, encoding, 0)
    mask = pa.array([False] * len(array))
    if bad:
        rows = {row for row, _ in bad}
        mask = pa.array([i in rows for i in range(len(array))])
    kept = pc.if_else(mask, pa.scalar(None, array.type), array)
    return _converted(kept, encoding), sorted(failures + bad)


def _failing(array: pa.Array, encoding: Encoding, first: int) -> list[tuple[int, str]]:
    """Find the values that do not convert, by halving: a few bad rows cost a few passes."""
    try:
        _converted(array, encoding)
        return []
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError, ValueError, OverflowError, RecursionError) as error:
        if len(array) == 1:
            return [(first, _reason(array, encoding, error))]
    middle = len(array) // 2
    return _failing(array[:middle], encoding, first) + _failing(array[middle:], encoding, first + middle)


def _reason(array: pa.Array, encoding: Encoding, error: Exception) -> str:
    if _is_text(array.type) or _is_binary(array.type):
        data = array[0].as_buffer().to_pybytes()
        if encoding.is_text and not _is_utf8(data):
            return "is not UTF-8"
        shown = repr(data.decode("utf-8", "backslashreplace"))
    else:
        shown = str(array[0].as_py())
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    values = _RANGES.get("int64" if encoding.name == "int" else encoding.name, "")
    return f"{shown} does not fit {encoding.name}" + (f" ({values})" if values else "")


def _converted(array: pa.Array, encoding: Encoding) -> pa.Array:
    """Convert one column, all values or an error."""
    kind, wanted = array.type, encoding.arrow
    if array.null_count == len(array):
        return pa.nulls(len(array), wanted)
    if kind.equals(wanted) and not encoding.is_text:
        return _checked_size(array, encoding)
    if encoding.name == "json" and not _is_text(kind):
        return pa.array([None if v is None else json.dumps(v, default=_plain) for v in array.to_pylist()], TEXT)
    if encoding.is_text:
        return _to_text(array, encoding)
    if wanted.equals(BINARY):
        if _is_text(kind):
            array = array.cast(TEXT).view(BINARY)
        elif not _is_binary(kind):
            raise pa.ArrowInvalid(f"{kind} is not bytes")
        return _checked_size(array.cast(BINARY), encoding)
    if _is_binary(kind):
        raise pa.ArrowInvalid("bytes are not a number")
    if _is_text(kind):
        return pa.array([None if v is None else _number(v, wanted) for v in array.to_pylist()], wanted)
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    return array.cast(wanted)


def _number(text: str, wanted: pa.DataType) -> float:
    return float(text) if pa.types.is_floating(wanted) else int(text)


def _checked_size(array: pa.Array, encoding: Encoding) -> pa.Array:
    if (
        encoding.size is not None
        and encoding.arrow.equals(BINARY)
        and not pc.all(pc.equal(pc.binary_length(array), encoding.size), min_count=0).as_py()
    ):
        raise pa.ArrowInvalid(f"not {encoding.size} bytes")
    return array


def _to_text(array: pa.Array, encoding: Encoding) -> pa.Array:
    kind = array.type
    if pa.types.is_floating(kind):  # Arrow's own cast writes 1 for 1.0
        return pa.array([None if v is None else repr(float(v)) for v in array.to_pylist()], TEXT)
    if pa.types.is_nested(kind):
        raise pa.ArrowInvalid(f"{kind} is not text")
    text = array.cast(TEXT)  # from bytes: checks UTF-8
    if _is_text(kind):
        text.validate(full=True)  # files may claim text that is none
    if encoding.name != "str":
        for value in text.to_pylist():
            if value is not None:
                _PARSERS[encoding.name](value)
    return text


def _parse_json(text: str) -> None:
    json.loads(text)


def _parse_int(text: str) -> None:
    int(text)


def _parse_float(text: str) -> None:
    float(text)


def _parse_decimal(text: str) -> None:
    from decimal import Decimal, InvalidOperation

    try:
        Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a decimal") from None


_PARSERS = {"json": _parse_json, "str_int": _parse_int, "str_float": _parse_float, "str_decimal": _parse_decimal}


def _plain(value: Any) -> str:
    """Give JSON's text of what JSON has no word for: dates and decimals as people write them; bytes are refused."""
    if isinstance(value, (bytes, bytearray)):
        raise ValueError("bytes are not JSON")
    return str(value)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind))
