"""Columns brought to an encoding: from another encoding, or from whatever types an index holds.

What means the same bytes is carried. Numbers are cast, and must fit; text becomes what the encoding makes of it. The rest, documents and
arrays and pictures, is decoded and encoded value by value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.encodings import convert, one_by_one, packed_floats
from flarecli.encodings.columns import encoding_of, is_utf8
from flarecli.encodings.names import BINARY, TEXT, Encoding, lookup
from flarecli.encodings.natural import natural

__all__ = ["coerce", "source_of"]

Failures = list[tuple[int, str]]
_RANGES = {
    f"{sign}int{bits}": f"{-(1 << bits - 1) if not sign else 0} to {(1 << bits - (not sign)) - 1}"
    for bits in (8, 16, 32, 64)
    for sign in ("", "u")
}
_RANGES["int"] = _RANGES["varint"] = _RANGES["int64"]
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_SAME = (  # any two of one line are stored alike
    {"int", "int64"},
    {"jpeg_array", "jpegarray"},
    {"ndarray", "ndarray:"},
)
_CARRIED = {  # what is, as it is stored, also one of these
    **dict.fromkeys(("json", "str_float", "str_decimal"), ("str",)),
    "str_int": ("str", "str_decimal"),
    "tree": ("msgpack",),
}
_NULLS = {"json": "null", "json_json": '"null"', "msgpack": b"\xc0", "tree": b"\xc0"}


def source_of(field: pa.Field) -> Encoding | None:
    """Return the encoding that the metadata of a field names.

    None if it names none, or if the type of the field cannot be that encoding's: metadata often
    outlives the values that it described.
    """
    name, kind = encoding_of(field), field.type
    if not name:
        return None
    encoding = lookup(name)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if encoding.item is not None:
        fits = convert.is_list(kind)
    elif encoding.arrow in (TEXT, BINARY):
        fits = convert.is_text(kind) or convert.is_binary(kind)
    else:
        fits = kind.equals(encoding.arrow)
    return encoding if fits else None


def coerce(
    array: pa.Array, encoding: Encoding, source: Encoding | None = None
) -> tuple[pa.Array, Failures]:
    """Bring any Arrow column to the encoding's type, and say which values it cannot hold.

    source  the encoding that the column has; None: what its type says, and then text may be text of numbers, or JSON, and bytes anything
    return  the typed column, null where a value failed; (row in the column, reason) of each failure, in order
    """
    if (
        pa.types.is_primitive(array.type)
        and array.type.equals(encoding.arrow)
        and source is None
        and array.null_count == 0
    ):
        return array, []  # numbers as they are stored
    is_tensor = (
        isinstance(array, pa.FixedShapeTensorArray)
        and encoding.item is None
        and not convert.is_whole(array.type, encoding)
    )
    if isinstance(array, pa.ExtensionArray) and not is_tensor:
        array = array.storage
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):  # Arrow has no `if_else` for views
        array = array.cast(TEXT)
    elif pa.types.is_binary_view(array.type):
        array = array.cast(BINARY)
    nulls, invalid = array, list[tuple[int, str]]()
    if source is not None and source.item is None and not array.type.equals(source.arrow):
        array, invalid = _named(array, source, *convert.carried(array, source))
    out, failures = _recoded(
        array, encoding, None if source is None or source.name == "bytes" else source
    )
    if nulls.null_count:
        if encoding.name in _NULLS:
            out = pc.if_else(nulls.is_null(), pa.scalar(_NULLS[encoding.name], encoding.arrow), out)
        else:
            rows = pc.indices_nonzero(nulls.is_null())
            failures = sorted([*failures, *((int(row), "is null") for row in rows)])
    return out, sorted([*invalid, *failures]) if invalid else failures


def _recoded(
    array: pa.Array, encoding: Encoding, source: Encoding | None
) -> tuple[pa.Array, Failures]:
    if array.null_count == len(array):
        return pa.nulls(len(array), encoding.arrow), []
    if source is not None and _is_same(source, encoding):
        return _named(array, encoding, *convert.carried(array, encoding))
    if encoding.item is not None and convert.is_list(array.type):
        return _items(array, encoding, encoding.item, None if source is None else source.item)
    if source is None:
        if convert.is_whole(array.type, encoding):
            return _named(array, encoding, *convert.converted(array, encoding, ""))
        return one_by_one.recoded(array, encoding, None)
    text = convert.number_text(array, source.name, encoding.name)
    if text is not None:
        return _named(array, encoding, *text)
    if source.name == "msgpack" and encoding.arrow in _FLOATS:
        numbers = packed_floats.parse_all(array)
        if numbers is not None:
            return _named(array, encoding, *convert.converted(numbers, encoding, ""))
    if source.arrow.equals(BINARY) or source.item is not None:
        return one_by_one.recoded(array, encoding, source)
    plain, kind, missing = natural(array, source)
    is_document = kind.name == "json" and encoding.name not in (
        "json",
        "json_json",
        "str",
        "json_str",
    )
    if is_document or not convert.is_whole(plain.type, encoding):
        out, failures = one_by_one.recoded(plain, encoding, kind)
        return out, sorted([*failures, *((row, f"is not {source.name}") for row in missing)])
    out, failed = convert.converted(plain, encoding, "json" if kind.name == "json" else "text")
    return _named(array, encoding, out, [*failed, *missing])


def _is_same(source: Encoding, encoding: Encoding) -> bool:
    one, other = source.name, encoding.name
    if (
        one == other
        or other in _CARRIED.get(one, ())
        or any(one in names and other in names for names in _SAME)
    ):
        return True
    return other == "bytes" and source.arrow in (TEXT, BINARY) and not one.startswith("json_")


def _named(
    array: pa.Array, encoding: Encoding, out: pa.Array, failed: Sequence[int]
) -> tuple[pa.Array, Failures]:
    return out, [(row, _reason(array[row], encoding)) for row in sorted(failed)]


def _reason(value: pa.Scalar, encoding: Encoding) -> str:
    if convert.is_text(value.type) or convert.is_binary(value.type):
        data = value.as_buffer().to_pybytes()
        if encoding.is_text and not is_utf8(data):
            return "is not UTF-8"
        shown = repr(data[:200].decode("utf-8", "backslashreplace"))
    else:
        shown = str(value.as_py())
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    values = _RANGES.get(encoding.name, "")
    return f"{shown} does not fit {encoding.name}" + (f" ({values})" if values else "")


def _items(
    array: pa.Array, encoding: Encoding, item: Encoding, source: Encoding | None
) -> tuple[pa.Array, Failures]:
    """Recode a list's items in one go; a row with an item that does not fit is null."""
    array = convert.large_list(array)
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
        if not absent[row]:  # a null row may have items all the same
            failures.setdefault(row, "holds a null" if reason == "is null" else reason)
    absent[list(failures)] = True
    out = pa.LargeListArray.from_arrays(
        pa.array(offsets), items, mask=pa.array(absent) if absent.any() else None
    )
    return out.cast(encoding.arrow), sorted(failures.items())
