"""Other lists of the same shards, which must agree with the list in use and with the shards.

    out/playlist.yaml        in use
    out/index.json           of the whole, as `shardindex.json` is where shards are tars
    out/00000/index.json     of a part, as is a part's own playlist where an index is in use

A list that a playlist names is checked like any file, and must list the same shards. Others are
searched at their usual paths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from flarecli import formats, playlists
from flarecli.commands.verifying.hints import AGAIN
from flarecli.commands.verifying.shard import Checked, Claim, Depth, check_file
from flarecli.errors import FlareError, IntegrityError, MissingError, UnsafeError
from flarecli.formats import INDEX
from flarecli.formats.mds.config import agreed
from flarecli.formats.mds.index import open_dataset, read_shards
from flarecli.formats.webdataset import shardindex as webdataset_shards
from flarecli.formats.webdataset.shardindex import SHARDS
from flarecli.model import Chunk, Finding, Playlist, Stream, finding_of
from flarecli.names import bare, is_url
from flarecli.playlists import PLAYLIST
from flarecli.read import place_of, places_of
from flarecli.storage import Location

__all__ = ["CHANGED", "Beside", "Listing", "held_against", "is_index", "look_beside", "own_sum"]

_SUM_LINE = b"# flare "
_UNTRUSTED = "What it lists cannot be trusted; fetch it again."
_TAIL = 4096  # bytes at the end that contain the last line of a playlist
_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")
CHANGED = (
    "Find out which of the two was changed: `flare playlist A --diff B` lists all that differs."
)


@dataclass
class Listing:
    """Another list of the same shards.

    is_claimed  must list the same shards: the list in use names it or was made from it, or it is
                --against
    is_against  list of --against: if it is in another folder, shards are matched by name
    entries     entries of an `index.json` for each shard
    """

    at: Location
    stream: Stream
    is_claimed: bool
    is_against: bool = False
    entries: Sequence[Mapping[str, Any]] = ()
    places: dict[str, int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.places = {place: i for i, place in enumerate(places_of(self.stream))}
        if self.is_against:
            names = [
                url.partition("?")[0].rpartition("/")[2] if is_url(url) else url
                for url in self.stream.urls
            ]
            self.places |= {name: i for i, name in enumerate(names) if name not in self.places}

    @cached_property
    def folders(self) -> frozenset[str]:
        """The folders in which it lists shards."""
        return frozenset(place.rpartition("/")[0] for place in self.places)

    @property
    def has_sums(self) -> bool:
        """Whether it lists sums of its own."""
        return bool(self.stream.hashes or self.stream.raw_hashes)

    def find(self, place: str, chunk: Chunk) -> int | None:
        """Return the position of a shard in the list."""
        i = self.places.get(
            place, self.places.get(chunk.files[0].name) if self.is_against else None
        )
        if i is not None:
            self.used.add(i)
        return i

    def rest(self) -> list[str]:
        """Yield the shards for which `find` was not called."""
        return [url for i, url in enumerate(self.stream.urls) if i not in self.used]


def is_index(found: Playlist) -> bool:
    """Return whether the list in use is an `index.json`."""
    return found.at is not None and found.at.name == INDEX


def own_sum(found: Playlist) -> tuple[int, list[Finding], bool]:
    """Check the last line of a playlist, which protects the checksums in it.

    return  size in bytes; findings; whether it contains checksums
    """
    if found.at is None:
        return 0, [], False
    size = found.at.size()
    if is_index(found):
        return size, [], False
    if found.protected:
        return size, [], True
    has_line = _SUM_LINE in found.at.read(max(0, size - _TAIL), size)
    if not has_line and not any(
        stream.hashes or any(file.hashes for file in stream.files.values())
        for stream in found.streams
    ):
        return size, [], False
    what = (
        "the last line is not the checksum of the lines above"
        if has_line
        else "contains checksums, but no last line with its own checksum"
    )
    return size, [Finding(str(found.at), "checksum", what, _UNTRUSTED, start=0, stop=size)], True


class Beside:
    """All other lists of a stream's shards, and findings about these lists.

    only   positions of the shards that are checked; None: all
    named  paths of the list in use and of the files that it names
    read   paths of lists besides these; `size` is their total size
    """

    def __init__(
        self,
        found: Playlist,
        stream: Stream,
        depth: Depth,
        only: Collection[int] | None = None,
    ) -> None:
        self.only = only
        self.stream, self.listings, self.findings, self.read, self.size = (
            stream,
            list[Listing](),
            list[Finding](),
            set[str](),
            0,
        )
        self.mine, self.named = (
            str(found.at or stream.at),
            {place_of(found.at)} if found.at is not None else set[str](),
        )
        self._entries: Sequence[Mapping[str, Any]] = []
        if found.at is not None and is_index(found):
            try:
                self._entries = _entries(found.at, stream)
            except FlareError as error:
                self.findings.append(finding_of(error, found.at))
        self._is_listed = found.at is not None
        self._bare: dict[bool, list[Location]] = {}  # lists without checksums: playlists and others
        self._summed: set[str] = set()  # paths of lists whose checksums are in another list
        self._depth = depth
        self._at: dict[str, list[Listing]] = {}  # by the folder of their shards

    def add(self, listing: Listing) -> None:
        """Add a list."""
        self.listings.append(listing)
        self._at.setdefault("" if listing.is_against else place_of(listing.at.folder), []).append(
            listing
        )

    def of(self, place: str) -> Iterator[tuple[Listing, bool]]:
        """Return each list that may name a shard, and whether it must, if it is claimed.

        Of lists with the same name, the nearest to the shard must name it, and any above that was
        merged from it.
        """
        for listing in self._at.get("", ()):
            yield listing, True
        seen: set[str] = set()
        folder = its = place.rpartition("/")[0]
        while folder:
            for listing in self._at.get(folder, ()):
                yield listing, listing.at.name not in seen or its in listing.folders
            seen |= {listing.at.name for listing in self._at.get(folder, ())}
            folder = folder.rpartition("/")[0]

    def look(self, at: Location, is_claimed: bool, is_named: bool = False) -> None:
        """Read a list if it exists. `is_named`: the list in use has its size and checksums."""
        try:
            size = at.size()
            if not is_named:
                self.read.add(place_of(at))
                self.size += size
            for stream in self._streams(at, is_named):
                self._hold(
                    Listing(
                        at,
                        stream,
                        is_claimed,
                        entries=_entries(at, stream) if self._entries and at.name == INDEX else (),
                    )
                )
        except MissingError:
            return
        except FlareError as error:
            self.findings.append(finding_of(error, at))

    def _streams(self, at: Location, is_named: bool) -> Sequence[Stream]:
        if at.name in (INDEX, SHARDS):
            stream = (
                open_dataset(at.folder) if at.name == INDEX else webdataset_shards.read_shards(at)
            )
            self._bare.setdefault(False, []).extend([] if is_named else [at])
            return [stream]
        found = playlists.read(at)
        _, findings, has_sums = own_sum(found)
        self.findings += findings
        self._bare.setdefault(True, []).extend([] if has_sums else [at])
        for stream in found.streams:
            for name, file in stream.files.items():
                if self.only is None or name.rpartition("/")[2] in _names(self.stream):
                    self._check(stream.at.join(name), Claim(str(at), file))
        return [
            one for one in found.streams if any(place in self._places for place in places_of(one))
        ]

    @cached_property
    def _places(self) -> frozenset[str]:
        return frozenset(places_of(self.stream))

    def _check(self, at: Location, claim: Claim) -> None:
        """Check a list that another playlist names."""
        done = check_file(at, [claim], self._depth)
        self.findings += done.findings
        if claim.file.hashes:
            self._summed.add(place_of(at))
        if (place := place_of(at)) not in self.read and place not in self.named:
            self.read.add(place)
            self.size += done.size

    def _hold(self, listing: Listing) -> None:
        self.add(listing)
        its, mine = listing.stream, self.stream
        one, other = (
            (its, mine) if listing.at.name == INDEX else (mine, its)
        )  # an index has fewer types of columns
        if one.columns and other.columns and not _agree(one, other):
            self.findings.append(
                Finding(
                    str(listing.at), "listing", f"names other columns than {self.mine}", CHANGED
                )
            )

    @property
    def known(self) -> set[str]:
        """The paths of these lists, and of the files that lists of parts name."""
        top = place_of(self.stream.at)
        return self.read.union(
            *(one.places for one in self.listings if place_of(one.at.folder) != top)
        )

    @property
    def unprotected(self) -> list[str]:
        """Notes about lists without checksums."""
        against = f"{self.mine} and the shards" if self._is_listed else "the shards"
        return [
            f"{_several(bare)} no sum{'s' * is_playlist}"
            + f", cross-checked with {against}" * (not is_playlist)
            for is_playlist, places in self._bare.items()
            if (bare := [at for at in places if place_of(at) not in self._summed])
        ]

    def claims(
        self, i: int, place: str, chunk: Chunk
    ) -> tuple[list[tuple[Listing, Chunk]], list[Finding]]:
        """Return the entry of each list for the i-th shard, and the contradictions to the list in
        use.
        """
        out, found = list[tuple[Listing, Chunk]](), list[Finding]()
        for listing, must in self.of(place):
            k = listing.find(place, chunk)
            if k is not None:
                other = listing.stream.chunk(k)
                out.append((listing, other))
                found += self._differences(listing, k, other, i, chunk)
            elif listing.is_claimed and must:
                lists = (
                    f"{self.mine} does"
                    if self._is_listed or listing.is_against
                    else "which lies beside it"
                )
                found.append(
                    Finding(
                        str(listing.at), "listing", f"does not list {chunk.at}, {lists}", CHANGED
                    )
                )
        return out, found

    def _differences(
        self, listing: Listing, k: int, other: Chunk, i: int, chunk: Chunk
    ) -> Iterator[Finding]:
        """Compare the entries of two lists for a shard."""
        if not self._is_listed and not listing.is_against:
            return  # files in a folder are compared with the list when they are checked
        ours, theirs = chunk.files[0], other.files[0]
        pairs: list[tuple[str, Any, Any]] = [
            ("rows", chunk.rows, other.rows),
            ("bytes", ours.size, theirs.size),
            ("bytes when decompressed", ours.raw_size, theirs.raw_size),
            *(
                (name, ours.hashes[name], value)
                for name, value in theirs.hashes.items()
                if name in ours.hashes
            ),
        ]
        said = [
            (f"{its} {what}", str(mine))
            for what, mine, its in pairs
            if mine is not None and its is not None and mine != its
        ]
        if not said and listing.entries:
            said = [*_unlike(self._entries[i], listing.entries[k])]
        for what, mine in said:
            yield Finding(
                str(listing.at),
                "listing",
                f"lists {what} for {chunk.at}, {self.mine} lists {mine}",
                CHANGED,
            )

    def rest(self, address: str) -> Iterator[Finding]:
        """Yield findings for shards that only a claimed list has; call it after all shards were
        checked.
        """
        for listing in self.listings:
            is_compared = listing.is_claimed and (self.only is None or listing.is_against)
            rest = listing.rest() if is_compared else []
            if rest and not self._is_listed and not listing.is_against:
                places = (name if is_url(name) else f"{self.stream.at}/{name}" for name in rest)
                yield from (
                    Finding(
                        place,
                        "missing",
                        f"no such file, {listing.at} lists it",
                        f"It is gone; {AGAIN}",
                    )
                    for place in places
                )
            elif rest:
                message = f"lists {rest[0]}{f' and {len(rest) - 1} others' * (len(rest) > 1)}, {self.mine if self._is_listed and self.only is None else address} does not"
                yield Finding(str(listing.at), "listing", message, CHANGED)


def look_beside(
    found: Playlist,
    stream: Stream,
    claimed: Mapping[str, tuple[Location, Checked]],
    depth: Depth,
    named: Sequence[Location] = (),
    is_folder: bool = False,
    only: Collection[int] | None = None,
) -> Beside:
    """Read the other lists of a stream's shards.

    claimed    results of the files that the list in use names
    depth      depth of the check; `quick` sends no requests for lists
    named      lists of the same shards that the user named too
    is_folder  no list is in use: the shards are the files of a folder
    only       positions of the shards that are checked; None: all
    """
    out = Beside(found, stream, depth, only)
    out.named |= {place_of(at) for at, _ in claimed.values()}
    for name, (at, done) in claimed.items():
        if name.rpartition("/")[2] in _names(stream) and not done.findings:
            out.look(at, True, True)
    looked = {*out.named}
    places = _places(found, stream, depth.quick, only) if found.at is not None or is_folder else ()
    for at, is_part in (*places, *((at, False) for at in named)):
        if place_of(at) not in looked:
            looked.add(place_of(at))
            out.look(at, is_part or is_folder)
    return out


def _names(stream: Stream) -> tuple[str, ...]:
    files = formats.facts(stream.format).index_files
    return tuple(name for name in (INDEX, SHARDS) if name in files)


def _places(
    found: Playlist, stream: Stream, quick: bool, only: Collection[int] | None
) -> Iterator[tuple[Location, bool]]:
    """Return the usual paths of other lists, and whether the list in use was made from them."""
    top, names = stream.at, _names(stream)
    if not top.is_local and (quick or (found.at is not None and not is_index(found))):
        return
    if not is_index(found):
        yield from ((top / name, False) for name in names)
    if found.at is None:
        return
    if is_index(found) and top.is_local:
        yield top / PLAYLIST, False
    urls = stream.urls if only is None else [stream.urls[i] for i in only]
    folders = {bare(url).rpartition("/")[0] for url in urls if not is_url(url)} if names else set()
    folders |= {above for folder in folders for above in _above(folder)}
    names += (PLAYLIST,) * (is_index(found) and top.is_local)
    for folder in sorted(folders - {""}):
        for name in names:
            try:
                yield top / f"{folder}/{name}", is_index(found)
            except UnsafeError:  # reported for the shard in it
                break


def _above(folder: str) -> Iterator[str]:
    while folder := folder.rpartition("/")[0]:
        yield folder


def _several(places: Sequence[Location]) -> str:
    return (
        f"{places[0]} and {len(places) - 1} like it: carry"
        if len(places) > 1
        else f"{places[0]}: carries"
    )


def _entries(at: Location, stream: Stream) -> Sequence[Mapping[str, Any]]:
    """Return the entries of an index for each shard of the stream read from it; empty if it changed
    since.
    """
    entries = read_shards(at)[0]
    return entries if len(entries) == len(stream) else []


def _unlike(mine: Mapping[str, Any], its: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Compare the entries of two indexes for a shard; a rebuilt index has fewer fields, which are
    skipped.
    """
    for key in (*mine, *(key for key in its if key not in mine)):
        if key not in mine or key not in its:
            yield (
                (f"{key} {its[key]!r:.60}", f"no {key}")
                if key in its
                else (f"no {key}", f"{key} {mine[key]!r:.60}")
            )
        elif key not in _FILES:
            yield from _unequal(key, mine[key], its[key])
        elif isinstance(mine[key], dict) and isinstance(its[key], dict):
            one, other = (
                {**file, "basename": str(file.get("basename")).rpartition("/")[2]}
                for file in (mine[key], its[key])
            )
            for what in one:
                yield from _unequal(f"{key}.{what}", one[what], other.get(what))


def _unequal(what: str, mine: Any, its: Any) -> Iterator[tuple[str, str]]:
    if mine != its and mine not in (None, [], {}) and its not in (None, [], {}):
        yield f"{what} {its!r:.60}", f"{mine!r:.60}"


def _agree(one: Stream, other: Stream) -> bool:
    """Return whether two lists have the same columns, as far as the format of the list has their
    types.
    """
    try:
        agreed(one.columns or (), other.columns, one.format or "", "")
    except IntegrityError:
        return False
    return True


def held_against(
    truth: Playlist, stream: Stream, streams: Sequence[Stream], where: str
) -> tuple[Listing | None, list[Finding]]:
    """Return the stream of another playlist with the same name, or its only stream if both have
    one.
    """
    others = [one for one in truth.streams if one.name == stream.name] or (
        [*truth.streams] if len(truth) == len(streams) == 1 else []
    )
    if not others:
        return None, [
            Finding(
                str(truth.at), "listing", f"has no stream {stream.name!r}, {where} has", CHANGED
            )
        ]
    return Listing(truth.at or others[0].at, others[0], True, True), []
