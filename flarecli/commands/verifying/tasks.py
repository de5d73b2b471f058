"""Tasks of verify: the files that each address lists, and unlisted files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from flarecli import formats
from flarecli.commands.verifying.hints import AGAIN
from flarecli.commands.verifying.other_listings import Beside, is_index
from flarecli.commands.verifying.shard import HELD, Checked, Claim, Depth, check_chunk, check_file
from flarecli.compress import SUFFIXES
from flarecli.errors import FlareError, MissingError, MissingLibraryError, ReachError, UsageError
from flarecli.formats import INDEX
from flarecli.formats.webdataset.shardindex import SHARDS
from flarecli.hashes import digest
from flarecli.model import Chunk, Columns, File, Finding, Playlist, Stream, finding_of
from flarecli.names import is_url
from flarecli.playlists import PLAYLIST
from flarecli.read import place_of, places_of, resolve, select_streams
from flarecli.storage import Guard, Location, locate

__all__ = [
    "Only",
    "Plan",
    "Task",
    "UNLISTED_HINT",
    "chunk_tasks",
    "file_tasks",
    "mistaken",
    "place_named",
    "planned",
    "sizes_below",
    "told_once",
    "unlisted",
]


UNLISTED_HINT = "Remove it, or list it too: `flare playlist … -o FILE`."


@dataclass
class Only:
    """The part of a stream that is checked: positions of shards, and names of other files."""

    shards: set[int] = field(default_factory=set)
    files: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Plan:
    """The dataset at one address, or the error of resolving it.

    is_whole   the list of a folder, not of some shards
    is_folder  a folder without a list; its files are the shards
    named      other lists of the same shards that the user named too
    only       parallel to `streams`: files to check, if the user named files and not the list;
               empty: all
    error      why the address could not be read, if other addresses are checked too
    """

    address: str
    found: Playlist | None = None
    streams: tuple[Stream, ...] = ()
    findings: tuple[Finding, ...] = ()
    is_whole: bool = False
    is_folder: bool = False
    named: tuple[Location, ...] = ()
    only: tuple[Only, ...] = ()
    error: ReachError | None = None


@dataclass(frozen=True)
class Task:
    """One file to check; `weight` is its memory in bytes, `findings` are known before the check.

    at   address of a shard or its companion
    key  checksum of the address and the list entries; empty: no result is stored in the state file
    """

    check: Callable[[], Checked]
    weight: int = 0
    is_shard: bool = False
    findings: tuple[Finding, ...] = ()
    at: str = ""
    key: str = ""
    is_file: bool = True


def planned(
    address: str, format: str | None, names: Sequence[str], guard: Guard | None, is_one: bool = True
) -> Plan:
    """Resolve an address; damage is a finding. Raises MissingError, UsageError; ReachError for a
    single address.

    is_one  the only address; of several, which a shell may have expanded from `*`, an empty folder
            or a broken link is a finding, so that the others are checked
    """
    try:
        (found,) = resolve([address], format=format, guard=guard, maps=False, expanded=True)
    except MissingError as error:
        if is_one or is_url(address) or not os.path.lexists(address):
            raise
        is_link = (
            os.path.islink(address) and error.address != address
        )  # in a folder, another file is missing
        at, leads = (address, f"leads to {error.where}, ") if is_link else (error.address, "")
        return Plan(
            address,
            findings=(Finding(at, error.kind, f"{leads}{error.message}", f"It is gone; {AGAIN}"),),
        )
    except ReachError as error:
        if is_one:
            raise
        return Plan(address, findings=(finding_of(error, address),), error=error)
    except (UsageError, MissingLibraryError):
        raise
    except FlareError as error:
        return Plan(address, findings=(finding_of(error, address),))
    chosen = [part for parts in select_streams([found], names) for part in parts]
    is_folder = found.at is None and any(
        stream.at.key == locate(address, guard).key for stream in found.streams
    )
    return Plan(
        address,
        found,
        tuple(chosen),
        (),
        found.at is not None and found.at.name in (PLAYLIST, INDEX),
        is_folder,
    )


def told_once(plans: Sequence[Plan]) -> tuple[list[Plan], dict[str, Finding]]:
    """Remove plans of unreadable files that a list names too, or that are repeated.

    return  the other plans; path -> finding for files below another dataset, if its check does not
            report them
    """
    if all(plan.found is not None for plan in plans):
        return [*plans], {}
    lists = [
        stream
        for plan in plans
        if plan.found is not None and (plan.is_folder or plan.found.at is not None)
        for stream in plan.streams
    ]
    tops, above = tuple(f"{place_of(stream.at)}/" for stream in lists), set[str]()
    for name in (place for stream in lists for place in places_of(stream)):
        while (name := name.rpartition("/")[0]) and name not in above:
            above.add(name)
    out, held, seen = list[Plan](), dict[str, Finding](), set[str]()
    for plan in plans:
        place = place_named(plan.findings[0].address) if plan.found is None else ""
        if not place:
            out.append(plan)
        elif (
            place not in seen and place not in above
        ):  # a folder with shards of a list needs no list of its own
            if place.startswith(tops):
                held[place] = plan.findings[0]
            else:
                out.append(plan)
        seen.add(place)
    return out, held


def place_named(address: str) -> str:
    """Return the path of the file of a finding: the folder is resolved, a link in it is not."""
    folder, name = os.path.split(address)
    return address if is_url(address) else os.path.join(os.path.realpath(folder), name)


def file_tasks(
    found: Playlist,
    stream: Stream,
    claimed: dict[str, tuple[Location, Checked]],
    depth: Depth,
    only: Only | None = None,
) -> Iterator[Task]:
    """Yield tasks for files that belong to no shard, which add their results to `claimed`.

    only  check only these files, and the other lists of the shards
    """

    def check(name: str, file: File) -> Checked:
        try:
            at = stream.at.join(name)
        except FlareError as error:
            return Checked([finding_of(error, found.at or "")])
        done = check_file(at, [Claim(str(found.at), file)], depth)
        claimed[name] = at, done
        return done

    for name, file in stream.files.items():
        is_chosen = only is None or name in only.files or name in (INDEX, SHARDS)
        if is_chosen and not is_index(found):
            yield Task(partial(check, name, file))


def chunk_tasks(
    found: Playlist,
    stream: Stream,
    beside: Beside,
    depth: Depth,
    chosen: Collection[int],
    only: Only | None = None,
) -> Iterator[Task]:
    """Yield tasks for the selected shards of a stream, with all list entries; lists are compared
    for all shards.

    only  compare the lists only for these shards
    """
    first = 0
    for i, place in enumerate(places_of(stream)):
        if only is not None and i not in only.shards:
            rows = -1 if stream.rows is None else int(stream.rows[i])
            first = first + rows if first >= 0 and rows >= 0 else -1
            continue
        try:
            chunk = stream.chunk(i)
        except FlareError as error:
            yield Task(partial(Checked, [finding_of(error, found.at or stream.at)]), 0, True)
            continue
        claims = [Claim(str(found.at), chunk.files[0])] if found.at is not None else []
        others, problems = beside.claims(i, place, chunk)
        claims += [
            Claim(str(listing.at), other.files[0], other.rows if chunk.rows is None else None)
            for listing, other in others
        ]
        raw = max((claim.file.raw_size or 0 for claim in claims), default=0)
        size = chunk.files[0].size
        weight = min(HELD // 4 if size is None else size, HELD) + raw
        beside_it = list[tuple[Location, Sequence[Claim]]]()
        for k, at in enumerate(chunk.beside if i in chosen else (), 1):
            said = [Claim(str(found.at), chunk.files[k])] if found.at is not None else []
            said += [
                Claim(str(listing.at), file)
                for listing, other in others
                for file, one in zip(other.files[1:], other.beside, strict=True)
                if one.name == at.name
            ]
            beside_it.append((at, said))
        check: Callable[[], Checked] = partial(
            _check_apart, chunk, claims, stream.columns, first, depth, beside_it
        )
        if i in chosen:
            yield Task(check, weight, True, tuple(problems), str(chunk.at), _key(chunk.at, claims))
        elif problems:
            yield Task(Checked, findings=tuple(problems), is_file=False)
        for at, its in beside_it:
            yield Task(partial(check_file, at, its, depth), at=str(at), key=_key(at, its))
        first = first + chunk.rows if first >= 0 and chunk.rows is not None else -1


def _check_apart(
    chunk: Chunk,
    claims: Sequence[Claim],
    columns: Columns | None,
    first: int,
    depth: Depth,
    beside: Sequence[tuple[Location, Sequence[Claim]]],
) -> Checked:
    """Check a shard; drop findings about a companion that its own check reports."""
    done = check_chunk(chunk, claims, columns, first, depth)
    wrong = {one.where for one in done.findings}
    told = {
        str(at) for at, said in beside if str(at) in wrong and check_file(at, said, depth).findings
    }
    done.findings = [one for one in done.findings if one.where not in told]
    return done


def _key(at: Location, claims: Sequence[Claim]) -> str:
    return digest(repr((at.key, list(claims))).encode())


def sizes_below(stream: Stream) -> tuple[Mapping[str, int] | None, str]:
    """Return the sizes of all objects below a stream, from one listing of the bucket; None if it
    cannot be listed.
    """
    if stream.at.is_local or not len(stream):
        return None, ""
    top = stream.at
    try:
        return {
            top.store.show(top.store.child(top.path, entry.name)): entry.size
            for entry in top.list()
        }, f"{top}/"
    except (UsageError, ReachError):
        return None, ""


def unlisted(found: Playlist, known: Collection[str]) -> Iterator[tuple[str, Finding | None]]:
    """Yield unlisted files in a dataset's folder, and folders of other datasets in it; an unlisted
    shard is a finding.

    known  paths of other lists, and of the files they name
    """
    if found.at is None or not found.at.is_local:
        return
    top = found.at.folder
    listed = {str(found.at)}
    for stream in found.streams:
        for url in (
            *stream.urls,
            *stream.files,
            *(file.name for one in stream.parts for file in one),
        ):
            try:
                listed.add(str(stream.at.join(url)))
            except FlareError:
                continue  # reported when it is checked
    names = list[str]()
    try:
        for entry in top.list():
            if f"/{entry.name}".rpartition("/")[0].endswith("/.flare"):
                continue
            names.append(entry.name)
            if entry.size < 0 and (wrong := _unlistable(top, entry.name)) is not None:
                yield entry.name, wrong
    except FlareError as error:
        yield "", finding_of(error, top)
    own = tuple(_other_datasets(str(top), names, listed))
    yield from ((name, None) for name in own)
    for name in names:
        at = Location(top.store, top.store.child(top.path, name))
        if str(at) in listed or place_of(at) in known or (own and name.startswith(own)):
            continue
        is_shard = formats.of_suffix(name) is not None and not any(
            f"{at}.{kind}" in listed for kind in SUFFIXES
        )  # caches of the original contain both
        message = f"a shard that {found.at} does not list"
        yield (
            name,
            Finding(
                str(at),
                "unlisted",
                message,
                UNLISTED_HINT,
            )
            if is_shard
            else None,
        )


def _unlistable(top: Location, name: str) -> Finding | None:
    """Return why a folder cannot be listed; None for anything but a folder."""
    at = Location(top.store, top.store.child(top.path, name))
    place = place_of(at)
    if os.path.islink(place) or not os.path.isdir(place):
        return None
    try:
        for _ in at.list():
            break
    except FlareError as error:
        return finding_of(error, at)
    return None


def _other_datasets(top: str, names: Sequence[str], listed: Collection[str]) -> Iterator[str]:
    """Yield the topmost folders that have their own list and no listed file, each with a final `/`."""
    above = set[str]()
    for name in listed:
        while (name := name.rpartition("/")[0]) and name not in above:
            above.add(name)
    last = None
    for name in sorted(
        {name.rpartition("/")[0] for name in names if name.endswith((f"/{INDEX}", f"/{PLAYLIST}"))}
    ):
        if f"{top}/{name}" not in above and (last is None or not name.startswith(f"{last}/")):
            last = name
            yield f"{name}/"


def mistaken(plan: Plan) -> Iterator[str]:
    """Yield notes about folders that are checked as plain files although they contain shards."""
    for stream in plan.streams if plan.is_folder else ():
        shards = [
            url
            for url in stream.urls
            if formats.facts(stream.format).is_plain and formats.of_suffix(url) is not None
        ]
        if shards:
            more = f" and {len(shards) - 1} like it" if len(shards) > 1 else ""
            yield f"{stream.at}: taken as plain files, {shards[0]}{more} not looked into: name the datasets in it one by one"
