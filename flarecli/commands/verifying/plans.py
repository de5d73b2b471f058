"""Plans of a check. Each dataset is checked once. Its main list is its most detailed list.

1. Each address is resolved to a plan; damage becomes a finding.
2. A shell expands `out/*` to the lists and the shards of one dataset. The plans for these files are
   merged, and the other lists are compared with the main list.
3. A single file such as `out/shard.00000.mds` is checked against the lists that name the file.
   Lists are searched for in the folder of the file and in each folder above. A list in the folder
   of the file is used even if the list is damaged or does not name the file. A list in a folder
   above is used only if it names the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from flarecli import formats
from flarecli.commands.options import sample_size
from flarecli.commands.verifying.listings import (
    folders_above,
    is_index,
    read_shard_index,
    unlisted_shard,
)
from flarecli.commands.verifying.shard import AGAIN
from flarecli.errors import FlareError, MissingError, MissingLibraryError, ReachError, UsageError
from flarecli.formats import INDEX, SHARD_INDEX
from flarecli.model import Finding, Playlist, Stream, finding_of
from flarecli.names import is_url
from flarecli.playlists import PLAYLIST
from flarecli.read import place_of, places_of, read_list, resolve, select_streams
from flarecli.storage import Guard, Location, locate

if TYPE_CHECKING:
    from flarecli.ingest import Spool

__all__ = ["Choice", "Only", "Plan", "link_address", "notes_about_plain_shards", "plan_sources"]

_LIST_NAMES = (PLAYLIST, INDEX, SHARD_INDEX)  # lists that are searched for in each folder
_MAX_SEARCHED_BYTES = 1 << 26  # in a damaged list, only these first bytes are searched for names


@dataclass
class Only:
    """The files of a stream to which a check is restricted.

    shards  positions of the shards in the stream
    files   names of files that are not shards
    """

    shards: set[int] = field(default_factory=set)
    files: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Plan:
    """The dataset at one address, or the error that occurred when the address was resolved.

    playlist   the playlist that lists the shards. If no file lists them, the playlist has no
               address. It is None if the address of the plan could not be resolved; `findings` then
               contains the reason
    is_whole   whether the main list lists all files in its folder; other files are then reported
    is_folder  whether the address is a folder without a list, so that its files are the shards
    named      further lists that the user named, with the same shards as the main list
    only       files to check in each stream, if the user named files and not the list; empty: all
    error      error of reading the address; None if the address could be read. If it is the only
               address, the error is raised instead
    """

    address: str
    playlist: Playlist | None = None
    streams: tuple[Stream, ...] = ()
    findings: tuple[Finding, ...] = ()
    is_whole: bool = False
    is_folder: bool = False
    named: tuple[Location, ...] = ()
    only: tuple[Only, ...] = ()
    error: ReachError | None = None

    @property
    def list_at(self) -> Location | None:
        """Return the address of the list, or None for shards without a list."""
        return None if self.playlist is None else self.playlist.at

    @property
    def is_list(self) -> bool:
        """Return whether the plan is for a list or a folder, and not for individual shards."""
        is_listed = self.list_at is not None or self.is_folder
        return is_listed and any(len(stream) for stream in self.streams)

    def with_streams(self, *streams: Stream) -> Plan:
        """Return a copy of this plan that checks the given streams instead.

        This plan must be for individual shards, and not for a list.
        """
        playlist = replace(self.playlist or Playlist(()), streams=streams)
        return replace(self, playlist=playlist, streams=streams)

    def places(self) -> Iterator[str]:
        """Yield the address of each shard."""
        return (place for stream in self.streams for place in places_of(stream))


def plan_sources(
    addresses: Sequence[str],
    format: str | None,
    streams: Sequence[str],
    guard: Guard,
    quick: bool,
    table: Mapping[str, object] = MappingProxyType({}),
    opened: Mapping[str, Spool] = MappingProxyType({}),
) -> tuple[list[Plan], list[str], dict[str, Finding]]:
    """Return the plans of a check.

    format   value of `-f`; if a list names another format, UsageError is raised
    streams  names of the streams to check; empty: all
    quick    True: do not read lists that require a request
    table    values of the options `input` and `csv`, for tables without a playlist
    opened   open input streams, by address
    return   plans; notes about lists that have only some shards in common; path -> finding for each
             unreadable file in a dataset, in case the check of the dataset does not report the file
    raises   MissingError, UsageError; ReachError if no address can be read
    """
    plans = [
        _resolve(address, format, streams, guard, len(addresses) == 1, table, opened)
        for address in addresses
    ]
    errors = [plan.error for plan in plans if plan.error is not None]
    if len(errors) == len(plans):
        raise errors[0]
    plans, notes = _merge_same_datasets(plans, guard)
    plans, unreadable = _remove_listed_unreadable_files(plans)
    return _with_lists_of_files(plans, format, guard, quick), notes, unreadable


def _resolve(
    address: str,
    format: str | None,
    names: Sequence[str],
    guard: Guard | None,
    is_single: bool,
    table: Mapping[str, object] = MappingProxyType({}),
    opened: Mapping[str, Spool] = MappingProxyType({}),
) -> Plan:
    """Resolve an address; damage becomes a finding.

    is_single  whether this is the only address. If there are several addresses, which a shell may
               have expanded from `*`, an empty folder or a broken link is a finding, so that the
               other addresses are also checked
    raises     MissingError, UsageError; ReachError for a single address
    """
    try:
        (playlist,) = resolve(
            [address],
            format=format,
            guard=guard,
            maps=False,
            expanded=True,
            table=table,
            opened=opened,
        )
    except MissingError as error:
        if is_single or is_url(address) or not os.path.lexists(address):
            raise
        # the path itself exists: it is a broken link, or a folder in which a file is missing
        is_broken_link = os.path.islink(address) and error.address != address
        message = f"link to {error.where}: {error.message}" if is_broken_link else error.message
        at = address if is_broken_link else error.address
        finding = Finding(at, error.kind, message, f"The file is missing; {AGAIN}")
        return Plan(address, findings=(finding,))
    except ReachError as error:
        if is_single:
            raise
        return Plan(address, findings=(finding_of(error, address),), error=error)
    except (UsageError, MissingLibraryError):
        raise
    except FlareError as error:
        return Plan(address, findings=(finding_of(error, address),))
    key = locate(address, guard).key
    return Plan(
        address,
        playlist,
        tuple(part for parts in select_streams([playlist], names) for part in parts),
        is_whole=playlist.at is not None and playlist.at.name in (PLAYLIST, INDEX),
        is_folder=playlist.at is None and any(stream.at.key == key for stream in playlist.streams),
    )


def link_address(address: str) -> str:
    """Return an absolute path with links to folders resolved; the file itself may be a link."""
    folder, name = os.path.split(address)
    return address if is_url(address) else os.path.join(os.path.realpath(folder), name)


def notes_about_plain_shards(plan: Plan) -> Iterator[str]:
    """Yield notes about folders that are checked as plain files although they contain shards."""
    for stream in plan.streams if plan.is_folder else ():
        if not formats.facts(stream.format).is_plain:
            continue
        shards = [url for url in stream.urls if formats.of_suffix(url, tables=False) is not None]
        if shards:
            more = f" and {len(shards) - 1} more shards" if len(shards) > 1 else ""
            yield f"{stream.at}: checked as plain files, without opening {shards[0]}{more}; specify each dataset in the folder instead"


def _remove_listed_unreadable_files(
    plans: Sequence[Plan],
) -> tuple[list[Plan], dict[str, Finding]]:
    """Remove the plan of an unreadable address if another plan covers the address.

    The address is covered if an earlier plan has the same path, if the path is a folder that
    contains listed shards, or if the path is inside the folder of a dataset.

    return  remaining plans; path -> finding for each unreadable file in the folder of a dataset
    """
    if all(plan.playlist is not None for plan in plans):
        return [*plans], {}
    datasets = [plan for plan in plans if plan.is_folder or plan.list_at is not None]
    tops = tuple(f"{place_of(stream.at)}/" for plan in datasets for stream in plan.streams)
    folders = {
        folder for plan in datasets for place in plan.places() for folder in folders_above(place)
    }
    rest, unreadable, seen = list[Plan](), dict[str, Finding](), set[str]()
    for plan in plans:
        if plan.playlist is not None:
            rest.append(plan)
            continue
        place = link_address(plan.findings[0].address)
        # shards in a folder of `folders` are checked by the plan that lists them
        if place not in seen and place not in folders:
            if place.startswith(tops):
                unreadable[place] = plan.findings[0]
            else:
                rest.append(plan)
        seen.add(place)
    return rest, unreadable


def _merge_same_datasets(plans: Sequence[Plan], guard: Guard) -> tuple[list[Plan], list[str]]:
    """Remove plans whose files another plan checks.

    return  remaining plans, in order; notes about lists that have only some shards in common
    """
    if len(plans) < 2:
        return list(plans), []
    first = dict[str, Plan]()
    for plan in plans:
        first.setdefault(_key(plan, guard), plan)
    plans = _with_folders([*first.values()], guard)
    kept, notes = _merge_lists([plan for plan in plans if plan.is_list])
    listed = {place for plan in plans if plan.is_list for place in plan.places()}
    listed.update(*map(_other_files, kept.values()))
    tops = tuple(
        f"{place_of(plan.list_at.folder)}/"
        for plan in kept.values()
        if plan.is_whole and plan.list_at is not None
    )
    merged = list[Plan]()
    for plan in plans:
        if plan.is_list:
            merged += [kept[id(plan)]] if id(plan) in kept else []
        elif plan.playlist is None:
            merged += [plan] if _key(plan, guard) not in listed else []
        elif (rest := _without_files(plan, listed, tops)) is not None:
            if merged and _are_in_same_folder(merged[-1], rest):
                rest = _join_files(merged.pop(), rest)
            merged.append(rest)
    return merged, notes


def _key(plan: Plan, guard: Guard) -> str:
    """Return a key that is equal for plans of the same files."""
    at = plan.list_at or locate(plan.address, guard)
    return place_of(at) if at.is_local else plan.address


def _with_folders(plans: Sequence[Plan], guard: Guard) -> list[Plan]:
    """Add a plan for each folder without a list if the plans contain all shards of the folder."""
    extended = list[Plan]()
    named = {place for plan in plans if not plan.is_list for place in plan.places()}
    seen = {str(plan.streams[0].at) for plan in plans if plan.is_folder}
    for plan in plans:
        stream = plan.streams[0] if plan.streams and not plan.is_list else None
        if (
            stream is not None
            and formats.facts(stream.format).is_listed
            and stream.at.is_local
            and str(stream.at) not in seen
        ):
            seen.add(str(stream.at))
            folder = _resolve(str(stream.at), None, (), guard, is_single=False)
            if folder.is_list and named.issuperset(folder.places()):
                extended.append(folder)
        extended.append(plan)
    return extended


def _merge_lists(plans: Sequence[Plan]) -> tuple[dict[int, Plan], list[str]]:
    """Remove the plan of a list if another list contains all shards of this list.

    The path of the removed list is added to `named` of the plan for the other list.

    return  id of each remaining plan -> the plan; notes about lists that have only some shards in
            common
    """
    kept, notes = dict[int, Plan](), list[str]()
    owners: dict[str, int] = {}  # path of a shard -> id of the plan that checks it
    for plan in sorted(plans, key=lambda plan: (-sum(map(len, plan.streams)), _rank(plan))):
        shards = {*plan.places()}
        sharing = list(dict.fromkeys(owners[place] for place in shards if place in owners))
        if len(sharing) == 1 and shards <= {*kept[sharing[0]].places()}:
            other = kept[sharing[0]]
            if plan.list_at is not None:
                kept[sharing[0]] = replace(other, named=(*other.named, plan.list_at))
            continue
        for owner in sharing:
            count = sum(owners.get(place) == owner for place in shards)
            many = f"{count} shards" if count > 1 else "1 shard"
            notes.append(
                f"{kept[owner].address}: {many} also listed in {plan.address}; checked for each list"
            )
        kept[id(plan)] = plan
        for place in shards:
            owners.setdefault(place, id(plan))
    return kept, notes


def _rank(plan: Plan) -> int:
    """Return 0 for the plan of a playlist, 1 for an index, 2 for a folder without a list."""
    return 2 if plan.playlist is None or plan.playlist.at is None else int(is_index(plan.playlist))


def _other_files(plan: Plan) -> Iterator[str]:
    """Yield the paths of the listed files that are not shards."""
    for stream in plan.streams:
        companions = [file.name for files in stream.parts for file in files]
        names = [*stream.files, *([SHARD_INDEX] if plan.is_folder else []), *companions]
        yield from places_of(replace(stream, urls=names))


def _without_files(plan: Plan, listed: Collection[str], tops: tuple[str, ...]) -> Plan | None:
    """Return a copy of a plan without the files that other plans check; None if no files remain.

    listed  paths of files that are in a list
    tops    folders of datasets, with a final slash. If the plan treats all files as plain files,
            and not as shards, the copy also omits the files in these folders
    """
    streams = []
    for stream in plan.streams:
        excluded = tops if formats.facts(stream.format).is_plain else ()
        urls = [
            url
            for url, place in zip(stream.urls, places_of(stream), strict=True)
            if place not in listed and not place.startswith(excluded)
        ]
        streams += [replace(stream, urls=urls)] if urls else []
    return plan.with_streams(*streams) if streams else None


def _are_in_same_folder(plan: Plan, other: Plan) -> bool:
    """Return whether two plans check single files in the same folder."""
    if plan.is_list or len(plan.streams) != 1 or len(other.streams) != 1:
        return False
    one, two = plan.streams[0], other.streams[0]
    return one.at == two.at and one.format == two.format


def _join_files(plan: Plan, other: Plan) -> Plan:
    first = plan.streams[0]
    joined = plan.with_streams(replace(first, urls=[*first.urls, *other.streams[0].urls]))
    return replace(joined, address=str(first.at))


@dataclass
class _NearList:
    """A list in the folder of a file, or in a folder above.

    playlist   None for a `shardindex.json`, or if the list could not be read
    positions  address of a file -> position of the stream, and position of the shard or name of the
               file
    error      reason why the list could not be read
    """

    at: Location
    playlist: Playlist | None
    positions: dict[str, tuple[int, int | str]] = field(default_factory=dict)
    error: FlareError | None = None

    def names(self, place: str) -> bool:
        """Return whether the list names a file.

        A damaged list is assumed to name a file if its bytes contain the path of the file, relative
        to the folder of the list.
        """
        if self.error is None:
            return place in self.positions
        path = place.removeprefix(place_of(self.at.folder)).lstrip("/")
        with suppress(FlareError):
            return path.encode() in self.at.read(0, min(self.at.size(), _MAX_SEARCHED_BYTES))
        return False


def _with_lists_of_files(
    plans: Sequence[Plan], format: str | None, guard: Guard, quick: bool
) -> list[Plan]:
    """Replace the plan of a single file with a plan of the list that names the file.

    The plan of the list checks only the files whose plans it replaces. Files in the same list share
    one plan. The plan of a file that no list names is kept.
    """
    read: dict[str, _NearList | None] = {}  # path -> list, to read each list only once
    reported = set[Finding]()
    result, by_list = list[Plan](), dict[str, int]()
    whole = {place for plan in plans if not _is_of_files(plan) for place in _list_places(plan)}
    for plan in plans:
        if not _is_of_files(plan):
            result.append(plan)
            continue
        near = [*_near_lists(plan.streams[0], read, format, guard, quick)]
        for part in _split_by_list(plan, near, whole):
            new = tuple(one for one in dict.fromkeys(part.findings) if one not in reported)
            reported.update(new)
            part = replace(part, findings=new)
            key = "" if part.list_at is None else place_of(part.list_at)
            if key and key in by_list:
                result[by_list[key]] = _join_restricted(result[by_list[key]], part)
                continue
            if key:
                by_list[key] = len(result)
            result.append(part)
    return result


def _is_of_files(plan: Plan) -> bool:
    """Return whether a plan is for single files, or for a folder that is a single shard."""
    if plan.playlist is None or plan.list_at is not None or len(plan.streams) != 1:
        return False
    (stream,) = plan.streams
    return not plan.is_folder or (bool(formats.facts(stream.format).shards_in) and len(stream) == 1)


def _list_places(plan: Plan) -> tuple[str, ...]:
    """Return the path of the playlist or index of a plan; empty if the plan has no such file.

    If the address of the plan could not be read, the tuple contains two paths, because either file
    may be the playlist or index: the address, and the path in the first finding of the plan.
    """
    if plan.playlist is None:
        return link_address(plan.address), link_address(plan.findings[0].address)
    return (place_of(plan.list_at),) if plan.list_at is not None else ()


def _split_by_list(plan: Plan, near: Sequence[_NearList], whole: Collection[str]) -> list[Plan]:
    """Split a plan: return a plan for each list that names files, and a plan for unlisted files.

    If several lists name a file, only the plan of one of these lists checks the file.

    near   lists in the folder of the files, and in the folders above this folder
    whole  paths of lists that other plans check completely. These plans also report damage to the
           lists, and unlisted shards
    """
    (stream,) = plan.streams
    folder = place_of(stream.at)
    own = [one for one in near if place_of(one.at.folder) == folder]
    if formats.facts(stream.format).is_plain or any(place_of(one.at) in whole for one in own):
        own = []
    findings = [finding_of(one.error, one.at) for one in own if one.error is not None]
    in_use = dict[str, tuple[Playlist, _NearList, list[str]]]()
    unlisted, named = list[str](), dict[str, Location]()
    for url, place in zip(stream.urls, places_of(stream), strict=True):
        naming = [one for one in near if one.names(place)]
        findings += [finding_of(one.error, one.at) for one in naming if one.error is not None]
        named |= {place_of(one.at): one.at for one in naming if one.error is None}
        read = [(one.playlist, one) for one in naming if one.playlist is not None]
        # prefer a playlist, which has checksums, even if an index is in a folder closer to the file
        if read:
            playlist, first = min(read, key=lambda pair: is_index(pair[0]))
            in_use.setdefault(place_of(first.at), (playlist, first, []))[2].append(place)
        else:
            unlisted.append(url)
        for one in own:
            if one.error is None and one.at.name != SHARD_INDEX and one not in naming:
                findings.append(unlisted_shard(stream.at.join(url), one.at))
                break
    parts = []
    for key, (playlist, first, places) in in_use.items():
        others = tuple(at for other, at in named.items() if other != key)
        parts.append(_restrict(replace(plan, named=others), playlist, first.positions, places))
    if unlisted:
        rest = plan.with_streams(replace(stream, urls=unlisted))
        parts.append(replace(rest, named=tuple(named.values())))
    new = (one for one in findings if link_address(one.address) not in whole)
    return [replace(parts[0], findings=(*plan.findings, *new)), *parts[1:]]


def _near_lists(
    stream: Stream,
    read: dict[str, _NearList | None],
    format: str | None,
    guard: Guard,
    quick: bool,
) -> Iterator[_NearList]:
    """Yield the lists in the folder of a stream and in the folders above, nearest first."""
    if not stream.at.is_local and (quick or any("?" in url for url in stream.urls)):
        return  # a signed URL is valid for only one file
    form = formats.facts(stream.format)
    names = [
        name
        for name in _LIST_NAMES
        if name == PLAYLIST or form.is_plain or name in form.index_files
    ]
    for folder in _folders(stream.at, guard):
        for name in names:
            at = folder / name
            place = place_of(at)
            if place not in read:
                read[place] = _read_near_list(at, format)
            if (one := read[place]) is not None:
                yield one


def _folders(at: Location, guard: Guard) -> Iterator[Location]:
    """Yield a folder and its parent folders, up to the root, the bucket or the host."""
    yield at
    if at.is_local:
        shown, real = str(at), place_of(at)
        while real not in ("", "/"):
            real = os.path.dirname(real)
            shown = os.path.dirname(shown) or "."
            shown = shown if os.path.realpath(shown) == real else real
            yield locate(shown, guard).unmapped()
        return
    path = at.path.rstrip("/")
    top = "/".join(path.split("/")[:3]) if is_url(path) else ""
    while path != top:
        path = path.rpartition("/")[0]
        yield replace(at, path=path)


def _read_near_list(at: Location, format: str | None) -> _NearList | None:
    """Read a list; return None if it does not exist or a server denies access."""
    try:
        if at.name == SHARD_INDEX:
            stream = read_shard_index(at)
            return _NearList(at, None, dict.fromkeys(places_of(stream), (0, 0)))
        playlist = read_list(at, format)
    except MissingError:
        return None
    except FlareError as error:
        return _NearList(at, None, error=error) if at.is_local or error.kind != "reach" else None
    positions = dict[str, tuple[int, int | str]]()
    for k, stream in enumerate(playlist.streams):
        top = place_of(stream.at)
        positions |= {f"{top}/{name}": (k, name) for name in stream.files}
        for i, files in enumerate(stream.parts):
            positions |= {f"{top}/{file.name}": (k, i) for file in files}
        positions |= {place: (k, i) for i, place in enumerate(places_of(stream))}
    return _NearList(at, playlist, positions)


def _restrict(
    plan: Plan,
    playlist: Playlist,
    positions: Mapping[str, tuple[int, int | str]],
    places: Sequence[str],
) -> Plan:
    """Return the plan for a list, restricted to some of its files."""
    select_streams([playlist])  # raises UsageError if the listed format differs from -f
    only = dict[int, Only]()
    for place in places:
        k, file = positions[place]
        chosen = only.setdefault(k, Only())
        if isinstance(file, int):
            chosen.shards.add(file)
        else:
            chosen.files.add(file)
    return replace(
        plan,
        playlist=playlist,
        streams=tuple(playlist.streams[k] for k in sorted(only)),
        only=tuple(only[k] for k in sorted(only)),
        is_folder=False,
    )


def _join_restricted(plan: Plan, other: Plan) -> Plan:
    """Join two plans for the same list. Each plan checks only some files in the list."""
    streams = {stream.name: stream for stream in (*plan.streams, *other.streams)}
    only = {name: Only() for name in streams}
    for one in (plan, other):
        for stream, part in zip(one.streams, one.only, strict=True):
            only[stream.name].shards |= part.shards
            only[stream.name].files |= part.files
    return replace(
        plan,
        streams=tuple(streams.values()),
        only=tuple(only.values()),
        findings=(*plan.findings, *other.findings),
        named=(*plan.named, *(at for at in other.named if at not in plan.named)),
    )


@dataclass(frozen=True)
class Choice:
    """A reproducible selection of shards.

    part    (k, n): shards k, k+n, k+2n, …, counted from 0; parts 0 to n-1 contain each shard once
    sample  number of shards as an int, or a share of the shards as a float, rounded up; with
            `part`, a sample of this part
    """

    part: tuple[int, int] | None = None
    sample: int | float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.part is not None and not 0 <= self.part[0] < self.part[1]:
            raise UsageError(
                f"invalid part {self.part[0]} of {self.part[1]}: parts are numbered from 0"
            )

    @property
    def is_all(self) -> bool:
        """Return whether all shards are selected."""
        return self.part is None and self.sample is None

    def of(self, count: int) -> Collection[int]:
        """Return the positions of the selected shards in a stream of `count` shards."""
        k, n = self.part or (0, 1)
        shards = range(k, count, n)
        if self.sample is None:
            return shards
        import random  # imported only here, because only --sample needs it

        size = sample_size(self.sample, len(shards), math.ceil)
        return frozenset(random.Random(int(self.seed)).sample(shards, min(size, len(shards))))
