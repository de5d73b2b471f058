"""Convert columns to an encoding: from another encoding, or from any Arrow type.

Stored bytes that are valid in both encodings are kept. Numbers are cast and must fit; text is
rewritten. Documents, arrays and images are decoded and encoded value by value.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.encodings import cast, images, msgpack, number_text
from flarecli.encodings.columns import each_item, encoding_of, is_utf8, raw_values, typed
from flarecli.encodings.names import BINARY, TEXT, Encoding, lookup
from flarecli.encodings.values import as_json, decode, encode
from flarecli.errors import FlareError, UnsafeError, ValueFitError
from flarecli.units import format_size

__all__ = ["coerce", "natural", "plain", "source_of"]

Failures = list[tuple[int, str]]
_RANGES = {
    f"{sign}int{bits}": f"{-(1 << bits - 1) if not sign else 0} to {(1 << bits - (not sign)) - 1}"
    for bits in (8, 16, 32, 64)
    for sign in ("", "u")
}
_RANGES["int"] = _RANGES["varint"] = _RANGES["int64"]
_RANGES["json_str"] = f"at most {format_size(number_text.MAX_JSON_TEXT_BYTES)} of JSON text"
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_SAME = (  # encodings of one line store the same bytes
    {"int", "int64"},
    {"jpeg_array", "jpegarray"},
    {"ndarray", "ndarray:"},
)
_SUBSETS = {  # encoding -> encodings in which its stored bytes are valid too
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

_ERRORS = (FlareError, ValueError, TypeError, OverflowError, RecursionError)
MAX_VALUES = 1 << 22  # values of one row that are converted to Python objects
_ARRAYS = ("ndarray", "array", "tree")
_DOCUMENTS = ("msgpack", "array", "tree")
_AS_TEXT = (date, datetime, time, timedelta, Decimal, UUID)


def source_of(field: pa.Field) -> Encoding | None:
    """Return the encoding in the metadata of a field, or None.

    It is ignored if the type of the field does not match: metadata is often kept by tools that
    change the values.
    """
    name, kind = encoding_of(field), field.type
    if not name:
        return None
    encoding = lookup(name)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if encoding.item is not None:
        fits = cast.is_list(kind)
    elif encoding.arrow in (TEXT, BINARY):
        fits = cast.is_text(kind) or cast.is_binary(kind)
    else:
        fits = kind.equals(encoding.arrow)
    return encoding if fits else None


def coerce(
    array: pa.Array, encoding: Encoding, source: Encoding | None = None
) -> tuple[pa.Array, Failures]:
    """Convert an Arrow column to the type of an encoding; return it with the values that do not
    fit.

    source  encoding of the column; None: by its type, then text may contain numbers or JSON, and
            bytes may contain anything
    return  the typed column, null where a value does not fit; (row, reason) of each of them, in
            order
    """
    if (
        pa.types.is_primitive(array.type)
        and array.type.equals(encoding.arrow)
        and source is None
        and array.null_count == 0
    ):
        return array, []  # already converted
    is_tensor = (
        isinstance(array, pa.FixedShapeTensorArray)
        and encoding.item is None
        and not cast.is_whole(array.type, encoding)
    )
    if isinstance(array, pa.ExtensionArray) and not is_tensor:
        array = array.storage
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):  # Arrow's `if_else` does not support views
        array = array.cast(TEXT)
    elif pa.types.is_binary_view(array.type):
        array = array.cast(BINARY)
    nulls, invalid = array, list[tuple[int, str]]()
    if source is not None and source.item is None and not array.type.equals(source.arrow):
        array, invalid = _with_reasons(array, source, *cast.keep_bytes(array, source))
    out, failures = _recode(
        array, encoding, None if source is None or source.name == "bytes" else source
    )
    if nulls.null_count:
        if encoding.name in _NULLS:
            out = pc.if_else(nulls.is_null(), pa.scalar(_NULLS[encoding.name], encoding.arrow), out)
        else:
            rows = pc.indices_nonzero(nulls.is_null())
            failures = sorted([*failures, *((int(row), "is null") for row in rows)])
    return out, sorted([*invalid, *failures]) if invalid else failures


def _recode(
    array: pa.Array, encoding: Encoding, source: Encoding | None
) -> tuple[pa.Array, Failures]:
    if array.null_count == len(array):
        return pa.nulls(len(array), encoding.arrow), []
    if source is not None and _is_same(source, encoding):
        return _with_reasons(array, encoding, *cast.keep_bytes(array, encoding))
    if encoding.item is not None and cast.is_list(array.type):
        return _items(array, encoding, encoding.item, None if source is None else source.item)
    if source is None:
        if cast.is_whole(array.type, encoding):
            return _with_reasons(array, encoding, *cast.convert(array, encoding, ""))
        return _convert_each(array, encoding, None)
    text = cast.recode_number_text(array, source.name, encoding.name)
    if text is not None:
        return _with_reasons(array, encoding, *text)
    if source.name == "msgpack" and encoding.arrow in _FLOATS:
        numbers = msgpack.parse_double_column(array)
        if numbers is not None:
            return _with_reasons(array, encoding, *cast.convert(numbers, encoding, ""))
    if source.arrow.equals(BINARY) or source.item is not None:
        return _convert_each(array, encoding, source)
    out, kind, missing = natural(array, source)
    is_document = kind.name == "json" and encoding.name not in (
        "json",
        "json_json",
        "str",
        "json_str",
    )
    if is_document or not cast.is_whole(out.type, encoding):
        out, failures = _convert_each(out, encoding, kind)
        return out, sorted([*failures, *((row, f"is not {source.name}") for row in missing)])
    out, failed = cast.convert(out, encoding, "json" if kind.name == "json" else "text")
    return _with_reasons(array, encoding, out, [*failed, *missing])


def _is_same(source: Encoding, encoding: Encoding) -> bool:
    one, other = source.name, encoding.name
    if (
        one == other
        or other in _SUBSETS.get(one, ())
        or any(one in names and other in names for names in _SAME)
    ):
        return True
    return other == "bytes" and source.arrow in (TEXT, BINARY) and not one.startswith("json_")


def _with_reasons(
    array: pa.Array, encoding: Encoding, out: pa.Array, failed: Sequence[int]
) -> tuple[pa.Array, Failures]:
    return out, [(row, _reason(array, row, encoding)) for row in sorted(failed)]


def _reason(array: pa.Array, row: int, encoding: Encoding) -> str:
    if cast.is_text(array.type) or cast.is_binary(array.type):
        data = next(raw_values(array.slice(row, 1))) or b""
        if encoding.is_text and not is_utf8(data):
            return "is not UTF-8"
        shown = repr(bytes(data[:200]).decode("utf-8", "backslashreplace"))
    else:
        shown = str(array[row].as_py())
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    values = _RANGES.get(encoding.name, "")
    return f"{shown} does not fit {encoding.name}" + (f" ({values})" if values else "")


def _items(
    array: pa.Array, encoding: Encoding, item: Encoding, source: Encoding | None
) -> tuple[pa.Array, Failures]:
    """Convert all items of a list column at once; a row with an item that does not fit is null."""
    array = cast.large_list(array)
    offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    offsets = offsets - offsets[0]
    items, found = coerce(values, item, source)
    failures: dict[int, str] = {}
    absent = array.is_null().to_numpy(zero_copy_only=False)
    for row, (_, reason) in zip(
        (np.searchsorted(offsets, [at for at, _ in found], "right") - 1).tolist(),
        found,
        strict=True,
    ):
        if not absent[row]:  # a null row may have items
            failures.setdefault(row, "contains a null" if reason == "is null" else reason)
    absent[list(failures)] = True
    out = pa.LargeListArray.from_arrays(
        pa.array(offsets), items, mask=pa.array(absent) if absent.any() else None
    )
    return out.cast(encoding.arrow), sorted(failures.items())


def plain(array: pa.Array, encoding: Encoding) -> tuple[pa.Array, Encoding]:
    """Return a typed column in its natural Arrow type, and the encoding of that type. Nulls are
    kept.

    Text of integers becomes int64, text of floats float64, JSON strings become text; other columns
    are returned as they are.

    array   in the Arrow type of the encoding
    raises  ValueFitError with the row of the first invalid number or number of more than 64 bits
    """
    out, target, failed = natural(array, encoding)
    if failed:
        raise ValueFitError(
            f"a value of {encoding.name} is not a valid {target.name}, or is too large",
            row=failed[0],
        )
    return out, target


def natural(array: pa.Array, encoding: Encoding) -> tuple[pa.Array, Encoding, list[int]]:
    """Like `plain`, but invalid values become null, and their rows are returned, in order.

    For a list encoding, the first invalid value is raised as by `plain`.
    """
    if encoding.item is not None:
        item = encoding.item
        target = _NATURAL.get(item.name)
        if target is None:
            return array, encoding, []
        return each_item(array, lambda values: plain(values, item)[0]), lookup(f"{target}[]"), []
    name = _NATURAL.get(encoding.name)
    if name is None:
        return array, encoding, []
    if not encoding.is_text:
        return array, lookup(name), []
    if not array.type.equals(encoding.arrow):  # Arrow's kernels do not support views
        array = array.cast(encoding.arrow)
    if name == "int":
        out, failed = number_text.ints(array, _json_int if encoding.name == "json_int" else int)
    elif name == "float64":
        out, failed = number_text.floats(
            array, _json_float if encoding.name == "json_float" else float
        )
    else:
        out, failed = number_text.parse_json_text(array)
    return out, lookup(name), failed


def _json_parser(
    kind: type | tuple[type, ...], convert: Callable[[Any], Any]
) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError
        return convert(value)

    return parse


_json_int, _json_float = _json_parser(int, int), _json_parser((float, int), float)


def _convert_each(
    array: pa.Array, encoding: Encoding, source: Encoding | None
) -> tuple[pa.Array, Failures]:
    """Convert a column value by value; return it with (row, reason) of each value that does not
    fit.

    source  encoding of the column; None: values are as their Arrow type says
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
        except _ERRORS:
            failures.append((row, f"is not {'' if source is None else source.name}"))
            continue
        try:
            out[-1] = write(sample)
            if encoding.item is not None or (
                isinstance(sample, bytes) and not encoding.arrow.equals(BINARY)
            ):
                # bytes are stored unchecked, and may not be valid text or numbers
                typed(pa.array(out[-1:], encoding.raw), encoding)
        except _ERRORS:
            out[-1] = None
            failures.append((row, f"{_shown(sample)}does not fit {encoding.name}"))
    return typed(pa.array(out, encoding.raw), encoding), failures


def _shown(value: Any) -> str:
    if not isinstance(value, (str, int, float, list, dict, type(None))):
        return ""
    shown = str(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '…'} "


def _values(array: pa.Array, encoding: Encoding) -> Iterator[Any]:
    """Yield the values of a column.

    Tensors, and lists of numbers to be stored as arrays, are numpy arrays if their dtype matches.
    """
    if isinstance(array, pa.FixedShapeTensorArray):
        tensors = iter(array.drop_null().to_numpy_ndarray())
        return (next(tensors) if valid else None for valid in array.is_valid().to_pylist())
    if (
        encoding.name.partition(":")[0] in _ARRAYS
        and cast.is_list(array.type)
        and cast.is_number(array.type.value_type)
        and not pa.types.is_boolean(array.type.value_type)
        and encoding.dtype in ("", np.dtype(array.type.value_type.to_pandas_dtype()).name)
    ):
        return _number_arrays(cast.large_list(array))
    return _objects(array)


def _objects(array: pa.Array) -> Iterator[Any]:
    """Yield each row as a Python value, or _TooMany for a row with more than MAX_VALUES values."""
    if not pa.types.is_nested(array.type) or _count_values(array) <= MAX_VALUES:
        yield from array.to_pylist()
        return
    for row in range(len(array)):
        part = array.slice(row, 1)
        count = _count_values(part)
        yield _TooMany(count) if count > MAX_VALUES else part[0].as_py()


class _TooMany:
    """Placeholder for a value that is too large for Python objects, which take about 64 bytes each."""

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
    """Yield each list as a numpy array, a list with nulls as a Python list, and null as None.

    The result for a row depends on that row alone, because batches may be of any size.
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
    """Return a function that converts a value of Arrow to a Python value."""
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
        return _same  # files, which MessagePack stores as bytes
    if source.is_text:
        return lambda text: decode(source, text.encode())
    return lambda data: decode(source, data)


def _same(value: Any) -> Any:
    return value


def _image_encoding(encoding: Encoding) -> str:
    """Return the encoding of each image in a value of several images; empty for other encodings."""
    if encoding.item is not None:
        return encoding.item.name if encoding.item.name in ("jpeg", "png", "pil") else ""
    if encoding.name in ("jpeg_array", "jpegarray"):
        return "jpeg"
    return encoding.name[5:-1] if encoding.name.startswith("list[") else ""


def _writer(encoding: Encoding) -> Callable[[Any], Any]:
    """Return a function that converts a Python value to stored bytes."""
    if encoding.name == "json":
        return lambda value: as_json(value, _json_default).encode()
    if encoding.name == "json_json":
        return lambda value: json.dumps(as_json(value, _json_default)).encode()
    return lambda value: encode(encoding, value)


def _json_default(value: Any) -> Any:
    """Return a JSON value for dates, decimals and arrays; raise TypeError for bytes and objects."""
    if isinstance(value, _AS_TEXT):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
