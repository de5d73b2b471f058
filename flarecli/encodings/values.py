"""One value at a time: Python values to stored bytes and back.

Decoding trusts no length: every count and dimension is checked against the bytes that are there. Encoding refuses what would not come
back: a number out of range, a palette, an object.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from flarecli.encodings import arrays, msgpack, number_text, pictures
from flarecli.encodings.columns import is_utf8
from flarecli.encodings.names import Encoding
from flarecli.encodings.registry import OWN
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
_PICTURES = (
    "pil",
    "jpeg",
    "png",
    "jpeg_array",
    "jpegarray",
    "list[pil]",
    "list[jpeg]",
    "list[png]",
)
_NOT_ONE = (struct.error, ValueError, InvalidOperation, RecursionError, OverflowError)


def encode(encoding: Encoding, value: Any) -> Any:
    """Give the stored bytes of one value, of a list the bytes of each item.

    Bytes are stored as they are, whatever the encoding, as MDS does, if a column can hold them; but MessagePack can hold bytes, and packs them.

    raises  ValueFitError if the encoding cannot hold the value; UnsafeError for a value that would be pickled
    """
    name = encoding.name
    if encoding.item is not None:
        try:
            items = (
                None
                if isinstance(value, (str, bytes, bytearray, memoryview, dict))
                else iter(value)
            )
        except TypeError:  # an array of no dimensions has a way to be gone through, and cannot be
            items = None
        if items is None:
            raise ValueFitError(f"{_seen(value)} does not fit {name}")
        return [encode(encoding.item, one) for one in items]
    if name in OWN:
        return _by_own(name, value)
    if isinstance(value, (bytes, bytearray, memoryview)) and name not in ("msgpack", "tree"):
        data = bytes(value)
        if encoding.size is not None and len(data) != encoding.size:
            raise ValueFitError(f"{len(data)} bytes do not fit {name}, which takes {encoding.size}")
        if encoding.is_text and not is_utf8(data):
            raise ValueFitError(f"{_seen(data)} does not fit {name}: it is not UTF-8")
        if name in ("varint", "msgpack_float"):
            decode(encoding, data)  # a column of them could not be read
        return data
    try:
        if name in _PACKERS:
            return _number(name, value)
        if name in _ENCODERS:
            return _ENCODERS[name](value)
        if name.startswith("ndarray"):
            return arrays.encode(encoding, value)
        if name in _PICTURES:
            return pictures.encode(name, value)
    except (*_NOT_ONE, TypeError) as error:
        if isinstance(error, FlareError):
            raise
        raise ValueFitError(f"{_seen(value)} does not fit {name}") from None
    if name == "pkl":
        raise UnsafeError(
            "pkl would pickle the value, and reading a pickle runs code",
            hint="Give the bytes of the pickle, or use json.",
        )
    raise ValueFitError(f"{type(value).__name__} does not fit {name}")


def _by_own(name: str, value: Any) -> bytes:
    """Call the user's own encoder; what it raises is told with the value that it was given."""
    try:
        data = OWN[name].encode(value)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueFitError(
            f"{_seen(value)} does not fit {name}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ValueFitError(f"the encoder of {name} gives {type(data).__name__}, not bytes")
    return bytes(data)


def _of_own(name: str, data: bytes) -> Any:
    try:
        return OWN[name].decode(data)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueFitError(
            f"{format_size(len(data))} are not {name}: {type(error).__name__}: {error}"
        ) from error


def _seen(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"


def _one(value: Any) -> Any:
    """Give the Python number of a numpy one, or of an array of one."""
    return value.item() if hasattr(value, "item") else value


def _number(name: str, value: Any) -> bytes:
    """Pack a number, which has to fit: nothing is wrapped, cut or made infinite. Text counts as the number it says, as in the original."""
    number = _one(value)
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


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def as_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Give the text of a value as JSON: keys in their order, ASCII, NaN as a bare word; numpy's arrays and numbers as Python's."""
    return json.dumps(value.tolist() if hasattr(value, "tolist") else value, default=default)


def _checked(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        number = _one(value)
        if not isinstance(number, kind) or isinstance(number, bool):
            raise TypeError
        return number

    return check


_int, _float, _decimal = _checked(int), _checked(float), _checked(Decimal)


def _varint(value: Any) -> bytes:
    number = _one(value)
    if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
        raise TypeError
    return number.to_bytes((number ^ number >> 63).bit_length() // 8 + 1, "little", signed=True)


def _json_str(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return json.dumps(value).encode()


def _json_int(value: Any) -> bytes:
    number = _one(value)
    if not isinstance(number, int):
        raise TypeError
    return json.dumps(number).encode()


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "str": _text,
    "json": lambda value: as_json(value).encode(),
    "str_int": lambda value: str(_int(value)).encode(),
    "str_float": lambda value: str(_float(value)).encode(),
    "str_decimal": lambda value: str(
        _decimal(Decimal(value) if isinstance(value, str) else value)
    ).encode(),
    "varint": _varint,
    "json_str": _json_str,
    "json_json": lambda value: json.dumps(as_json(value)).encode(),
    "json_int": _json_int,
    "json_float": lambda value: json.dumps(_float(value)).encode(),
    "msgpack": msgpack.pack,
    "msgpack_float": lambda value: msgpack.pack(
        _float(float(value) if isinstance(_one(value), int) else value)
    ),
    "array": lambda value: msgpack.pack_array(_ndarray(value)),
    "tree": lambda value: msgpack.pack(value, tree=True),
}


def _ndarray(value: Any) -> Any:
    import numpy as np

    return np.asarray(value)


def decode(encoding: Encoding, data: bytes | Sequence[bytes], allow_pickle: bool = False) -> Any:
    """Give the Python value of stored bytes: numbers, text, JSON values, Pillow images (opened, not yet decoded), arrays.

    data    of a list the bytes of each item
    raises  ValueFitError if the bytes are not what the encoding says; UnsafeError for a pickle unless `allow_pickle`
    """
    name = encoding.name
    if encoding.item is not None:
        return [decode(encoding.item, one, allow_pickle) for one in data]  # type: ignore[arg-type]
    data = data if isinstance(data, bytes) else bytes(data)  # type: ignore[arg-type]
    try:
        if name in _PACKERS:
            return _PACKERS[name].unpack(data)[0]
        if name in _DECODERS:
            return _DECODERS[name](data)
        if name.startswith("ndarray"):
            return arrays.decode(encoding, data)
        if name == "pkl":
            return _unpickled(data, allow_pickle)
        if name in OWN:
            return _of_own(name, data)
        return pictures.decode(name, data)
    except _NOT_ONE as error:
        if isinstance(error, (ValueFitError, UsageError)):
            raise
        raise ValueFitError(f"{format_size(len(data))} are not {name}") from None


def decoder(encoding: Encoding, allow_pickle: bool = False) -> Callable[[Any], Any] | None:
    """Return a function that decodes valid values as `decode` does; None if values are the stored bytes.

    It costs less per value than `decode`. Its errors for invalid values are of any type.
    """
    name = encoding.name
    if name == "bytes":
        return None
    if encoding.item is None and name in _PACKERS:
        unpack = _PACKERS[name].unpack
        return lambda data: unpack(data)[0]
    if encoding.item is None and name in _DECODERS:
        return _DECODERS[name]
    return lambda data: decode(encoding, data, allow_pickle)


def _unpickled(data: bytes, allow_pickle: bool) -> Any:
    if not allow_pickle:
        hint = "Give allow_pickle=True if you trust whoever wrote it: reading a pickle runs code."
        raise UnsafeError(f"a pickle of {format_size(len(data))}, not decoded", hint=hint)
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
    "json": lambda data: json.loads(
        data.decode()
    ),  # of bytes it would take UTF-16, and halves of characters
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
