"""Addresses to playlists: what lies there is found out in one fixed order, and the first that is there counts.

`playlist.yaml`, `index.json`, `spec.json`, `000000/spec.json`, `*.ffr`, `*.tar`, plain files. When the first that is
there is broken, that is the answer: nothing falls back to the next, or damage would turn into a smaller dataset that
looks whole.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flarecli import formats, playlists
from flarecli.arguments import Addresses, address_texts, name_list
from flarecli.braces import SIGNS, braced
from flarecli.errors import FlareError, FormatError, MissingError, UnfinishedError, UsageError
from flarecli.formats import INDEX, INDEX_FILES
from flarecli.model import Playlist, Stream
from flarecli.names import is_url, local_path, scheme_of, shell_quoted
from flarecli.redact import redact
from flarecli.storage import Guard, Location, globbed, locate
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.suggest import choose

__all__ = [
    "expand",
    "place_of",
    "places_of",
    "read_list",
    "refuse_repeats",
    "resolve",
    "select_streams",
]

_BEGUN = (
    ".flare/journal",
    ".flare/lock",
)  # either is there from a pack's first step to its last but one
_UNPACK = b'{"verb": "unpack"'
_LIST_LIMIT = 1 << 20  # files of a listing


def expand(address: str, guard: Guard | None = None) -> list[str]:
    """Expand braces (`{00000..00127}`, `{a,b}`) and globs (`*`, `?`, `[…]`, `**`), in bytewise order; in buckets by listing what lies there.

    raises  MissingError if a glob finds nothing; UsageError for a glob that cannot be listed, or that finds too much
    """
    return [one for one, _ in _expanded(address, guard)]


def _expanded(address: str, guard: Guard | None) -> list[tuple[str, bool]]:
    """Give each address, and whether a listing has just said that it is there."""
    if _is_on_disk(address):
        return [(address, True)]  # a name that is there is a name, whatever signs it holds
    out: list[tuple[str, bool]] = []
    for one in braced(address):
        if not any(sign in one for sign in SIGNS):
            out.append((one, False))
        elif _is_on_disk(one):
            out.append((one, True))
        elif (
            not _is_path(one)
            and "*" not in one
            and (not _lists(one) or locate(one, guard).exists())
        ):
            out.append((one, False))
        elif _lists(one):
            out += [(name, True) for name in globbed(one, guard)]
        else:
            raise UsageError(
                "an http address cannot be listed",
                where=redact(one),
                hint="Name the files, or use braces such as {00000..00127}.",
            )
    return out


def _is_path(address: str) -> bool:
    return not is_url(address) or scheme_of(address) == "file"


def _is_on_disk(address: str) -> bool:
    return _is_path(address) and "\0" not in address and os.path.lexists(local_path(address))


def _lists(address: str) -> bool:
    return scheme_of(address) not in ("http", "https")


def resolve(
    sources: Addresses,
    *,
    format: str | None = None,
    guard: Guard | None = None,
    maps: bool = True,
    expanded: bool = False,
) -> list[Playlist]:
    """Find out what lies at each address; no shard is opened.

    format    what the shards are where no list says it, instead of what their names say; a list that says another is refused by `select_streams`
    maps      False where the files may be cut short while they are read
    expanded  the addresses are what `expand` gave: a brace or a sign that is in one of them is part of a name
    return    one Playlist a source, in order; neighbouring shard files of one folder share one
    raises    MissingError if nothing is there; UnfinishedError for an unfinished pack; FormatError, UnsafeError for
              what is there and broken
    """
    texts = address_texts(sources)
    addresses = (
        [(one, _is_on_disk(one)) for one in texts]
        if expanded
        else [one for source in texts for one in _expanded(source, guard)]
    )
    if not addresses:
        raise UsageError("no source is named")
    out: list[Playlist] = []
    at: Location | None = None
    for address, is_there in addresses:
        if address == "-" and not is_there:
            raise UsageError(
                "standard input is read once, and this looks at files",
                hint="Write it to a file, and name that.",
            )
        before, at = at, locate(address, guard)
        at = at if maps else at.unmapped()
        if before is not None and before.store == at.store:
            at = replace(at, store=before.store)  # the same connections
        found = _resolved(at, format, is_there)
        one, last = (
            found.streams[0] if _is_a_shard(found) else None,
            out[-1].streams[0] if out and _is_a_shard(out[-1]) else None,
        )
        if (
            one is not None
            and last is not None
            and (one.at, one.format) == (last.at, last.format)
            and isinstance(last.urls, list)
        ):
            last.urls.extend(one.urls)  # which was made here
        else:
            out.append(found)
    return out


def _is_a_shard(found: Playlist) -> bool:
    """Whether this is what `_of_file` makes of a shard that was named itself, or of several; a folder's listing tells sizes."""
    return found.at is None and len(found.streams) == 1 and found.streams[0].sizes is None


def _resolved(at: Location, format: str | None, is_there: bool) -> Playlist:
    if at.path and at.is_local and not _is_folder(at):
        return _of_file(at, format, is_there)
    if (not at.is_local and at.name.endswith((".yaml", ".yml", ".json"))) or formats.of_suffix(
        at.name
    ):
        return _of_file(at, format, is_there)
    return _of_folder(at, format)


def _is_folder(at: Location) -> bool:
    try:
        at.size()
    except FormatError:
        return True
    return False


def read_list(at: Location, format: str | None = None) -> Playlist:
    """Read the playlist or the `index.json` at an address.

    format  what the user says that the shards are
    raises  MissingError if nothing is there; FormatError if it is damaged
    """
    return _formatted(_indexed(at.folder) if at.name == INDEX else playlists.read(at), format)


def _of_file(at: Location, format: str | None, is_there: bool) -> Playlist:
    if at.name.endswith((".yaml", ".yml")):
        if at.is_local or not at.exists():
            _refuse_unfinished(at.folder)
        return read_list(at, format)
    if at.name == INDEX:
        return read_list(at, format)
    kind = format or formats.sniff(at.name) or _sniffed(at)
    if kind is None and at.is_local:
        kind = formats.FALLBACK
    if kind is None:
        raise FormatError(
            "no format claims this name",
            where=at,
            hint=f"Name the format with -f: {', '.join(formats.all_names())}.",
        )
    if not is_there:
        at.size()  # what is not there is said now
    url = (
        at.path if not at.is_local and "?" in at.path else at.name
    )  # a signed address is nothing without its query
    return Playlist((Stream("data", at.folder, kind, [url]),))


def _sniffed(at: Location) -> str | None:
    """Return the format of a local file by its first bytes; None if no format recognizes them."""
    if at.is_local:
        with contextlib.suppress(FlareError):  # reading the file reports it
            return formats.sniff(at.name, at.read(0, min(at.size(), formats.HEAD_BYTES)))
    return None


def _of_folder(at: Location, format: str | None) -> Playlist:
    if at.is_local:
        _refuse_unfinished(at)
    if (at / playlists.PLAYLIST).exists():
        return _formatted(playlists.read(at / playlists.PLAYLIST), format)
    if not at.is_local:  # a playlist in a bucket is whole, even while another pack is to replace it
        _refuse_unfinished(at)
    if (at / INDEX).exists():
        return _formatted(_indexed(at), format)
    for index, kind in INDEX_FILES.items():
        if index != INDEX and (at / index).exists():
            return _formatted(Playlist((formats.find(kind).open_dataset(at),)), format)
    if not _lists(str(at)):
        tried = ", ".join((playlists.PLAYLIST, *INDEX_FILES))
        raise MissingError(
            f"none of {tried} is there", where=at, hint="Name a playlist, an index.json or a shard."
        )
    if isinstance(at.store, LocalStore) and os.path.join(at.store.root, at.path) == "/":
        raise UsageError(
            "the whole of this machine is no dataset",
            where=at,
            hint="Name the folder that the data lies in.",
        )
    entries = list(at.list() if at.is_local else itertools.islice(at.list(), _LIST_LIMIT + 1))
    if not entries:
        raise MissingError("an empty folder", where=at)
    if not at.is_local and len(entries) > _LIST_LIMIT:
        raise UsageError(
            f"more than {_LIST_LIMIT} files lie there", where=at, hint="Name a folder further down."
        )
    shards = [
        entry.name
        for entry in entries
        if (one := formats.of_suffix(entry.name)) and not formats.find(one).is_listed
    ]
    direct = {formats.of_suffix(entry.name) for entry in entries if "/" not in entry.name}
    for kind in formats.names():
        if kind in direct and formats.find(kind).is_listed:
            return _formatted(Playlist((formats.find(kind).open_dataset(at),)), format)
    if shards:
        below = sorted(
            {
                name.partition("/")[0]
                for name, _ in entries
                if name.endswith(tuple(f"/{index}" for index in INDEX_FILES))
            }
        )
        hint = (
            f"Name one of the datasets in it: {', '.join(map(shell_quoted, below[:5]))}."
            if below
            else "Name the shards, or pack again: the index is written last."
        )
        missing = formats.facts(formats.of_suffix(shards[0])).index_files[0]
        if missing == INDEX and at.is_local and not below:
            command = f"flare playlist {shell_quoted(str(at))} --reindex"
            hint = f"Run `{command}` to make it from the shards, if none of them is missing."
        what = (
            f"1 shard, and no {missing} beside it"
            if len(shards) == 1
            else f"{len(shards)} shards, and no {missing} beside them"
        )
        raise FormatError(what, where=at, hint=hint)
    form = formats.of_folder([entry.name for entry in entries])
    return Playlist(((form or formats.find(formats.FALLBACK)).open_dataset(at),))


def _indexed(at: Location) -> Playlist:
    return Playlist((formats.find(INDEX_FILES[INDEX]).open_dataset(at),), at / INDEX)


def _refuse_unfinished(at: Location) -> None:
    if at.is_local:
        is_begun = any((at / name).exists() for name in _BEGUN)
    else:
        is_begun = _lists(str(at)) and _holds(at / SCRATCH)
    if is_begun:
        verb = "unpack" if at.is_local and _is_unpack(at / _BEGUN[0]) else "pack"
        raise UnfinishedError(
            f"an unfinished {verb}",
            where=at,
            hint=f"Run the same `flare {verb}` command again with --resume.",
        )


def _is_unpack(journal: Location) -> bool:
    """Say whether a journal is that of an unpack, whose first line begins so."""
    try:
        return journal.read(0, min(len(_UNPACK), journal.size())) == _UNPACK
    except FlareError:
        return False


def _holds(at: Location) -> bool:
    try:
        return next(iter(at.list()), None) is not None
    except MissingError:
        return False


def _formatted(found: Playlist, format: str | None) -> Playlist:
    if format is not None:
        formats.find(format)
        is_said = found.at is not None  # names of shards say less than a list does
        streams = tuple(
            stream
            if is_said and formats.is_known(stream.format)
            else replace(stream, format=format)
            for stream in found.streams
        )
        return replace(found, streams=streams, meant=format)
    streams = tuple(
        _named(stream, found) if stream.format is None and len(stream) else stream
        for stream in found.streams
    )
    for stream in streams:
        if stream.format is not None and not formats.is_known(stream.format):
            raise FormatError(
                f"stream {stream.name!r} has format {stream.format!r:.60}, which is not read yet",
                where=found.at or "",
            )
    return replace(found, streams=streams)


def _named(stream: Stream, found: Playlist) -> Stream:
    """Give a stream with the format that its first shard's name says."""
    url = stream.urls[0]
    kind = formats.sniff(
        url.partition("?")[0] if is_url(url) else url
    )  # behind a name may stand what signs it
    if kind is None:
        hint = f"Name the format with -f: {', '.join(formats.all_names())}."
        raise FormatError(
            f"stream {stream.name!r} does not say its format", where=found.at or "", hint=hint
        )
    return replace(stream, format=kind)


def select_streams(found: Sequence[Playlist], names: Sequence[str] = ()) -> list[list[Stream]]:
    """Choose streams by name and put those of several sources behind one another.

    return  one list for each stream, its parts in the order of the sources
    raises  UsageError for a name that no source has, sources whose streams do not pair up, or that share shards; for one that is listed as
            another format than the user meant
    """
    chosen, names = [], name_list(names)
    for one in found:
        known = [stream.name for stream in one.streams]
        missing = [name for name in names if name not in known]
        if missing:
            raise UsageError(
                f"no stream {missing[0]!r}", where=one.at or "", hint=choose(missing[0], known)
            )
        chosen.append([stream for stream in one.streams if not names or stream.name in names])
        for stream in chosen[-1]:
            if one.meant not in ("", stream.format):
                told = f"stream {stream.name!r} is listed as {stream.format}, -f says {one.meant}"
                raise UsageError(
                    told,
                    where=one.at or "",
                    hint="Leave -f out: it is for what does not say its format.",
                )
    if len(chosen) == 1:
        return [[stream] for stream in chosen[0]]
    refuse_repeats(found, chosen)
    if all(len(streams) == 1 for streams in chosen):  # one stream each: their names do not matter
        return [[streams[0] for streams in chosen]]
    first = [stream.name for stream in chosen[0]]
    for one, streams in zip(found, chosen, strict=True):
        if sorted(stream.name for stream in streams) != sorted(first):
            raise UsageError(
                f"its streams are not {', '.join(first)}",
                where=one.at or "",
                hint="Name the streams to read with --stream.",
            )
    return [[next(s for s in streams if s.name == name) for streams in chosen] for name in first]


def refuse_repeats(found: Sequence[Playlist], chosen: Sequence[Sequence[Stream]]) -> None:
    """Refuse sources that share shards, but for one that is named again as it is.

    found   one Playlist a source
    chosen  the streams of each that are read
    raises  UsageError naming a shard and both of its lists
    """
    import numpy as np

    lists = {}
    for one, streams in zip(found, chosen, strict=True):
        shards = np.unique(
            np.fromiter(
                (hash(place) for stream in streams for place in places_of(stream)), np.int64
            )
        )  # a million are 8 MB
        lists["" if one.at is None else place_of(one.at), shards.tobytes()] = (one, streams, shards)
    every = [shards for _, _, shards in lists.values()]
    if not every or np.unique(np.concatenate(every)).size == sum(shards.size for shards in every):
        return
    seen: dict[int, Playlist] = {}
    for one, streams, shards in lists.values():
        for stream in streams:
            for i, place in enumerate(places_of(stream)):
                if (other := seen.get(hash(place))) is not None:
                    named = " and by ".join(str(by.at or by.streams[0].at) for by in (other, one))
                    hint = "Name the folder alone, or its playlist."
                    raise UsageError(
                        f"it is named by {named}: its rows would come twice",
                        where=stream.chunk(i).at,
                        hint=hint,
                    )
        seen |= dict.fromkeys(shards.tolist(), one)


def places_of(stream: Stream) -> Iterator[str]:
    """Say where each shard lies, in the same words whatever lists it."""
    folder = place_of(stream.at)
    for url in stream.urls:
        yield url if is_url(url) else f"{folder}/{url.removeprefix('./')}"


def place_of(at: Location) -> str:
    """Say where a file lies, however the user came to it: a local one by its whole path."""
    return (
        os.path.join(at.store.root, at.path) if isinstance(at.store, LocalStore) else at.key
    ).rstrip("/")
