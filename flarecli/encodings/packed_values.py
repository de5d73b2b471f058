"""Convert decoded values to the Python values of the packed table.

An encoding may store a value as another type: a timestamp as text, a boolean as 0 or 1. The
conversion to a Python value of the original type returns the same values as `restore` and Arrow's
`as_py`. For most types, it creates no Arrow array.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.bisect import failing_values
from flarecli.encodings.arrow_types import (
    NANOSECONDS,
    Convert,
    duration_nanoseconds,
    nested_converter,
    restore,
)
from flarecli.encodings.columns import value_type
from flarecli.encodings.names import TEXT, Encoding, lookup
from flarecli.errors import ValueFitError

__all__ = ["packed_value", "python_values"]


def python_values(array: pa.Array) -> list[Any]:
    """Convert the values of a column to Python objects with Arrow's `to_pylist`.

    For nanosecond types, Arrow returns pandas objects, or `datetime` objects if pandas is not
    installed.

    raises  ValueFitError with the row of the first value that Python's classes cannot represent
    """
    errors = (ValueError, OverflowError)
    try:
        values: list[Any] = array.to_pylist()
    except errors:
        row, error = next(failing_values(array, lambda part: part.to_pylist(), errors))
        pandas = (
            ", or install pandas, which represents nanoseconds" if "pandas" in str(error) else ""
        )
        raise ValueFitError(
            f"Python cannot represent this value of type {array.type}",
            row=row,
            hint=f"Read the column as an Arrow batch{pandas}.",
        ) from None
    return values


@lru_cache(maxsize=1024)
def packed_value(encoding: Encoding, kind: pa.DataType) -> Convert | None:
    """Return a function that converts a decoded value to a Python value of an Arrow type.

    The result is None if no conversion is needed, or if flare does not store the type in this
    encoding. The function does not accept None. It raises ValueError or TypeError for a value that
    is not valid for the type.
    """
    value = value_type(kind)
    if pa.types.is_temporal(value) or pa.types.is_decimal(value):
        names: tuple[str, ...] = ("str", "json_str")
    elif pa.types.is_boolean(value):
        names = ("uint8", "int", "varint", "str_int", "json_int")
    else:  # `ndarray` and `array` need no conversion: a decoded array has its dtype and shape
        names = ("json", "json_json", "msgpack", "tree")
    if encoding.name not in names:
        return None
    return _converter(value, is_nested=False) or nested_converter(
        value, partial(_converter, is_nested=True)
    )


def _converter(kind: pa.DataType, is_nested: bool) -> Convert | None:
    """Return a function that converts a tensor, or a value of a type without children.

    The result is None if no conversion is needed.
    """
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_temporal(kind):
        return _temporal(kind, is_nested)
    if isinstance(kind, pa.FixedShapeTensorType):
        return _tensor(kind)
    return None


def _temporal(kind: pa.DataType, is_nested: bool) -> Convert:
    if pa.types.is_duration(kind):
        return _duration(kind, is_nested)
    if pa.types.is_date(kind):
        return date.fromisoformat
    if kind == pa.time64("ns") or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        return lambda text: _from_arrow(text, kind)  # `fromisoformat` drops nanoseconds
    if pa.types.is_time(kind):
        return time.fromisoformat
    if kind.tz is None:
        return datetime.fromisoformat
    zone = pa.scalar(0, kind).as_py().tzinfo
    return lambda text: datetime.fromisoformat(text).astimezone(zone)


def _from_arrow(text: str, kind: pa.DataType) -> Any:
    return python_values(restore(pa.array([text], TEXT), kind, lookup("str")))[0]


def _duration(kind: pa.DataType, is_nested: bool) -> Convert:
    """Return a function that converts text to a duration.

    is_nested  True: the duration is in a document, in the form of `str(timedelta)`; False: the text
               is an integer in the unit of `kind`
    """
    unit = NANOSECONDS[kind.unit]
    read = duration_nanoseconds if is_nested else lambda text: int(text) * unit
    if kind.unit == "ns":
        return lambda text: python_values(pa.array([read(text)], kind))[0]
    return lambda text: timedelta(microseconds=read(text) // 1000)


def _tensor(kind: pa.FixedShapeTensorType) -> Convert:
    dtype, shape = kind.value_type.to_pandas_dtype(), tuple(kind.shape)
    return lambda value: np.asarray(value, dtype).reshape(shape)
