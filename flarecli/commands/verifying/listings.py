"""Comparison of the main list of a dataset with its other lists.

A list is a playlist or an index. The main list is the list that determines which shards are
checked:

    out/playlist.yaml        main list
    out/index.json           index of the dataset; `shardindex.json` if the shards are tars
    out/00000/index.json     index of a part of the dataset

If the main list names another list, the other list is checked like any file, and must contain the
same shards. Further indexes are searched for at their usual paths; playlists are searched for only
if the main list is an index. Files that no list names are reported.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from flarecli import formats, playlists
from flarecli.commands.verifying.shard import AGAIN, Depth, FileResult, ListEntry, check_file
from flarecli.compress import SUFFIXES
from flarecli.errors import FlareError, IntegrityError, MissingError, UnsafeError
from flarecli.formats import INDEX, SHARD_INDEX
from flarecli.formats.mds.config import agreed
from flarecli.formats.mds.index import open_dataset, read_shards
from flarecli.model import Chunk, Finding, Playlist, Stream, finding_of
from flarecli.names import bare, is_fragment, is_url, shell_quoted
from flarecli.playlists import (
    PLAYLIST,
    has_change,
    pin_of,
    version_name,
    version_number,
    version_of,
)
from flarecli.read import place_of, places_of, read_list
from flarecli.read.version_lists import (
    REMOVAL,
    files_to_remove,
    is_version_file,
    list_names,
    listed_files,
)
from flarecli.storage import Location

__all__ = [
    "LISTS_DIFFER",
    "OtherLists",
    "check_own_checksum",
    "find_unlisted_files",
    "folders_above",
    "is_index",
    "matching_list",
    "original_index",
    "read_other_lists",
    "read_shard_index",
    "unlisted_shard",
]

_MAX_NEWER_VERSIONS = 4  # maximum number of versions, newest first, that are compared with an index
_INDEX_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")
_DAMAGED_LIST = "The checksums in the list cannot be trusted; fetch it again."
LISTS_DIFFER = (
    "One of the two lists was changed; `flare playlist A --diff B` shows all differences."
)


def read_shard_index(at: Location) -> Stream:
    """Read the `shardindex.json` of a folder of tars. Raises FormatError if it is invalid."""
    from flarecli.formats.webdataset.index import read_shards  # only tars have such an index

    return read_shards(at)


def is_index(playlist: Playlist) -> bool:
    """Return whether a playlist was read from an `index.json`."""
    return playlist.at is not None and playlist.at.name == INDEX


def check_own_checksum(playlist: Playlist) -> tuple[int, list[Finding], bool]:
    """Check the last line of a playlist, which is the checksum of the lines above it.

    return  size in bytes; findings; whether the playlist contains checksums
    """
    if playlist.at is None:
        return 0, [], False
    size = playlist.at.size()
    if is_index(playlist):
        return size, [], False
    fault = playlists.checksum_fault(playlist)
    if not fault:
        return size, [], playlist.protected
    finding = Finding(str(playlist.at), "checksum", fault, _DAMAGED_LIST, start=0, stop=size)
    return size, [finding], True


def _derived_index(playlist: Playlist, stream: Stream) -> str:
    """Return the path of a dataset's index if it must not be compared with a stream, or else "".

    The index in the folder of a changed dataset lists the first stream of the newest version, so it
    cannot be compared with another stream or version.
    """
    if version_of(playlist) is None or playlist.at is None or stream.format is None:
        return ""
    index = formats.find(stream.format).version_index
    is_first = stream.name == playlist.streams[0].name
    if not index or (is_first and pin_of(playlist.at.name) is None):
        return ""
    return place_of(playlist.at.folder / index)


def original_index(stream: Stream, name: str) -> Location | None:
    """Return the location of the copy of a dataset's index from before the first change.

    The copy is created before a change replaces the index. Returns None if there is no copy, or if
    changes do not replace the file `name`.
    """
    if name != formats.facts(stream.format).version_index:
        return None
    at = stream.at / formats.first_index(name)
    return at if at.exists() else None


@dataclass
class OtherList:
    """A list of the same shards that is not the main list.

    must_match     whether this list must contain the same shards as the main list. True for the
                   list of --against, and for a list that the main list names or was merged from;
                   without a main list, True for all lists
    is_against     whether this is the list of --against; its shards may be in a different folder,
                   and are then compared by file name
    index_entries  entries of an `index.json`, one per shard; may be empty
    """

    at: Location
    stream: Stream
    must_match: bool
    is_against: bool = False
    index_entries: Sequence[Mapping[str, Any]] = ()
    _positions: dict[str, int] = field(default_factory=dict)
    _used: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._positions = {place: i for i, place in enumerate(places_of(self.stream))}
        for i, url in enumerate(self.stream.urls if self.is_against else ()):
            name = url.partition("?")[0].rpartition("/")[2] if is_url(url) else url
            self._positions.setdefault(name, i)

    @property
    def places(self) -> Collection[str]:
        """Return the addresses of the listed shards."""
        return self._positions.keys()

    @cached_property
    def folders(self) -> frozenset[str]:
        """Return the folders of the listed shards."""
        return frozenset(place.rpartition("/")[0] for place in self._positions)

    def find(self, place: str, chunk: Chunk) -> int | None:
        """Return the position of a shard in the list; None if the list does not contain it."""
        i = self._positions.get(place)
        if i is None and self.is_against:
            i = self._positions.get(chunk.files[0].name)
        if i is not None:
            self._used.add(i)
        return i

    def unused(self) -> list[str]:
        """Return the addresses of the listed shards that no call of `find` has found."""
        return [url for i, url in enumerate(self.stream.urls) if i not in self._used]


class OtherLists:
    """All lists of a stream's shards except the main list, and findings about these lists.

    only        positions of the shards that are checked; None: all
    named       paths of the main list and of the files that it names
    read_paths  paths of the lists that were read, except those in `named`
    size        total size in bytes of the lists in `read_paths`
    """

    def __init__(
        self, playlist: Playlist, stream: Stream, depth: Depth, only: Collection[int] | None
    ) -> None:
        self.stream, self.only = stream, only
        self.lists = list[OtherList]()
        self.findings = list[Finding]()
        self.named = {place_of(playlist.at)} if playlist.at is not None else set[str]()
        self.read_paths, self.size = set[str](), 0
        self._depth = depth
        self._address = str(playlist.at or stream.at)
        self._has_list = playlist.at is not None
        number = version_of(playlist)
        self._has_versions, self._version = number is not None, number or 1
        self._index_entries: Sequence[Mapping[str, Any]] = []
        if playlist.at is not None and is_index(playlist):
            try:
                self._index_entries = _index_entries(playlist.at, stream)
            except FlareError as error:
                self.findings.append(finding_of(error, playlist.at))
        self._derived_index = _derived_index(playlist, stream)
        self._without_checksums: dict[bool, list[Location]] = {}  # is_playlist -> lists
        self._checked: set[str] = set()  # paths of lists whose checksums another list contains
        # folder -> lists in this folder; the key of the --against list is ""
        self._by_folder: dict[str, list[OtherList]] = {}

    def add(self, other: OtherList) -> None:
        """Add a list."""
        self.lists.append(other)
        folder = "" if other.is_against else place_of(other.at.folder)
        self._by_folder.setdefault(folder, []).append(other)

    def read(self, at: Location, must_match: bool, is_named: bool = False) -> None:
        """Read a list if it exists.

        is_named  whether the main list contains the size and checksums of this list
        """
        if self._derived_index == place_of(at):
            self.read_paths.add(place_of(at))
            return
        if self._has_versions and at.folder != self.stream.at:
            must_match = False  # a version may list only some shards of a fragment or a part
        try:
            size = at.size()
            if not is_named:
                self.read_paths.add(place_of(at))
                self.size += size
            for stream in self._read_streams(at, is_named):
                compares_entries = bool(self._index_entries) and at.name == INDEX
                entries = _index_entries(at, stream) if compares_entries else ()
                newer = None
                if self._lists_another_version(at, stream):
                    newer, must_match = _newer_version(at.folder, stream, self._version), False
                    if newer is None:
                        message = f"lists other shards than {self._address}"
                        self.findings.append(Finding(str(at), "listing", message, LISTS_DIFFER))
                self.add(OtherList(at, stream, must_match, index_entries=entries))
                self.findings += self._compare(at, stream, newer)
        except MissingError:
            is_in_changed_dataset = self._has_versions and at.folder == self.stream.at
            if is_in_changed_dataset and original_index(self.stream, at.name) is not None:
                message = "the index of the newest version is missing"
                hint = f"Run `flare playlist {shell_quoted(str(at.folder))} --reindex`."
                self.findings.append(Finding(str(at), "missing", message, hint))
        except FlareError as error:
            self.findings.append(finding_of(error, at))

    def _lists_another_version(self, at: Location, stream: Stream) -> bool:
        """Return whether an index of a changed dataset lists other shards than the main list."""
        if at.folder != self.stream.at or list(stream.urls) == list(self.stream.urls):
            return False
        if at.name != formats.facts(self.stream.format).version_index:
            return False
        return self._has_versions or original_index(self.stream, at.name) is not None

    def _compare(self, at: Location, stream: Stream, newer: Playlist | None) -> Iterator[Finding]:
        """Yield a finding if the columns of a list differ from those of the main list.

        newer  if not None, the list is compared with this version, including its counts
        """
        listed, by = self.stream, self._address
        if newer is not None:
            listed, by = newer.streams[0], str(newer.at)
            if _have_other_counts(stream, listed):
                message = f"row counts or sizes differ from those in {by}"
                yield Finding(str(at), "listing", message, LISTS_DIFFER)
        # the index is the first argument, because it distinguishes fewer column types than a
        # playlist
        pair = (stream, listed) if at.name == INDEX else (listed, stream)
        if not _have_same_columns(*pair):
            message = f"columns differ from the columns in {by}"
            yield Finding(str(at), "listing", message, LISTS_DIFFER)

    def _read_streams(self, at: Location, is_named: bool) -> Sequence[Stream]:
        """Read a list, and return those of its streams that contain shards of `self.stream`."""
        if at.name in (INDEX, SHARD_INDEX):
            if not is_named:
                self._without_checksums.setdefault(False, []).append(at)
            return [self._read_index(at)]
        playlist = playlists.read(at)
        _, findings, has_checksums = check_own_checksum(playlist)
        self.findings += findings
        if not has_checksums:
            self._without_checksums.setdefault(True, []).append(at)
        for stream in playlist.streams:
            for name, file in stream.files.items():
                if self.only is None or name.rpartition("/")[2] in _index_names(self.stream):
                    self._check_file(stream.at.join(name), ListEntry(str(at), file))
        own = self._places
        return [one for one in playlist.streams if not own.isdisjoint(places_of(one))]

    def _read_index(self, at: Location) -> Stream:
        """Read an index. If a change may have replaced it during the read, read it again."""
        try:
            return _read_index(at)
        except FlareError:
            if at.folder != self.stream.at or original_index(self.stream, at.name) is None:
                raise
        # a copy of the store has no version pins, so it reads the current version of an object
        return _read_index(replace(at, store=copy.copy(at.store)))

    @cached_property
    def _places(self) -> frozenset[str]:
        return frozenset(places_of(self.stream))

    def _check_file(self, at: Location, entry: ListEntry) -> None:
        """Check a file that another playlist names, such as an index."""
        result, place = check_file(at, [entry], self._depth), place_of(at)
        self.findings += result.findings
        if entry.file.hashes:
            self._checked.add(place)
        if place not in self.read_paths and place not in self.named:
            self.read_paths.add(place)
            self.size += result.size

    @property
    def known_paths(self) -> set[str]:
        """Return `read_paths`, and all shard paths in lists that are not in the stream's folder."""
        top = place_of(self.stream.at)
        parts = (one.places for one in self.lists if place_of(one.at.folder) != top)
        return self.read_paths.union(*parts)

    def notes(self) -> list[str]:
        """Return notes about lists without checksums."""
        compared = f"{self._address} and the shards" if self._has_list else "the shards"
        notes = []
        for is_playlist, locations in self._without_checksums.items():
            bare = [at for at in locations if place_of(at) not in self._checked]
            if bare:
                several = len(bare) > 1
                names = f"{bare[0]} and {len(bare) - 1} more" if several else str(bare[0])
                note = f"{names}: no checksums"
                notes.append(note if is_playlist else f"{note}; compared with {compared}")
        return notes

    def entries_of(
        self, i: int, place: str, chunk: Chunk
    ) -> tuple[list[tuple[OtherList, Chunk]], list[Finding]]:
        """Return the entries for the i-th shard in all lists except the main list, and findings.

        A finding reports an entry that differs from the main list, or a list without an entry.
        """
        entries, findings = list[tuple[OtherList, Chunk]](), list[Finding]()
        for other, must_list in self._lists_for(place):
            k = other.find(place, chunk)
            if k is not None:
                entry = other.stream.chunk(k)
                entries.append((other, entry))
                # Without a main list, the entry is not compared here. It is compared with the
                # shard's file when the shard is checked.
                if self._has_list or other.is_against:
                    findings += self._differences(other, k, entry, i, chunk)
            elif other.must_match and must_list:
                by = f"{self._address} does"
                if not self._has_list and not other.is_against:
                    by = "which is in the same folder"
                message = f"does not list {chunk.at}, {by}"
                findings.append(Finding(str(other.at), "listing", message, LISTS_DIFFER))
        return entries, findings

    def _lists_for(self, place: str) -> Iterator[tuple[OtherList, bool]]:
        """Yield each list that may name a shard, and whether the list is expected to name it.

        If several lists have the same file name, the list in the nearest folder above the shard is
        expected to name the shard. A list with this file name in another folder is expected to name
        the shard only if it names other shards in the folder of the shard.
        """
        for other in self._by_folder.get("", ()):
            yield other, True
        names: set[str] = set()
        own = place.rpartition("/")[0]
        for folder in (own, *folders_above(own)):
            nearest = self._by_folder.get(folder, ())
            for other in nearest:
                yield other, other.at.name not in names or own in other.folders
            names |= {other.at.name for other in nearest}

    def _differences(
        self, other: OtherList, k: int, entry: Chunk, i: int, chunk: Chunk
    ) -> Iterator[Finding]:
        """Yield a finding for each fact about one shard that differs between two lists."""
        file, other_file = chunk.files[0], entry.files[0]
        facts: list[tuple[str, Any, Any]] = [
            ("rows", chunk.rows, entry.rows),
            ("bytes", file.size, other_file.size),
            ("bytes when decompressed", file.raw_size, other_file.raw_size),
        ]
        facts += [(name, file.hashes.get(name), value) for name, value in other_file.hashes.items()]
        different = [
            (f"{theirs} {name}", str(ours))
            for name, ours, theirs in facts
            if ours is not None and theirs is not None and ours != theirs
        ]
        if not different and other.index_entries:
            different = [*_compare_entries(self._index_entries[i], other.index_entries[k])]
        for theirs, ours in different:
            message = f"lists {theirs} for {chunk.at}, {self._address} lists {ours}"
            yield Finding(str(other.at), "listing", message, LISTS_DIFFER)

    def additional_shards(self, address: str) -> Iterator[Finding]:
        """Yield findings for shards that the main list does not contain.

        The shards of each list with `must_match` are compared with the main list, or with the
        folder if there is no main list. Call this method after `entries_of` was called for all
        shards.
        """
        for other in self.lists:
            if not other.must_match or (self.only is not None and not other.is_against):
                continue
            urls = other.unused()
            if urls and not self._has_list and not other.is_against:
                for url in urls:
                    place = url if is_url(url) else f"{self.stream.at}/{url}"
                    message = f"no such file, {other.at} lists it"
                    yield Finding(place, "missing", message, f"The file is missing; {AGAIN}")
            elif urls:
                more = f" and {len(urls) - 1} others" * (len(urls) > 1)
                by = self._address if self._has_list and self.only is None else address
                message = f"lists {urls[0]}{more}, {by} does not"
                yield Finding(str(other.at), "listing", message, LISTS_DIFFER)


def read_other_lists(
    playlist: Playlist,
    stream: Stream,
    files: Mapping[str, tuple[Location, FileResult]],
    depth: Depth,
    named: Sequence[Location] = (),
    is_folder: bool = False,
    only: Collection[int] | None = None,
) -> OtherLists:
    """Read all lists of a stream's shards except the main list.

    files      name of a file in the main list -> location of the file, and the result of its check
    depth      depth of the check; with `quick`, lists that require a request are not read
    named      further lists that the user named, with the same shards as the main list
    is_folder  whether the shards are the files of a folder without a main list
    only       positions of the shards that are checked; None: all
    """
    others = OtherLists(playlist, stream, depth, only)
    others.named |= {place_of(at) for at, _ in files.values()}
    for name, (at, result) in files.items():
        if name.rpartition("/")[2] in _index_names(stream) and not result.findings:
            others.read(at, must_match=True, is_named=True)
    known = {*others.named}
    has_usual = playlist.at is not None or is_folder
    usual = _usual_locations(playlist, stream, depth.quick, only) if has_usual else ()
    for at, is_part in (*usual, *((at, False) for at in named)):
        if place_of(at) not in known:
            known.add(place_of(at))
            others.read(at, must_match=is_part or is_folder)
    return others


def _index_names(stream: Stream) -> tuple[str, ...]:
    files = formats.facts(stream.format).index_files
    return tuple(name for name in (INDEX, SHARD_INDEX) if name in files)


def _usual_locations(
    playlist: Playlist, stream: Stream, quick: bool, only: Collection[int] | None
) -> Iterator[tuple[Location, bool]]:
    """Yield (location, is_part) for each usual path of a list, even if no list exists there.

    `is_part` is True if a list at this location is one of the lists from which the main list was
    merged.
    """
    top, names = stream.at, _index_names(stream)
    if not top.is_local and (quick or (playlist.at is not None and not is_index(playlist))):
        return
    if not is_index(playlist):
        yield from ((top / name, False) for name in names)
    if playlist.at is None:
        return
    if is_index(playlist) and top.is_local:
        yield top / PLAYLIST, False
    urls = stream.urls if only is None else [stream.urls[i] for i in only]
    folders = {bare(url).rpartition("/")[0] for url in urls if not is_url(url)} if names else set()
    folders |= {above for folder in folders for above in folders_above(folder)}
    if is_index(playlist) and top.is_local:
        names += (PLAYLIST,)
    for folder in sorted(folders - {""}):
        for name in names:
            try:
                yield top / f"{folder}/{name}", is_index(playlist)
            except UnsafeError:  # the check of the shard reports the error
                break


def folders_above(path: str) -> Iterator[str]:
    """Yield the parent folders of a `/`-separated path, nearest first, without the root."""
    while path := path.rpartition("/")[0]:
        yield path


def _index_entries(at: Location, stream: Stream) -> Sequence[Mapping[str, Any]]:
    """Return the index entry for each shard of a stream.

    If the index was changed and now has a different number of entries, return an empty list.
    """
    entries = read_shards(at)[0]
    return entries if len(entries) == len(stream) else []


def _compare_entries(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the differences between two index entries: (text for `theirs`, text for `ours`).

    Empty values are not compared, because a rebuilt index has empty values.
    """
    for key in dict.fromkeys((*ours, *theirs)):
        if key not in theirs:
            yield f"no {key}", f"{key} {ours[key]!r:.60}"
        elif key not in ours:
            yield f"{key} {theirs[key]!r:.60}", f"no {key}"
        elif key not in _INDEX_FILES:
            yield from _compare_fact(key, ours[key], theirs[key])
        elif isinstance(ours[key], dict) and isinstance(theirs[key], dict):
            for name, our_value in ours[key].items():
                their_value = theirs[key].get(name)
                if name == "basename":  # in a merged index, it includes the folder of the part
                    our_value, their_value = (
                        str(one).rpartition("/")[2] for one in (our_value, their_value)
                    )
                yield from _compare_fact(f"{key}.{name}", our_value, their_value)


def _compare_fact(name: str, ours: Any, theirs: Any) -> Iterator[tuple[str, str]]:
    if ours != theirs and ours not in (None, [], {}) and theirs not in (None, [], {}):
        yield f"{name} {theirs!r:.60}", f"{ours!r:.60}"


def _read_index(at: Location) -> Stream:
    return open_dataset(at.folder) if at.name == INDEX else read_shard_index(at)


def _newer_version(folder: Location, index: Stream, number: int) -> Playlist | None:
    """Return the list of the version after `number` that has the shards of an index, or None.

    A change creates the list of a version, then replaces the index, then `playlist.yaml`. If the
    process is killed before the last step, the index is newer than `playlist.yaml`.
    """
    try:
        names = list_names(folder)
    except FlareError:  # a web server cannot list a folder
        return None
    newer = {n: name for name in names if (n := version_number(name)) is not None and n > number}
    for n in sorted(newer, reverse=True)[:_MAX_NEWER_VERSIONS]:
        with contextlib.suppress(MissingError):  # another process has removed this version
            found = read_list(folder / newer[n])
            if found.streams and list(found.streams[0].urls) == list(index.urls):
                return found
    return None


def _have_other_counts(one: Stream, other: Stream) -> bool:
    """Return whether a known row count or size differs between two lists of the same shards."""
    return any(
        a is not None and b is not None and bool(((a >= 0) & (b >= 0) & (a != b)).any())
        for a, b in ((one.rows, other.rows), (one.sizes, other.sizes))
    )


def _have_same_columns(one: Stream, other: Stream) -> bool:
    """Return whether two lists have the same columns; true if a list contains no columns."""
    if not one.columns or not other.columns:
        return True
    try:
        agreed(one.columns, other.columns, one.format or "", "")
    except IntegrityError:
        return False
    return True


def matching_list(
    against: Playlist, stream: Stream, streams: Sequence[Stream], address: str
) -> tuple[OtherList | None, list[Finding]]:
    """Return the stream in the --against list that corresponds to a stream, or else a finding.

    Two streams correspond if they have the same name, or if each list has only one stream.
    """
    same = [one for one in against.streams if one.name == stream.name]
    if not same and len(against) == len(streams) == 1:
        same = [*against.streams]
    if same:
        return OtherList(against.at or same[0].at, same[0], True, is_against=True), []
    message = f"does not contain stream {stream.name!r}, {address} does"
    return None, [Finding(str(against.at), "listing", message, LISTS_DIFFER)]


def unlisted_shard(at: Location, listed_in: Location) -> Finding:
    """Return the finding for a shard that a list does not name."""
    hint = "Remove the shard, or add it to the list: `flare playlist … -o FILE`."
    return Finding(str(at), "unlisted", f"shard is not listed in {listed_in}", hint)


def find_unlisted_files(
    playlist: Playlist, known: Collection[str]
) -> Iterator[tuple[str, Finding | None]]:
    """Yield (name, finding) for unlisted files and for subfolders that contain other datasets.

    `finding` is None except for an unlisted shard and for a folder that cannot be read.

    known  paths of files that are not reported, although the main list does not name them
    """
    if playlist.at is None or not playlist.at.is_local:
        return
    top = playlist.at.folder
    listed = {str(playlist.at)}
    for stream in playlist.streams:
        companions = (file.name for files in stream.parts for file in files)
        for url in (*stream.urls, *stream.files, *companions):
            try:
                listed.add(str(stream.at.join(url)))
            except FlareError:
                continue  # the check of this file reports the error
    all_read = True  # whether the files of all versions are in `listed`
    if playlist.at.name == PLAYLIST or version_of(playlist) is not None:
        # other versions may list other files, and an interrupted prune may have left some files
        for name, names in _files_of_versions(top, playlist.at.name):
            if isinstance(names, FlareError):
                all_read = False
                if playlist.at.name == PLAYLIST:
                    yield name, _unreadable_list(names, playlist, top / name)
            else:
                listed.update(str(top / file) for file in names)
    if (finding := _missing_version(playlist)) is not None:
        yield finding.address.rpartition("/")[2], finding
    names = list[str]()
    try:
        for entry in top.list():
            if f"/{entry.name}".rpartition("/")[0].endswith("/.flare"):
                continue
            names.append(entry.name)
            at = Location(top.store, top.store.child(top.path, entry.name))
            if entry.size < 0 and (finding := _unreadable_folder(at)) is not None:
                yield entry.name, finding
    except FlareError as error:
        yield "", finding_of(error, top)
    datasets = tuple(_other_datasets(str(top), names, listed))
    for name in datasets:
        yield name, None
    has_tables = any(formats.facts(stream.format).typed for stream in playlist.streams)
    for name in names:
        at = Location(top.store, top.store.child(top.path, name))
        if str(at) in listed or place_of(at) in known or name.startswith(datasets):
            continue
        # the original library of a format may cache a shard both compressed and decompressed
        is_copy = any(f"{at}.{suffix}" in listed for suffix in SUFFIXES)
        is_shard = formats.of_suffix(name, tables=has_tables) is not None and not is_copy
        # an unlisted fragment belongs to an unfinished change
        is_shard = is_shard and all_read and not is_fragment(name.partition("/")[0])
        if is_version_file(name):
            continue
        yield name, unlisted_shard(at, playlist.at) if is_shard else None


def _files_of_versions(
    top: Location, known: str
) -> Iterator[tuple[str, Collection[str] | FlareError]]:
    """Yield (name of a list, names of the listed files) for all lists of a dataset.

    If a list cannot be read, the error is yielded instead of the names.

    known  name of a list to omit
    """
    try:
        yield REMOVAL, files_to_remove(top)
    except FlareError as error:
        yield REMOVAL, error
    try:
        names = list_names(top)
    except FlareError:
        return  # `find_unlisted_files` reports that the folder cannot be listed
    for name in names:
        if name == known:
            continue
        try:
            yield name, listed_files(top, name)
        except MissingError:  # another process has removed this playlist
            continue
        except FlareError as error:
            yield name, error


def _unreadable_list(error: FlareError, current: Playlist, at: Location) -> Finding:
    """Return the finding for a numbered playlist or pin that cannot be read.

    current  the playlist `playlist.yaml` in the same folder
    """
    finding = finding_of(error, at)
    if isinstance(error, IntegrityError):
        finding = replace(finding, kind="checksum")
    number = version_number(at.name)
    if number is not None and number == _newest_number(current):
        finding = replace(finding, hint=f"Copy {PLAYLIST} to {at.name}.")
    return finding


def _missing_version(playlist: Playlist) -> Finding | None:
    """Return a finding if `playlist.yaml` is a version whose numbered playlist is missing."""
    number = _newest_number(playlist)
    if number is None or playlist.at is None:
        return None
    at = playlist.at.folder / version_name(number)
    if at.exists():
        return None
    message = f"the file is missing, but {PLAYLIST} is version {number}"
    return Finding(str(at), "missing", message, f"Copy {PLAYLIST} to {at.name}.")


def _newest_number(playlist: Playlist) -> int | None:
    """Return the version number of an undamaged `playlist.yaml`.

    The folder is listed, because another process may have created a later version, and pruned this
    version, since `playlist.yaml` was read.

    return  None for an unchanged dataset, for another playlist, and if a later version exists
    """
    at, number = playlist.at, version_of(playlist)
    is_copy = playlist.protected and has_change(playlist)
    if at is None or at.name != PLAYLIST or number is None or not is_copy:
        return None
    with contextlib.suppress(FlareError):
        if number >= max(filter(None, map(version_number, list_names(at.folder))), default=0):
            return number
    return None


def _unreadable_folder(at: Location) -> Finding | None:
    """Return a finding if the location is a folder that cannot be listed, and None otherwise."""
    place = place_of(at)
    if os.path.islink(place) or not os.path.isdir(place):
        return None
    try:
        next(iter(at.list()), None)
    except FlareError as error:
        return finding_of(error, at)
    return None


def _other_datasets(top: str, names: Sequence[str], listed: Collection[str]) -> Iterator[str]:
    """Yield the name of each topmost subfolder that contains a list, but no file in `listed`.

    Each name ends with `/`.

    top     path of the folder
    names   names of all files below the folder
    listed  paths of the files that are in the main list
    """
    above = {folder for name in listed for folder in folders_above(name)}
    previous = None
    lists = (name for name in names if name.endswith((f"/{INDEX}", f"/{PLAYLIST}")))
    for folder in sorted({name.rpartition("/")[0] for name in lists}):
        inside = previous is not None and folder.startswith(f"{previous}/")
        if f"{top}/{folder}" not in above and not inside:
            previous = folder
            yield f"{folder}/"
