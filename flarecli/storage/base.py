"""Interface of a store, locations in a store, and restrictions on addresses that occur in data.

This module does not import any store. To open an address in a different store, a store calls
`Guard.locate`, which `storage.locator` sets.
"""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, cast

from flarecli.braces import compile_pattern
from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.names import bare, check_name, is_url, scheme_of
from flarecli.prefetch import ordered_map
from flarecli.redact import address_key, redact
from flarecli.units import format_size

__all__ = [
    "ALLOW_LOCAL_HINT",
    "BUCKET_SCHEMES",
    "Entry",
    "Guard",
    "HOST_SCHEMES",
    "Keeper",
    "Limits",
    "Locate",
    "Location",
    "MAX_DEPTH",
    "Buffer",
    "REQUEST_BYTES",
    "SHORT_HINT",
    "Store",
    "Written",
    "bytewise",
    "cut",
    "file_address_error",
    "object_size_error",
    "prefetched",
    "read_each",
    "resolve",
    "short_message",
    "short_read",
    "split",
    "too_deep",
    "too_many_files",
]

Buffer: TypeAlias = "bytes | bytearray | memoryview"
SHORT_HINT = "The file was cut short; fetch or pack it again."
ALLOW_LOCAL_HINT = "Pass --allow-local if you trust this dataset."
S = TypeVar("S", bound="Store")
A = TypeVar("A")
AnyBuffer = TypeVar("AnyBuffer", bound=Buffer)
MAX_DEPTH = 100  # maximum depth of nested folders in a listing
MAX_LISTED = 1 << 20  # maximum number of files to compare with a pattern
BUCKET_SCHEMES = ("s3", "gs", "az")
# Schemes other than http(s) whose addresses contain a host.
HOST_SCHEMES = ("ftp", "hdfs", "sftp", "smb", "webdav", "webhdfs")
REQUEST_BYTES = 8 << 20  # size of each request for a large range, and of each upload part
_GAP_BYTES = 1 << 16  # ranges with at most this gap are read together, which saves a request
MAX_READ_AHEAD = 4096  # maximum number of files that `read_each` prefetches
# Bytes per read of a whole file. One block fits in the CPU cache.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for transfers. Command-line options set all limits except `ahead_bytes`.

    jobs         maximum number of parallel transfers
    retries      maximum number of retries per object after transient errors
    timeout_s    maximum time that a transfer may stall; below 1 kB/s, an HTTP transfer is stalled
    deadline_s   maximum time per object, including redirects, retries and delays
    max_bytes    maximum size of an object
    ahead_bytes  maximum number of bytes in flight or fetched ahead of use; one object may exceed
                 this limit
    per_host     maximum number of parallel transfers from one host; None means `jobs`
    user_agent   User-Agent of HTTP requests; if empty, the name and version of flare
    """

    jobs: int = 32
    retries: int = 8
    timeout_s: float = 30.0
    deadline_s: float = 600.0
    max_bytes: int = 10**9
    ahead_bytes: int = 64 << 20
    per_host: int | None = None
    user_agent: str = ""


class Entry(NamedTuple):
    """A file in a listing.

    name  path relative to the listed folder, with `/` as separator
    size  size in bytes; -1 if the file cannot be opened
    """

    name: str
    size: int


class Written(NamedTuple):
    """The size of a written file in bytes, and its digests (hash name -> hexadecimal digest)."""

    size: int
    hashes: dict[str, str]


class Locate(Protocol):
    """A function that opens an address found in data.

    is_remote  whether the data came over the network; if so, buckets are read without the user's
               credentials
    """

    def __call__(self, address: str, guard: Guard, is_remote: bool = False) -> Location: ...


def _refuse(address: str, guard: Guard, is_remote: bool = False) -> Location:
    raise UnsafeError("this store cannot open addresses of other stores", where=redact(address))


@dataclass(frozen=True, slots=True)
class Guard:
    """The restrictions on addresses that occur in data, and the limits for transfers.

    The options of the user determine the fields.

    allow_private  whether private, loopback and link-local addresses are allowed
    allow_local    whether `file://`, absolute paths, paths above the data's folder, and symbolic
                   links are allowed
    named          origins (`scheme://host:port`) that the user typed; their addresses may be
                   private
    allow_hosts    private hosts and networks that are allowed, such as `10.0.0.7:8080`
    anonymous      whether buckets are read without the user's credentials
    limits         limits for transfers; reads from a store ignore `max_bytes`
    keeper         cache for remote stores, or None
    locate         function that opens addresses found in data; the default rejects every address
    """

    allow_private: bool = False
    allow_local: bool = False
    named: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    keeper: Keeper | None = None
    allow_hosts: tuple[str, ...] = ()
    anonymous: bool = False
    locate: Locate = field(default=_refuse, compare=False, repr=False)


class Keeper(Protocol):
    """A cache for remote stores. Caches can be hashed and pickled."""

    def over(self, store: Store) -> Store:
        """Return a store that reads from `store` and caches the data."""
        ...


class Store(ABC):
    """A storage backend that reads, writes and lists files by path.

    Every error is a FlareError that contains the address. Subclasses implement the abstract
    methods, and override other methods if a faster implementation exists. A store can be pickled,
    and used after a fork, because each process opens its own connections.

    is_local      whether files are read without network access, in any order, and can be mapped
    keeps_copies  whether `map` and `derived` may return copies from a cache
    guard         restrictions on addresses found in the data of this store
    origin        endpoint or account of the service; empty for the scheme's default service.
                  Buckets with the same name may exist at several origins
    root          local folder that contains all files of the store; empty if there is none
    room          maximum total bytes of the files that `keep` may fetch ahead of use; 0 without a
                  cache
    """

    is_local: bool = False
    keeps_copies: bool = False
    guard: Guard = Guard()
    root: str = ""

    @property
    def origin(self) -> str:
        return ""

    @property
    def room(self) -> int:
        return 0

    # -- reading

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of a file in bytes. Raises MissingError if it does not exist."""

    @abstractmethod
    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes start..stop; `stop` None means the end.

        Raises FormatError if the file is shorter.
        """

    def read_files(
        self, paths: Sequence[str], max_bytes: int, room: int
    ) -> list[bytes | int | FlareError]:
        """Read files with a total size of at most `room` bytes.

        A file that does not fit in the remaining bytes is not read.

        max_bytes  maximum size of a file; a larger file is an error
        return     for each file: the content, or the size if the file was not read, or the error
        """
        out: list[bytes | int | FlareError] = []
        for path in paths:
            try:
                size = self.size(path)
                if size > max_bytes:
                    raise object_size_error(size, max_bytes, self.show(path))
                if size <= room:
                    out.append(self.read(path, 0, size))
                    room -= size
                else:
                    out.append(size)
            except FlareError as error:
                out.append(error)
        return out

    def read_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges and return their bytes in the order of `ranges`.

        Ranges near each other are read together.
        """
        pieces, piece_of = join_near(ranges)
        return cut(self.read_pieces(path, pieces), pieces, piece_of, ranges)

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        """Read ranges of one version of a file, with one request per range.

        pieces  non-empty ranges (start, stop) that do not overlap
        """
        return [self.read(path, start, stop) for start, stop in pieces]

    def read_each(self, paths: Sequence[str]) -> Iterator[Buffer]:
        """Yield the content of each file in order, with read-ahead. Raises the first error."""
        return prefetched(self.read, paths, self.guard.limits)

    def views(self, path: str, start: int, stop: int) -> Sequence[Buffer]:
        """Read a range and return its parts in order, without a copy where possible.

        A remote store reads a large range with parallel requests.
        """
        return self.read_pieces(path, split(start, stop))

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Yield bytes 0..size of a file in order, in blocks of any size."""
        for start in range(0, size, _BLOCK_BYTES):
            yield self.read(path, start, min(start + _BLOCK_BYTES, size))

    def version(self, path: str) -> tuple[str, int]:
        """Return the version token of a file, and its size in bytes.

        The token changes with the content of the file. The token is empty if the store cannot
        detect changes.
        """
        return "", self.size(path)

    def map(self, path: str) -> memoryview | None:
        """Memory-map a file for reading; return None if the file cannot be mapped.

        A mapped file must not be truncated.
        """
        return None

    def unmapped(self: S) -> S:
        """Return a store for the same files that never maps a file."""
        return self

    def forget(self, path: str) -> None:
        """Close the map of a file as soon as all views of the map are released."""
        return

    # -- copies in a cache

    def keep(self, path: str, listed: int | None = None, passing: bool = False) -> bool:
        """Fetch a whole file into the cache, so that `map` can map the cached copy.

        listed   size of the file in bytes according to a listing, or None
        passing  whether the file is used only once in a run; the caller then calls `passed` after
                 use
        return   False if the cache cannot keep the file
        """
        return False

    def passed(self, path: str) -> None:
        """Release a file that was fetched by `keep(passing=True)`."""
        return

    def derived(
        self, path: str, kind: str, size: int, make: Callable[[], Iterable[bytes | memoryview]]
    ) -> memoryview | None:
        """Memory-map data that is derived from a file; return None if the data is not cached.

        See `Location.derived`.
        """
        return None

    # -- writing and listing

    @abstractmethod
    def write(
        self, path: str, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        """Write a file atomically, and hash it in the same pass; return its size and hashes."""

    @abstractmethod
    def list(self, path: str) -> Iterator[Entry]:
        """Yield all files below a folder, in bytewise order of their names.

        raises  MissingError if the folder does not exist; a folder in a bucket exists if it
                contains files
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, if it exists."""

    def names(self, path: str) -> Sequence[str]:
        """Return the names of the files and folders directly in a folder, sorted.

        raises  MissingError if the folder does not exist
        """
        return sorted({entry.name.partition("/")[0] for entry in self.list(path)})

    def create(self, path: str, data: bytes) -> None:
        """Create a file atomically.

        If several processes create the same file, at most one of them succeeds.

        raises  UsageError or BusyError if the file exists; UsageError if the store cannot create
                files atomically
        """
        raise UsageError(
            "this store cannot guarantee that only one process creates a file",
            where=self.show(path),
            hint="Use a local folder, or a bucket of S3, GCS or Azure.",
        )

    def cut(self, path: str, size: int) -> None:
        """Truncate a file to `size` bytes. Raises UsageError if the store cannot change files."""
        raise self._fixed(path)

    def extend(self, path: str, size: int, parts: Iterable[Buffer]) -> None:
        """Append to a file whose current size is `size` bytes.

        Raises UsageError if the store cannot change files.
        """
        raise self._fixed(path)

    def _fixed(self, path: str) -> UsageError:
        return UsageError(
            "files in this store cannot be changed",
            where=self.show(path),
            hint="Write to a local folder.",
        )

    # -- addresses

    @abstractmethod
    def show(self, path: str) -> str:
        """Return the address of a path for messages, without secrets."""

    def child(self, path: str, name: str) -> str:
        """Return the path of a file in the folder `path`.

        The caller must check `name` with `check_name`.
        """
        return f"{path}/{name}" if path else name

    def join(self, path: str, url: str) -> Location:
        """Resolve an address found in a file of the folder `path`.

        raises  UnsafeError if the guard forbids the address
        """
        return Location(self, self.child(path, check_name(bare(url), where=self.show(path))))

    # -- lifetime

    def close(self) -> None:
        """Release the maps, handles, buffers and version pins of this store.

        The store can be used again. All stores of a process share their connections, which
        `flare.close()` closes.
        """
        return

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Location:
    """A store and a path in the store. `str` returns the address without secrets.

    A Location can be pickled.
    """

    store: Store
    path: str = ""

    def __str__(self) -> str:
        return self.store.show(self.path)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"  # `self.path` may contain the secrets of a web address

    def __truediv__(self, name: str) -> Location:
        """Return the location of a relative path in this folder.

        Raises UnsafeError for a path outside the folder.
        """
        return Location(self.store, self.store.child(self.path, check_name(name, where=self)))

    @property
    def name(self) -> str:
        """The last component of the path, without the query of a web address."""
        return _without_query(self.path).rstrip("/").rpartition("/")[2]

    @property
    def key(self) -> str:
        """A string that identifies the file.

        It must be used only for comparisons, because it may contain secrets.
        """
        shown = str(self)
        return address_key(self.path) if scheme_of(shown) in ("http", "https") else shown

    @property
    def folder(self) -> Location:
        """The folder that contains this file. Relative URLs in the file refer to this folder."""
        return replace(self, path=_without_query(self.path).rpartition("/")[0])

    def unmapped(self) -> Location:
        """Return this location in a store that never maps files.

        Such a store is needed for a file that may be truncated during a read.
        """
        return replace(self, store=self.store.unmapped())

    @property
    def is_local(self) -> bool:
        """True if the file can be read without network access."""
        return self.store.is_local

    @property
    def may_map(self) -> bool:
        """True if a read may map a local file or a cached copy."""
        return self.store.is_local or self.store.keeps_copies

    def join(self, url: str) -> Location:
        """Resolve a URL found in a file of this folder (RFC 3986).

        raises  UnsafeError if the guard forbids the address
        """
        return self.store.join(self.path, url)

    def size(self) -> int:
        """Return the size of the file in bytes. Raises MissingError if it does not exist."""
        return self.store.size(self.path)

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes start..stop; `stop` None means the end.

        Raises FormatError if the file is shorter.
        """
        return self.store.read(self.path, start, stop)

    def read_whole(self, max_bytes: int) -> bytes:
        """Read the whole file. Raises ReachError if the file is larger than `max_bytes`."""
        (found,) = self.store.read_files([self.path], max_bytes, max_bytes)
        if isinstance(found, FlareError):
            raise found
        # `read_files` returns the size of a file only if the file does not fit into `room`.
        return cast(bytes, found)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges and return their bytes in the order of `ranges`.

        A remote store joins ranges that are close to each other into one request, and sends
        requests in parallel.
        """
        return self.store.read_many(self.path, ranges)

    def map(self) -> memoryview | None:
        """Memory-map the file for reading; return None if the file cannot be mapped.

        A mapped file must not be truncated.
        """
        return self.store.map(self.path)

    def forget(self) -> None:
        """Close the map of the file as soon as all views of the map are released."""
        self.store.forget(self.path)

    def derived(
        self, kind: str, size: int, make: Callable[[], Iterable[bytes | memoryview]]
    ) -> memoryview | None:
        """Memory-map data that is derived from this file, such as its decompressed bytes.

        kind    name of the derivation, such as `zstd`
        size    size of the derived data in bytes
        make    function that returns the parts of the derived data in order; called only if the
                data is not in the cache
        return  None if there is no cache, if the data cannot be cached, or if the parts do not have
                `size` bytes in total
        """
        return self.store.derived(self.path, kind, size, make)

    def blocks(self, size: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of the whole file in order, in blocks.

        size  size of the file in bytes; None requests the size from the store
        """
        return self.store.blocks(self.path, self.size() if size is None else size)

    def write(
        self, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        """Write the file atomically, and hash it in the same pass; return its size and hashes.

        In a durable store, the complete file survives a power loss after this call.

        raises  UsageError if `replace` is False and the file exists; ReachError if the write fails
        """
        return self.store.write(self.path, parts, hashes, replace)

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes. Raises UsageError if the store cannot change files."""
        self.store.cut(self.path, size)

    def extend(self, size: int, parts: Iterable[Buffer]) -> None:
        """Append to the file, whose current size is `size` bytes, and sync it.

        After an error, the file may contain some of the new bytes.

        raises  BusyError if the file has a different size; UsageError if the store cannot change
                files
        """
        self.store.extend(self.path, size, parts)

    def list(self) -> Iterator[Entry]:
        """Yield all files below this folder, in bytewise order.

        Raises MissingError if the folder does not exist.
        """
        return self.store.list(self.path)

    def matching(self, parts: Sequence[str], folders: bool = False) -> Iterator[str]:
        """Yield the names of all files below this folder that match a pattern, in bytewise order.

        parts    components of the pattern
        folders  whether to yield matching folders as well, each before its files. A pattern that
                 ends with `**` matches only files. A pattern that ends with a slash matches only
                 folders
        raises   UsageError for an invalid pattern, or more than MAX_LISTED files; MissingError if
                 this folder does not exist
        """
        pattern, previous = compile_pattern(parts), ""
        for count, entry in enumerate(self.list()):
            if count >= MAX_LISTED:
                raise too_many_files(MAX_LISTED, self)
            if folders and parts[-1] != "**":
                slash = "" if parts[-1] else "/"
                for folder in _entered(entry.name, previous):
                    if pattern.fullmatch(folder + slash):
                        yield folder + slash
            previous = entry.name
            if pattern.fullmatch(entry.name):
                yield entry.name

    def names(self) -> Sequence[str]:
        """Return the names of the files and folders directly in this folder, sorted.

        raises  MissingError if the folder does not exist
        """
        return self.store.names(self.path)

    def create(self, data: bytes) -> None:
        """Create the file atomically.

        If several processes create the same file, at most one of them succeeds.

        raises  UsageError or BusyError if the file exists; UsageError if the store cannot create
                files atomically
        """
        self.store.create(self.path, data)

    def delete(self) -> None:
        """Remove the file, if it exists."""
        self.store.delete(self.path)

    def exists(self) -> bool:
        """Return whether the file or folder exists. Raises an error if the store cannot be read."""
        try:
            self.size()
        except MissingError:
            return False
        except FormatError:  # the path is a folder
            pass
        return True


def read_each(locations: Sequence[Location]) -> Iterator[Buffer]:
    """Yield the content of each file in order, with read-ahead of at most `ahead_bytes`.

    Raises the first error.
    """
    if not locations:
        return iter(())
    store = locations[0].store
    if all(at.store is store or at.store == store for at in locations):
        return store.read_each([at.path for at in locations])
    return prefetched(Location.read, locations, store.guard.limits)


def prefetched(
    read: Callable[[A], AnyBuffer], items: Iterable[A], limits: Limits
) -> Iterator[AnyBuffer]:
    """Call `read` for each item in parallel, within the limits, and yield the results in order."""
    return ordered_map(
        read,
        items,
        workers=limits.jobs,
        max_items=MAX_READ_AHEAD,
        max_bytes=limits.ahead_bytes,
        weigh_result=len,
    )


def short_read(where: object, start: int, stop: int, got: int) -> FormatError:
    """Return the error for a read of bytes start..stop that returned only `got` bytes."""
    return FormatError(short_message(start + got, stop), where=where, hint=SHORT_HINT)


def object_size_error(size: int, max_bytes: int, where: object) -> ReachError:
    """Return the error for an object that is larger than `max_bytes`."""
    return ReachError(
        f"object is {format_size(size)}; the maximum is {format_size(max_bytes)}", where=where
    )


def too_many_files(limit: int, where: object = "") -> UsageError:
    """Return the error for a pattern that would be compared with more than `limit` files."""
    return UsageError(
        f"contains more than {limit} files", where=where, hint="Use a subfolder of this folder."
    )


def bytewise(entry: tuple[str, bool, int | None]) -> bytes:
    """Return the sort key for a folder's entry (name, whether the entry is a folder, size).

    The key of a folder ends with a slash, so that a recursive listing is in bytewise order of the
    file paths.
    """
    name, is_folder, _ = entry
    return os.fsencode(name) + (b"/" if is_folder else b"")


def too_deep(where: object) -> FormatError:
    """Return the error for folders that are nested deeper than MAX_DEPTH."""
    return FormatError(
        f"folders are nested more than {MAX_DEPTH} levels deep",
        where=where,
        hint="Use a subfolder of this folder.",
    )


def short_message(size: int, stop: int) -> str:
    """Return the message for a file of `size` bytes that should have at least `stop` bytes."""
    return f"ends at byte {size}; expected at least {stop} bytes"


def _entered(name: str, previous: str) -> list[str]:
    """Return each folder that contains the file `name`, but not the file `previous`."""
    return [
        name[:i]
        for i, sign in enumerate(name)
        if sign == "/" and name[: i + 1] != previous[: i + 1]
    ]


def _without_query(path: str) -> str:
    """Remove the query from a path that is a web address.

    In all other paths, a question mark is part of a name.
    """
    return path.partition("?")[0] if "://" in path else path


def split(start: int, stop: int) -> list[tuple[int, int]]:
    """Split a range into pieces of REQUEST_BYTES if the range is larger than two pieces."""
    if stop - start <= 2 * REQUEST_BYTES:
        return [(start, stop)]
    return [(at, min(at + REQUEST_BYTES, stop)) for at in range(start, stop, REQUEST_BYTES)]


def join_near(ranges: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Join ranges that are close to each other into pieces.

    return  the pieces to read, in ascending order; and for each range, the index of the piece that
            contains the range (0 for an empty range)
    """
    starts: list[int] = []
    stops: list[int] = []
    piece_of = [0] * len(ranges)
    last = -_GAP_BYTES - 1
    for i in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[i]
        if start == stop:
            continue
        if start > last + _GAP_BYTES:
            starts.append(start)
            stops.append(stop)
            last = stop
        elif stop > last:
            stops[-1] = last = stop
        piece_of[i] = len(starts) - 1
    return list(zip(starts, stops, strict=True)), piece_of


def cut(
    data: Sequence[bytes | bytearray | memoryview],
    pieces: Sequence[tuple[int, int]],
    piece_of: Sequence[int],
    ranges: Sequence[tuple[int, int]],
) -> list[bytes]:
    """Return the bytes of each range.

    data              bytes of each piece
    pieces, piece_of  results of `join_near`
    """
    firsts = [start for start, _ in pieces]
    return [
        bytes(data[k][start - firsts[k] : stop - firsts[k]]) if start != stop else b""
        for k, (start, stop) in zip(piece_of, ranges, strict=True)
    ]


def resolve(store: Store, home: str, path: str, url: str, guard: Guard) -> Location:
    """Resolve an address found in a file of a remote store.

    Web addresses and other buckets are always accepted. Other buckets are read without credentials,
    because data from the network must not decide where the user's credentials are used. Keys are
    opaque, so `%20`, `?` and `#` have no special meaning.

    home    prefix of all addresses in the store, such as `s3://bucket/`
    path    folder that contains the file
    url     address found in the file
    raises  UnsafeError for a path outside the folder, and for `file://` and other schemes, unless
            `guard.allow_local` is set
    """
    where = store.show(path)
    scheme = scheme_of(url)
    if scheme in ("http", "https"):
        return guard.locate(url, guard)
    if is_url(url):
        own = url.partition("://")[0].lower() + url[len(scheme) :]
        if own.startswith(home) and own != home:
            return Location(store, check_name(own[len(home) :], where=where))
        if scheme in BUCKET_SCHEMES:
            return guard.locate(url, guard, is_remote=True)
        if not guard.allow_local:
            if scheme == "file":
                raise file_address_error(where)
            raise UnsafeError(
                f"{redact(url)} is not in {home.rstrip('/')}", where=where, hint=ALLOW_LOCAL_HINT
            )
        return guard.locate(url, guard)
    if guard.allow_local and (url.startswith("/") or ".." in url.split("/")):
        return Location(store, posixpath.normpath(posixpath.join("/", path, url)).lstrip("/"))
    return Location(store, store.child(path, check_name(bare(url), where=where)))


def file_address_error(where: str) -> UnsafeError:
    """Return the error for a `file://` address in data of a remote store."""
    return UnsafeError(
        "data from the network must not contain file:// addresses",
        where=where,
        hint=ALLOW_LOCAL_HINT,
    )
