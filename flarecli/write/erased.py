"""Keys of erased rows. A later append must not add rows with these keys again.

    OUT/.flare-erased    JSON: {"key": HEX, "columns": {COLUMN: [HASH, …]}}

HASH is the keyed BLAKE2b (RFC 7693) of the key of an erased row, in hexadecimal digits. HEX is the
random secret of this hash function. Therefore, the file contains no key of an erased row, and
hashes in the files of two datasets cannot be compared. Keys that can be guessed are not protected:
anyone who can read the file can test whether a given key was erased.

Only the owner of the commit lock changes the file, before the rows are erased.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flarecli.errors import BusyError, FormatError, MissingError
from flarecli.hashes import DEFAULT, digest
from flarecli.model import File, Stream
from flarecli.read.version_lists import ERASED, files_of, is_failed_copy
from flarecli.storage import Location
from flarecli.storage.append_log import format_line
from flarecli.write.failures import FAILED, read_failed
from flarecli.write.keys import is_empty_key, key_bytes, key_text
from flarecli.write.versions import Change, Version

__all__ = ["ErasedKeys", "WithoutFailures", "failed_names", "failures_without"]

_MAX_BYTES = 1 << 30
_KEY_BYTES, _HASH_BYTES = 32, 16


@dataclass(frozen=True)
class ErasedKeys:
    """The keys of erased rows. The object is false if no key was erased.

    key     random secret of the hash function; empty before the first erasure
    hashes  column -> hashes of the erased keys in this column
    """

    key: bytes = field(default=b"", repr=False)
    hashes: Mapping[str, frozenset[bytes]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, at: Location) -> ErasedKeys:
        """Read the erased keys of a dataset. Raises FormatError if the file is invalid."""
        # the file may have changed, but a store reads only the version that it read first
        where = replace(at, store=copy.copy(at.store)) / ERASED
        try:
            data = where.read_whole(_MAX_BYTES)
        except MissingError:
            return cls()
        try:
            found = json.loads(data)
            hashes = {
                str(name): frozenset(map(bytes.fromhex, own))
                for name, own in found["columns"].items()
            }
            return cls(_checked_key(bytes.fromhex(found["key"])), hashes)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FormatError(
                "expected a JSON object with a key and hashes of erased keys",
                where=where,
                hint="Restore this file from a backup. If you delete it, erased rows can be appended again.",
            ) from None

    def write(self, at: Location) -> None:
        """Write the erased keys of a dataset. The caller must hold the commit lock."""
        columns = {name: sorted(map(bytes.hex, own)) for name, own in sorted(self.hashes.items())}
        text = json.dumps({"key": self.key.hex(), "columns": columns})
        (at / ERASED).write([f"{text}\n".encode()])

    def __bool__(self) -> bool:
        return any(self.hashes.values())

    @property
    def checksum(self) -> str:
        """Checksum of the hashes; empty if no key was erased."""
        every = [(name, sorted(own)) for name, own in sorted(self.hashes.items())]
        return digest(repr(every).encode()) if self else ""

    def added(self, name: str, keys: Sequence[pa.Array]) -> ErasedKeys:
        """Return a copy that also contains the given keys of a column. Empty keys are ignored."""
        if not keys:
            return self
        own = self if self.key else ErasedKeys(secrets.token_bytes(_KEY_BYTES))
        found = set(own.hashes.get(name, ()))
        for batch in keys:
            known = batch.filter(pa.array(~is_empty_key(batch)))
            found.update(map(own._hash, key_bytes(known).to_pylist()))
            # `failed.jsonl` lists keys as text
            found.update(own._hash(key_text(key).encode()) for key in known)
        return ErasedKeys(own.key, {**own.hashes, name: frozenset(found)})

    def contains(self, name: str, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Return whether each key of a column was erased: bool [rows]."""
        own = self.hashes.get(name)
        if not own:
            return np.zeros(len(keys), bool)
        values = key_bytes(keys).to_pylist()
        found = (value is not None and self._hash(value) in own for value in values)
        return np.fromiter(found, bool, len(values))

    def contains_text(self, text: str) -> bool:
        """Return whether a key from `failed.jsonl` was erased, in any column."""
        if not text or not self:
            return False
        one = self._hash(text.encode())
        return any(one in own for own in self.hashes.values())

    def _hash(self, value: bytes) -> bytes:
        return blake2b(value, digest_size=_HASH_BYTES, key=self.key).digest()


def _checked_key(key: bytes) -> bytes:
    if len(key) != _KEY_BYTES:
        raise ValueError
    return key


def failed_names(names: Iterable[str]) -> set[str]:
    """Return the names of the `failed.jsonl` files, and of copies from which keys were erased."""
    return {name for name in names if name.rpartition("/")[2] == FAILED or is_failed_copy(name)}


def failures_without(
    at: Location, names: Iterable[str], erased: ErasedKeys
) -> dict[str, list[bytes]]:
    """Find the `failed.jsonl` files that list erased keys: name -> the lines without erased keys.

    names   names of files in the folder `at`; missing files are ignored
    raises  FormatError for an invalid line
    """
    found = {}
    for name in names:
        entries: list[dict[str, Any]] = []
        count = 0
        try:
            for entry in read_failed(at / name):
                count += 1
                if not erased.contains_text(str(entry.get("key") or "")):
                    entries.append(entry)
        except MissingError:
            continue
        if len(entries) < count:
            found[name] = list(map(format_line, entries))
    return found


@dataclass(frozen=True)
class WithoutFailures(Change):
    """A change that also replaces `failed.jsonl` files with copies that do not list erased keys.

    change   the change to the rows
    lines    name of each replaced file -> lines of its copy
    scanned  names of all `failed.jsonl` files that were searched for erased keys
    erases   names of all files to delete after the commit, including the replaced files
    """

    at: Location
    change: Change
    lines: Mapping[str, list[bytes]]
    scanned: frozenset[str]
    erases: tuple[str, ...] = ()

    @property
    def verb(self) -> str:  # type: ignore[override]
        return self.change.verb

    @property
    def fragments(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.change.fragments

    @property
    def source(self) -> Mapping[str, Any] | None:  # type: ignore[override]
        return self.change.source

    def apply(self, base: Version) -> tuple[Stream, ...]:
        if not failed_names(files_of(self.at, base.playlist)) <= self.scanned:
            raise BusyError(
                "another process has changed the dataset",
                where=base.at,
                hint="Run the same command again.",
            )
        return tuple(self._replaced(stream, base) for stream in self.change.apply(base))

    def _replaced(self, stream: Stream, base: Version) -> Stream:
        files: dict[str, File] = {}
        for name, file in stream.files.items():
            if name not in self.lines:
                files[name] = file
            elif data := b"".join(self.lines[name]):
                text = json.dumps([name, digest(data), base.checksum])
                copied = f"failed.{sha256(text.encode()).hexdigest()[:32]}.jsonl"
                (self.at / copied).write([data])
                files[copied] = File(copied, len(data), {DEFAULT: digest(data)})
        return replace(stream, files=files)
