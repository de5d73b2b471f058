"""Checksums by the names that indexes and playlists use; one pass over the bytes feeds many sums.

The names are those of hashlib, without the shake family, which has no fixed length, plus
xxh32, xxh64, xxh128, xxh3_64 and xxh3_128 (seed 0) and crc32; crc32c and crc64nvme where awscrt is installed. Digests are
lowercase hex, big-endian.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from flarecli.errors import UsageError
from flarecli.suggest import choose

__all__ = ["DEFAULT", "Sums", "known", "digest"]

DEFAULT = "xxh3_128"  # what every playlist carries: as fast as memory, long enough never to collide by accident
_XXHASH = ("xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64")
_AWSCRT = {"crc32c": 8, "crc64nvme": 16}  # what S3 may keep of an object, and the digits of each
_HASHLIB = (  # what hashlib has everywhere; loading it takes as long as summing 30 MB
    "blake2b",
    "blake2s",
    "md5",
    "sha1",
    "sha224",
    "sha256",
    "sha384",
    "sha3_224",
    "sha3_256",
    "sha3_384",
    "sha3_512",
    "sha512",
)


class _Crc:
    """A CRC with the interface of hashlib; `digits` of hex."""

    def __init__(self, function: Callable[..., int], digits: int = 8) -> None:
        self._function, self._digits, self._value = function, digits, 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._value = self._function(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:0{self._digits}x}"


@cache
def _has_awscrt() -> bool:
    return importlib.util.find_spec("awscrt") is not None


def known() -> tuple[str, ...]:
    """Name every hash that can be computed here, sorted."""
    return tuple(sorted((*_HASHLIB, *_XXHASH, "crc32", *(_AWSCRT if _has_awscrt() else ()))))


def _new(name: str) -> Any:
    if name in _XXHASH:
        import xxhash

        return getattr(xxhash, name)()
    if name == "crc32":
        from isal import isal_zlib

        return _Crc(isal_zlib.crc32)
    if name in _AWSCRT and _has_awscrt():
        from awscrt import checksums

        return _Crc(getattr(checksums, name), _AWSCRT[name])
    if name in _HASHLIB:
        import hashlib

        return getattr(hashlib, name)(usedforsecurity=False)
    raise UsageError(f"unknown hash {name!r}", hint=choose(name, known()))


class Sums:
    """Several sums over one stream of bytes.

    names   hash names, each known
    size    bytes seen so far
    raises  UsageError for an unknown name
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = {name: _new(name) for name in names}
        self.size = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes, or a flat memoryview of them."""
        self.size += len(data)
        for one in self._hashes.values():
            one.update(data)

    def hex(self) -> dict[str, str]:
        """Give name -> lowercase hex of all bytes seen so far."""
        return {name: one.hexdigest() for name, one in self._hashes.items()}

    def differences(self, wanted: Mapping[str, str]) -> list[str]:
        """Name the hashes whose value differs from the one wanted, sorted."""
        return sorted(
            name for name, value in self.hex().items() if name in wanted and wanted[name] != value
        )


def digest(data: bytes | memoryview, name: str = DEFAULT) -> str:
    """Give one sum of bytes that are already in memory, as lowercase hex."""
    one = _new(name)
    one.update(data)
    return str(one.hexdigest())
