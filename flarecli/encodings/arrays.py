"""Arrays of numbers as MDS stores them (`ndarray`), and what Granular says of one (in `array` and `tree`).

    ndarray                     [dtype] [shape] values
    ndarray:DTYPE                       [shape] values
    ndarray:DTYPE:2,3                           values

dtype is one byte, shape is one (ndim << 2 | k) and then each dimension in 2^k bytes, k as small as the largest of them allows; values are
little-endian in C order. Granular names a dtype as numpy does (`<i2`), of any byte order, beside a list of dimensions.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from flarecli.encodings.names import NDARRAY_CODES, NDARRAY_CODES_SIZE, Encoding
from flarecli.errors import ValueFitError
from flarecli.units import format_size

__all__ = ["build", "decode", "describe", "encode"]

_DTYPES = {code: name for name, code in NDARRAY_CODES.items()}
_DTYPE = re.compile(
    r"[<>|=]?[biufcSUV][0-9]{1,9}", re.ASCII
)  # numbers and text of fixed size: no objects, which would be pointers, and no times
_DIMENSIONS = 32  # what every numpy takes
_EMPTY_LISTS = 1024  # in an array of no bytes


def encode(encoding: Encoding, value: Any) -> bytes:
    """Give the stored bytes of an array, or of nested lists of numbers, whatever its byte order and its strides.

    raises  ValueFitError for another dtype or shape than the encoding fixes, and for none that MDS has
    """
    import numpy as np

    array = np.asarray(value)
    if not hasattr(value, "dtype") and encoding.dtype and array.dtype != encoding.dtype:
        array = _cast(array, encoding)
    dtype = array.dtype.name
    wrong = (encoding.dtype and encoding.dtype != dtype) or (
        encoding.shape and encoding.shape != array.shape
    )
    if wrong or dtype not in NDARRAY_CODES or not 1 <= array.ndim <= 63 or array.size == 0:
        raise ValueFitError(f"an array of {array.dtype} {array.shape} does not fit {encoding.name}")
    head = b"" if encoding.dtype else bytes([NDARRAY_CODES[dtype]])
    if not encoding.shape:
        power = next(
            k
            for k, limit in enumerate((1 << 8, 1 << 16, 1 << 32, 1 << 64))
            if max(array.shape) < limit
        )
        head += bytes([array.ndim << 2 | power]) + b"".join(
            dim.to_bytes(1 << power, "little") for dim in array.shape
        )
    return head + array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _cast(array: Any, encoding: Encoding) -> Any:
    """Bring plain numbers to the dtype that an encoding fixes, if that loses nothing but digits of a float."""
    import numpy as np

    if array.dtype.kind not in "biuf" or array.size == 0:
        return array
    with np.errstate(all="ignore"):
        out = array.astype(encoding.dtype)
        back = out.astype(array.dtype)
    same = (
        (np.isfinite(out) | ~np.isfinite(array))
        if out.dtype.kind == "f"
        else (back == array) & ((out < 0) == (array < 0))
    )
    if not same.all():
        raise ValueFitError(f"{array[~same].flat[0]} does not fit {encoding.name}")
    return out


def decode(encoding: Encoding, data: bytes) -> Any:
    """Give a read-only array over the stored bytes. Raises ValueFitError if they are not what the encoding says."""
    import numpy as np

    at, dtype, shape = 0, encoding.dtype, encoding.shape
    if not dtype:
        dtype, at = _DTYPES.get(data[0] if data else -1, ""), 1
    if dtype and not shape and at < len(data):
        width, ndim = 1 << (data[at] & 3), data[at] >> 2
        shape = tuple(
            int.from_bytes(data[at + 1 + i * width : at + 1 + (i + 1) * width], "little")
            for i in range(ndim)
        )
        at += 1 + ndim * width
    if not dtype or not shape or math.prod(shape) * NDARRAY_CODES_SIZE[dtype] != len(data) - at:
        raise ValueFitError(f"{format_size(len(data))} are not {encoding.name}")
    _check_empty(shape)
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=at).reshape(shape)


def _check_empty(shape: Sequence[int]) -> None:
    """Raise ValueFitError for an array of no bytes that is many lists: a shape of (2^31, 0) takes none, its lists 100 GB."""
    lists = math.prod(itertools.takewhile(bool, shape))
    if 0 in shape and lists > _EMPTY_LISTS:
        raise ValueFitError(f"an array of shape {tuple(shape)} has no values and {lists} rows")


def describe(array: Any) -> tuple[str, list[int], bytes]:
    """Give numpy's name of an array's dtype, its dimensions and its values in C order, in its own byte order.

    raises  ValueFitError for objects, times and records, which cannot be read back
    """
    dtype = array.dtype.str
    if (
        not _DTYPE.fullmatch(dtype)
        or array.dtype.names is not None
        or array.dtype.itemsize == 0
        or array.ndim > _DIMENSIONS
    ):
        raise ValueFitError(f"an array of {array.dtype} {array.shape} cannot be read back")
    return dtype, list(array.shape), array.tobytes()


def build(dtype: Any, shape: Any, data: Any) -> Any:
    """Give a read-only array of what `describe` gave, or a file claims. Raises ValueFitError if the three do not agree."""
    import numpy as np

    if (
        not isinstance(dtype, str)
        or not _DTYPE.fullmatch(dtype)
        or not isinstance(data, bytes)
        or not isinstance(shape, list)
        or len(shape) > _DIMENSIONS
        or not all(type(dim) is int and dim >= 0 for dim in shape)
    ):
        raise ValueFitError("not the dtype, the shape and the bytes of an array")
    try:
        kind = np.dtype(dtype)
        if math.prod(shape) * kind.itemsize != len(data) or kind.itemsize == 0:
            raise ValueFitError(f"{len(data)} bytes are no array of {dtype} {tuple(shape)}")
        _check_empty(shape)
        return np.frombuffer(data, kind).reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ValueFitError):
            raise
        raise ValueFitError(
            f"{len(data)} bytes are no array of {dtype[:20]} with {len(shape)} dimensions"
        ) from None
