"""Convert columns of numbers and JSON strings: decimal text, JSON text, and Granular's varints.

Text: Arrow's kernels convert all values for which Arrow and Python return equal results. All other
values are converted one by one in Python.

Varint (Granular's `int`): a little-endian integer in two's complement. It has the fewest bytes that
can represent the integer, but at least one byte. Granular's writer does not support negative
numbers, or numbers that need an extra byte for the sign, such as 128 (`80 00`). Granular's reader
accepts 0 to 16 bytes.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.encodings.names import BINARY, TEXT
from flarecli.errors import ValueFitError
from flarecli.model import ByteArray

__all__ = [
    "MAX_JSON_TEXT_BYTES",
    "MAX_VARINT_BYTES",
    "JSON_FLOAT",
    "JSON_INT",
    "escape_json",
    "float_text",
    "floats",
    "ints",
    "patched",
    "parse_varints",
    "parse_json_text",
    "varint_bytes",
]

JSON_INT = r"^(?:0|-?[1-9][0-9]*)$"
JSON_FLOAT = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_INT = r"^-?[0-9]{1,18}$"
_FLOAT = r"^-?(?:[0-9][0-9.eE+-]*|nan|inf|NaN|Infinity)$"
_PLAIN = r'^"[^"\\\x00-\x1f]*"$'  # a JSON string without escapes
_ESCAPED = r"[^ !#-\[\]-~]"  # characters that json.dumps escapes
_INT64 = pa.int64()
# Maximum size of the JSON text of one value. The text and the value are in memory at the same time.
MAX_JSON_TEXT_BYTES = 300_000_000
_LARGE_TEXT_BYTES = 1 << 20  # larger values are escaped in chunks of this size


def _json_widths() -> ByteArray:
    """Return a table of the number of bytes that each character needs in JSON text: uint8 [256].

    The index is the first byte of the character in UTF-8.
    """
    widths = np.full(256, 6, np.uint8)  # an escape such as \u00e9
    widths[32:127] = 1
    widths[list(b'"\\\b\f\n\r\t')] = 2
    widths[128:192] = 0  # UTF-8 continuation bytes; the first byte has the size of the character
    widths[240:] = 12  # a surrogate pair
    return widths


_JSON_WIDTHS = _json_widths()


@cache
def _scalar(text: str) -> pa.Scalar:
    """Return an Arrow scalar. Create it on first use, because the first scalar imports pandas."""
    return pa.scalar(text, TEXT)


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_scalar('"'), text, _scalar('"'), _scalar(""))


def patched(
    array: pa.Array,
    fits: pa.Array,
    fast: Callable[[pa.Array], pa.Array],
    convert_one: Callable[[Any], Any],
) -> tuple[pa.Array, list[int]]:
    """Convert a column: most values with `fast`, and the other values one by one.

    fits         boolean [rows]: whether `fast` converts the value exactly; null for a null
    fast         function that converts a column; in its argument, nulls replace the values that do
                 not fit
    convert_one  function that converts one value that does not fit, as a Python object; raises
                 ValueError, OverflowError or RecursionError for an invalid value
    return       the converted column, with nulls in the invalid rows; and the invalid rows, in
                 order
    """
    if pc.all(fits, min_count=0).as_py():
        return fast(array), []
    slow_rows = pc.indices_nonzero(pc.invert(fits))
    values, failed = [], []
    for row, value in zip(slow_rows.to_pylist(), array.take(slow_rows).to_pylist(), strict=True):
        try:
            values.append(convert_one(value))
        except (ValueError, OverflowError, RecursionError):
            values.append(None)
            failed.append(row)
    out = fast(pc.if_else(fits, array, pa.scalar(None, array.type)))
    try:
        replacements = pa.array(values, out.type)
    except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError):
        replacements, failed = _each(values, out.type, slow_rows.to_pylist())
    return pc.replace_with_mask(out, pc.fill_null(pc.invert(fits), False), replacements), failed


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
    array: pa.Array, parse: Callable[[str], int] = int, kind: pa.DataType = _INT64
) -> tuple[pa.Array, list[int]]:
    """Parse text as integers; also return the rows with invalid text or a value out of range."""
    try:
        return patched(
            array, _matches(array, _INT), lambda some: some.cast(_INT64).cast(kind), parse
        )
    except pa.ArrowInvalid:  # a value that int64 can represent is out of range for `kind`
        return patched(
            array, pc.equal(pc.binary_length(array), -1), lambda some: some.cast(kind), parse
        )


def floats(array: pa.Array, parse: Callable[[str], float] = float) -> tuple[pa.Array, list[int]]:
    """Parse text as float64; also return the rows with invalid text."""
    if pc.all(_matches(array, _FLOAT), min_count=0).as_py():
        try:
            return array.cast(pa.float64()), []
        except pa.ArrowInvalid:
            pass
    return patched(array, _matches(array, JSON_FLOAT), lambda some: some.cast(pa.float64()), parse)


def float_text(array: pa.Array) -> pa.Array:
    """Format float64 values as text, like Python's `repr`.

    Arrow prints the same digits, but omits `.0` and formats exponents differently.
    """
    size = pc.abs(array)
    is_decimal = pc.or_(
        pc.and_(pc.greater_equal(size, 1e-4), pc.less(size, 1e10)), pc.equal(size, 0.0)
    )
    out, _ = patched(array, is_decimal, _decimal_text, repr)
    return out


def _decimal_text(array: pa.Array) -> pa.Array:
    text = array.cast(TEXT)
    whole = pc.invert(pc.match_substring(text, "."))
    if not pc.any(whole, min_count=0).as_py():
        return text
    return pc.binary_join_element_wise(
        text, pc.if_else(whole, _scalar(".0"), _scalar("")), _scalar("")
    )


def escape_json(array: pa.Array) -> tuple[pa.Array, list[int]]:
    """Convert text to JSON strings in ASCII; also return the rows whose string is too large."""
    longest = pc.max(pc.binary_length(array)).as_py() or 0
    if longest > _LARGE_TEXT_BYTES:
        return _escape_large(array)
    return patched(array, pc.invert(_matches(array, _ESCAPED)), _quoted, json.dumps)


def _escape_large(array: pa.Array) -> tuple[pa.Array, list[int]]:
    """Return the result of `escape_json`. Large values are converted in chunks to save memory."""
    _, ends, data = array.buffers()
    bounds = np.frombuffer(ends, np.int64, len(array) + 1, 8 * array.offset).tolist()
    values = [memoryview(data)[start:stop] for start, stop in pairwise(bounds)]
    sizes = np.array([_json_text_size(value) for value in values], np.int64)
    failed = np.flatnonzero(sizes > MAX_JSON_TEXT_BYTES).tolist()
    is_valid = array.is_valid().to_numpy(zero_copy_only=False) & (sizes <= MAX_JSON_TEXT_BYTES)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.where(is_valid, sizes, 0), out=offsets[1:])
    buffer = pa.allocate_buffer(int(offsets[-1]))
    out = memoryview(buffer).cast("B")
    for row in np.flatnonzero(is_valid).tolist():
        at = int(offsets[row])
        for part in _json_text_parts(values[row]):
            out[at : at + len(part)] = part
            at += len(part)
    validity = pa.array(is_valid).buffers()[1]
    return pa.Array.from_buffers(
        TEXT, len(values), [validity, pa.py_buffer(offsets), buffer]
    ), failed


def _json_text_size(value: memoryview) -> int:
    """Return the size in bytes of the JSON string for UTF-8 text."""
    data = np.frombuffer(value, np.uint8)
    steps = range(0, len(data), _LARGE_TEXT_BYTES)
    return 2 + sum(int(_JSON_WIDTHS[data[i : i + _LARGE_TEXT_BYTES]].sum()) for i in steps)


def _json_text_parts(value: memoryview) -> Iterator[bytes]:
    """Convert UTF-8 text to a JSON string, and yield the string in chunks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    yield b'"'
    for start in range(0, len(value), _LARGE_TEXT_BYTES):
        text = decoder.decode(value[start : start + _LARGE_TEXT_BYTES])
        yield json.dumps(text)[1:-1].encode("ascii")
    yield b'"'


def parse_json_text(array: pa.Array) -> tuple[pa.Array, list[int]]:
    """Parse JSON strings to text; also return the rows with an invalid string."""
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


MAX_VARINT_BYTES = 16  # the maximum size that Granular's reader accepts
# the largest integers that fit in 1 to 7 bytes
_VARINT_LIMITS = np.array([(1 << 8 * k - 1) - 1 for k in range(1, 8)], np.int64)


def varint_bytes(array: pa.Array) -> pa.Array:
    """Convert an int64 array [n] without nulls to varints: large_binary [n]."""
    values = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    sizes = np.searchsorted(_VARINT_LIMITS, values ^ (values >> 63)).astype(np.int64) + 1
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    kept = np.arange(8) < sizes[:, None]
    data = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)[kept]
    return pa.Array.from_buffers(
        BINARY, len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )


def parse_varints(raw: pa.Array) -> pa.Array:
    """Convert varints, large_binary [n], to int64 [n]; nulls remain null.

    raises  ValueFitError with the row of the first varint that is longer than 16 bytes, or that
            int64 cannot represent
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
    is_invalid = sizes > MAX_VARINT_BYTES
    for k in range(8, min(longest, MAX_VARINT_BYTES)):
        sign = data[np.minimum(offsets[:-1] + k, len(data) - 1)]
        is_invalid |= (sizes > k) & (sign != np.where(values < 0, 255, 0))
    if is_invalid.any():
        row = int(np.argmax(is_invalid))
        message = (
            f"an integer of {sizes[row]} bytes is longer than {MAX_VARINT_BYTES}"
            if sizes[row] > MAX_VARINT_BYTES
            else "an integer is out of range for int64"
        )
        raise ValueFitError(message, row=row)
    return pa.array(
        values, mask=raw.is_null().to_numpy(zero_copy_only=False) if raw.null_count else None
    )
