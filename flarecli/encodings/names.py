"""The names of all encodings, with the value size and the Arrow type of each encoding.

- The 28 encodings of MDS, under the same names as in MDS.
- The encodings of Granular: `varint`, `msgpack`, `array`, `tree`, `mp4` and `webm`. `msgpack_float`
  is a `msgpack` value that is always a number, so its columns have the Arrow type float64.
- JSON text, for the values in JSON shards: `json_str`, `json_int`, `json_float`, and `json_json`, a
  JSON string whose text is JSON.
- `X[]`, a list of values with the encoding X.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from flarecli.arguments import checked
from flarecli.errors import UsageError
from flarecli.lazy import pa
from flarecli.model import Column
from flarecli.suggest import choose

__all__ = [
    "BINARY",
    "CUSTOM",
    "CustomEncoding",
    "Encoding",
    "NAMES",
    "NDARRAY_CODES",
    "NDARRAY_CODES_SIZE",
    "TEXT",
    "column",
    "lookup",
    "register",
]

# name of a pyarrow function that returns a type -> Arrow's name for this type, if it differs
_ARROW_NAMES = {"float16": "halffloat", "float32": "float", "float64": "double"}
_TEXT, _BINARY = (
    "large_string",
    "large_binary",
)  # names of types, so that `lookup` does not import Arrow
TEXT: Any  # the Arrow type large_string, created on first access
BINARY: Any  # the Arrow type large_binary, created on first access

_SCALARS = {  # encoding -> size in bytes
    "int": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}
_TEXTS = ("str", "json", "str_int", "str_float", "str_decimal")
_BINARIES = (
    "bytes",
    "pil",
    "jpeg",
    "jpeg_array",
    "jpegarray",
    "png",
    "list[pil]",
    "list[jpeg]",
    "list[png]",
    "pkl",
    "ndarray",
)
_JSON_TEXTS = ("json_str", "json_int", "json_float", "json_json")
_RECORDS = ("msgpack", "array", "tree", "mp4", "webm")
_NUMBERS = {"varint": "int64", "msgpack_float": "float64"}  # variable-size numbers -> Arrow type
_ALIASES = {
    "string": "str",
    "text": "str",
    "float": "float64",
    "double": "float64",
    "jpg": "jpeg",
    "image": "jpeg",
    "binary": "bytes",
    "pickle": "pkl",
    "integer": "int",
    "long": "int64",
    "half": "float16",
    "path": "str",
}
NAMES = (
    *_SCALARS,
    *_TEXTS,
    *_BINARIES,
    *_NUMBERS,
    *_RECORDS,
    *_JSON_TEXTS,
)  # all built-in encodings except `ndarray:DTYPE` and `X[]`

NDARRAY_CODES = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
NDARRAY_CODES_SIZE = {dtype: int(re.sub(r"\D", "", dtype)) // 8 for dtype in NDARRAY_CODES}
_NDARRAY = r"(?a)ndarray:([a-z]+\d+)(?::( *\d+ *(?:, *\d+ *)*))?"
MAX_NDARRAY_BYTES = 1 << 32  # sample offsets in MDS shards are uint32
_CUSTOM_NAME = r"(?a)[A-Za-z_][\w.-]{0,63}"


@dataclass(frozen=True, slots=True)
class Encoding:
    """A named way to store the values of a column as bytes.

    size   size of each value in bytes; None if the sizes of values differ
    kind   name of the pyarrow function that returns the column's type; for a list, the item type
           and `[]`, such as `int64[]`
    dtype  dtype of an ndarray; empty for other encodings
    shape  shape of an ndarray with a fixed shape; empty for other encodings
    item   encoding of the items in a list; None for other encodings
    """

    name: str
    size: int | None
    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    item: Encoding | None = None

    @property
    def arrow(self) -> pa.DataType:
        """Arrow type of a column in a batch."""
        return _arrow(self.kind)

    @property
    def arrow_name(self) -> str:
        """Arrow's name for the type of a column in a batch. This property does not import Arrow."""
        return (
            f"large_list<item: {self.item.arrow_name}>"
            if self.item is not None
            else _ARROW_NAMES.get(self.kind, self.kind)
        )

    @property
    def is_text(self) -> bool:
        """True if the stored bytes are UTF-8 text."""
        return self.kind == _TEXT

    @property
    def raw(self) -> pa.DataType:
        """Arrow type of a column of stored bytes: large_binary, or a list of large_binary."""
        return _arrow(_BINARY if self.item is None else f"{_BINARY}[]")


@cache
def _arrow(kind: str) -> pa.DataType:
    return pa.large_list(_arrow(kind[:-2])) if kind.endswith("[]") else getattr(pa, kind)()


def __getattr__(name: str) -> Any:
    if name not in ("TEXT", "BINARY"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind = globals()[name] = _arrow(_TEXT if name == "TEXT" else _BINARY)
    return kind


@lru_cache(maxsize=1024)
def lookup(name: str) -> Encoding:
    """Return an encoding by name.

    raises  UsageError for an unknown name, an ndarray with an invalid dtype or shape, or a list of
            lists
    """
    if name in _SCALARS:
        return Encoding(name, _SCALARS[name], "int64" if name == "int" else name)
    if name in _TEXTS or name in _JSON_TEXTS:
        return Encoding(name, None, _TEXT)
    if name in _BINARIES or name in _RECORDS or name == "ndarray:":
        return Encoding(name, None, _BINARY)
    if name in _NUMBERS:
        return Encoding(name, None, _NUMBERS[name])
    if name.endswith("[]") and not name.endswith("[][]"):
        item = lookup(name[:-2])
        return Encoding(name, None, f"{item.kind}[]", item=item)
    match = re.fullmatch(_NDARRAY, name) if len(name) < 1000 else None
    if match and match[1] in NDARRAY_CODES:
        shape = tuple(int(dim) for dim in match[2].split(",")) if match[2] else ()
        size = math.prod(shape) * NDARRAY_CODES_SIZE[match[1]] if shape else None
        if len(shape) < 64 and (size is None or 0 < size < MAX_NDARRAY_BYTES):
            return Encoding(name, size, _BINARY, match[1], shape)
    if name in CUSTOM:
        return Encoding(name, None, _BINARY)
    shown = name if len(name) <= 60 else name[:57] + "…"
    hint = choose(
        name, NAMES, synonyms=_ALIASES, suffix=", ndarray:DTYPE:SHAPE, or NAME[] for a list"
    )
    raise UsageError(f"unknown encoding {shown!r}", hint=hint)


class CustomEncoding(NamedTuple):
    """The functions of a custom encoding: from a value to bytes, and from bytes to a value."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


CUSTOM: dict[str, CustomEncoding] = {}  # the custom encodings of this process


@checked
def register(name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
    """Register a custom encoding in this process. Columns can then use `NAME` and `NAME[]`.

    `encode` and `decode` must be thread-safe, because several threads may call them.

    encode  function that converts a value to bytes
    decode  function that converts bytes to a value
    raises  UsageError for the name of a built-in encoding, or an invalid name
    """
    if name in NAMES or name.startswith("ndarray"):
        raise UsageError(f"{name!r} is a built-in encoding", hint="Choose another name.")
    add_custom(name, CustomEncoding(encode, decode))


def add_custom(name: str, custom: CustomEncoding) -> None:
    """Register a custom encoding. It replaces a custom encoding with the same name.

    raises  UsageError for an invalid name
    """
    if not re.fullmatch(_CUSTOM_NAME, name):
        raise UsageError(
            f"{name!r:.80} is not a valid encoding name",
            hint="Use at most 64 letters, digits, _, - and dots, starting with a letter or _.",
        )
    CUSTOM[name] = custom


def column(name: str, encoding: str, extension: str = "") -> Column:
    """Return a column with the given encoding.

    extension  extension of the files in the column; ignored for numbers and lists
    raises     UsageError for an unknown encoding
    """
    found = lookup(encoding)
    is_file = found.item is None and found.kind in (_TEXT, _BINARY)
    return Column(name, encoding, found.size, extension if is_file else "")
