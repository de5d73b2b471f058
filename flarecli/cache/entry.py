"""One kept copy: what its file holds, its name, and whether it is what it says.

    0        bytes     what was fetched, n of them
    n        JSON      {"address": …, "version": …, "part": …, "key": …}, m bytes; the address
             without its secrets
    n + m    uint64    n
    +8       uint32    m
    +12      bytes     XXH3-128 of the n + m bytes before, 16 of them, big-endian
    +28      bytes     "flare" and the version of this layout, 8 of them

Little-endian. The name is the key and the size of the file in hex. The key is 12 hex digits of the
SHA-256 over the address, so that all copies of one object can be told by their names, and 28 of the
SHA-256 over address, version and part. Nothing else is needed to say whether a copy is whole and of
what, so no index can be wrong about it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import re
import stat
import struct
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import xxhash

from flarecli.redact import redact

__all__ = [
    "NAME",
    "PLACE",
    "Entry",
    "Summing",
    "entry",
    "opened",
    "place_of",
    "read_note",
    "viewed",
]

NAME = re.compile(r"([0-9a-f]{40})-([0-9a-f]{1,16})")
PLACE = 12  # hex digits that the names of all copies of one object begin with
_TAIL = struct.Struct("<QI16s8s")
_MAGIC = b"flare\0\0\1"
_NOTE_BYTES = 1 << 16
_KNOWN = 1 << 10  # names remembered
_SMALL = 1 << 16  # bytes of a file that is read: a map would hold a handle for next to nothing
# What signs an address for a while, and says nothing about what lies there: marks that must all be
# there, for without them such a name may choose what the answer is, and what is left out then
_SIGNED: tuple[tuple[frozenset[str], re.Pattern[str]], ...] = (
    (frozenset({"x-amz-signature"}), re.compile(r"x-amz-[a-z-]+")),
    (frozenset({"x-goog-signature"}), re.compile(r"x-goog-[a-z-]+")),
    (
        frozenset({"signature", "awsaccesskeyid"}),
        re.compile(r"signature|awsaccesskeyid|expires|x-amz-security-token"),
    ),
    (frozenset({"signature", "googleaccessid"}), re.compile(r"signature|googleaccessid|expires")),
    (
        frozenset({"signature", "key-pair-id"}),
        re.compile(r"signature|key-pair-id|expires|policy|hash-algorithm"),
    ),
    (frozenset({"sig", "sv"}), re.compile(r"sig|s[evprti]|spr|sip|skoid|sktid|skt|ske|sks|skv")),
)


class Entry(NamedTuple):
    """A copy as it will be or is kept: its file's name, the bytes kept, and the note behind them."""

    name: str
    size: int
    note: bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.size + len(self.note) + _TAIL.size

    @property
    def key(self) -> str:
        """What the name begins with."""
        return self.name.partition("-")[0]


@functools.lru_cache(maxsize=_KNOWN)
def place_of(address: str) -> str:
    """Give what the names of all copies of one object begin with, whatever version and part of it
    they are.
    """
    return hashlib.sha256(_unsigned(address).encode("utf-8", "surrogateescape")).hexdigest()[:PLACE]


@functools.lru_cache(maxsize=_KNOWN)  # asked for several times on the way of each copy
def entry(address: str, version: str, part: str, size: int) -> Entry:
    """Name a copy.

    address  whole; what signs it for a while does not count
    part     `whole`, `4096+1048576`, `raw`: what of the object is kept
    """
    own = hashlib.sha256(
        "\0".join((_unsigned(address), version, part)).encode("utf-8", "surrogateescape")
    ).hexdigest()[:28]
    key = place_of(address) + own
    note = json.dumps(
        {"address": redact(address)[:2000], "version": version[:500], "part": part, "key": key}
    ).encode()
    return Entry(f"{key}-{size + len(note) + _TAIL.size:x}", size, note)


def _unsigned(address: str) -> str:
    """Leave out what only says who asks, and until when."""
    if not address.startswith(("http://", "https://")):
        return address
    parts = urlsplit(address)
    pairs = [(pair.partition("=")[0].lower(), pair) for pair in parts.query.split("&")]
    names = {name for name, _ in pairs}
    signing = [pattern for marks, pattern in _SIGNED if marks <= names]
    query = "&".join(
        pair for name, pair in pairs if not any(pattern.fullmatch(name) for pattern in signing)
    )
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


class Summing:
    """Sums a copy as it comes, and makes what stands behind it."""

    def __init__(self, one: Entry) -> None:
        self._entry, self._sum, self.size = one, xxhash.xxh3_128(), 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        self._sum.update(data)
        self.size += len(data)

    def end(self) -> bytes:
        """Give the note and the tail."""
        note = self._entry.note
        self._sum.update(note)
        return note + _TAIL.pack(self.size, len(note), self._sum.digest(), _MAGIC)


def opened(folder: int, one: Entry) -> memoryview | None:
    """Map a copy, or read a small one, and check all of it.

    folder  an open folder
    return  the bytes kept; None if there is no such file
    raises  ValueError if the file is not this copy, or not whole
    """
    try:
        fd = os.open(
            one.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except FileNotFoundError:
        return None
    except OSError as error:  # a link
        raise ValueError("not a file") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != one.file_bytes:
            raise ValueError("not the size in its name")
        view, behind = viewed(fd, one), os.pread(fd, found.st_size - one.size, one.size)
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(view) + len(behind) < one.file_bytes:  # cut short since
        raise ValueError("not the size in its name")
    sums = Summing(one)
    sums.update(view)
    if behind != sums.end():
        raise ValueError("not what was kept")
    return view


def viewed(fd: int, one: Entry) -> memoryview:
    """Map the bytes kept in an open file, or read a few; nothing is checked. Raises OSError.

    A map is of these bytes alone, without what stands behind them: so whoever reads rows may cut
    them out of it as out of a whole file.
    """
    return memoryview(
        mmap.mmap(fd, one.size, prot=mmap.PROT_READ)
        if one.file_bytes > _SMALL
        else os.pread(fd, one.size, 0)
    )


def read_note(folder: int, name: str) -> dict[str, Any]:
    """Read what a copy says of itself; nothing of what is not one is believed, and nothing is
    summed.
    """
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        end = os.fstat(fd).st_size
        tail = os.pread(fd, _TAIL.size, max(0, end - _TAIL.size))
        size, note_bytes, _, magic = (
            _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, 0, b"", b"")
        )
        if magic != _MAGIC or note_bytes > _NOTE_BYTES or size + note_bytes + _TAIL.size != end:
            return {}
        found = json.loads(os.pread(fd, note_bytes, size))
        return {**found, "bytes": size} if isinstance(found, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(fd)
