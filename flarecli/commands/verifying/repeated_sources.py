"""Sources that name the same dataset: a shell expands `out/*` to its list, its index and its
shards.

Each dataset is checked once, by its most detailed list; its other lists are compared with that
list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flarecli.commands.verifying.other_listings import is_index
from flarecli.commands.verifying.tasks import Plan, planned
from flarecli.formats import facts
from flarecli.formats.webdataset.shardindex import SHARDS
from flarecli.model import Playlist
from flarecli.read import place_of, places_of
from flarecli.storage import Guard, locate

__all__ = ["once"]


def once(plans: Sequence[Plan], guard: Guard | None) -> tuple[list[Plan], list[str]]:
    """Remove plans whose files another plan checks.

    return  the other plans, in order; notes about lists that share some shards
    """
    if len(plans) < 2:
        return list(plans), []
    plans = _folders([*{_key(plan, guard): plan for plan in reversed(plans)}.values()][::-1], guard)
    kept, said = _lists([plan for plan in plans if _is_list(plan)])
    seen = set[str]().union(
        *(_shards(plan) for plan in plans if _is_list(plan)),
        *(_files(plan) for plan in kept.values()),
    )
    tops = [
        plan.found.at.folder
        for plan in kept.values()
        if plan.is_whole and plan.found is not None and plan.found.at is not None
    ]
    folders = tuple(f"{place_of(top)}/" for top in tops)
    out = list[Plan]()
    for plan in plans:
        if _is_list(plan):
            out += [kept[id(plan)]] if id(plan) in kept else []
        elif plan.found is None:
            out += [plan] if _key(plan, guard) not in seen else []
        elif (rest := _without(plan, seen, folders)) is not None:
            out.append(_joined(out.pop(), rest) if out and _are_one(out[-1], rest) else rest)
    return out, said


def _folders(plans: Sequence[Plan], guard: Guard | None) -> list[Plan]:
    """Replace the plans of all shards of a folder without list by one plan of the folder."""
    out, named = (
        list[Plan](),
        {place for plan in plans if not _is_list(plan) for place in _shards(plan)},
    )
    looked = {str(plan.streams[0].at) for plan in plans if plan.is_folder}
    for plan in plans:
        stream = plan.streams[0] if plan.streams and not _is_list(plan) else None
        if (
            stream is not None
            and facts(stream.format).is_listed
            and stream.at.is_local
            and str(stream.at) not in looked
        ):
            looked.add(str(stream.at))
            folder = planned(str(stream.at), None, (), guard, is_one=False)
            if _is_list(folder) and named.issuperset(_shards(folder)):
                out.append(folder)
        out.append(plan)
    return out


def _lists(plans: Sequence[Plan]) -> tuple[dict[int, Plan], list[str]]:
    """Return the lists that are checked, by the id of their plan, each with the lists that it
    replaces.
    """
    kept, said = dict[int, Plan](), list[str]()
    owners: dict[str, int] = {}  # path -> the plan that checks it
    for plan in sorted(plans, key=lambda plan: (-sum(map(len, plan.streams)), _rank(plan))):
        shards = set(_shards(plan))
        others = list(dict.fromkeys(owners[place] for place in shards if place in owners))
        if len(others) == 1 and shards <= {*_shards(other := kept[others[0]])}:
            at = () if plan.found is None or plan.found.at is None else (plan.found.at,)
            kept[others[0]] = replace(other, named=(*other.named, *at))
            continue
        for one in others:
            count = sum(owners.get(place) == one for place in shards)
            said.append(
                f"{count} shard{'s' * (count > 1)} of {kept[one].address}: also in {plan.address}, checked for each"
            )
        kept[id(plan)] = plan
        for place in shards:
            owners.setdefault(place, id(plan))
    return kept, said


def _is_list(plan: Plan) -> bool:
    """Return whether a plan is of a list or a folder with shards, not of single shards."""
    return (
        plan.found is not None
        and (plan.found.at is not None or plan.is_folder)
        and any(map(len, plan.streams))
    )


def _rank(plan: Plan) -> int:
    """Return the sort key of lists of the same shards: playlists, indexes, folders without list."""
    return 2 if plan.found is None or plan.found.at is None else int(is_index(plan.found))


def _key(plan: Plan, guard: Guard | None) -> str:
    """Return a key that is equal for plans of the same files."""
    at = (
        plan.found.at
        if plan.found is not None and plan.found.at is not None
        else locate(plan.address, guard)
    )
    return place_of(at) if at.is_local else plan.address


def _shards(plan: Plan) -> Iterator[str]:
    return (place for stream in plan.streams for place in places_of(stream))


def _files(plan: Plan) -> Iterator[str]:
    """Return the paths of files in a list that are not shards."""
    for stream in plan.streams:
        beside = [SHARDS] if plan.is_folder else []
        yield from places_of(
            replace(
                stream,
                urls=[*stream.files, *beside, *(file.name for one in stream.parts for file in one)],
            )
        )


def _without(plan: Plan, seen: set[str], folders: tuple[str, ...]) -> Plan | None:
    """Remove single files that a list names, and other files in the folder of a list; None if none
    remain.
    """
    streams = []
    for stream in plan.streams:
        near = folders if facts(stream.format).is_plain else ()
        urls = [
            url
            for url, place in zip(stream.urls, places_of(stream), strict=True)
            if place not in seen and not place.startswith(near)
        ]
        streams += [replace(stream, urls=urls)] if urls else []
    return (
        replace(plan, streams=tuple(streams), found=Playlist(tuple(streams))) if streams else None
    )


def _are_one(plan: Plan, other: Plan) -> bool:
    """Return whether two plans are of single files in the same folder."""
    if _is_list(plan) or len(plan.streams) != 1 or len(other.streams) != 1:
        return False
    one, its = plan.streams[0], other.streams[0]
    return one.at == its.at and one.format == its.format


def _joined(plan: Plan, other: Plan) -> Plan:
    stream = replace(plan.streams[0], urls=[*plan.streams[0].urls, *other.streams[0].urls])
    return replace(plan, address=str(stream.at), streams=(stream,), found=Playlist((stream,)))
