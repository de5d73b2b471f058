"""Link targets: resolve the addresses in an index, and read files and bucket objects.

Any index may refer to public web addresses; private addresses require an option. A local index may
also refer to files in its own folder, and to bucket objects, which are read with the user's
credentials.
"""

from __future__ import annotations

import re
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from flarecli.encodings import is_text
from flarecli.errors import FlareError, MissingError, ReachError, UnsafeError, UsageError
from flarecli.names import is_url
from flarecli.prefetch import submit
from flarecli.redact import redact, redact_text
from flarecli.storage import Guard, Limits, Location, bucket_in
from flarecli.storage.http.engine import Fault, Page
from flarecli.storage.http.url import Address, parse
from flarecli.write.spool import FetchedLink

__all__ = [
    "Link",
    "LinkFailure",
    "LinkResolver",
    "ObjectReader",
    "Outcome",
    "address_texts",
    "extension_of",
]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_HTTP = re.compile(r" *https?:", re.IGNORECASE)
_EXTENSION = re.compile(r"[a-z0-9]{1,12}")
_READ_AHEAD = 16  # maximum number of bucket objects to read in parallel


@dataclass(frozen=True, slots=True)
class Link:
    """Column of addresses (`source`), and column for the bytes (`name`) with an optional encoding."""

    source: str
    name: str
    encoding: str | None = None


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """A failed link: the kind of failure, the reason, and an optional hint."""

    kind: str
    reason: str
    hint: str = ""


# Outcome of a link; None during a download, a Location or Future for a file that is not read yet
Outcome: TypeAlias = (
    "bytes | FetchedLink | Page | Fault | LinkFailure | Location"
    " | Future[bytes | LinkFailure | None] | None"
)


class LinkResolver:
    """Resolver for the addresses in an index. Relative addresses are relative to `index_folder`.

    buckets  bucket to which a local index refers -> True if the bucket was already reported
    """

    def __init__(self, index_folder: Location, guard: Guard) -> None:
        self._at, self._is_local = index_folder, index_folder.is_local
        self.named_origins = index_folder.store.guard.named | guard.named
        self.buckets: dict[str, bool] = {}

    def resolve(self, text: str | None, source: str) -> Address | Location | LinkFailure:
        """Return the target of the address in column `source`, or a failure."""
        if not text:
            return LinkFailure("null", f"{source} is {'null' if text is None else 'empty'}")
        try:
            if not text.isascii():
                text.encode()
            return self._target(text)
        except UnicodeEncodeError:
            return LinkFailure("value", f"{source} is not UTF-8")
        except FlareError as error:
            names_text = error.address not in ("", str(self._at))
            message = f"{redact(text)}: {error.message}" if names_text else error.message
            return LinkFailure(error.kind, redact_text(message), error.hint)

    def _target(self, text: str) -> Address | Location:
        if text.startswith(("http://", "https://")) or _HTTP.match(text):
            return parse(text)
        if (
            self._is_local
            and not is_url(text)
            and _SCHEME.match(text)
            and not text.lower().startswith("file:")
        ):
            raise UnsafeError(f"{text.partition(':')[0]!r} is not a supported address scheme")
        target = self._at.join(text)
        if self._is_local and not target.is_local and (bucket := bucket_in(text)):
            self.buckets.setdefault(bucket, False)
        # In a remote index, the key of a bucket object may be a web address.
        if self._is_local or target.is_local or not _HTTP.match(str(target)):
            return target
        return parse(target.path)


class ObjectReader:
    """Reader of linked files and bucket objects. Relative links are relative to `index_folder`.

    Small objects are read ahead on threads; large objects are read when their row is processed.
    """

    def __init__(self, index_folder: Location, limits: Limits) -> None:
        self._at, self._limits = index_folder, limits
        self._in_flight = set[Future[bytes | LinkFailure | None]]()

    def read_ahead(self, outcomes: list[Outcome], start: int) -> None:
        """Start reading the next bucket objects, and replace their Locations with Futures."""
        for i in range(start, min(start + _READ_AHEAD, len(outcomes))):
            target = outcomes[i]
            if isinstance(target, Location) and not target.is_local:
                future = outcomes[i] = submit(partial(self._read_small, target))
                self._in_flight.add(future)
                future.add_done_callback(self._in_flight.discard)

    def _read_small(self, at: Location) -> bytes | LinkFailure | None:
        """Return the bytes of an object; None if the object is too large to be read ahead."""
        size = _size(at)
        if self._limits.ahead_bytes // _READ_AHEAD < size <= self._limits.max_bytes:
            return None
        return self._read_whole(at, size)

    def read(
        self, target: Location | Future[bytes | LinkFailure | None], text: str
    ) -> bytes | LinkFailure:
        """Return the bytes of a file or an object; `text` is the address in the index."""
        if isinstance(target, Location):
            return self._read_whole(target)
        data = target.result()
        return self._read_whole(self._at.join(text)) if data is None else data

    def _read_whole(self, at: Location, size: int | None = None) -> bytes | LinkFailure:
        size = _size(at) if size is None else size
        if size > self._limits.max_bytes:
            return LinkFailure("large", f"larger than the limit of {self._limits.max_bytes} bytes")
        return at.read(0, size)

    def close(self) -> None:
        """Wait for the reads in flight."""
        wait(list(self._in_flight))


def _size(at: Location) -> int:
    """Return the size of a file or an object.

    If the HEAD request is denied, read one byte, because the error response to a GET request
    contains the reason, unlike the response to a HEAD request.
    """
    try:
        return at.size()
    except MissingError:
        raise
    except ReachError:
        if not at.is_local:
            at.read(0, 1)
        raise


def address_texts(batch: pa.RecordBatch, source: str) -> list[str | None]:
    """Return the addresses in a text column, with invalid UTF-8 as surrogate escapes.

    raises  UsageError if the column is not text
    """
    column = batch.column(source)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not is_text(column.type):
        if pa.types.is_null(column.type):
            return [None] * len(column)
        raise UsageError(
            f"column {source!r}: expected text with addresses, got {column.type}",
            hint="Use a text column with --fetch.",
            column=source,
        )
    try:
        texts: list[str | None] = column.to_pylist()
    except UnicodeDecodeError:  # invalid UTF-8 in Parquet must fail only the affected rows
        texts = [
            value.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
            if value.is_valid
            else None
            for value in column
        ]
    return texts


def extension_of(text: str) -> str:
    """Return the extension of an address in lower case; empty if the address has none."""
    path = text.partition("#")[0].partition("?")[0] if is_url(text) else text
    _, dot, extension = path.rpartition("/")[2].rpartition(".")
    extension = extension.lower()
    return extension if dot and _EXTENSION.fullmatch(extension) else ""
