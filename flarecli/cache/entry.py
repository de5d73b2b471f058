"""Name, layout and checksum of a cached copy, and the open copies of this process.

    0        bytes     data of the copy, n bytes
    n        JSON      note, m bytes: {"address": …, "version": …, "part": …, "key": …}; the address
                       contains no secrets
    n + m    uint64    n
    +8       uint32    m
    +12      bytes     XXH3-128 of the preceding n + m bytes: 16 bytes, big-endian
    +28      bytes     "flare" and the version of this layout, 8 bytes

Little-endian. The name consists of the key and the size of the file in hexadecimal. The key
consists of 12 digits of the SHA-256 of the address, and 28 digits of the SHA-256 of address,
version and part. The first 12 digits are the same for all copies of an object. A copy can be
checked without an index.
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
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import xxhash

from flarecli.redact import redact
from flarecli.storage import descriptors, files_limit, map_file

__all__ = [
    "NAME",
    "PREFIX_DIGITS",
    "CopyHasher",
    "Entry",
    "OpenCopies",
    "entry",
    "mapped_copy",
    "name_prefix",
    "open_copy",
    "read_note",
]

NAME = re.compile(r"([0-9a-f]{40})-([0-9a-f]{1,16})")
PREFIX_DIGITS = 12  # length of the prefix that the names of all copies of an object share
MAX_OPEN_COPIES, MAX_OPEN_BYTES = 1024, 256 << 20
MAX_TRANSIENT_BYTES = 384 << 20  # enough for two prefetch windows of three 64 MiB shards each
_TAIL = struct.Struct("<QI16s8s")
_MAGIC = b"flare\0\0\1"
_MAX_NOTE_BYTES = 1 << 16
_MAX_REMEMBERED = 1 << 10  # maximum number of results that `lru_cache` keeps for a function
_SMALL_BYTES = 1 << 16  # files up to this size are not mapped, because a map may use a file handle
# If an open copy is used again after this time, its use is recorded, and the existence of its file
# is checked.
_TOUCH_S = 1.0
# For each type of signature in a query string: the parameters that identify the type, and a pattern
# for all parameters of the signature. A signature is removed from an address, because it does not
# affect the content of the object. If an identifying parameter is missing, the other parameters are
# kept, because they may affect the content.
_SIGNATURES: tuple[tuple[frozenset[str], re.Pattern[str]], ...] = (
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
    """The identity of a copy.

    name  file name
    size  size of the data in bytes
    note  JSON note that follows the data in the file
    """

    name: str
    size: int
    note: bytes

    @property
    def file_bytes(self) -> int:
        """The size of the file in bytes."""
        return self.size + len(self.note) + _TAIL.size

    @property
    def key(self) -> str:
        """The key, which is the first component of the name."""
        return self.name.partition("-")[0]


@functools.lru_cache(maxsize=_MAX_REMEMBERED)
def name_prefix(address: str) -> str:
    """Return the prefix that the names of all copies of an object share.

    The prefix does not depend on the version or the part.
    """
    return _digest(_unsigned(address))[:PREFIX_DIGITS]


@functools.lru_cache(maxsize=_MAX_REMEMBERED)  # called several times for each copy
def entry(address: str, version: str, part: str, size: int) -> Entry:
    """Return the identity of a copy.

    address  complete address; its signature is ignored
    part     `whole`, `START+SIZE` in bytes such as `4096+1048576`, or the kind of derived data
    size     size of the data in bytes
    """
    key = name_prefix(address) + _digest("\0".join((_unsigned(address), version, part)))[:28]
    note = json.dumps(
        {"address": redact(address)[:2000], "version": version[:500], "part": part, "key": key}
    ).encode()
    return Entry(f"{key}-{size + len(note) + _TAIL.size:x}", size, note)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _unsigned(address: str) -> str:
    """Return a web address without user info and without an expiring signature.

    Other addresses are returned unchanged.
    """
    if not address.startswith(("http://", "https://")):
        return address
    parts = urlsplit(address)
    pairs = [(pair.partition("=")[0].lower(), pair) for pair in parts.query.split("&")]
    names = {name for name, _ in pairs}
    signatures = [pattern for required, pattern in _SIGNATURES if required <= names]
    query = "&".join(
        pair for name, pair in pairs if not any(pattern.fullmatch(name) for pattern in signatures)
    )
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


class CopyHasher:
    """The checksum of a copy's data and note. `end` returns the bytes to write after the data."""

    def __init__(self, identity: Entry) -> None:
        self._entry, self._hash, self.size = identity, xxhash.xxh3_128(), 0

    def update(self, data: bytes | memoryview) -> None:
        """Hash the next bytes of the data."""
        self._hash.update(data)
        self.size += len(data)

    def end(self) -> bytes:
        """Return the note and the tail, which follow the data in the file."""
        note = self._entry.note
        self._hash.update(note)
        return note + _TAIL.pack(self.size, len(note), self._hash.digest(), _MAGIC)


def open_copy(folder: int, identity: Entry) -> memoryview | None:
    """Memory-map a copy and verify its checksum. A small copy is read into memory instead.

    folder  file descriptor of the folder
    return  the data, or None if the file does not exist or cannot be read
    raises  ValueError if the file is damaged, or does not contain this copy
    """
    try:
        fd = _opened(folder, identity.name)
    except FileNotFoundError:
        return None
    except OSError as error:  # for example, a symbolic link
        raise ValueError("not a file") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != identity.file_bytes:
            raise ValueError("the size differs from the size in the file name")
        view = mapped_copy(fd, identity)
        end = descriptors.pread(fd, status.st_size - identity.size, identity.size)
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(view) + len(end) < identity.file_bytes:  # the file was truncated in the meantime
        raise ValueError("the size differs from the size in the file name")
    hasher = CopyHasher(identity)
    hasher.update(view)
    if end != hasher.end():
        raise ValueError("checksum mismatch")
    return view


def _opened(folder: int, name: str) -> int:
    flags = os.O_RDONLY | descriptors.NO_WAIT | descriptors.FILE
    return os.open(name, flags, dir_fd=folder)


def mapped_copy(fd: int, identity: Entry) -> memoryview:
    """Memory-map the data of a copy in an open file. Small data is read into memory instead.

    The data is not verified. The note at the end of the file is not mapped.

    raises  OSError if the file cannot be mapped or read
    """
    if identity.file_bytes <= _SMALL_BYTES:
        return memoryview(descriptors.pread(fd, identity.size, 0))
    return memoryview(map_file(fd, identity.size))


def read_note(folder: int, name: str) -> dict[str, Any]:
    """Return the JSON note of a copy, or an empty dict if the file is not a copy.

    The checksum is not verified.
    """
    fd = _opened(folder, name)
    try:
        file_bytes = os.fstat(fd).st_size
        tail = descriptors.pread(fd, _TAIL.size, max(0, file_bytes - _TAIL.size))
        if len(tail) != _TAIL.size:
            return {}
        size, note_bytes, _, magic = _TAIL.unpack(tail)
        if magic != _MAGIC or note_bytes > _MAX_NOTE_BYTES:
            return {}
        if size + note_bytes + _TAIL.size != file_bytes:
            return {}
        note = json.loads(descriptors.pread(fd, note_bytes, size))
        return note if isinstance(note, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(fd)


class OpenCopies:
    """The open copies of this process, and its in-memory objects, which have no file in the folder.

    A copy is verified when it is opened. Above the limits, the least recently used copy is closed
    first. Maps may keep file handles, so `files_limit` limits the number of maps. An in-memory
    object is kept until `release` is called.

    touch  function that records the use of a copy in the folder, and returns whether the copy still
           exists
    """

    def __init__(self, touch: Callable[[str], bool]) -> None:
        self._touch = touch
        # Name -> (data, time of the last touch); the least recently used copy is first.
        self._open: dict[str, tuple[memoryview, float]] = {}
        self._bytes = self._maps = 0
        # Name prefix of an in-memory object -> (complete name, data, reserved bytes). The complete
        # name is empty while the data is being fetched.
        self._transient: dict[str, tuple[str, memoryview, int]] = {}
        self._transient_bytes = 0
        self._lock = threading.Lock()

    def get(self, name: str) -> memoryview | None:
        """Return the data of an open copy or of an in-memory object, or None if there is neither.

        An open copy that was removed from the folder is closed, and None is returned. The folder is
        checked at most once per _TOUCH_S seconds.
        """
        now = time.monotonic()
        with self._lock:
            copy = self._open.pop(name, None)
            if copy is None:
                transient_name, data, _ = self._transient.get(name[:PREFIX_DIGITS], ("", None, 0))
                return data if transient_name == name else None
            view, touched = copy
            is_due = now - touched >= _TOUCH_S
            self._open[name] = view, now if is_due else touched
        if is_due and not self._touch(name):
            self.drop(name)  # the removed file uses disk space until it is unmapped
            return None
        return view

    def put(self, name: str, view: memoryview) -> None:
        """Add an open copy, and close the least recently used copies above the limits."""
        with self._lock:
            self._drop(name)
            self._open[name] = view, time.monotonic()
            self._bytes += len(view)
            self._maps += isinstance(view.obj, mmap.mmap)
            max_maps = files_limit(MAX_OPEN_COPIES)
            while len(self._open) > 1 and (
                len(self._open) > MAX_OPEN_COPIES
                or self._maps > max_maps
                or self._bytes > MAX_OPEN_BYTES
            ):
                self._drop(next(iter(self._open)))

    def drop(self, name: str) -> None:
        """Close a copy; existing views of its data remain valid."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        view, _ = self._open.pop(name, (None, 0.0))
        if view is not None:
            self._bytes -= len(view)
            self._maps -= isinstance(view.obj, mmap.mmap)

    def clear(self) -> None:
        """Close all copies, but keep the in-memory objects."""
        with self._lock:
            for name in [*self._open]:
                self._drop(name)

    # -- in-memory objects

    def reserve(self, prefix: str, size: int) -> bool:
        """Reserve memory for an in-memory object until the object is added or released.

        prefix  see `name_prefix`
        return  False if the total size of the in-memory objects would exceed MAX_TRANSIENT_BYTES
        """
        with self._lock:
            self._release(prefix)
            if self._transient_bytes + size > MAX_TRANSIENT_BYTES:
                return False
            self._transient[prefix] = "", memoryview(b""), size
            self._transient_bytes += size
        return True

    def put_transient(self, name: str, view: memoryview) -> None:
        """Add an in-memory object with its data."""
        with self._lock:
            self._release(name[:PREFIX_DIGITS])
            self._transient[name[:PREFIX_DIGITS]] = name, view, len(view)
            self._transient_bytes += len(view)

    def release(self, prefix: str) -> None:
        """Release an in-memory object of any version, or the memory that is reserved for it.

        prefix  see `name_prefix`
        """
        with self._lock:
            self._release(prefix)

    def _release(self, prefix: str) -> None:
        _, _, size = self._transient.pop(prefix, ("", b"", 0))
        self._transient_bytes -= size

    def forked(self) -> None:
        """Reset the state in a forked child.

        At the time of the fork, a thread of the parent may have held the lock, or may have been
        fetching an in-memory object.
        """
        self._lock = threading.Lock()
        self._transient = {key: one for key, one in self._transient.items() if one[0]}
        self._transient_bytes = sum(size for _, _, size in self._transient.values())
