"""One value at a time: Python values to stored bytes and back.

Decoding trusts no length: every count and dimension is checked against the bytes that are there.
"""

from __future__ import annotations

import io
import json
import math
import struct
from decimal import Decimal, InvalidOperation
from typing import Any

from flarecli.encodings.names import NDARRAY_CODES, NDARRAY_CODES_SIZE, Encoding
from flarecli.errors import UnsafeError, UsageError, ValueFitError
from flarecli.units import format_size

__all__ = ["decode", "encode"]

_PACKERS = {
    "int": struct.Struct("<q"),
    "int8": struct.Struct("<b"),
    "int16": struct.Struct("<h"),
    "int32": struct.Struct("<i"),
    "int64": struct.Struct("<q"),
    "uint8": struct.Struct("<B"),
    "uint16": struct.Struct("<H"),
    "uint32": struct.Struct("<I"),
    "uint64": struct.Struct("<Q"),
    "float16": struct.Struct("<e"),
    "float32": struct.Struct("<f"),
    "float64": struct.Struct("<d"),
}
_DTYPES = {code: name for name, code in NDARRAY_CODES.items()}


def encode(encoding: Encoding, value: Any) -> bytes:
    """Give the stored bytes of one value. Bytes are stored as they are, whatever the encoding, as MDS does.

    raises  ValueFitError if the encoding cannot hold the value; UnsafeError for a value that would be pickled
    """
    name = encoding.name
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        if encoding.size is not None and len(data) != encoding.size:
            raise ValueFitError(f"{len(data)} bytes do not fit {name}, which takes {encoding.size}")
        return data
    try:
        if name in _PACKERS:
            number = value.item() if hasattr(value, "item") else value
            if not isinstance(number, (int, float)) or (isinstance(number, float) and not name.startswith("float")):
                raise ValueFitError(f"{type(value).__name__} {value!r:.60} does not fit {name}")
            return _PACKERS[name].pack(number)
        if name == "str" and isinstance(value, str):
            return value.encode()
        if name == "json":
            return json.dumps(value.tolist() if hasattr(value, "tolist") else value).encode()
        if name in ("str_int", "str_float", "str_decimal"):
            return _number_text(name, value).encode()
        if name in ("jpeg", "png") and hasattr(value, "save"):
            return _picture_bytes(name, value)
        if name.startswith("ndarray"):
            return _array_bytes(encoding, value)
    except (struct.error, OverflowError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ValueFitError):
            raise
        raise ValueFitError(f"{type(value).__name__} {value!r:.60} does not fit {name}") from None
    if name == "pkl":
        raise UnsafeError("pkl would pickle the value, and reading a pickle runs code", hint="Give the bytes of the pickle, or use json.")
    raise ValueFitError(f"{type(value).__name__} does not fit {name}")


def _number_text(name: str, value: Any) -> str:
    wanted = {"str_int": int, "str_float": float, "str_decimal": Decimal}[name]
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueFitError(f"{type(value).__name__} {value!r:.60} does not fit {name}")
    return str(value)


def _picture_bytes(name: str, picture: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, format=name.upper())
    return out.getvalue()


def _array_bytes(encoding: Encoding, value: Any) -> bytes:
    import numpy as np

    array = np.asarray(value)
    dtype = array.dtype.name
    if dtype not in NDARRAY_CODES or not 1 <= array.ndim <= 63 or array.size == 0:
        raise ValueFitError(f"an array of {array.dtype} {array.shape} does not fit {encoding.name}")
    if (encoding.dtype and encoding.dtype != dtype) or (encoding.shape and encoding.shape != array.shape):
        raise ValueFitError(f"an array of {array.dtype} {array.shape} does not fit {encoding.name}")
    head = b"" if encoding.dtype else bytes([NDARRAY_CODES[dtype]])
    if not encoding.shape:
        power = next(k for k, limit in enumerate((1 << 8, 1 << 16, 1 << 32, 1 << 64)) if max(array.shape) < limit)
        head += bytes([array.ndim << 2 | power]) + b"".join(dim.to_bytes(1 << power, "little") for dim in array.shape)
    return head + np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def decode(encoding: Encoding, data: bytes, allow_pickle: bool = False) -> Any:
    """Give the Python value of stored bytes: numbers, text, JSON values, Pillow images (opened, not yet decoded), arrays.

    raises  ValueFitError if the bytes are not what the encoding says; UnsafeError for a pickle unless `allow_pickle`
    """
    name = encoding.name
    try:
        if name in _PACKERS:
            return _PACKERS[name].unpack(data)[0]
        if name == "bytes":
            return data
        if name == "str":
            return data.decode()
        if name == "json":
            return json.loads(data)
        if name == "str_int":
            return int(data)
        if name == "str_float":
            return float(data)
        if name == "str_decimal":
            return Decimal(data.decode())
        if name.startswith("ndarray"):
            return _array(encoding, data)
        if name == "pkl":
            return _unpickled(data, allow_pickle)
        return _pictures(name, data)
    except (struct.error, ValueError, InvalidOperation, RecursionError, OverflowError, MemoryError) as error:
        if isinstance(error, (ValueFitError, UsageError)):
            raise
        raise ValueFitError(f"{format_size(len(data))} are not {name}") from None


def _unpickled(data: bytes, allow_pickle: bool) -> Any:
    if not allow_pickle:
        hint = "Give allow_pickle=True if you trust whoever wrote it: reading a pickle runs code."
        raise UnsafeError(f"a pickle of {format_size(len(data))}, not decoded", hint=hint)
    import pickle

    return pickle.loads(data)


def _array(encoding: Encoding, data: bytes) -> Any:
    """Read [dtype byte] [shape byte = ndim << 2 | k, dims of 2^k bytes each] values, as the encoding leaves open."""
    import numpy as np

    at, dtype, shape = 0, encoding.dtype, encoding.shape
    if not dtype:
        dtype, at = _DTYPES.get(data[0] if data else -1, ""), 1
    if dtype and not shape and at < len(data):
        width, ndim = 1 << (data[at] & 3), data[at] >> 2
        shape = tuple(int.from_bytes(data[at + 1 + i * width : at + 1 + (i + 1) * width], "little") for i in range(ndim))
        at += 1 + ndim * width
    if not dtype or not shape or math.prod(shape) * NDARRAY_CODES_SIZE[dtype] != len(data) - at:
        raise ValueFitError(f"{format_size(len(data))} are not {encoding.name}")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=at).reshape(shape)


def _pictures(name: str, data: bytes) -> Any:
    if name == "pil":
        return _raw_picture(data)
    if name in ("jpeg", "png"):
        return _opened(name, data)
    start = 0 if name in ("jpeg_array", "jpegarray") else 4  # list[…] begins with a reserved word
    count = int.from_bytes(data[start : start + 4], "little")
    first = start + 4 + 4 * count
    if len(data) < first:
        raise ValueFitError(f"{format_size(len(data))} cannot hold {count} pictures")
    sizes = struct.unpack_from(f"<{count}I", data, start + 4)
    if first + sum(sizes) != len(data):
        raise ValueFitError(f"{format_size(len(data))} are not the {sum(sizes)} bytes of {count} pictures")
    parts, at = [], first
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    if start == 0:
        return parts
    inner = name[5:-1]
    return [_raw_picture(part) if inner == "pil" else _opened(inner, part) for part in parts]


def _opened(name: str, data: bytes) -> Any:
    """Open a picture's header; its pixels are decoded when they are asked for. The container says what it is, not the name."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError, SyntaxError):
        raise ValueFitError(f"{format_size(len(data))} are not {name}") from None


def _raw_picture(data: bytes) -> Any:
    """Read uint32 width, height, length of the mode's name; the name; pixels as they are."""
    from PIL import Image

    width, height, length = struct.unpack_from("<III", data)
    mode, pixels = data[12 : 12 + length].decode("ascii"), data[12 + length :]
    if length > 8 or width * height > 1 << 32 or width * height > 8 * len(pixels):
        raise ValueFitError(f"{format_size(len(data))} are not pil")
    return Image.frombytes(mode, (width, height), pixels)
