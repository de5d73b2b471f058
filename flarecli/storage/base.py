"""What a store promises, and an address as a value: a store and a path in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from flarecli.errors import FlareError, FormatError, MissingError, UnsafeError, UsageError
from flarecli.names import address_key, check_name, is_url, local_path, redact, scheme_of
from flarecli.records import dataclass, field, replace
from flarecli.storage.limits import Limits
from flarecli.storage.threads import in_order
from flarecli.wildcards import pattern_of

__all__ = [
    "Entry",
    "Guard",
    "Keeper",
    "Location",
    "Part",
    "Store",
    "Written",
    "locate",
    "bucket_in",
    "bucket_note",
    "locate_named",
    "other_bucket",
    "read_each",
    "with_reach",
]

Part: TypeAlias = "bytes | bytearray | memoryview"
BUCKET_SCHEMES = ("s3", "gs", "az")
SHOWN = 20  # buckets that a note names
HOST_SCHEMES = ("ftp", "hdfs", "sftp", "smb", "webdav", "webhdfs")  # their address names a host
LISTED = 1 << 20  # files that are looked at for a pattern
BLOCK = (
    1 << 20
)  # bytes a read of a whole file asks for at once: large enough to stream, small enough to stay in the cache


class Entry(NamedTuple):
    """One file that a listing found: its path below the place listed, with `/`, and its size in bytes."""

    name: str
    size: int


class Written(NamedTuple):
    """One file just written: bytes, and hash name -> hex over them."""

    size: int
    hashes: dict[str, str]


@dataclass(frozen=True, slots=True)
class Guard:
    """What addresses may reach, and the limits of transfers. Options of the user set the switches.

    allow_private  addresses that data names may be private, loopback or link-local
    allow_local    data may name `file://`, absolute paths, paths above its own folder, and symbolic links
    named          `scheme://host:port` of addresses that the user typed: those may be private
    allow_hosts    hosts and networks that data may name though they are private, such as `10.0.0.7:8080`
    anonymous      buckets are read without the user's credentials
    limits         of transfers from stores on the network; a file in one may have any size
    keeper         what keeps copies of what comes from there, or None
    """

    allow_private: bool = False
    allow_local: bool = False
    named: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    keeper: Keeper | None = None
    allow_hosts: tuple[str, ...] = ()
    anonymous: bool = False


class Keeper(Protocol):
    """What keeps copies of what comes over the network: it puts a store of its own before each that is opened. Hashable, picklable."""

    def over(self, store: Store) -> Store: ...


class Store(Protocol):
    """Six verbs on paths. Every error is a FlareError that names the address.

    size    bytes of the file
    read    bytes start..stop (stop None: to the end), all of them or an error
    read_many  the same for many ranges of one file, in the order asked
    write   make a file, whole or not at all; the sums asked for come from the same pass
    list    files below a folder, in bytewise order of their names
    delete  remove a file; nothing there is no error
    """

    is_local: bool

    def size(self, path: str) -> int: ...
    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes: ...
    def read_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...
    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written: ...
    def list(self, path: str) -> Iterator[Entry]: ...
    def delete(self, path: str) -> None: ...
    def child(self, path: str, name: str) -> str: ...
    def join(self, path: str, url: str) -> Location: ...
    def show(self, path: str) -> str: ...
    def map(self, path: str) -> memoryview | None: ...


@dataclass(frozen=True, slots=True)
class Location:
    """An address: picklable, printable without secrets; clients are reopened in each process."""

    store: Store
    path: str = ""

    def __str__(self) -> str:
        return self.store.show(self.path)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"  # the path of a web address holds its secrets

    def __truediv__(self, name: str) -> Location:
        """Name something below, relative and plain. Raises UnsafeError for a name that leaves the folder."""
        return Location(self.store, self.store.child(self.path, check_name(name, where=self)))

    @property
    def name(self) -> str:
        """The last part of the path, without a web address's query."""
        return _without_query(self.path).rstrip("/").rpartition("/")[2]

    @property
    def key(self) -> str:
        """What tells this file from others, for comparisons only: it may hold secrets."""
        shown = str(self)
        return address_key(self.path) if scheme_of(shown) in ("http", "https") else shown

    @property
    def folder(self) -> Location:
        """The folder that holds this file, where relative URLs in it start."""
        return replace(self, path=_without_query(self.path).rpartition("/")[0])

    def unmapped(self) -> Location:
        """Give the same address, never mapped: for files that someone may cut short while they are read."""
        unmapped = getattr(self.store, "unmapped", None)
        return self if unmapped is None else replace(self, store=unmapped())

    @property
    def is_local(self) -> bool:
        """Whether reading costs no network: then maps can serve, and nothing needs planning."""
        return self.store.is_local

    @property
    def may_map(self) -> bool:
        """Whether reading may hold maps, and the handles that they take: of local files, and of copies that a cache keeps."""
        return self.store.is_local or hasattr(self.store, "derived")

    def join(self, url: str) -> Location:
        """Resolve a URL that data gave, as RFC 3986 says, from this folder. Raises UnsafeError for what data may not name."""
        return self.store.join(self.path, url)

    def size(self) -> int:
        """Give the bytes of the file. Raises MissingError if nothing is there."""
        return self.store.size(self.path)

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes start..stop, all of them; `stop` None is the end. Raises FormatError if the file ends before."""
        return self.store.read(self.path, start, stop)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many ranges, in the order asked; a remote store joins near ones and fetches the rest side by side."""
        return self.store.read_many(self.path, ranges)

    def map(self) -> memoryview | None:
        """Map a local file for reading; None where the store can't. Only for files that nobody cuts short."""
        return self.store.map(self.path)

    def forget(self) -> None:
        """Let go of the map of a local file, and of its handle, as soon as nobody looks at it."""
        forget = getattr(self.store, "forget", None)
        if forget is not None:
            forget(self.path)

    def derived(
        self, kind: str, size: int, make: Callable[[], Iterable[bytes | memoryview]]
    ) -> memoryview | None:
        """Map what is made of this file, such as its decompressed bytes, where a cache keeps it in the file's place.

        kind  what was made of it, and how: `zstd`
        size  bytes of that
        make  makes them in order; called when they are not kept yet
        return  None where nothing keeps it: then nothing was made, or it had another size
        """
        derived = getattr(self.store, "derived", None)
        view: memoryview | None = None if derived is None else derived(self.path, kind, size, make)
        return view

    def blocks(self, size: int | None = None) -> Iterator[bytes]:
        """Read the whole file in order, BLOCK bytes at a time; `size` saves asking for it."""
        end = self.size() if size is None else size
        streamed = getattr(self.store, "blocks", None)
        if streamed is not None:  # one request for all of it
            yield from streamed(self.path, end)
            return
        for start in range(0, end, BLOCK):
            yield self.read(start, min(start + BLOCK, end))

    def write(
        self, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        """Write the file whole or not at all, safe against power loss, and sum it on the way.

        raises  UsageError if `replace` is False and something is there; ReachError if it can't be written
        """
        return self.store.write(self.path, parts, hashes, replace)

    def cut(self, size: int) -> None:
        """Cut the file after `size` bytes. Raises UsageError where files are written whole or not at all."""
        self._changing("cut")(self.path, size)

    def extend(self, size: int, parts: Iterable[Part]) -> None:
        """Add bytes to the file, which has `size` of them now, and let them reach the disk: some may be there after a failure.

        raises  BusyError if it has another size; UsageError where files are written whole or not at all
        """
        self._changing("extend")(self.path, size, parts)

    def _changing(self, verb: str) -> Callable[..., None]:
        found: Callable[..., None] | None = getattr(self.store, verb, None)
        if found is None:
            raise UsageError(
                "files there cannot be added to", where=self, hint="Write to a local folder."
            )
        return found

    def list(self) -> Iterator[Entry]:
        """List the files below, in bytewise order. Raises MissingError if there is no such folder."""
        return self.store.list(self.path)

    def matching(self, parts: Sequence[str], folders: bool = False) -> Iterator[str]:
        """Name the files below that a pattern fits, part by part, in bytewise order.

        folders  also folders that it fits, before the files in them; but none where it ends in `**`, and nothing else where it ends in a slash
        raises  UsageError for no pattern, or for more than a million files to look at; MissingError if there is no such folder
        """
        wanted, before = pattern_of(parts), ""
        for seen, entry in enumerate(self.list()):
            if seen >= LISTED:
                raise UsageError(
                    f"more than {LISTED} files lie there",
                    where=self,
                    hint="Name a folder further down.",
                )
            if folders and parts[-1] != "**":
                slash = "" if parts[-1] else "/"
                yield from (
                    folder + slash
                    for folder in _entered(entry.name, before)
                    if wanted.fullmatch(folder + slash)
                )
            before = entry.name
            if wanted.fullmatch(entry.name):
                yield entry.name

    def delete(self) -> None:
        """Remove the file; nothing there is no error."""
        self.store.delete(self.path)

    def exists(self) -> bool:
        """Say whether a file is there. Anything but a clear no is raised."""
        try:
            self.size()
        except MissingError:
            return False
        except FormatError:  # a folder
            return True
        return True


def with_reach(
    guard: Guard, allow_host: str | Sequence[str] = (), sources: Sequence[str] = ()
) -> Guard:
    """Return a guard that also allows some hosts, and the origins of web addresses among what the user typed.

    raises  UsageError for a value of `allow_host` that is neither a host nor a network
    """
    if allow_host:
        from flarecli.storage.http.ip_guard import check_hosts

        hosts = dict.fromkeys((*guard.allow_hosts, *check_hosts(allow_host)))
        guard = replace(guard, allow_hosts=tuple(hosts))
    if any("://" in source for source in sources):
        from flarecli.storage.http.ip_guard import typed_origins

        guard = replace(guard, named=guard.named | typed_origins(sources))
    return guard


def bucket_in(url: str) -> str:
    """Return the bucket of an address, such as `s3://bucket`, or the repository of an `hf://` one; else an empty text."""
    scheme = scheme_of(url)
    if scheme in ("", "file", "http", "https"):
        return ""
    parts = redact(url).partition("://")[2].split("/")
    return f"{scheme}://{'/'.join(parts[: 3 if scheme == 'hf' else 1])}"


def bucket_note(by: object, homes: Sequence[str]) -> str:
    """Return the note on buckets that local data names, and that are read with the user's credentials."""
    more = f" and {len(homes) - SHOWN} more" if len(homes) > SHOWN else ""
    return (
        f"{by} names {', '.join(homes[:SHOWN])}{more}: read with your credentials, if you have any"
    )


def locate_named(address: str, guard: Guard) -> Location:
    """Make a Location of an address with a scheme that local data names.

    A web address may be private only if the user allowed it. A bucket is read with the user's credentials.

    raises  UnsafeError for a scheme that no store serves, or a host that the user did not allow; FormatError for an
            invalid web address
    """
    scheme = scheme_of(address)
    if scheme in ("http", "https"):
        from flarecli.storage.http.store import HttpStore

        at = HttpStore.named_by_data(address, guard)
        return at if guard.keeper is None else replace(at, store=guard.keeper.over(at.store))
    if scheme in HOST_SCHEMES:
        from flarecli.storage.http.ip_guard import permits_host

        if not permits_host(address, guard.allow_private, guard.allow_hosts):
            raise UnsafeError(
                f"flare cannot check which address {scheme}:// connects to",
                where=redact(address),
                hint="Give --allow-host with its host and port if you trust what names it.",
            )
    return locate(address, guard, UnsafeError)


def other_bucket(url: str, guard: Guard) -> Location:
    """Make a Location of an object in a bucket that data from the network names: read without credentials.

    raises  FormatError for an address that names no bucket
    """
    try:
        return locate(url, replace(guard, anonymous=True))
    except UsageError as error:
        raise FormatError(error.message, where=error.place) from None


def read_each(places: Sequence[Location]) -> Iterator[Part]:
    """Read many whole files, side by side, ahead of what is used; what waits to be used is bounded. The first error is raised.

    yield  the bytes of each place, in the order asked, as its store's library has them
    """
    stores = [place.store for place in places]
    at_once = getattr(stores[0], "read_each", None) if stores else None
    if at_once is not None and all(store is stores[0] or store == stores[0] for store in stores):
        yield from at_once([place.path for place in places])
        return
    guard: Guard = getattr(stores[0], "guard", None) or Guard() if stores else Guard()
    yield from in_order(Location.read, places, guard.limits.jobs, guard.limits.ahead_bytes)


def _entered(name: str, before: str) -> list[str]:
    """Give the folders that hold a file, without those that hold the one before it in the listing."""
    return [
        name[:i] for i, sign in enumerate(name) if sign == "/" and name[: i + 1] != before[: i + 1]
    ]


def _without_query(path: str) -> str:
    """Keys and names of files may hold a question mark; a web address's path is the address."""
    return path.partition("?")[0] if "://" in path else path


def locate(
    address: str, guard: Guard | None = None, unknown: type[FlareError] = UsageError
) -> Location:
    """Make a Location of an address that the user typed: a path, `file://`, `http(s)://`, `s3://`, `gs://`, `az://`, `hf://` and the like.

    A user's own address may be a private one or a symbolic link; what data names below it may not.

    unknown  the error for a scheme that no store serves: the user mistyped it; where data names it, it is an UnsafeError
    raises   UsageError for an address that names nothing, or `unknown`; MissingLibraryError if the library behind it is not installed
    """
    if not address:
        raise UsageError(
            "an address is empty", hint="Name what to read; `.` is the folder you are in."
        )
    guard = guard or Guard()
    scheme = scheme_of(address)
    if not is_url(address) or scheme == "file":
        from flarecli.storage.local import LocalStore

        return LocalStore.locate(local_path(address), guard)
    at = _remote(scheme, address, guard, unknown)
    return at if guard.keeper is None else replace(at, store=guard.keeper.over(at.store))


def _remote(scheme: str, address: str, guard: Guard, unknown: type[FlareError]) -> Location:
    """Open the one store that serves a scheme; another library than obstore serves S3 only where the environment asks for it."""
    if scheme in ("http", "https"):
        from flarecli.storage.http.store import HttpStore

        return HttpStore.locate(address, guard)
    if scheme in ("gs", "az") or (scheme == "s3" and os.environ.get("FLARE_S3", "") != "s3fs"):
        from flarecli.storage.cloud.store import ObjectStore

        return ObjectStore.locate(address, guard)
    from flarecli.storage.fsspec_store import AnyStore

    return AnyStore.locate(address, guard, unknown)


def short_read(where: object, start: int, stop: int, got: int) -> FormatError:
    """Say that a file ended before the bytes that its header or its index promises."""
    return FormatError(
        f"ends at byte {start + got}, {stop} are needed",
        where=where,
        hint="The file was cut short; fetch or pack it again.",
    )
