"""The names of encodings: what each one's size and Arrow type are.

The 28 of MDS, spelt exactly as there; what Granular adds (`varint`, `msgpack`, `array`, `tree`, `mp4`, `webm`), and `msgpack_float`, which is
MessagePack of nothing but numbers, so that columns of floats stay columns of floats there; the values of a JSON
shard, stored as the JSON text that stands in its lines (`json_str`, `json_int`, `json_float`, and `json_json`: a text that is JSON itself);
and `X[]`, a list of any X.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from flarecli.arguments import checked
from flarecli.encodings.registry import OWN, Own, remember
from flarecli.errors import UsageError
from flarecli.lazy import pa
from flarecli.model import Column
from flarecli.suggest import choose

__all__ = [
    "BINARY",
    "Encoding",
    "NAMES",
    "NDARRAY_CODES",
    "NDARRAY_CODES_SIZE",
    "TEXT",
    "column",
    "lookup",
    "register",
]

_ARROW_NAMES = {
    "float16": "halffloat",
    "float32": "float",
    "float64": "double",
}  # others are what makes them
_TEXT, _BINARY = (
    "large_string",
    "large_binary",
)  # Arrow's names of the types, so that none is made to look up a name
TEXT: Any  # large_string, made when it is first asked for
BINARY: Any  # large_binary

_SCALARS = {  # bytes of each
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
_NUMBERS = {"varint": "int64", "msgpack_float": "float64"}  # of no fixed size
_MEANT = {
    "string": "str",
    "text": "str",
    "float": "float64",
    "double": "float64",
    "jpg": "jpeg",
    "image": "jpeg",
    "binary": "bytes",
    "pickle": "pkl",
}
_MEANT |= {"integer": "int", "long": "int64", "half": "float16", "path": "str"}
NAMES = (
    *_SCALARS,
    *_TEXTS,
    *_BINARIES,
    *_NUMBERS,
    *_RECORDS,
    *_JSON_TEXTS,
)  # all but ndarray:… and lists

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
_NDARRAY_BYTES = 1 << 32  # a sample is no larger than the uint32 offsets of its shard


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoding: `size` in bytes when every value has the same, and what Arrow calls the type of its column in a batch."""

    name: str
    size: int | None
    kind: str  # `int64`; of a list `int64[]`
    dtype: str = ""  # ndarray only
    shape: tuple[int, ...] = ()  # ndarray of fixed shape only
    item: Encoding | None = None  # a list's only: what each of its items has

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its column in a batch."""
        return _arrow(self.kind)

    @property
    def arrow_name(self) -> str:
        """What Arrow calls that type, said without Arrow."""
        return (
            f"large_list<item: {self.item.arrow_name}>"
            if self.item is not None
            else _ARROW_NAMES.get(self.kind, self.kind)
        )

    @property
    def is_text(self) -> bool:
        """Whether the stored bytes are UTF-8 text."""
        return self.kind == _TEXT

    @property
    def raw(self) -> pa.DataType:
        """The Arrow type of a column of stored bytes: large_binary, or lists of it."""
        return _arrow(_BINARY if self.item is None else f"{_BINARY}[]")


@cache
def _arrow(kind: str) -> pa.DataType:
    return pa.large_list(_arrow(kind[:-2])) if kind.endswith("[]") else getattr(pa, kind)()


def __getattr__(name: str) -> Any:
    if name not in ("TEXT", "BINARY"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _arrow(_TEXT if name == "TEXT" else _BINARY)
    return found


@lru_cache(maxsize=1024)
def lookup(name: str) -> Encoding:
    """Find an encoding by name.

    raises  UsageError for a name that is none, an ndarray of a dtype or shape that cannot be held, or a list of lists
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
        if len(shape) < 64 and (size is None or 0 < size < _NDARRAY_BYTES):
            return Encoding(name, size, _BINARY, match[1], shape)
    if name in OWN:
        return Encoding(name, None, _BINARY)
    shown = name if len(name) <= 60 else name[:57] + "…"
    hint = choose(name, NAMES, meant=_MEANT, more=", ndarray:DTYPE:SHAPE, or NAME[] for a list")
    raise UsageError(f"unknown encoding {shown!r}", hint=hint)


@checked
def register(name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
    """Add an encoding of one's own, for this process: columns may have it, and `NAME[]` is a list of them.

    encode  a value -> its bytes; decode  the bytes -> a value. Both are called for one value at a time, by any thread
    raises  UsageError for the name of an encoding that flare has, or one that cannot be one
    """
    if name in NAMES or name.startswith("ndarray"):
        raise UsageError(f"{name!r} is an encoding that flare has", hint="Choose another name.")
    remember(name, Own(encode, decode))


def column(name: str, encoding: str) -> Column:
    """Make a Column, with the size that its encoding fixes. Raises UsageError for an unknown encoding."""
    return Column(name, encoding, lookup(encoding).size)
