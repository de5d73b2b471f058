"""Resolve addresses to playlists.

A folder is checked for `playlist.yaml`, `index.json`, `spec.json`, `000000/spec.json`, `*.ffr`,
`*.tar` and plain files, in this order; the first that exists is used. If it is damaged, resolving
fails: falling back to the next could return an incomplete dataset without an error.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flarecli import formats, playlists
from flarecli.arguments import Addresses, address_texts, name_list
from flarecli.braces import WILDCARDS, expand_braces
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

_BEGUN = (".flare/journal", ".flare/lock")  # at least one exists until a pack is finished
_UNPACK = b'{"verb": "unpack"'
_LIST_LIMIT = 1 << 20  # files per listing


def expand(address: str, guard: Guard | None = None) -> list[str]:
    """Expand braces (`{00000..00127}`, `{a,b}`) and globs (`*`, `?`, `[…]`, `**`), in bytewise
    order.

    raises  MissingError if a glob matches nothing; UsageError if the address cannot be listed, or
            if a glob matches too many files
    """
    return [one for one, _ in _expanded(address, guard)]


def _expanded(address: str, guard: Guard | None) -> list[tuple[str, bool]]:
    """Return each address, and whether it is known to exist."""
    if _is_on_disk(address):
        return [(address, True)]  # an existing file may have `*` or `{` in its name
    out: list[tuple[str, bool]] = []
    for one in expand_braces(address):
        if not any(sign in one for sign in WILDCARDS):
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
    """Resolve each address to a Playlist, without opening a shard.

    format    format of shards that are not listed; if a list has another format, `select_streams`
              raises UsageError
    maps      pass False if files may be truncated while they are read
    expanded  the addresses are results of `expand`: braces and globs in them are literal
    return    one Playlist per source, in order; consecutive shards of one folder share a Playlist
    raises    MissingError if nothing exists at an address; UnfinishedError for an unfinished pack;
              FormatError and UnsafeError for damaged or unsafe data
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
                "cannot read from standard input here",
                hint="Write the data to a file and pass its name.",
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
            last.urls.extend(one.urls)  # `_of_file` made this list
        else:
            out.append(found)
    return out


def _is_a_shard(found: Playlist) -> bool:
    """Return whether this is a playlist of shards that were named themselves, not of a folder."""
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

    format  format of the shards, if the list has none
    raises  MissingError if the list does not exist; FormatError if it is damaged
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
            "unknown format",
            where=at,
            hint=f"Choose the format with -f: {', '.join(formats.all_names())}.",
        )
    if not is_there:
        at.size()  # raises MissingError
    # the query of a signed address is kept
    url = at.path if not at.is_local and "?" in at.path else at.name
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
    if not at.is_local:  # in a bucket the old playlist stays valid until a pack replaces it
        _refuse_unfinished(at)
    if (at / INDEX).exists():
        return _formatted(_indexed(at), format)
    for index, kind in INDEX_FILES.items():
        if index != INDEX and (at / index).exists():
            return _formatted(Playlist((formats.find(kind).open_dataset(at),)), format)
    if not _lists(str(at)):
        tried = ", ".join((playlists.PLAYLIST, *INDEX_FILES))
        raise MissingError(
            f"found none of {tried}", where=at, hint="Pass a playlist, an index.json or a shard."
        )
    if isinstance(at.store, LocalStore) and os.path.join(at.store.root, at.path) == "/":
        raise UsageError(
            "refusing to read the root folder as a dataset",
            where=at,
            hint="Pass the folder of the dataset.",
        )
    entries = list(at.list() if at.is_local else itertools.islice(at.list(), _LIST_LIMIT + 1))
    if not entries:
        raise MissingError("folder is empty", where=at)
    if not at.is_local and len(entries) > _LIST_LIMIT:
        raise UsageError(
            f"more than {_LIST_LIMIT} files in the folder", where=at, hint="Pass a subfolder."
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
            f"Pass one of the datasets in it: {', '.join(map(shell_quoted, below[:5]))}."
            if below
            else "Pass the shards, or pack again: the index is written last."
        )
        missing = formats.facts(formats.of_suffix(shards[0])).index_files[0]
        if missing == INDEX and at.is_local and not below:
            command = f"flare playlist {shell_quoted(str(at))} --reindex"
            hint = f"If no shard is missing, run `{command}` to create the index."
        what = (
            f"found 1 shard, but no {missing}"
            if len(shards) == 1
            else f"found {len(shards)} shards, but no {missing}"
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
    """Return whether a journal was written by `flare unpack`."""
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
        is_listed = found.at is not None  # the format in a list has precedence over -f
        streams = tuple(
            stream
            if is_listed and formats.is_known(stream.format)
            else replace(stream, format=format)
            for stream in found.streams
        )
        return replace(found, streams=streams, requested_format=format)
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
    """Select streams by name, and concatenate the streams of several sources.

    return  one list per stream: its parts in the order of the sources
    raises  UsageError for an unknown name, for sources with different streams or with the same
            shards, and for a list with another format than `format`
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
            if one.requested_format not in ("", stream.format):
                message = f"stream {stream.name!r} is listed as {stream.format}, not {one.requested_format}"
                raise UsageError(
                    message,
                    where=one.at or "",
                    hint="Leave -f out: it is for data without a list.",
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
                f"streams differ from those of the first source: {', '.join(first)}",
                where=one.at or "",
                hint="Choose the streams to read with --stream.",
            )
    return [[next(s for s in streams if s.name == name) for streams in chosen] for name in first]


def refuse_repeats(found: Sequence[Playlist], chosen: Sequence[Sequence[Stream]]) -> None:
    """Raise UsageError if two sources contain the same shard, which would repeat its rows.

    A shell expands `out/*` to an index, a playlist and their shards. A source that is named twice
    with the same address is allowed.

    found   one Playlist per source
    chosen  the streams of each source that are read
    """
    import numpy as np

    lists = {}
    for one, streams in zip(found, chosen, strict=True):
        shards = np.unique(
            np.fromiter(
                (hash(place) for stream in streams for place in places_of(stream)), np.int64
            )
        )
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
                    hint = "Pass only the folder or only its playlist."
                    raise UsageError(
                        f"listed by {named}: its rows would be read twice",
                        where=stream.chunk(i).at,
                        hint=hint,
                    )
        seen |= dict.fromkeys(shards.tolist(), one)


def places_of(stream: Stream) -> Iterator[str]:
    """Yield the absolute address of each shard, the same for every list of the shard."""
    folder = place_of(stream.at)
    for url in stream.urls:
        yield url if is_url(url) else f"{folder}/{url.removeprefix('./')}"


def place_of(at: Location) -> str:
    """Return the absolute address of a file; for a local file its path."""
    return (
        os.path.join(at.store.root, at.path) if isinstance(at.store, LocalStore) else at.key
    ).rstrip("/")
