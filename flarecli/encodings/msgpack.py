"""MessagePack encodings of Granular: values, arrays, trees of arrays, and floats.

    msgpack        one value: null, true, false, number, text, bytes, list, or a map whose keys are
                   text or bytes
    array          [dtype, [dimensions], bytes]
    tree           a `msgpack` value in which a list ["_", dtype, [dimensions], bytes] is an array
    msgpack_float  one number; written as the byte CB and a big-endian float64

As in Granular, integers and lengths have their shortest form, and floats have 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msgpack import ExtType, Packer, Unpacker
from msgpack.exceptions import UnpackException

from flarecli.encodings import arrays
from flarecli.encodings.names import BINARY
from flarecli.errors import ValueFitError
from flarecli.lazy import np, pa, pc

__all__ = [
    "float_bytes",
    "pack",
    "pack_array",
    "parse_double_column",
    "parse_float_column",
    "unpack",
    "unpack_array",
    "unpack_float",
]

MAX_DEPTH = 511  # maximum depth in the packer of the msgpack library; its unpacker allows 1024
_DOUBLE = b"\xcb"


def pack(value: Any, tree: bool = False) -> bytes:
    """Return a value as MessagePack.

    tree    True: also pack numpy arrays, and reject a list that `unpack` would return as an array
    raises  ValueFitError for unsupported types, integers of more than 64 bits, keys that are
            neither text nor bytes, or deep nesting
    """
    try:
        _check(value, tree, MAX_DEPTH)
        data: bytes = Packer(default=_describe_array if tree else _refuse).pack(value)
        return data
    except ValueFitError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError):
        _refuse(value)


def _refuse(value: Any) -> NoReturn:
    if isinstance(value, int):
        raise ValueFitError(f"{value!s:.60} exceeds 64 bits") from None
    raise ValueFitError(f"MessagePack cannot store {type(value).__name__} {value!r:.60}") from None


def _describe_array(value: Any) -> Any:
    return ["_", *arrays.describe(value)] if isinstance(value, np.ndarray) else _refuse(value)


def _check(value: Any, tree: bool, depth: int) -> None:
    """Check the map keys, the lists and the nesting of a value.

    tree    True: reject a list that `unpack` would return as an array
    depth   maximum number of levels below this value
    raises  ValueFitError for a key that is neither text nor bytes, or for a rejected list;
            ValueError for deep nesting
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, (str, bytes)):
                raise ValueFitError(f"map key {key!r:.60} is neither text nor bytes")
        items: Any = value.values()
    elif isinstance(value, (list, tuple)) and not isinstance(value, ExtType):
        if tree and _is_array(value):
            raise ValueFitError(
                "a list of four items that starts with '_' would be read as a numpy array"
            )
        items = value
    else:
        return
    if not depth:
        raise ValueError("value is nested too deeply")
    for item in items:
        if isinstance(item, (Mapping, list, tuple)):
            _check(item, tree, depth - 1)


def _is_array(items: Sequence[Any]) -> bool:
    return len(items) == 4 and isinstance(items[0], str) and items[0] == "_"


def pack_array(array: Any) -> bytes:
    """Return the stored bytes of an array. Raises ValueFitError for an unsupported dtype."""
    return pack(list(arrays.describe(array)))


def unpack(data: bytes, tree: bool = False) -> Any:
    """Parse one MessagePack value. A MessagePack extension becomes an ExtType.

    tree    True: return each list ["_", dtype, [dimensions], bytes] as a numpy array
    raises  ValueFitError for bytes that are not exactly one value, for a key that is neither text
            nor bytes, or for deep nesting
    """
    try:
        # `unpack` allocates each list with the length in its header, which may be wrong. Therefore,
        # `skip` runs first. It allocates no lists, and raises an error if the data is too short.
        skipper = Unpacker(max_buffer_size=len(data))
        skipper.feed(data)
        skipper.skip()
        if skipper.tell() != len(data):
            raise ValueError("unexpected bytes after the value")
        unpacker = Unpacker(
            max_buffer_size=len(data),
            strict_map_key=False,
            list_hook=_build_array if tree else None,
            ext_hook=_extension,
        )
        unpacker.feed(data)
        value = unpacker.unpack()
        _check(value, False, MAX_DEPTH)
        return value
    except ValueFitError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError, UnpackException):
        raise ValueFitError("expected exactly one MessagePack value") from None


def _extension(code: int, data: bytes) -> ExtType:
    return ExtType._make((code, data))  # `ExtType(…)` rejects the valid negative codes


def _build_array(items: list[Any]) -> Any:
    return arrays.build(*items[1:]) if _is_array(items) else items


def unpack_array(data: bytes) -> Any:
    """Return the array in stored bytes, read-only. Raises ValueFitError for invalid bytes."""
    parts = unpack(data)
    if not isinstance(parts, list) or len(parts) != 3:
        raise ValueFitError("expected the dtype, the shape and the bytes of an array")
    return arrays.build(*parts)


def unpack_float(data: bytes) -> float:
    """Parse a number from stored bytes. Raises ValueError for invalid bytes."""
    if len(data) == 9 and data[:1] == _DOUBLE:
        return float(struct.unpack(">d", data[1:])[0])
    value = unpack(data)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("not a MessagePack number")
    return float(value)


def float_bytes(array: pa.Array) -> pa.Array:
    """Convert float64 [n] to stored bytes, large_binary [n]; nulls remain null."""
    data = np.empty((len(array), 9), np.uint8)
    data[:, 0] = _DOUBLE[0]
    data[:, 1:] = (
        array.fill_null(0.0)
        .to_numpy(zero_copy_only=False)
        .astype(">f8")
        .view(np.uint8)
        .reshape(-1, 8)
    )
    ends = pa.py_buffer(np.arange(len(array) + 1, dtype=np.int64) * 9)
    out = pa.Array.from_buffers(BINARY, len(array), [None, ends, pa.py_buffer(data)])
    return pc.if_else(array.is_null(), pa.scalar(None, BINARY), out) if array.null_count else out


def parse_float_column(raw: pa.Array) -> pa.Array:
    """Convert stored bytes, large_binary [n], to float64 [n]; nulls remain null.

    raises  ValueFitError with the row of the first value that is not a number
    """
    out = parse_double_column(raw)
    if out is not None:
        return out
    values = []
    for row, data in enumerate(raw.to_pylist()):
        try:
            values.append(None if data is None else unpack_float(data))
        except ValueFitError as error:
            raise error.changed(row=row) from None
        except ValueError as error:
            raise ValueFitError(str(error), row=row) from None
    return pa.array(values, pa.float64())


def parse_double_column(raw: pa.Array) -> pa.Array | None:
    """Return the result of `parse_float_column` if each value is a float64, otherwise None.

    The result is also None if the column contains nulls.
    """
    if raw.null_count or not pc.all(pc.equal(pc.binary_length(raw), 9), min_count=0).as_py():
        return None
    if not pc.all(pc.starts_with(raw, _DOUBLE), min_count=0).as_py():
        return None
    if not len(raw):
        return pa.array([], pa.float64())
    start = np.frombuffer(raw.buffers()[1], np.int64, 1, raw.offset * 8)[0]
    data = np.frombuffer(raw.buffers()[2], np.uint8, len(raw) * 9, start).reshape(-1, 9)
    return pa.array(np.ascontiguousarray(data[:, 1:]).view(">f8").astype(np.float64).ravel())
