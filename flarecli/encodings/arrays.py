"""Numeric arrays: the bytes of MDS (`ndarray`) and of Granular (`array`, `tree`).

MDS:

    ndarray                     [dtype] [shape] values
    ndarray:DTYPE                       [shape] values
    ndarray:DTYPE:2,3                           values

dtype is one byte. shape is one byte (ndim << 2 | k), then each dimension in 2^k bytes. k is the
smallest number for which 2^k bytes can represent the largest dimension. Values are little-endian in
C order.

Granular stores numpy's name for the dtype, such as `<i2`, with any byte order. A list of dimensions
and the bytes of the values follow.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from flarecli.encodings.names import NDARRAY_CODES, NDARRAY_CODES_SIZE, Encoding
from flarecli.errors import ValueFitError
from flarecli.lazy import np
from flarecli.units import format_size

__all__ = ["build", "decode", "describe", "encode"]

_DTYPES = {code: name for name, code in NDARRAY_CODES.items()}
# Numbers, bytes and text of fixed size. Objects are rejected, because numpy stores only pointers to
# them. Times are not supported.
_DTYPE = re.compile(r"[<>|=]?[biufcSUV][0-9]{1,9}", re.ASCII)
MAX_DIMENSIONS = 32  # supported by all versions of numpy
MAX_EMPTY_LISTS = 1024  # maximum number of lists in an array without values


def encode(encoding: Encoding, value: Any) -> bytes:
    """Return the stored bytes of an array or of nested lists of numbers.

    An array may have any byte order and any strides.

    raises  ValueFitError for a dtype or shape that differs from the dtype or shape of the encoding,
            or that MDS does not support
    """
    array = np.asarray(value)
    if not hasattr(value, "dtype") and encoding.dtype and array.dtype != encoding.dtype:
        array = _cast(array, encoding)
    dtype = array.dtype.name
    differs = (encoding.dtype and encoding.dtype != dtype) or (
        encoding.shape and encoding.shape != array.shape
    )
    if differs or dtype not in NDARRAY_CODES or not 1 <= array.ndim <= 63 or array.size == 0:
        raise ValueFitError(
            f"an array of dtype {array.dtype} and shape {array.shape} cannot be stored as"
            f" {encoding.name}"
        )
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
    """Cast an array of numbers to the dtype of an encoding; floats may lose digits.

    raises  ValueFitError if the cast would change an integer, or make a float infinite
    """
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
        raise ValueFitError(f"{array[~same].flat[0]} cannot be stored as {encoding.name}")
    return out


def decode(encoding: Encoding, data: bytes) -> Any:
    """Return a read-only array that shares the memory of the stored bytes.

    raises  ValueFitError for invalid bytes
    """
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
        raise ValueFitError(f"not a valid {encoding.name} value ({format_size(len(data))})")
    _check_empty(shape)
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=at).reshape(shape)


def _check_empty(shape: Sequence[int]) -> None:
    """Raise ValueFitError for a shape that has no values but too many empty lists.

    An array of shape (2^31, 0) has no bytes, but as Python lists it would need 100 GB of memory.
    """
    lists = math.prod(itertools.takewhile(bool, shape))
    if 0 in shape and lists > MAX_EMPTY_LISTS:
        raise ValueFitError(
            f"an array of shape {tuple(shape)} consists of {lists} empty lists;"
            f" the maximum is {MAX_EMPTY_LISTS}"
        )


def describe(array: Any) -> tuple[str, list[int], bytes]:
    """Return numpy's name for an array's dtype, its dimensions, and its values in C order as bytes.

    raises  ValueFitError for an array that `build` cannot restore: objects, times, records, or too
            many dimensions
    """
    dtype = array.dtype.str
    if (
        not _DTYPE.fullmatch(dtype)
        or array.dtype.names is not None
        or array.dtype.itemsize == 0
        or array.ndim > MAX_DIMENSIONS
    ):
        raise ValueFitError(
            f"an array of dtype {array.dtype} and shape {array.shape} cannot be read back"
        )
    return dtype, list(array.shape), array.tobytes()


def build(dtype: Any, shape: Any, data: Any) -> Any:
    """Return a read-only array from the values that `describe` returns.

    raises  ValueFitError for invalid values
    """
    if (
        not isinstance(dtype, str)
        or not _DTYPE.fullmatch(dtype)
        or not isinstance(data, bytes)
        or not isinstance(shape, list)
        or len(shape) > MAX_DIMENSIONS
        or not all(type(dim) is int and dim >= 0 for dim in shape)
    ):
        raise ValueFitError("expected the dtype, the shape and the bytes of an array")
    try:
        kind = np.dtype(dtype)
        if math.prod(shape) * kind.itemsize != len(data) or kind.itemsize == 0:
            raise ValueFitError(
                f"{len(data)} bytes do not match an array of dtype {dtype} and shape {tuple(shape)}"
            )
        _check_empty(shape)
        return np.frombuffer(data, kind).reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ValueFitError):
            raise
        raise ValueFitError(
            f"{len(data)} bytes do not match an array of dtype {dtype[:20]} with {len(shape)}"
            " dimensions"
        ) from None
