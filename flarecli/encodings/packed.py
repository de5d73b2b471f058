"""MessagePack as Granular stores it, and its arrays and trees of arrays, both MessagePack too.

    msgpack   one value: null, true, false, numbers, text, bytes, lists, maps with keys of text
    array     [dtype, [dimensions], bytes]
    tree      lists and maps, with ["_", dtype, [dimensions], bytes] for an array among them

Packing takes the shortest form of every number and length and 64 bits for a float, as the original's library does by default. Unpacking
believes no count: items are made one by one, so that a claim of 2^32 of them ends where the bytes do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from flarecli.encodings import arrays
from flarecli.errors import ValueFitError

__all__ = ["Extension", "pack", "pack_array", "unpack", "unpack_array"]

_DEPTH = (
    512  # lists in lists; the original's library takes 1024, more than Python's own stack allows
)
_NUMBERS = {  # head: how the number behind it is laid out
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_WORDS = {0xC0: None, 0xC2: False, 0xC3: True}
_BIN, _EXT, _STR, _LIST, _MAP, _FIXEXT = range(6)
_SIZED = {  # head: what it begins, and in how many bytes its length stands
    **{0xC4 + i: (_BIN, 1 << i) for i in range(3)},
    **{0xC7 + i: (_EXT, 1 << i) for i in range(3)},
    **{0xD4 + i: (_FIXEXT, 1 << i) for i in range(5)},
    **{0xD9 + i: (_STR, 1 << i) for i in range(3)},
    **{0xDC + i: (_LIST, 2 << i) for i in range(2)},
    **{0xDE + i: (_MAP, 2 << i) for i in range(2)},
}


class Extension(NamedTuple):
    """A value of a type that MessagePack leaves to its users: its number, -128 to 127, and its bytes."""

    code: int
    data: bytes


def pack(value: Any, tree: bool = False) -> bytes:
    """Give the MessagePack of a value.

    tree    whether numpy arrays are packed; a list that would be read as one is refused then
    raises  ValueFitError for what it cannot hold: other types, integers of more than 64 bits, keys that are not text, deep nesting
    """
    out = bytearray()
    try:
        _pack(value, out, tree, _DEPTH)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        raise ValueFitError(
            f"{type(value).__name__} {value!r:.60} does not fit MessagePack"
        ) from None
    return bytes(out)


def pack_array(array: Any) -> bytes:
    """Give the stored bytes of `array`. Raises ValueFitError for a dtype that cannot be read back."""
    return pack(list(arrays.describe(array)))


def _pack(value: Any, out: bytearray, tree: bool, depth: int) -> None:
    if value is None:
        out.append(0xC0)
    elif isinstance(value, bool):
        out.append(0xC3 if value else 0xC2)
    elif isinstance(value, int):
        _pack_int(value, out)
    elif isinstance(value, float):
        out += b"\xcb" + _NUMBERS[0xCB].pack(value)
    elif isinstance(value, str):
        data = value.encode()
        _pack_size(len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB), out)
        out += data
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        _pack_size(len(data), 0, 0, (0xC4, 0xC5, 0xC6), out)
        out += data
    elif isinstance(value, Extension):
        _pack_extension(value, out)
    elif isinstance(value, (dict, list, tuple)) and not depth:
        raise OverflowError
    elif isinstance(value, dict):
        _pack_size(len(value), 0x80, 16, (0, 0xDE, 0xDF), out)
        for key, item in value.items():
            if not isinstance(key, (str, bytes)):
                raise ValueFitError(f"the key {key!r:.60} of a map is not text")
            _pack(key, out, tree, 0)
            _pack(item, out, tree, depth - 1)
    elif isinstance(value, (list, tuple)):
        if tree and _is_array(value):
            raise ValueFitError("a list of four that begins with '_' would be read as an array")
        _pack_size(len(value), 0x90, 16, (0, 0xDC, 0xDD), out)
        for item in value:
            _pack(item, out, tree, depth - 1)
    elif tree and _is_ndarray(value):
        _pack(["_", *arrays.describe(value)], out, False, 2)
    else:
        raise ValueFitError(f"{type(value).__name__} {value!r:.60} does not fit MessagePack")


def _is_ndarray(value: Any) -> bool:
    import numpy as np

    return isinstance(value, np.ndarray)


def _pack_int(value: int, out: bytearray) -> None:
    if -32 <= value < 128:
        out.append(value & 0xFF)
        return
    width = next(
        (
            k
            for k in range(4)
            if (-(1 << (8 << k) - 1) <= value if value < 0 else value < 1 << (8 << k))
        ),
        None,
    )
    if width is None:
        raise ValueFitError(f"{value!s:.60} does not fit the 64 bits of an integer")
    head = (0xD0 if value < 0 else 0xCC) + width
    out.append(head)
    out += _NUMBERS[head].pack(value)


def _pack_size(
    size: int, fixed: int, room: int, heads: tuple[int, int, int], out: bytearray
) -> None:
    if size < room:
        out.append(fixed | size)
        return
    for width, head in enumerate(heads):
        if head and size < 1 << (8 << width):
            out.append(head)
            out += size.to_bytes(1 << width, "big")
            return
    raise OverflowError


def _pack_extension(value: Extension, out: bytearray) -> None:
    size = len(value.data)
    if size in (1, 2, 4, 8, 16):
        out.append(0xD4 + size.bit_length() - 1)
    else:
        _pack_size(size, 0, 0, (0xC7, 0xC8, 0xC9), out)
    out += value.code.to_bytes(1, "big", signed=True) + value.data


def unpack(data: bytes, tree: bool = False) -> Any:
    """Give the value of MessagePack: lists for its arrays, `Extension` for what its users defined; with `tree`, numpy arrays too.

    raises  ValueFitError if the bytes are not one whole value, a key is not text, or it is nested more than 512 deep
    """
    try:
        value, at = _unpack(data, 0, tree, _DEPTH)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError, RecursionError):
        at = -1
    if at != len(data):
        raise ValueFitError("not one whole value of MessagePack")
    return value


def unpack_array(data: bytes) -> Any:
    """Give the array of stored bytes, read-only. Raises ValueFitError if they are none."""
    parts = unpack(data)
    if not isinstance(parts, list) or len(parts) != 3:
        raise ValueFitError("not the dtype, the shape and the bytes of an array")
    return arrays.build(*parts)


def _unpack(data: bytes, at: int, tree: bool, depth: int) -> tuple[Any, int]:
    head = data[at]
    at += 1
    if head < 0x80 or head >= 0xE0:
        return head if head < 0x80 else head - 256, at
    if head in _NUMBERS:
        layout = _NUMBERS[head]
        return layout.unpack_from(data, at)[0], at + layout.size
    if head in _WORDS:
        return _WORDS[head], at
    kind, size, at = _size(data, head, at)
    end = at + size
    if end > len(data) or (kind in (_LIST, _MAP) and not depth):
        raise IndexError
    if kind == _STR:
        return data[at:end].decode(), end
    if kind == _BIN:
        return data[at:end], end
    if kind == _EXT:
        return Extension(
            int.from_bytes(data[at : at + 1], "big", signed=True), data[at + 1 : end]
        ), end
    if kind == _LIST:
        items = []
        for _ in range(size):
            item, at = _unpack(data, at, tree, depth - 1)
            items.append(item)
        return arrays.build(*items[1:]) if tree and _is_array(items) else items, at
    mapping = {}
    for _ in range(size):
        key, at = _unpack(data, at, tree, 0)
        if not isinstance(key, (str, bytes)):
            raise ValueFitError("a key of a map is not text")
        mapping[key], at = _unpack(data, at, tree, depth - 1)
    return mapping, at


def _size(data: bytes, head: int, at: int) -> tuple[int, int, int]:
    """Read what a head begins, how large it is, and where it starts. An extension's size counts the byte of its number."""
    if head < 0xC0:
        return (
            (_STR, head & 31, at)
            if head >= 0xA0
            else (_LIST if head >= 0x90 else _MAP, head & 15, at)
        )
    if head not in _SIZED:
        raise IndexError
    kind, width = _SIZED[head]
    if kind == _FIXEXT:
        return _EXT, width + 1, at
    if at + width > len(data):
        raise IndexError
    return kind, int.from_bytes(data[at : at + width], "big") + (kind == _EXT), at + width


def _is_array(items: Sequence[Any]) -> bool:
    return len(items) == 4 and isinstance(items[0], str) and items[0] == "_"
