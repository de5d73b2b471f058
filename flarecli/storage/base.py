"""Bytes at an address: what every store offers, and `Location`, a store and a path in it.

This module knows no particular store. A store that must open an address of another store calls `Guard.locate`, which
`storage.locator` sets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from flarecli.braces import compile_pattern
from flarecli.errors import FormatError, MissingError, UnsafeError, UsageError
from flarecli.names import bare, check_name, scheme_of
from flarecli.prefetch import ordered_map
from flarecli.redact import address_key, redact
from flarecli.storage.limits import Limits
from flarecli.storage.ranges import cut, join_near

__all__ = [
    "Entry",
    "Guard",
    "Keeper",
    "Locate",
    "Location",
    "Part",
    "Store",
    "Written",
    "read_each",
    "short_read",
]

Part: TypeAlias = "bytes | bytearray | memoryview"
S = TypeVar("S", bound="Store")
MAX_LISTED = 1 << 20  # files that a pattern is compared with
MAX_READ_AHEAD = 4096  # files that `read_each` reads ahead of the one that it yields
_BLOCK_BYTES = (
    1 << 20
)  # bytes per read of a whole file: large enough to stream, small enough for the CPU cache


class Entry(NamedTuple):
    """One file of a listing: its path below the listed folder, with `/`, and its size in bytes; -1 if it cannot be opened."""

    name: str
    size: int


class Written(NamedTuple):
    """One file just written: bytes, and hash name -> hex over them."""

    size: int
    hashes: dict[str, str]


class Locate(Protocol):
    """Opens an address that data names.

    is_remote  the data came over the network: it must not use the user's credentials for other buckets
    """

    def __call__(self, address: str, guard: Guard, is_remote: bool = False) -> Location: ...


def _refuse(address: str, guard: Guard, is_remote: bool = False) -> Location:
    raise UnsafeError("addresses of other stores are not opened here", where=redact(address))


@dataclass(frozen=True, slots=True)
class Guard:
    """What addresses may reach, and the limits of transfers. Options of the user set the switches.

    allow_private  addresses that data names may be private, loopback or link-local
    allow_local    data may name `file://`, absolute paths, paths above its own folder, and symbolic links
    named          `scheme://host:port` of addresses that the user typed: those may be private
    allow_hosts    hosts and networks that data may name though they are private, such as `10.0.0.7:8080`
    anonymous      buckets are read without the user's credentials
    limits         of transfers from stores on the network; a file in one may have any size
    keeper         puts a cache in front of each remote store that is opened, or None
    locate         opens addresses that data names; the default opens none
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
    """A cache: returns a store that keeps copies of what another one reads. Hashable and picklable."""

    def over(self, store: Store) -> Store: ...


class Store(ABC):
    """Reads, writes and lists files by path. Every error is a FlareError that names the address.

    A subclass implements the abstract methods; everything else has a default and is overridden where a store can do
    better. Stores are picklable, and usable after a fork: connections are opened per process.

    is_local      reading costs no network: files can be mapped, and read in any order
    keeps_copies  `map` and `derived` may return copies that a cache keeps
    guard         what addresses named by data may reach from here
    origin        which service this is, if it is not the usual one of its scheme: two may have the same bucket
    root          local path of the folder of all files; empty if they are not on a local disk
    room          bytes of files that may be fetched ahead by `keep` and not used yet; 0 without a cache
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
        """Return the bytes of a file. Raises MissingError if there is none."""

    @abstractmethod
    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes start..stop, all of them; `stop` None is the end. Raises FormatError if the file ends before."""

    def read_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many ranges of one file, in the order asked; ranges that are near each other are read together."""
        pieces, piece_of = join_near(ranges)
        return cut(self.read_pieces(path, pieces), pieces, piece_of, ranges)

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int]]) -> Sequence[Part]:
        """Read ranges that are not empty and do not overlap, one request each, all of one version of the file."""
        return [self.read(path, start, stop) for start, stop in pieces]

    def read_each(self, paths: Sequence[str]) -> Iterator[Part]:
        """Read many whole files, in the order asked, some ahead of what is used. The first error is raised."""
        limits = self.guard.limits
        return ordered_map(
            self.read,
            paths,
            workers=limits.jobs,
            max_items=MAX_READ_AHEAD,
            max_bytes=limits.ahead_bytes,
            weigh_result=len,
        )

    def views(self, path: str, start: int, stop: int) -> Sequence[Part]:
        """Read a range; return its bytes in parts, in order, without copying them where possible."""
        return [self.read(path, start, stop)]

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Read bytes 0..size of a file in order, in parts of any size."""
        for start in range(0, size, _BLOCK_BYTES):
            yield self.read(path, start, min(start + _BLOCK_BYTES, size))

    def version(self, path: str) -> tuple[str, int]:
        """Return a token that changes with the content of a file, or empty if there is none, and the bytes of the file."""
        return "", self.size(path)

    def map(self, path: str) -> memoryview | None:
        """Map a file for reading; None if that is not possible. Only for files that nobody truncates."""
        return None

    def unmapped(self: S) -> S:
        """Return a store of the same files that never maps them."""
        return self

    def forget(self, path: str) -> None:
        """Drop the map of a file and its handle, as soon as it is unused."""
        return

    # -- copies in a cache

    def keep(self, path: str, listed: int | None = None, passing: bool = False) -> bool:
        """Fetch a file whole into the cache, so that it can be mapped; False if nothing keeps it.

        listed   its bytes according to a listing
        passing  the file is used in one place of a run; `passed` is called afterwards
        """
        return False

    def passed(self, path: str) -> None:
        """Release a file that was kept with `passing`."""
        return

    def derived(
        self, path: str, kind: str, size: int, make: Callable[[], Iterable[bytes | memoryview]]
    ) -> memoryview | None:
        """Map what is made of a file, such as its decompressed bytes, if a cache keeps it; see `Location.derived`."""
        return None

    # -- writing and listing

    @abstractmethod
    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        """Write a file, whole or not at all, and hash it in the same pass."""

    @abstractmethod
    def list(self, path: str) -> Iterator[Entry]:
        """List the files below a folder, in bytewise order of their names. Raises MissingError if there are none."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file; no error if there is none."""

    def cut(self, path: str, size: int) -> None:
        """Truncate a file to `size` bytes. Raises UsageError where files are written whole or not at all."""
        raise self._fixed(path)

    def extend(self, path: str, size: int, parts: Iterable[Part]) -> None:
        """Append to a file that has `size` bytes now. Raises UsageError where files are written whole or not at all."""
        raise self._fixed(path)

    def _fixed(self, path: str) -> UsageError:
        return UsageError(
            "files there cannot be added to",
            where=self.show(path),
            hint="Write to a local folder.",
        )

    # -- addresses

    @abstractmethod
    def show(self, path: str) -> str:
        """Return the address of a path for messages, without secrets."""

    def child(self, path: str, name: str) -> str:
        """Return the path of a checked name below a folder."""
        return f"{path}/{name}" if path else name

    def join(self, path: str, url: str) -> Location:
        """Resolve an address that data in the folder `path` names. Raises UnsafeError for what data may not name."""
        return Location(self, self.child(path, check_name(bare(url), where=self.show(path))))

    # -- lifetime

    def close(self) -> None:
        """Release maps, handles, buffers and pinned versions of this store, which can be used again.

        Connections are shared by the stores of a process: `flare.close()` closes them.
        """
        return

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Location:
    """An address: picklable, printable without secrets; clients are opened per process."""

    store: Store
    path: str = ""

    def __str__(self) -> str:
        return self.store.show(self.path)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"  # the path of a web address holds its secrets

    def __truediv__(self, name: str) -> Location:
        """Return the location of a relative, plain name below. Raises UnsafeError for a name that leaves the folder."""
        return Location(self.store, self.store.child(self.path, check_name(name, where=self)))

    @property
    def name(self) -> str:
        """The last part of the path, without a web address's query."""
        return _without_query(self.path).rstrip("/").rpartition("/")[2]

    @property
    def key(self) -> str:
        """A text that is different for each file, for comparisons only: it may hold secrets."""
        shown = str(self)
        return address_key(self.path) if scheme_of(shown) in ("http", "https") else shown

    @property
    def folder(self) -> Location:
        """The folder that holds this file, where relative URLs in it start."""
        return replace(self, path=_without_query(self.path).rpartition("/")[0])

    def unmapped(self) -> Location:
        """Return the same address, never mapped: for files that may be truncated while they are read."""
        return replace(self, store=self.store.unmapped())

    @property
    def is_local(self) -> bool:
        """Whether reading costs no network."""
        return self.store.is_local

    @property
    def may_map(self) -> bool:
        """Whether reading may hold maps and their handles: of local files, and of copies in a cache."""
        return self.store.is_local or self.store.keeps_copies

    def join(self, url: str) -> Location:
        """Resolve a URL that data named (RFC 3986), from this folder. Raises UnsafeError for what data may not name."""
        return self.store.join(self.path, url)

    def size(self) -> int:
        """Return the bytes of the file. Raises MissingError if there is none."""
        return self.store.size(self.path)

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes start..stop, all of them; `stop` None is the end. Raises FormatError if the file ends before."""
        return self.store.read(self.path, start, stop)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many ranges, in the order asked; a remote store reads near ones together and the rest in parallel."""
        return self.store.read_many(self.path, ranges)

    def map(self) -> memoryview | None:
        """Map a file for reading; None if that is not possible. Only for files that nobody truncates."""
        return self.store.map(self.path)

    def forget(self) -> None:
        """Drop the map of a file and its handle, as soon as it is unused."""
        self.store.forget(self.path)

    def derived(
        self, kind: str, size: int, make: Callable[[], Iterable[bytes | memoryview]]
    ) -> memoryview | None:
        """Map what is made of this file, such as its decompressed bytes, where a cache keeps it beside the file.

        kind  what is made, and how: `zstd`
        size  its bytes
        make  makes it in order; called if it is not kept yet
        return  None if nothing keeps it: then nothing was made, or it had another size
        """
        return self.store.derived(self.path, kind, size, make)

    def blocks(self, size: int | None = None) -> Iterator[bytes]:
        """Read the whole file in order, in parts; `size` saves a request for it."""
        return self.store.blocks(self.path, self.size() if size is None else size)

    def write(
        self, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        """Write the file whole or not at all, safe against power loss, and hash it on the way.

        raises  UsageError if `replace` is False and a file is there; ReachError if it cannot be written
        """
        return self.store.write(self.path, parts, hashes, replace)

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes. Raises UsageError where files are written whole or not at all."""
        self.store.cut(self.path, size)

    def extend(self, size: int, parts: Iterable[Part]) -> None:
        """Append to the file, which has `size` bytes now, and sync it; some bytes may be there after a failure.

        raises  BusyError if it has another size; UsageError where files are written whole or not at all
        """
        self.store.extend(self.path, size, parts)

    def list(self) -> Iterator[Entry]:
        """List the files below, in bytewise order. Raises MissingError if there is no such folder."""
        return self.store.list(self.path)

    def matching(self, parts: Sequence[str], folders: bool = False) -> Iterator[str]:
        """Yield the names of the files below that match a pattern, part by part, in bytewise order.

        folders  also yield matching folders, before the files in them; none if the pattern ends in `**`, only folders
                 if it ends in a slash
        raises   UsageError for an invalid pattern, or more than MAX_LISTED files; MissingError if there is no such folder
        """
        wanted, before = compile_pattern(parts), ""
        for seen, entry in enumerate(self.list()):
            if seen >= MAX_LISTED:
                raise UsageError(
                    f"more than {MAX_LISTED} files lie there",
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
        """Remove the file; no error if there is none."""
        self.store.delete(self.path)

    def exists(self) -> bool:
        """Return whether a file is there; any error but MissingError is raised."""
        try:
            self.size()
        except MissingError:
            return False
        except FormatError:  # a folder
            return True
        return True


def read_each(places: Sequence[Location]) -> Iterator[Part]:
    """Read many whole files, in the order asked, some ahead of what is used; bytes that wait are bounded.

    Raises the first error, as soon as it is met.
    """
    if not places:
        return iter(())
    store = places[0].store
    if all(place.store is store or place.store == store for place in places):
        return store.read_each([place.path for place in places])
    limits = store.guard.limits
    return ordered_map(
        Location.read,
        places,
        workers=limits.jobs,
        max_items=MAX_READ_AHEAD,
        max_bytes=limits.ahead_bytes,
        weigh_result=len,
    )


def short_read(where: object, start: int, stop: int, got: int) -> FormatError:
    """Return the error of a file that ends before the bytes that its header or its index promises."""
    return FormatError(
        f"ends at byte {start + got}, {stop} are needed",
        where=where,
        hint="The file was cut short; fetch or pack it again.",
    )


def _entered(name: str, before: str) -> list[str]:
    """Return the folders of a file that do not hold the previous file of the listing."""
    return [
        name[:i] for i, sign in enumerate(name) if sign == "/" and name[: i + 1] != before[: i + 1]
    ]


def _without_query(path: str) -> str:
    """Keys and names of files may hold a question mark; a web address's path is the address."""
    return path.partition("?")[0] if "://" in path else path
