"""Checksums by the names that indexes and playlists use; one pass over the bytes feeds many sums.

The names are those of hashlib, without the shake family, which has no fixed length, plus
xxh32, xxh64, xxh128, xxh3_64 and xxh3_128 (seed 0) and crc32. Digests are lowercase hex, big-endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from flarecli.errors import UsageError

__all__ = ["DEFAULT", "Sums", "known", "digest"]

DEFAULT = "xxh3_128"  # what every playlist carries: as fast as memory, long enough never to collide by accident
_XXHASH = ("xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64")
_HASHLIB = tuple(sorted(n for n in hashlib.algorithms_available if not n.startswith("shake_") and hasattr(hashlib, n)))


class _Crc32:
    """CRC-32 (zlib's polynomial) with the interface of hashlib."""

    def __init__(self) -> None:
        from isal import isal_zlib

        self._crc32, self._value = isal_zlib.crc32, 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._value = self._crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def known() -> tuple[str, ...]:
    """Name every hash that can be computed here, sorted."""
    return tuple(sorted((*_HASHLIB, *_XXHASH, "crc32")))


def _new(name: str) -> Any:
    if name in _XXHASH:
        import xxhash

        return getattr(xxhash, name)()
    if name == "crc32":
        return _Crc32()
    if name in _HASHLIB:
        return getattr(hashlib, name)(usedforsecurity=False)
    raise UsageError(f"unknown hash {name!r}", hint=f"Choose one of {', '.join(known())}.")


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
        return sorted(name for name, value in self.hex().items() if name in wanted and wanted[name] != value)


def digest(data: bytes | memoryview, name: str = DEFAULT) -> str:
    """Give one sum of bytes that are already in memory, as lowercase hex."""
    one = _new(name)
    one.update(data)
    return str(one.hexdigest())
