"""Custom encodings of MDS columns, at the import path of mosaicml-streaming.

This example registers an encoding for complex numbers:

class Complex128(Encoding):
    def encode(self, obj): return np.complex128(obj).tobytes()
    def decode(self, data): return np.frombuffer(data, np.complex128)[0]

_encodings["complex128"] = Complex128
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from flarecli import encodings
from flarecli.errors import UsageError

__all__ = [
    "Encoding",
    "_encodings",
    "get_mds_encodings",
    "is_mds_encoding",
    "is_mds_encoding_safe",
    "mds_decode",
    "mds_encode",
]

_NAMES = [
    "bytes",
    "int",
    "jpeg",
    "jpeg_array",
    "jpegarray",
    "json",
    "ndarray",
    "pil",
    "pkl",
    "png",
    "str",
    "str_decimal",
    "str_float",
    "str_int",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "list[jpeg]",
    "list[pil]",
    "list[png]",
]


class Encoding(ABC):
    """Base class of custom encodings."""

    size: int | None = None

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Encode a value as bytes."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Decode bytes to a value."""


class _Named(Encoding):
    """Base class of flare's own encodings."""

    name = ""

    def encode(self, obj: Any) -> bytes:
        return mds_encode(self.name, obj)

    def decode(self, data: bytes) -> Any:
        return mds_decode(self.name, data)


class _Encodings(dict[str, type[Encoding]]):
    """Registry of encodings: name -> class.

    All readers and writers of this process can use an encoding that is added here.
    """

    def __setitem__(self, name: str, encoding: type[Encoding]) -> None:
        if encoding.size is not None:
            raise UsageError(
                f"encoding {name!r:.60} has a fixed size of {encoding.size} bytes",
                hint="Omit `size`; the length of each value is stored with the value.",
            )
        coder = encoding()
        encodings.encoding(name, coder.encode, coder.decode)
        super().__setitem__(name, encoding)


_encodings: dict[str, type[Encoding]] = _Encodings(
    {name: type(name, (_Named,), {"name": name}) for name in _NAMES}
)


def get_mds_encodings() -> set[str]:
    """Return the names of all encodings, without dtypes or shapes."""
    return set(_encodings)


def is_mds_encoding(encoding: str) -> bool:
    """Return whether an encoding such as `int` or `ndarray:uint8:3,4` is valid."""
    if encoding.partition(":")[0] not in _encodings:
        return False
    try:
        encodings.lookup(encoding)
    except UsageError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    """Return whether decoding is safe; False if decoding may run code from the data."""
    return encoding != "pkl"


def mds_encode(encoding: str, obj: Any) -> bytes:
    """Encode a value as bytes. Raises ValueFitError if the encoding cannot store the value."""
    data = encodings.encode(encodings.lookup(encoding), obj)
    return data if isinstance(data, bytes) else b"".join(data)


def mds_decode(encoding: str, data: bytes) -> Any:
    """Decode bytes to a value. Raises UnsafeError for pickles."""
    return encodings.decode(encodings.lookup(encoding), data)
