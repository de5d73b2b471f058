"""Checksums with the names that indexes and playlists use. One pass computes several checksums.

The available hashes are the hashes of hashlib, except the shake family, which has no fixed digest
size; xxh32, xxh64, xxh128, xxh3_64 and xxh3_128 (seed 0); crc32; and, if awscrt is installed,
crc32c and crc64nvme. Digests are lowercase hex, big-endian.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from flarecli.errors import UsageError
from flarecli.suggest import choose

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["DEFAULT", "Sums", "digest", "known", "mix64"]

DEFAULT = "xxh3_128"  # the hash in playlists: fast, and long enough to prevent chance collisions
_XXHASH = ("xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64")
# name of a checksum that S3 can store -> number of hex digits
_AWSCRT = {"crc32c": 8, "crc64nvme": 16}
_HASHLIB = (  # listed here because hashlib is slow to import
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
    """A CRC with the interface of hashlib; its digest has `digits` hex digits."""

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
    """Return the names of all available hashes, sorted."""
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
    """Several checksums of one stream of bytes.

    names   names of the hashes; the results have them in sorted order, so that the playlist of a
            pack does not depend on the order of a set
    size    bytes processed so far
    raises  UsageError for an unknown name
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = {name: _new(name) for name in sorted(set(names))}
        self.size = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes or a flat memoryview to every checksum."""
        self.size += len(data)
        for checksum in self._hashes.values():
            checksum.update(data)

    def hex(self) -> dict[str, str]:
        """Return name -> lowercase hex digest of the bytes processed so far."""
        return {name: checksum.hexdigest() for name, checksum in self._hashes.items()}

    def differences(self, expected: Mapping[str, str]) -> list[str]:
        """Return the sorted names of the hashes whose digest differs from the expected digest."""
        return sorted(
            name
            for name, value in self.hex().items()
            if name in expected and expected[name] != value
        )


def digest(data: bytes | memoryview, name: str = DEFAULT) -> str:
    """Return one checksum of bytes in memory, as lowercase hex."""
    checksum = _new(name)
    checksum.update(data)
    return str(checksum.hexdigest())


def mix64(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a hash of each number, uint64 [k]. Different numbers have different hashes.

    source  the output function of SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom
            Number Generators", OOPSLA 2014
    """
    import numpy as np  # slow to import

    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
