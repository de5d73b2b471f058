"""Numbers and JSON text as stored bytes, a column at a time: decimal text, JSON text, Granular's varints.

Text: Arrow's kernels convert what they convert exactly as Python does; Python converts the few other values one by one.

Varint (Granular's `int`): a little-endian integer in two's complement, in the fewest bytes that hold it, at least one.
The original cannot write negative numbers, nor numbers that need a byte for their sign (128: `80 00`); its reader takes
0 to 16 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.encodings.names import BINARY, TEXT
from flarecli.errors import ValueFitError
from flarecli.model import IntArray

__all__ = [
    "MAX_VARINT_BYTES",
    "JSON_FLOAT",
    "JSON_INT",
    "escaped",
    "float_text",
    "floats",
    "ints",
    "patched",
    "parse_varints",
    "unescaped",
    "varint_bytes",
    "varint_widths",
]

JSON_INT = r"^(?:0|-?[1-9][0-9]*)$"
JSON_FLOAT = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_INT = r"^-?[0-9]{1,18}$"
_FLOAT = r"^-?(?:[0-9][0-9.eE+-]*|nan|inf|NaN|Infinity)$"
_PLAIN = r'^"[^"\\\x00-\x1f]*"$'  # JSON text without an escape
_ESCAPED = r"[^ !#-\[\]-~]"  # what json.dumps writes otherwise than it is
_INT64 = pa.int64()

Failures = list[tuple[int, str]]


@cache
def _scalar(text: str) -> pa.Scalar:
    """Made when it is needed: the first scalar of a process loads pandas, where that is installed."""
    return pa.scalar(text, TEXT)


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_scalar('"'), text, _scalar('"'), _scalar(""))


def patched(
    array: pa.Array, fits: pa.Array, fast: Callable[[pa.Array], pa.Array], one: Callable[[Any], Any]
) -> tuple[pa.Array, list[int]]:
    """Convert a column by `fast`, and by `one`, value by value, where that does not do.

    fits    boolean [rows], null where the value is: whether `fast` does; it is given nulls for the others
    one     Python value to Python value; ValueError, OverflowError, RecursionError: there is none
    return  the column, null where it was and where there is none; the rows of those, in order
    """
    if pc.all(fits, min_count=0).as_py():
        return fast(array), []
    odd = pc.indices_nonzero(pc.invert(fits))
    values, failed = [], []
    for row, value in zip(odd.to_pylist(), array.take(odd).to_pylist(), strict=True):
        try:
            values.append(one(value))
        except (ValueError, OverflowError, RecursionError):
            values.append(None)
            failed.append(row)
    out = fast(pc.if_else(fits, array, pa.scalar(None, array.type)))
    try:
        instead = pa.array(values, out.type)
    except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError):
        instead, failed = _each(values, out.type, odd.to_pylist())
    return pc.replace_with_mask(out, pc.fill_null(pc.invert(fits), False), instead), failed


def _each(values: list[Any], kind: pa.DataType, rows: list[int]) -> tuple[pa.Array, list[int]]:
    parts, failed = [], []
    for row, value in zip(rows, values, strict=True):
        try:
            parts.append(pa.array([value], kind))
        except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError):
            parts.append(pa.nulls(1, kind))
        if parts[-1].null_count:
            failed.append(row)
    return pa.concat_arrays(parts), failed


def _matches(array: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(array, pattern)


def ints(
    array: pa.Array, one: Callable[[str], int] = int, kind: pa.DataType = _INT64
) -> tuple[pa.Array, list[int]]:
    """Read text as integers of a type, int64 or another; give the rows that are none, or do not fit, too."""
    if kind.equals(_INT64):
        return patched(array, _matches(array, _INT), lambda some: some.cast(kind), one)
    try:
        return patched(array, _matches(array, _INT), lambda some: some.cast(_INT64).cast(kind), one)
    except pa.ArrowInvalid:
        return patched(
            array, pc.equal(pc.binary_length(array), -1), lambda some: some.cast(kind), one
        )


def floats(array: pa.Array, one: Callable[[str], float] = float) -> tuple[pa.Array, list[int]]:
    """Read text as float64; give the rows that are none too."""
    if pc.all(_matches(array, _FLOAT), min_count=0).as_py():
        try:
            return array.cast(pa.float64()), []
        except pa.ArrowInvalid:
            pass
    return patched(array, _matches(array, JSON_FLOAT), lambda some: some.cast(pa.float64()), one)


def float_text(array: pa.Array) -> pa.Array:
    """Write float64 as Python's repr does: Arrow finds the same digits, and leaves out `.0`; it also writes exponents otherwise."""
    size = pc.abs(array)
    usual = pc.or_(pc.and_(pc.greater_equal(size, 1e-4), pc.less(size, 1e10)), pc.equal(size, 0.0))
    out, _ = patched(array, usual, _usual_text, repr)
    return out


def _usual_text(array: pa.Array) -> pa.Array:
    text = array.cast(TEXT)
    whole = pc.invert(pc.match_substring(text, "."))
    if not pc.any(whole, min_count=0).as_py():
        return text
    return pc.binary_join_element_wise(
        text, pc.if_else(whole, _scalar(".0"), _scalar("")), _scalar("")
    )


def escaped(array: pa.Array) -> pa.Array:
    """Write text as JSON does, ASCII between quotes."""
    out, _ = patched(array, pc.invert(_matches(array, _ESCAPED)), _quoted, json.dumps)
    return out


def unescaped(array: pa.Array) -> tuple[pa.Array, list[int]]:
    """Read JSON text as the text it says; give the rows that are no text of JSON, or none that UTF-8 can hold, too."""
    return patched(
        array,
        _matches(array, _PLAIN),
        lambda some: pc.binary_slice(some.view(BINARY), 1, -1).view(TEXT),
        _text,
    )


def _text(value: str) -> str:
    out = json.loads(value)
    if not isinstance(out, str):
        raise ValueError
    return out


MAX_VARINT_BYTES = 16  # bytes that a reader takes
_VARINT_LIMITS = np.array(
    [(1 << 8 * k - 1) - 1 for k in range(1, 8)], np.int64
)  # the largest value of 1 to 7 bytes


def varint_widths(values: IntArray) -> IntArray:
    """Say how many bytes each value takes: int64 [n] of int64 [n]."""
    return np.searchsorted(_VARINT_LIMITS, values ^ (values >> 63)).astype(np.int64) + 1


def varint_bytes(array: pa.Array) -> pa.Array:
    """Give the stored bytes, large_binary [n], of an int64 array without nulls."""
    values = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    sizes = varint_widths(values)
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    kept = np.arange(8) < sizes[:, None]
    data = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)[kept]
    return pa.Array.from_buffers(
        BINARY, len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )


def parse_varints(raw: pa.Array) -> pa.Array:
    """Give int64 [n] of stored bytes, large_binary [n]; null where that is null.

    raises  ValueFitError naming the first row of more than 16 bytes, or of a value that int64 cannot hold
    """
    offsets = (
        np.frombuffer(raw.buffers()[1], np.int64, len(raw) + 1, raw.offset * 8)
        if len(raw)
        else np.zeros(1, np.int64)
    )
    data = np.frombuffer(raw.buffers()[2] or b"\0", np.uint8) if len(raw) else np.zeros(1, np.uint8)
    if not len(data):
        data = np.zeros(1, np.uint8)
    sizes = offsets[1:] - offsets[:-1]
    bits = np.zeros(len(raw), np.uint64)
    longest = int(sizes.max(initial=0))
    for k in range(min(longest, 8)):
        byte = data[np.minimum(offsets[:-1] + k, len(data) - 1)].astype(np.uint64)
        bits |= np.where(sizes > k, byte << np.uint64(8 * k), np.uint64(0))
    unused = (64 - 8 * np.clip(sizes, 1, 8)).astype(np.int64)
    values = (bits << unused.astype(np.uint64)).view(np.int64) >> unused
    wrong = sizes > MAX_VARINT_BYTES
    for k in range(8, min(longest, MAX_VARINT_BYTES)):
        sign = data[np.minimum(offsets[:-1] + k, len(data) - 1)]
        wrong |= (sizes > k) & (sign != np.where(values < 0, 255, 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        seen = (
            f"an integer of {sizes[row]} bytes is longer than {MAX_VARINT_BYTES}"
            if sizes[row] > MAX_VARINT_BYTES
            else "an integer does not fit int64"
        )
        raise ValueFitError(seen, row=row)
    return pa.array(
        values, mask=raw.is_null().to_numpy(zero_copy_only=False) if raw.null_count else None
    )
