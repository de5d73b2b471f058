"""Convert single values: Python values to stored bytes and back.

`decode` compares every count and dimension with the length of the bytes. `encode` rejects values
that `decode` could not restore, for example a number that is out of range, a palette or an object.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from flarecli.encodings import arrays, images, msgpack, number_text
from flarecli.encodings.columns import is_utf8
from flarecli.encodings.names import CUSTOM, Encoding
from flarecli.encodings.number_text import MAX_JSON_TEXT_BYTES
from flarecli.errors import FlareError, UnsafeError, UsageError, ValueFitError
from flarecli.units import format_size

__all__ = ["as_json", "decode", "encode"]

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
_IMAGES = (
    "pil",
    "jpeg",
    "png",
    "jpeg_array",
    "jpegarray",
    "list[pil]",
    "list[jpeg]",
    "list[png]",
)
_ARRAY_STEP = 1 << 20  # maximum number of array values to convert to Python objects at a time
_ERRORS = (struct.error, ValueError, InvalidOperation, RecursionError, OverflowError)


def encode(encoding: Encoding, value: Any) -> Any:
    """Return the stored bytes of a value; for a list encoding, a list with the bytes of each item.

    As in MDS, a value of type `bytes` is already encoded and is returned unchanged. Only `msgpack`,
    `tree` and custom encodings encode it.

    raises  ValueFitError if the encoding cannot store the value; UnsafeError for a `pkl` value that
            is not bytes, because flare does not write pickles
    """
    name = encoding.name
    if encoding.item is not None:
        try:
            items = (
                None
                if isinstance(value, (str, bytes, bytearray, memoryview, dict))
                else iter(value)
            )
        except TypeError:  # the value is not iterable, for example an array without dimensions
            items = None
        if items is None:
            raise ValueFitError(f"{_describe(value)} cannot be stored as {name}")
        return [encode(encoding.item, item) for item in items]
    if name in CUSTOM:
        return _encode_custom(name, value)
    if isinstance(value, (bytes, bytearray, memoryview)) and name not in ("msgpack", "tree"):
        data = bytes(value)
        if encoding.size is not None and len(data) != encoding.size:
            raise ValueFitError(
                f"{len(data)} bytes cannot be stored as {name}; expected {encoding.size}"
            )
        if encoding.is_text and not is_utf8(data):
            raise ValueFitError(f"{_describe(data)} cannot be stored as {name}: not UTF-8")
        if name in ("varint", "msgpack_float"):
            decode(encoding, data)  # raises ValueFitError for invalid bytes
        return data
    try:
        if name in _PACKERS:
            return _number(name, value)
        if name in _ENCODERS:
            return _ENCODERS[name](value)
        if name.startswith("ndarray"):
            return arrays.encode(encoding, value)
        if name in _IMAGES:
            return images.encode(name, value)
    except (*_ERRORS, TypeError) as error:
        if isinstance(error, FlareError):
            raise
        raise ValueFitError(f"{_describe(value)} cannot be stored as {name}") from None
    if name == "pkl":
        raise UnsafeError(
            "cannot store the value as pkl, because reading a pickle runs code",
            hint="Pass the pickle as bytes, or use the encoding json.",
        )
    raise ValueFitError(f"{type(value).__name__} cannot be stored as {name}")


def _encode_custom(name: str, value: Any) -> bytes:
    """Encode a value with a custom encoding. Raises ValueFitError if the encoder fails."""
    try:
        data = CUSTOM[name].encode(value)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueFitError(
            f"{_describe(value)} cannot be stored as {name}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ValueFitError(f"the encoder of {name} returned {type(data).__name__}; expected bytes")
    return bytes(data)


def _decode_custom(name: str, data: bytes) -> Any:
    try:
        return CUSTOM[name].decode(data)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueFitError(
            f"not a valid {name} value ({format_size(len(data))}): {type(error).__name__}: {error}"
        ) from error


def _describe(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"


def _as_scalar(value: Any) -> Any:
    """Convert a numpy scalar or a one-item array to a Python number; return other values as is."""
    return value.item() if hasattr(value, "item") else value


def _number(name: str, value: Any) -> bytes:
    """Return the stored bytes of a number.

    `int` accepts only integers. As in MDS, the other integer encodings also accept text and whole
    floats.

    raises  OverflowError or struct.error for a number that is out of range; TypeError or ValueError
            for other values
    """
    number = _as_scalar(value)
    if name.startswith("float"):
        number = float(number)
        data = _PACKERS[name].pack(number)
        if math.isinf(_PACKERS[name].unpack(data)[0]) and not math.isinf(number):
            raise OverflowError
        return data
    if isinstance(number, str) and name != "int":
        number = int(number)
    if not isinstance(number, int) and not (
        isinstance(number, float) and number.is_integer() and name != "int"
    ):
        raise TypeError
    return _PACKERS[name].pack(int(number))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def as_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as ASCII JSON text. Keys keep their order, and NaN becomes `NaN`.

    raises  OverflowError for an array whose text would exceed MAX_JSON_TEXT_BYTES
    """
    if isinstance(value, np.ndarray):
        if value.size > MAX_JSON_TEXT_BYTES // 3:  # a value has at least a digit, comma and space
            raise OverflowError
        return _array_text(value, default)
    return json.dumps(value.tolist() if hasattr(value, "tolist") else value, default=default)


def _array_text(array: np.ndarray, default: Callable[[Any], Any] | None) -> str:
    """Return an array as JSON text. To save memory, convert about _ARRAY_STEP values at a time."""
    if array.size <= _ARRAY_STEP:
        return json.dumps(array.tolist(), default=default)
    rows = max(1, _ARRAY_STEP // (array.size // len(array)))  # a row may exceed _ARRAY_STEP
    if array.ndim > 1 and rows == 1:
        return f"[{', '.join(_array_text(row, default) for row in array)}]"
    parts = (array[i : i + rows] for i in range(0, len(array), rows))
    return f"[{', '.join(json.dumps(part.tolist(), default=default)[1:-1] for part in parts)}]"


def _checked(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        number = _as_scalar(value)
        if not isinstance(number, kind) or isinstance(number, bool):
            raise TypeError
        return number

    return check


_int, _float, _decimal = _checked(int), _checked(float), _checked(Decimal)


def _varint(value: Any) -> bytes:
    number = _as_scalar(value)
    if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
        raise TypeError
    return number.to_bytes((number ^ number >> 63).bit_length() // 8 + 1, "little", signed=True)


def _json_int(value: Any) -> bytes:
    number = _as_scalar(value)
    if not isinstance(number, int):
        raise TypeError
    return json.dumps(number).encode()


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "str": lambda value: _string(value).encode(),
    "json": lambda value: as_json(value).encode(),
    "str_int": lambda value: str(_int(value)).encode(),
    "str_float": lambda value: str(_float(value)).encode(),
    "str_decimal": lambda value: str(
        _decimal(Decimal(value) if isinstance(value, str) else value)
    ).encode(),
    "varint": _varint,
    "json_str": lambda value: json.dumps(_string(value)).encode(),
    "json_json": lambda value: json.dumps(as_json(value)).encode(),
    "json_int": _json_int,
    "json_float": lambda value: json.dumps(_float(value)).encode(),
    "msgpack": msgpack.pack,
    "msgpack_float": lambda value: msgpack.pack(
        _float(float(value) if isinstance(_as_scalar(value), int) else value)
    ),
    "array": lambda value: msgpack.pack_array(np.asarray(value)),
    "tree": lambda value: msgpack.pack(value, tree=True),
}


def decode(encoding: Encoding, data: bytes | Sequence[bytes], allow_pickle: bool = False) -> Any:
    """Return the Python value of stored bytes, such as a number, text, an array or a Pillow image.

    Pillow decodes the pixels of an image on first access.

    data    stored bytes; for a list encoding, a list with the bytes of each item
    raises  ValueFitError for invalid bytes; UnsafeError for a pickle, unless `allow_pickle` is True
    """
    name = encoding.name
    if encoding.item is not None:
        return [decode(encoding.item, item, allow_pickle) for item in data]  # type: ignore[arg-type]
    data = data if isinstance(data, bytes) else bytes(data)  # type: ignore[arg-type]
    try:
        if name in _PACKERS:
            return _PACKERS[name].unpack(data)[0]
        if name in _DECODERS:
            return _DECODERS[name](data)
        if name.startswith("ndarray"):
            return arrays.decode(encoding, data)
        if name == "pkl":
            return _unpickle(data, allow_pickle)
        if name in CUSTOM:
            return _decode_custom(name, data)
        return images.decode(name, data)
    except _ERRORS as error:
        if isinstance(error, (ValueFitError, UsageError)):
            raise
        raise ValueFitError(f"not a valid {name} value ({format_size(len(data))})") from None


def decoder(encoding: Encoding, allow_pickle: bool = False) -> Callable[[Any], Any] | None:
    """Return a function that decodes the values of an encoding faster than `decode`.

    The result is None for `bytes`, whose values need no decoding. For an invalid value, the
    function may raise any error.
    """
    name = encoding.name
    if name == "bytes":
        return None
    if (unpack := unpacker(encoding)) is not None:
        return lambda data: unpack(data)[0]
    if encoding.item is None and name in _DECODERS:
        return _DECODERS[name]
    return lambda data: decode(encoding, data, allow_pickle)


def unpacker(encoding: Encoding) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return a function that decodes a number to a tuple of one item; None for other encodings.

    To unpack this tuple takes less time than to call a Python function that returns its item.
    """
    is_number = encoding.item is None and encoding.name in _PACKERS
    return _PACKERS[encoding.name].unpack if is_number else None


def _unpickle(data: bytes, allow_pickle: bool) -> Any:
    if not allow_pickle:
        hint = "Reading a pickle runs code. Pass allow_pickle=True if you trust its source."
        raise UnsafeError(f"refusing to decode a pickle ({format_size(len(data))})", hint=hint)
    import pickle

    return pickle.loads(data)


def _signed(data: bytes) -> int:
    if len(data) > number_text.MAX_VARINT_BYTES:
        raise ValueError
    return int.from_bytes(data, "little", signed=True)


def _json_value(kind: type | tuple[type, ...]) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> Any:
        value = json.loads(data.decode())
        if not isinstance(value, kind):
            raise ValueError
        return value

    return parse


_json_text = _json_value(str)
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "mp4": bytes,
    "webm": bytes,
    "str": bytes.decode,
    # `json.loads` would also accept UTF-16 and lone surrogates in bytes; `bytes.decode` does not.
    "json": lambda data: json.loads(data.decode()),
    "str_int": lambda data: int(data.decode()),
    "str_float": lambda data: float(data.decode()),
    "str_decimal": lambda data: Decimal(data.decode()),
    "varint": _signed,
    "json_str": _json_text,
    "json_json": lambda data: json.loads(_json_text(data)),
    "json_int": _json_value(int),
    "json_float": _json_value((float, int)),
    "msgpack": msgpack.unpack,
    "msgpack_float": msgpack.unpack_float,
    "array": msgpack.unpack_array,
    "tree": lambda data: msgpack.unpack(data, tree=True),
}
