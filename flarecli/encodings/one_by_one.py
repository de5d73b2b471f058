"""Columns recoded value by value, through Python: documents, arrays, pictures, and lists that become one of these."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from flarecli.encodings import pictures
from flarecli.encodings.columns import typed
from flarecli.encodings.convert import is_list, is_number, large_list
from flarecli.encodings.names import BINARY, Encoding
from flarecli.encodings.values import as_json, decode, encode
from flarecli.errors import FlareError, UnsafeError

__all__ = ["recoded"]

Failures = list[tuple[int, str]]
_ERRORS = (FlareError, ValueError, TypeError, OverflowError, RecursionError)
_MAX_VALUES = 1 << 22  # of one row that become Python objects
_ARRAYS = ("ndarray", "array", "tree")
_DOCUMENTS = ("msgpack", "array", "tree")
_AS_TEXT = (date, datetime, time, timedelta, Decimal, UUID)


def recoded(
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
        if isinstance(value, TooMany):
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
        and is_list(array.type)
        and is_number(array.type.value_type)
        and not pa.types.is_boolean(array.type.value_type)
        and encoding.dtype in ("", np.dtype(array.type.value_type.to_pandas_dtype()).name)
    ):
        return _number_arrays(large_list(array))
    return _objects(array)


def _objects(array: pa.Array) -> Iterator[Any]:
    """Give the Python value of each row; of nested ones of very many values a row at a time, and TooMany for a row that holds them."""
    if not pa.types.is_nested(array.type) or _values_in(array) <= _MAX_VALUES:
        yield from array.to_pylist()
        return
    for row in range(len(array)):
        one = array.slice(row, 1)
        count = _values_in(one)
        yield TooMany(count) if count > _MAX_VALUES else one[0].as_py()


class TooMany:
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
        return lambda value: as_json(value, _plain).encode()
    if encoding.name == "json_json":
        return lambda value: json.dumps(as_json(value, _plain)).encode()
    return lambda value: encode(encoding, value)


def _plain(value: Any) -> Any:
    """Give JSON what it has a word for: dates and decimals as people write them, arrays as lists; bytes and objects are refused."""
    if isinstance(value, _AS_TEXT):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
