"""Link targets: resolve the addresses in an index, and read files and bucket objects.

An index may refer to public web servers; servers with private addresses require an option. A local
index may also refer to files in the folder of the index, and to bucket objects. Bucket objects are
read with the user's credentials.
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
from flarecli.write.failures import LARGE_HINT
from flarecli.write.spool import FetchedLink

__all__ = [
    "Arrived",
    "Link",
    "LinkFailure",
    "LinkResolver",
    "ObjectReader",
    "Outcome",
    "address_column",
    "address_texts",
    "extension_of",
]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_HTTP = re.compile(r" *https?:", re.IGNORECASE)
_EXTENSION = re.compile(r"[a-z0-9]{1,12}")
_READ_AHEAD = 16  # maximum number of bucket objects to read in advance


@dataclass(frozen=True, slots=True)
class Link:
    """A link column.

    source    name of the column with the addresses
    name      name of the packed column with the downloaded bytes
    encoding  encoding of the packed column; None for the default encoding
    """

    source: str
    name: str
    encoding: str | None = None


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """The failure of a link. The fields have the same meaning as in `Failure`.

    column  column that caused the failure; empty for the link column
    """

    kind: str
    reason: str
    hint: str = ""
    column: str = ""


# State of a link. A Location is a file or a bucket object that has not been read yet. A Future is a
# bucket object that a thread is reading. All other types are results.
Arrived: TypeAlias = (
    "bytes | FetchedLink | Page | Fault | LinkFailure | Location"
    " | Future[bytes | LinkFailure | None]"
)
Outcome: TypeAlias = "Arrived | None"  # None while an HTTP download is running


class LinkResolver:
    """Resolver for the addresses in an index. Relative addresses are relative to `index_folder`.

    buckets  bucket to which a local index refers -> True if a note about the bucket was printed
    """

    def __init__(self, index_folder: Location, guard: Guard) -> None:
        self._at, self._is_local = index_folder, index_folder.is_local
        self.named_origins = index_folder.store.guard.named | guard.named
        self.buckets: dict[str, bool] = {}

    def resolve(self, text: str | None, source: str) -> Address | Location | LinkFailure:
        """Return the target of an address, or a failure.

        text    address in the index
        source  name of the column with the address, for the failure
        """
        if not text:
            return LinkFailure("null", f"{source} is {'null' if text is None else 'empty'}")
        try:
            text.encode()
            return self._target(text)
        except UnicodeEncodeError:
            return LinkFailure("value", f"{source} is not UTF-8")
        except FlareError as error:
            names_text = error.address not in ("", str(self._at))
            message = f"{redact(text)}: {error.message}" if names_text else error.message
            return LinkFailure(error.kind, redact_text(message), error.hint)

    def _target(self, text: str) -> Address | Location:
        if _HTTP.match(text):
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
        # compare `str(target)`, because the path of a bucket object may look like a web address
        if self._is_local or target.is_local or not _HTTP.match(str(target)):
            return target
        return parse(target.path)


class ObjectReader:
    """Reader of linked files and bucket objects. Relative links are relative to `index_folder`.

    Threads read small bucket objects in advance. A large object is read when its row is processed.
    """

    def __init__(self, index_folder: Location, limits: Limits) -> None:
        self._at, self._limits = index_folder, limits
        self._in_flight = set[Future[bytes | LinkFailure | None]]()

    def read_ahead(self, outcomes: list[Outcome], start: int) -> None:
        """Start to read the bucket objects of the next _READ_AHEAD links.

        In `outcomes`, the Location of each of these objects is replaced with a Future.
        """
        for i in range(start, min(start + _READ_AHEAD, len(outcomes))):
            target = outcomes[i]
            if isinstance(target, Location) and not target.is_local:
                future = outcomes[i] = submit(partial(self._read_small, target))
                self._in_flight.add(future)
                future.add_done_callback(self._in_flight.discard)

    def _read_small(self, at: Location) -> bytes | LinkFailure | None:
        """Return the bytes of an object; None if the object is too large to be read in advance."""
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
            reason = f"larger than the limit of {self._limits.max_bytes} bytes"
            return LinkFailure("large", reason, LARGE_HINT)
        return at.read(0, size)

    def close(self) -> None:
        """Wait for all reads in flight."""
        wait(list(self._in_flight))


def _size(at: Location) -> int:
    """Return the size in bytes of a file or a bucket object.

    If the HEAD request for a bucket object fails, a GET request for one byte is sent, because only
    the response to a GET request contains the reason for the failure.
    """
    try:
        return at.size()
    except MissingError:
        raise
    except ReachError:
        if not at.is_local:
            at.read(0, 1)
        raise


def address_column(batch: pa.RecordBatch, source: str) -> pa.Array:
    """Return a column of addresses as text. Raises UsageError if the column is not text."""
    column = batch.column(source)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return column.cast(pa.large_string())
    if not is_text(column.type):
        raise UsageError(
            f"column {source!r}: expected text with addresses, got {column.type}",
            hint="Use a text column with --fetch.",
            column=source,
        )
    return column


def address_texts(batch: pa.RecordBatch, source: str) -> list[str | None]:
    """Return the addresses in a text column. Invalid UTF-8 becomes surrogate escapes.

    raises  UsageError if the column is not text
    """
    column = address_column(batch, source)
    try:
        texts: list[str | None] = column.to_pylist()
    except UnicodeDecodeError:  # a row with invalid UTF-8 must not make other rows fail
        texts = [
            value.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
            if value.is_valid
            else None
            for value in column
        ]
    return texts


def extension_of(text: str) -> str:
    """Return the file extension of an address in lower case; empty if it has no extension."""
    path = text.partition("#")[0].partition("?")[0] if is_url(text) else text
    _, dot, extension = path.rpartition("/")[2].rpartition(".")
    extension = extension.lower()
    return extension if dot and _EXTENSION.fullmatch(extension) else ""
