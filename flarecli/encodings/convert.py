"""Convert columns to an encoding: from another encoding, or from any type of Arrow.

Stored bytes that mean the same in both encodings are kept. Numbers are cast and must fit; text is rewritten. Documents,
arrays and pictures are decoded and encoded value by value.
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

from flarecli.encodings import cast, msgpack, number_text, pictures
from flarecli.encodings.columns import each_item, encoding_of, is_utf8, typed
from flarecli.encodings.names import BINARY, TEXT, Encoding, lookup
from flarecli.encodings.values import as_json, decode, encode
from flarecli.errors import FlareError, UnsafeError, ValueFitError

__all__ = ["coerce", "natural", "plain", "source_of"]

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
_MAX_VALUES = 1 << 22  # of one row that become Python objects
_ARRAYS = ("ndarray", "array", "tree")
_DOCUMENTS = ("msgpack", "array", "tree")
_AS_TEXT = (date, datetime, time, timedelta, Decimal, UUID)


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
        fits = cast.is_list(kind)
    elif encoding.arrow in (TEXT, BINARY):
        fits = cast.is_text(kind) or cast.is_binary(kind)
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
        and not cast.is_whole(array.type, encoding)
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
        array, invalid = _named(array, source, *cast.carried(array, source))
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
        return _named(array, encoding, *cast.carried(array, encoding))
    if encoding.item is not None and cast.is_list(array.type):
        return _items(array, encoding, encoding.item, None if source is None else source.item)
    if source is None:
        if cast.is_whole(array.type, encoding):
            return _named(array, encoding, *cast.converted(array, encoding, ""))
        return _convert_each(array, encoding, None)
    text = cast.recode_number_text(array, source.name, encoding.name)
    if text is not None:
        return _named(array, encoding, *text)
    if source.name == "msgpack" and encoding.arrow in _FLOATS:
        numbers = msgpack.parse_double_column(array)
        if numbers is not None:
            return _named(array, encoding, *cast.converted(numbers, encoding, ""))
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
    out, failed = cast.converted(out, encoding, "json" if kind.name == "json" else "text")
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
    if cast.is_text(value.type) or cast.is_binary(value.type):
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
        if not absent[row]:  # a null row may have items all the same
            failures.setdefault(row, "holds a null" if reason == "is null" else reason)
    absent[list(failures)] = True
    out = pa.LargeListArray.from_arrays(
        pa.array(offsets), items, mask=pa.array(absent) if absent.any() else None
    )
    return out.cast(encoding.arrow), sorted(failures.items())


def plain(array: pa.Array, encoding: Encoding) -> tuple[pa.Array, Encoding]:
    """Give a typed column in its natural Arrow form, and the encoding whose type that is.

    Text of integers becomes int64, text of floats float64, text inside JSON its own; what is natural already stays as it is. Nulls stay.

    array   of the encoding's own type
    raises  ValueFitError naming the first row that its natural type cannot hold: no number, or more than 64 bits
    """
    out, wanted, failed = natural(array, encoding)
    if failed:
        raise ValueFitError(
            f"a value of {encoding.name} is no {wanted.name}, or too large for one",
            row=failed[0],
        )
    return out, wanted


def natural(array: pa.Array, encoding: Encoding) -> tuple[pa.Array, Encoding, list[int]]:
    """Do the same, with null for what does not fit; give the rows of those, in order. Of a list the first one is raised."""
    if encoding.item is not None:
        item = encoding.item
        wanted = _NATURAL.get(item.name)
        if wanted is None:
            return array, encoding, []
        return each_item(array, lambda values: plain(values, item)[0]), lookup(f"{wanted}[]"), []
    name = _NATURAL.get(encoding.name)
    if name is None:
        return array, encoding, []
    if not encoding.is_text:
        return array, lookup(name), []
    array = (
        array if array.type.equals(encoding.arrow) else array.cast(encoding.arrow)
    )  # views are not for Arrow's kernels
    if name == "int":
        out, failed = number_text.ints(array, _json_int if encoding.name == "json_int" else int)
    elif name == "float64":
        out, failed = number_text.floats(
            array, _json_float if encoding.name == "json_float" else float
        )
    else:
        out, failed = number_text.unescaped(array)
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
    """Bring a column to an encoding; null and (row, reason) for what does not fit.

    source  the encoding that the column has; None: its values are what its type says
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
            given = read(value)
        except UnsafeError:
            failures.append((row, "is a pickle, which is not decoded"))
            continue
        except _ERRORS:
            failures.append((row, f"is not {'' if source is None else source.name}"))
            continue
        try:
            out[-1] = write(given)
            if encoding.item is not None or (
                isinstance(given, bytes) and not encoding.arrow.equals(BINARY)
            ):
                typed(
                    pa.array(out[-1:], encoding.raw), encoding
                )  # bytes are stored as they are, and may be no text and no number
        except _ERRORS:
            out[-1] = None
            failures.append((row, f"{_shown(given)}does not fit {encoding.name}"))
    return typed(pa.array(out, encoding.raw), encoding), failures


def _shown(value: Any) -> str:
    if not isinstance(value, (str, int, float, list, dict, type(None))):
        return ""
    shown = str(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '…'} "


def _values(array: pa.Array, encoding: Encoding) -> Iterator[Any]:
    """Give a column's values; tensors, and lists of numbers where an array is asked for, as numpy arrays of their own dtype where that is wanted."""
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
    """Give the Python value of each row; of nested ones of very many values a row at a time, and _TooMany for a row that holds them."""
    if not pa.types.is_nested(array.type) or _values_in(array) <= _MAX_VALUES:
        yield from array.to_pylist()
        return
    for row in range(len(array)):
        one = array.slice(row, 1)
        count = _values_in(one)
        yield _TooMany(count) if count > _MAX_VALUES else one[0].as_py()


class _TooMany:
    """Stands for a value of more parts than are made Python objects: each takes about 64 bytes."""

    def __init__(self, count: int) -> None:
        self.reason = f"holds {count} values; at most {_MAX_VALUES} are converted"


def _values_in(array: pa.Array) -> int:
    """Count the values of a nested column, those inside other values too."""
    kind = array.type
    if pa.types.is_struct(kind):
        return sum(_values_in(one) for one in array.flatten())
    if pa.types.is_map(kind):
        start, stop = (array.offsets[at].as_py() for at in (0, len(array)))
        return sum(_values_in(one.slice(start, stop - start)) for one in (array.keys, array.items))
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return len(array) + _values_in(array.flatten())
    return len(array)


def _number_arrays(lists: pa.LargeListArray) -> Iterator[Any]:
    """Yield each list as a numpy array, one that holds a null as a Python list, a null as None.

    What a row becomes must not depend on its neighbours, which differ by how rows are batched.
    """
    numbers = lists.values.fill_null(0).to_numpy()
    holes = np.append(0, np.cumsum(lists.values.is_null().to_numpy(zero_copy_only=False)))
    valid = lists.is_valid().to_pylist()
    for row, (start, stop) in enumerate(itertools.pairwise(lists.offsets.to_pylist())):
        if not valid[row]:
            yield None
        elif holes[stop] > holes[start]:
            yield lists[row].as_py()
        else:
            yield numbers[start:stop]


def _reader(source: Encoding | None, encoding: Encoding) -> Callable[[Any], Any]:
    """Choose what makes a Python value of what Arrow gives for one."""
    if source is None:
        return _same
    name = source.name
    inner, wanted = _pictures_in(source), _pictures_in(encoding)
    if inner and inner == wanted:
        return _same if source.item is not None else lambda data: pictures.split(name, data)
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
        return _same  # files of any kind, which it holds as bytes
    if source.is_text:
        return lambda text: decode(source, text.encode())
    return lambda data: decode(source, data)


def _same(value: Any) -> Any:
    return value


def _pictures_in(encoding: Encoding) -> str:
    """Name the encoding of each of several pictures in one value; nothing for any other encoding."""
    if encoding.item is not None:
        return encoding.item.name if encoding.item.name in ("jpeg", "png", "pil") else ""
    if encoding.name in ("jpeg_array", "jpegarray"):
        return "jpeg"
    return encoding.name[5:-1] if encoding.name.startswith("list[") else ""


def _writer(encoding: Encoding) -> Callable[[Any], Any]:
    """Choose what makes stored bytes of a Python value."""
    if encoding.name == "json":
        return lambda value: as_json(value, _json_default).encode()
    if encoding.name == "json_json":
        return lambda value: json.dumps(as_json(value, _json_default)).encode()
    return lambda value: encode(encoding, value)


def _json_default(value: Any) -> Any:
    """Give JSON what it has a word for: dates and decimals as people write them, arrays as lists; bytes and objects are refused."""
    if isinstance(value, _AS_TEXT):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
