"""The lists that name a single file: `flare verify out/shard.00000.mds` checks the shard against
`out/playlist.yaml`.

Lists are looked for in the file's own folder and in each folder above it. A list in the own folder
counts even if it is damaged or does not name the file; one further up counts only if it names the
file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from flarecli import formats
from flarecli.commands.verifying.other_listings import is_index
from flarecli.commands.verifying.tasks import UNLISTED_HINT, Only, Plan, place_named
from flarecli.errors import FlareError, MissingError
from flarecli.formats import INDEX
from flarecli.formats.webdataset import shardindex as webdataset_shards
from flarecli.formats.webdataset.shardindex import SHARDS
from flarecli.model import Finding, Playlist, Stream, finding_of
from flarecli.names import is_url
from flarecli.playlists import PLAYLIST
from flarecli.read import place_of, places_of, read_list, select_streams
from flarecli.storage import Guard, Location, locate

__all__ = ["with_lists"]

_LISTS = (PLAYLIST, INDEX, SHARDS)  # the first that names a file is the list in use
_SEARCHED_BYTES = 1 << 26  # of a damaged list, to see whether it names the file


@dataclass
class _List:
    """A list that was read. `found` is None where nothing could be read, and `error` says why."""

    at: Location
    found: Playlist | None
    positions: dict[str, tuple[int, int | str]]
    error: FlareError | None = None

    def names(self, place: str) -> bool:
        """Return whether it lists a file; a damaged list does if its bytes contain the file's path
        below its folder.
        """
        if self.error is None:
            return place in self.positions
        below = place.removeprefix(place_of(self.at.folder)).lstrip("/")
        with suppress(FlareError):
            return below.encode() in self.at.read(0, min(self.at.size(), _SEARCHED_BYTES))
        return False


def with_lists(plans: Sequence[Plan], format: str | None, guard: Guard, quick: bool) -> list[Plan]:
    """Replace plans of single files by plans of the lists that name them, restricted to these
    files.

    Files of one list share a plan. Files without a list keep theirs.

    format  value of `-f`; a list that contradicts it raises UsageError
    quick   send no requests: search only local lists
    """
    lists, told = dict[str, "_List | None"](), set[Finding]()
    out, by_list = list[Plan](), dict[str, int]()
    whole = {place for plan in plans if not _is_of_files(plan) for place in _list_places(plan)}
    for plan in plans:
        if not _is_of_files(plan):
            out.append(plan)
            continue
        for one in _placed(plan, lists, whole, format, guard, quick):
            new = tuple(one for one in dict.fromkeys(one.findings) if one not in told)
            told.update(new)
            one = replace(one, findings=new)
            at = one.found.at if one.found is not None else None
            position = len(out) if at is None else by_list.setdefault(place_of(at), len(out))
            if position < len(out):
                out[position] = _merged(out[position], one)
            else:
                out.append(one)
    return out


def _is_of_files(plan: Plan) -> bool:
    """Return whether the user named files, or the folder of one Granular shard, and no list."""
    if plan.found is None or plan.found.at is not None or len(plan.streams) != 1:
        return False
    (stream,) = plan.streams
    return not plan.is_folder or (bool(formats.facts(stream.format).shards_in) and len(stream) == 1)


def _list_places(plan: Plan) -> tuple[str, ...]:
    """Return the path of the list of a plan; if it could not be read, of the address and of its
    findings.
    """
    if plan.found is None:
        return place_named(plan.address), place_named(plan.findings[0].address)
    return (place_of(plan.found.at),) if plan.found.at is not None else ()


def _placed(
    plan: Plan,
    lists: dict[str, _List | None],
    whole: Collection[str],
    format: str | None,
    guard: Guard,
    quick: bool,
) -> list[Plan]:
    """Return a plan for each list in use, and one for the files that no list names.

    whole  places of lists that are checked as a whole in this run: their damage and unlisted shards
           are reported there
    """
    (stream,) = plan.streams
    form = formats.facts(stream.format)
    near = [*_near(stream, lists, format, guard, quick)]
    own = [
        one for one in near if place_of(one.at.folder) == place_of(stream.at) and not form.is_plain
    ]
    if any(place_of(one.at) in whole for one in own):
        own = []
    findings = [finding_of(one.error, one.at) for one in own if one.error is not None]
    used = dict[str, tuple[Playlist, _List, list[str]]]()
    rest, named = list[str](), dict[str, Location]()
    for url, place in zip(stream.urls, places_of(stream), strict=True):
        naming = [one for one in near if one.names(place)]
        findings += [finding_of(one.error, one.at) for one in naming if one.error is not None]
        named |= {place_of(one.at): one.at for one in naming if one.error is None}
        read = [(one.found, one) for one in naming if one.found is not None]
        if read:  # a playlist has checksums; otherwise the nearest list is used
            found, first = min(read, key=lambda pair: is_index(pair[0]))
            used.setdefault(place_of(first.at), (found, first, []))[2].append(place)
        else:
            rest.append(url)
        lacking = [
            one for one in own if one.error is None and one.at.name != SHARDS and one not in naming
        ]
        if lacking:
            message = f"a shard that {lacking[0].at} does not list"
            findings.append(Finding(str(stream.at.join(url)), "unlisted", message, UNLISTED_HINT))
    out = [
        _restricted(
            replace(
                plan, named=tuple(at for one, at in named.items() if one != place_of(first.at))
            ),
            found,
            first.positions,
            places,
        )
        for found, first, places in used.values()
    ]
    if rest:
        bare = replace(stream, urls=rest)
        out.append(
            replace(plan, found=Playlist((bare,)), streams=(bare,), named=tuple(named.values()))
        )
    new = (one for one in findings if place_named(one.address) not in whole)
    return [replace(out[0], findings=(*plan.findings, *new)), *out[1:]]


def _near(
    stream: Stream, lists: dict[str, _List | None], format: str | None, guard: Guard, quick: bool
) -> Iterator[_List]:
    """Yield the lists in a stream's folder and above, nearest first; each is read once in a run."""
    if not stream.at.is_local and (quick or any("?" in url for url in stream.urls)):
        return  # a signature is for one file
    form = formats.facts(stream.format)
    names = tuple(
        name for name in _LISTS if name == PLAYLIST or form.is_plain or name in form.index_files
    )
    for folder in _folders(stream.at, guard):
        for name in names:
            at = folder / name
            place = place_of(at)
            if place not in lists:
                lists[place] = _read(at, format)
            if (one := lists[place]) is not None:
                yield one


def _folders(at: Location, guard: Guard) -> Iterator[Location]:
    """Yield a folder and those above it, up to the root, the bucket or the host."""
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


def _read(at: Location, format: str | None) -> _List | None:
    """Read a list; return None if it does not exist or a server denies access."""
    try:
        if at.name == SHARDS:
            stream = webdataset_shards.read_shards(at)
            return _List(at, None, dict.fromkeys(places_of(stream), (0, 0)))
        found = read_list(at, format)
    except MissingError:
        return None
    except FlareError as error:
        is_told = at.is_local or error.kind != "reach"
        return _List(at, None, {}, error) if is_told else None
    positions = dict[str, tuple[int, int | str]]()
    for k, stream in enumerate(found.streams):
        top = place_of(stream.at)
        for name in stream.files:
            positions[f"{top}/{name}"] = k, name
        for i, files in enumerate(stream.parts):
            positions |= {f"{top}/{file.name}": (k, i) for file in files}
        for i, place in enumerate(places_of(stream)):
            positions[place] = k, i
    return _List(at, found, positions)


def _restricted(
    plan: Plan,
    found: Playlist,
    positions: Mapping[str, tuple[int, int | str]],
    places: Sequence[str],
) -> Plan:
    """Return the plan of a list, restricted to some of its files."""
    select_streams([found])  # refuses a list that contradicts -f
    only = dict[int, Only]()
    for place in places:
        k, which = positions[place]
        chosen = only.setdefault(k, Only())
        if isinstance(which, int):
            chosen.shards.add(which)
        else:
            chosen.files.add(which)
    return replace(
        plan,
        found=found,
        streams=tuple(found.streams[k] for k in sorted(only)),
        only=tuple(only[k] for k in sorted(only)),
        is_folder=False,
    )


def _merged(plan: Plan, other: Plan) -> Plan:
    """Join two plans that are restricted to files of one list."""
    streams = {one.name: one for one in (*plan.streams, *other.streams)}
    only = {name: Only() for name in streams}
    for one in (plan, other):
        for stream, its in zip(one.streams, one.only, strict=True):
            only[stream.name].shards.update(its.shards)
            only[stream.name].files.update(its.files)
    return replace(
        plan,
        streams=tuple(streams.values()),
        only=tuple(only.values()),
        findings=(*plan.findings, *other.findings),
        named=(*plan.named, *(at for at in other.named if at not in plan.named)),
    )
