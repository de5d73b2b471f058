"""What verify has to check: what each address lists, and who lists it.

A dataset may be listed twice, by a playlist and by the `index.json` beside it; the two must say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flarecli import formats
from flarecli.compress import SUFFIXES
from flarecli.errors import FlareError, IntegrityError, MissingError, MissingLibraryError, ReachError, UsageError
from flarecli.formats import INDEX
from flarecli.formats.mds_config import agreed
from flarecli.formats.mds_index import open_dataset
from flarecli.hashes import digest
from flarecli.model import Chunk, File, Finding, Playlist, Stream
from flarecli.names import is_url
from flarecli.playlists import PLAYLIST
from flarecli.read import resolve, select_streams
from flarecli.storage import Guard, Location
from flarecli.verbs.checks import HELD, Checked, Claim, Depth, check_chunk, check_file, finding

__all__ = [
    "CHANGED",
    "Listing",
    "Plan",
    "Task",
    "chunk_tasks",
    "file_tasks",
    "held_against",
    "indexes",
    "is_index",
    "own_sum",
    "planned",
    "sizes_below",
    "unlisted",
]

_SUM_LINE = b"# flare "
_UNTRUSTED = "What it lists cannot be trusted; fetch it again."
_TAIL = 4096  # bytes that hold a playlist's last line, whatever became of it
CHANGED = "Find out which of the two was changed: `flare playlist A --diff B` lists all that differs."


@dataclass(frozen=True)
class Plan:
    """One address: what was found there, or why nothing could be. `is_whole`: the list of a folder, not of some shards."""

    address: str
    found: Playlist | None = None
    streams: tuple[Stream, ...] = ()
    findings: tuple[Finding, ...] = ()
    is_whole: bool = False


@dataclass(frozen=True)
class Task:
    """One file to check; `weight` is the memory that takes, `findings` what its listings say already.

    at   the address of a shard or its companion
    key  the sum of that and of all that is listed of it; empty: the file is checked each time
    """

    check: Callable[[], Checked]
    weight: int = 0
    is_shard: bool = False
    findings: tuple[Finding, ...] = ()
    at: str = ""
    key: str = ""
    is_file: bool = True


@dataclass
class Listing:
    """Another list of the same shards: the `index.json` beside a playlist, or a playlist that the dataset is held against.

    is_claimed  the two must list the same shards: the playlist names the index, or the user named the other playlist
    is_against  the user named it: it may lie elsewhere, and then its shards are known by their names
    """

    at: Location
    stream: Stream
    is_claimed: bool
    is_against: bool = False
    places: dict[str, int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.places = {str(self.stream.at.join(url)): i for i, url in enumerate(self.stream.urls)}
        if self.is_against:
            names = [url.partition("?")[0].rpartition("/")[2] if is_url(url) else url for url in self.stream.urls]
            self.places |= {name: i for i, name in enumerate(names) if name not in self.places}

    @property
    def has_sums(self) -> bool:
        """Whether it lists sums of its own."""
        return bool(self.stream.hashes or self.stream.raw_hashes)

    def find(self, chunk: Chunk) -> Chunk | None:
        """Give what it says of a shard."""
        i = self.places.get(str(chunk.at), self.places.get(chunk.files[0].name) if self.is_against else None)
        if i is None:
            return None
        self.used.add(i)
        return self.stream.chunk(i)

    def covers(self, chunk: Chunk) -> bool:
        """Say whether a shard lies below the folder that it lists."""
        return self.is_against or str(chunk.at).startswith(f"{self.at.folder}/")

    def rest(self) -> list[str]:
        """Name the shards that nobody asked about."""
        return [url for i, url in enumerate(self.stream.urls) if i not in self.used]


def is_index(found: Playlist) -> bool:
    """Say whether a dataset's only listing is its `index.json`."""
    return found.at is not None and found.at.name == INDEX


def planned(address: str, format: str | None, names: Sequence[str], guard: Guard | None) -> Plan:
    """Resolve an address; what is there and broken is a finding. Raises MissingError, ReachError, UsageError."""
    try:
        (found,) = resolve([address], format=format, guard=guard, maps=False)
    except (ReachError, UsageError, MissingLibraryError):
        raise
    except FlareError as error:
        return Plan(address, findings=(finding(error, address),))
    chosen = [part for parts in select_streams([found], names) for part in parts]
    return Plan(address, found, tuple(chosen), (), found.at is not None and found.at.name in (PLAYLIST, INDEX))


def own_sum(found: Playlist) -> tuple[int, list[Finding], bool]:
    """Check a playlist's own last line: sums that anyone could have changed are no sums.

    return  its bytes; findings; whether it carries sums at all
    """
    if found.at is None:
        return 0, [], False
    size = found.at.size()
    if found.protected:
        return size, [], True
    has_line = _SUM_LINE in found.at.read(max(0, size - _TAIL), size)
    if not has_line and not any(stream.hashes or any(file.hashes for file in stream.files.values()) for stream in found.streams):
        return size, [], False
    what = "its last line is not the sum of the lines above" if has_line else "it carries sums, but no last line with its own"
    return size, [Finding(str(found.at), "checksum", what, _UNTRUSTED, (0, size))], True


def file_tasks(found: Playlist, stream: Stream, claimed: dict[str, tuple[Location, Checked]], depth: Depth) -> Iterator[Task]:
    """Plan the files that belong to no shard; `claimed` takes in what came of each."""

    def check(name: str, file: File) -> Checked:
        try:
            at = stream.at.join(name)
        except FlareError as error:
            return Checked([finding(error, found.at or "")])
        done = check_file(at, [Claim(str(found.at), file)], depth)
        claimed[name] = at, done
        return done

    for name, file in stream.files.items():
        if not is_index(found):
            yield Task(partial(check, name, file))


def indexes(found: Playlist, stream: Stream, claimed: dict[str, tuple[Location, Checked]]) -> Iterator[tuple[Listing | None, list[Finding]]]:
    """Read each `index.json` that stands beside a playlist, and compare what the two say of the whole."""
    if found.at is None or is_index(found) or stream.format not in formats.FAMILY:
        return
    places = [(at, True) for name, (at, done) in claimed.items() if name.rpartition("/")[2] == INDEX and not done.findings]
    if not claimed and stream.at.is_local:
        places = [(stream.at / INDEX, False)]
    for at, is_claimed in places:
        try:
            index = open_dataset(at.folder)
        except MissingError:
            continue
        except FlareError as error:
            yield None, [finding(error, at)]
            continue
        differ = bool(index.columns) and not _agree(index, stream)
        yield Listing(at, index, is_claimed), [Finding(str(at), "listing", f"names other columns than {found.at}", CHANGED)] if differ else []


def _agree(index: Stream, stream: Stream) -> bool:
    """Say whether an index names the columns of a playlist, as far as it has words for them."""
    try:
        agreed(index.columns or (), stream.columns, index.format or "", "")
    except IntegrityError:
        return False
    return True


def chunk_tasks(found: Playlist, stream: Stream, beside: Sequence[Listing], depth: Depth, chosen: Collection[int]) -> Iterator[Task]:
    """Plan the chosen shards of a stream, each with what every listing claims of it; the lists are compared whole."""
    first = 0
    mine = str(found.at or stream.at)
    for i in range(len(stream)):
        try:
            chunk = stream.chunk(i)
        except FlareError as error:
            yield Task(partial(Checked, [finding(error, found.at or stream.at)]), 0, True)
            continue
        claims = [Claim(str(found.at), chunk.files[0])] if found.at is not None else []
        problems: list[Finding] = []
        others = [(listing, listing.find(chunk)) for listing in beside]
        for listing, other in others:
            if other is not None:
                claims.append(Claim(str(listing.at), other.files[0]))
                problems += _differences(mine, listing, chunk, other)
            elif listing.is_claimed and listing.covers(chunk) and (listing.is_against or not any(one for _, one in others)):
                problems.append(Finding(str(listing.at), "listing", f"does not list {chunk.at}, {mine} does", CHANGED))
        raw = max((claim.file.raw_size or 0 for claim in claims), default=0)
        size = chunk.files[0].size
        weight = min(HELD // 4 if size is None else size, HELD) + raw
        check: Callable[[], Checked] = partial(check_chunk, chunk, claims, stream.columns, first, depth)
        if i in chosen:
            yield Task(check, weight, True, tuple(problems), str(chunk.at), _key(chunk.at, claims))
        elif problems:
            yield Task(Checked, findings=tuple(problems), is_file=False)
        for k, at in enumerate(chunk.beside if i in chosen else (), 1):
            said = [Claim(str(found.at), chunk.files[k])] if found.at is not None else []
            said += [
                Claim(str(one.at), file) for one, other in others if other is not None for file in other.files[1:] if file.name == chunk.files[k].name
            ]
            yield Task(partial(check_file, at, said, depth), at=str(at), key=_key(at, said))
        first = first + chunk.rows if first >= 0 and chunk.rows is not None else -1


def _key(at: Location, claims: Sequence[Claim]) -> str:
    return digest(repr((str(at), list(claims))).encode())


def _differences(mine_is: str, listing: Listing, chunk: Chunk, other: Chunk) -> Iterator[Finding]:
    """Compare what two listings say of one shard."""
    ours, theirs = chunk.files[0], other.files[0]
    pairs: list[tuple[str, Any, Any]] = [
        ("rows", chunk.rows, other.rows),
        ("bytes", ours.size, theirs.size),
        ("bytes when decompressed", ours.raw_size, theirs.raw_size),
        *((name, ours.hashes[name], value) for name, value in theirs.hashes.items() if name in ours.hashes),
    ]
    for what, mine, its in pairs:
        if mine is not None and its is not None and mine != its:
            yield Finding(str(listing.at), "listing", f"lists {its} {what} for {chunk.at}, {mine_is} lists {mine}", CHANGED)


def held_against(truth: Playlist, stream: Stream, streams: Sequence[Stream], where: str) -> tuple[Listing | None, list[Finding]]:
    """Give what another playlist says of a stream: that of its name, or the only one where both have but one."""
    others = [one for one in truth.streams if one.name == stream.name] or ([*truth.streams] if len(truth) == len(streams) == 1 else [])
    if not others:
        return None, [Finding(str(truth.at), "listing", f"has no stream {stream.name!r}, {where} has", CHANGED)]
    return Listing(truth.at or others[0].at, others[0], True, True), []


def sizes_below(stream: Stream) -> tuple[Mapping[str, int] | None, str]:
    """Ask a bucket once for the sizes of all that lies below a stream; None where that cannot be asked."""
    if stream.at.is_local or not len(stream):
        return None, ""
    top = stream.at
    try:
        return {top.store.show(top.store.child(top.path, entry.name)): entry.size for entry in top.list()}, f"{top}/"
    except (UsageError, ReachError):
        return None, ""


def unlisted(found: Playlist) -> Iterator[tuple[str, Finding | None]]:
    """Name the files of a dataset's folder that no list names; a shard among them is a finding."""
    if found.at is None or not found.at.is_local:
        return
    top = found.at.folder
    listed = {str(found.at)}
    for stream in found.streams:
        for url in (*stream.urls, *stream.files, *(file.name for one in stream.parts for file in one)):
            try:
                listed.add(str(stream.at.join(url)))
            except FlareError:
                continue  # said when it was checked
    names = [entry.name for entry in top.list() if not entry.name.startswith(".flare/")]
    inner = tuple(f"{name.rpartition('/')[0]}/" for name in names if name.endswith((f"/{INDEX}", f"/{PLAYLIST}")))  # datasets of their own
    for name in names:
        shown = top.store.show(top.store.child(top.path, name))
        if shown in listed or (inner and name.startswith(inner)):
            continue
        is_shard = formats.sniffed(name) is not None and not any(f"{shown}.{kind}" in listed for kind in SUFFIXES)  # the original's caches hold both
        message = f"a shard that {found.at} does not list"
        yield name, Finding(shown, "unlisted", message, "Remove it, or list it too: `flare playlist … -o FILE`.") if is_shard else None
