"""Keys of erased rows. A later append must not add rows with these keys again.

    OUT/.flare-erased    JSON: {"key": HEX, "columns": {COLUMN: [HASH, …]}}

HASH is the keyed BLAKE2b (RFC 7693) of the key of an erased row, in hexadecimal digits. HEX is the
random secret of this hash function. Therefore, the file contains no key of an erased row, and
hashes in the files of two datasets cannot be compared. Keys that can be guessed are not protected:
anyone who can read the file can test whether a given key was erased.

Only the owner of the commit lock changes the file, directly before it creates the playlist of the
version without the rows. If the commit fails earlier, rows with these keys can still be appended.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flarecli.errors import BusyError, FormatError, MissingError, UsageError
from flarecli.hashes import DEFAULT, digest
from flarecli.model import File, IntArray, Stream
from flarecli.names import is_url
from flarecli.read import Dataset
from flarecli.read.version_lists import ERASED, files_of, is_failed_copy
from flarecli.storage import Location
from flarecli.storage.append_log import format_line
from flarecli.write.failures import FAILED, read_failed
from flarecli.write.keys import check_key_type, erasable_bytes, is_empty_key, key_text
from flarecli.write.target import changed_error
from flarecli.write.versions import Change, CommitLock, Version, numbers, read_versions, sliced

__all__ = [
    "ErasedKeys",
    "KeysToErase",
    "WithoutFailures",
    "failed_names",
    "failures_without",
    "files_with_keys",
    "shard_files",
]

_MAX_BYTES = 1 << 30
_KEY_BYTES, _HASH_BYTES = 32, 16


@dataclass(frozen=True)
class ErasedKeys:
    """The keys of erased rows. An object without keys is falsy.

    key     random secret of the hash function; empty before the first erasure
    hashes  column -> hashes of the erased keys in this column
    """

    key: bytes = field(default=b"", repr=False)
    hashes: Mapping[str, frozenset[bytes]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, at: Location) -> ErasedKeys:
        """Read the erased keys of a dataset. Raises FormatError if the file is invalid."""
        # use a new store, because a store that has read a file does not read later versions of it
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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FormatError(
                "expected a JSON object with the fields 'key' and 'columns'",
                where=where,
                hint="Restore this file from a backup. If you delete it, erased rows can be appended again.",
            ) from None

    def write(self, at: Location) -> None:
        """Write the erased keys of a dataset. The caller must hold the commit lock.

        raises  UsageError if the file would be too large to be read
        """
        columns = {name: sorted(map(bytes.hex, own)) for name, own in sorted(self.hashes.items())}
        data = (json.dumps({"key": self.key.hex(), "columns": columns}) + "\n").encode()
        if len(data) > _MAX_BYTES:
            raise UsageError(
                f"the hashes of the erased keys need {len(data)} bytes; the maximum is {_MAX_BYTES}",
                where=at / ERASED,
            )
        (at / ERASED).write([data])

    def __bool__(self) -> bool:
        return any(self.hashes.values())

    @property
    def checksum(self) -> str:
        """Return the checksum of the hashes; empty if no key was erased."""
        every = [(name, sorted(own)) for name, own in sorted(self.hashes.items())]
        return digest(repr(every).encode()) if self else ""

    def added(self, name: str, keys: Sequence[pa.Array]) -> ErasedKeys:
        """Return a copy that also contains the given keys of a column. Empty keys are ignored.

        keys  arrays of keys; in an array of floats, -0.0 and 0.0 are the same key
        """
        if not keys:
            return self
        own = self if self.key else ErasedKeys(secrets.token_bytes(_KEY_BYTES))
        found = set(own.hashes.get(name, ()))
        for batch in keys:
            known = batch.filter(pa.array(~is_empty_key(batch)))
            values = erasable_bytes(known, batch.type).to_pylist()
            found.update(map(own._hash, values))
            # also add the keys as text, because `failed.jsonl` lists keys as text
            found.update(own._hash(key_text(key).encode()) for key in known)
            if pa.types.is_floating(batch.type) and b"0" in values:
                found.update(map(own._hash, (b"0.0", b"-0.0")))
        return ErasedKeys(own.key, {**own.hashes, name: frozenset(found)})

    def contains(self, name: str, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Return whether each key of a column was erased: bool [rows]."""
        own = self.hashes.get(name)
        if not own:
            return np.zeros(len(keys), bool)
        values = erasable_bytes(keys, keys.type).to_pylist()
        found = (value is not None and self._hash(value) in own for value in values)
        return np.fromiter(found, bool, len(values))

    def contains_text(self, text: str) -> bool:
        """Return whether a key from `failed.jsonl` is an erased key of any column."""
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
    """Return the names of `failed.jsonl` files, and of their copies that omit erased keys."""
    return {name for name in names if name.rpartition("/")[2] == FAILED or is_failed_copy(name)}


def failures_without(
    at: Location, names: Iterable[str], erased: ErasedKeys
) -> dict[str, list[bytes]]:
    """Return the `failed.jsonl` files that list erased keys: name -> the lines without these keys.

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


def shard_files(stream: Stream, shard: int) -> list[str]:
    """Return the names of the files of one shard. Files that are listed by URL are omitted."""
    parts = stream.parts[shard] if stream.parts else ()
    names = [stream.urls[shard], *(file.name for file in parts)]
    return [name for name in names if not is_url(name)]


def files_with_keys(
    at: Location, found: Iterable[Version], name: str, erased: ErasedKeys, known: Collection[str]
) -> set[str]:
    """Return the files of all shards that contain rows with erased keys, in all streams.

    If several versions list a shard, its keys are read only once.

    found   versions to search
    name    key column
    known   names of shards whose files are not returned
    raises  FormatError if the keys of a shard cannot be determined; any error that reading a shard
            raises
    """
    out, rows = set[str](), dict[str, IntArray]()
    searched, unknown = set(known), dict[str, Version]()
    for version in found:
        streams = version.streams
        keyed = [one for one in streams if name in [column.name for column in one.columns or ()]]
        new = [
            url for one in streams for url in one.urls if url not in searched and not is_url(url)
        ]
        if not new:
            continue
        if not keyed or any(one.rows is None or (one.rows < 0).any() for one in streams):
            unknown.update(dict.fromkeys(new, version))
            continue
        stream = keyed[0]
        starts = _starts(stream)
        for shard, url in enumerate(stream.urls):
            # With several streams, the keys of shards in `known` are also read, because these keys
            # may belong to rows in shards of another stream that are not in `known`.
            if is_url(url) or (len(streams) == 1 and url in known):
                continue
            if url not in rows:
                rows[url] = _erased_rows(at, sliced(stream, shard, shard + 1), name, erased)
            for one in streams if len(rows[url]) else ():
                places = np.searchsorted(_starts(one), rows[url] + starts[shard], "right") - 1
                for place in np.unique(places).tolist():
                    if one.urls[place] not in known:
                        out.update(shard_files(one, place))
        searched.update(new)
    for url, version in unknown.items():
        if url not in searched:
            raise FormatError(
                f"the keys of the rows in {url} are unknown, because the playlist does not list "
                f"the column {name!r} or the numbers of rows",
                where=version.at,
                hint="Delete the earlier versions with `flare prune`, and run the command again.",
            )
    return out


def _starts(stream: Stream) -> IntArray:
    """Return the number of the first row of each shard: int64 [shards]."""
    rows = np.zeros(len(stream), np.int64) if stream.rows is None else stream.rows
    starts: IntArray = np.cumsum(rows) - rows
    return starts


def _erased_rows(at: Location, shard: Stream, name: str, erased: ErasedKeys) -> IntArray:
    """Return the rows of a shard that have an erased key: int64, counted from 0 in the shard."""
    data = Dataset([[shard]])
    check_key_type(name, data.schema.field(name).type, at / shard.urls[0])
    found, first = [np.zeros(0, np.int64)], 0
    for batch in data.select([name]).batches():
        found.append(first + np.flatnonzero(erased.contains(name, batch.column(0))))
        first += batch.num_rows
    return np.concatenate(found)


@dataclass(frozen=True)
class KeysToErase:
    """Keys to erase, with the shards that were searched for rows with these keys.

    name    key column
    keys    the keys; empty if no key is to be erased
    erased  these keys, and all keys that were erased before
    known   names of the shards that were searched
    since   number of the newest version that was searched
    """

    name: str
    keys: Sequence[pa.Array]
    erased: ErasedKeys
    known: frozenset[str]
    since: int

    def check(self, at: Location) -> None:
        """Raise BusyError if a later version has added a row with an erased key."""
        later = [number for number in numbers(at) if number > self.since] if self.keys else []
        found = read_versions(at, later)
        if files_with_keys(at, found, self.name, self.erased, self.known):
            raise BusyError(
                "another process has added a row whose key is being erased",
                where=at,
                hint="Run the same command again.",
            )

    def record(self, at: Location, lock: CommitLock) -> None:
        """Add the keys to `.flare-erased`. The caller must hold the commit lock."""
        if not self.keys:
            return
        known = ErasedKeys.read(at)
        more = known.added(self.name, self.keys)
        if more != known:
            lock.check()
            more.write(at)


@dataclass(frozen=True)
class WithoutFailures(Change):
    """A change that also replaces `failed.jsonl` files with copies that do not list erased keys.

    change   the change to the rows
    lines    name of each replaced file -> lines of its copy
    scanned  names of all `failed.jsonl` files that were searched for erased keys
    erasure  keys that are recorded directly before the commit
    erases   names of all files to delete after the commit, including the replaced files
    """

    at: Location
    change: Change
    erasure: KeysToErase
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
            raise changed_error(base.at)
        streams = self.change.apply(base)
        if not {url for stream in streams for url in stream.urls}.isdisjoint(self.erases):
            raise BusyError(
                "the newest version lists files that are being erased",
                where=base.at,
                hint="Run the same command again.",
            )
        self.erasure.check(self.at)
        return tuple(self._replaced(stream, base) for stream in streams)

    def prepare(self, lock: CommitLock) -> None:
        self.erasure.record(self.at, lock)

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
