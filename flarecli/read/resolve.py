"""Resolve addresses to playlists.

A folder is searched for `playlist.yaml`, `index.json`, `spec.json`, `000000/spec.json`, `*.ffr`,
`*.tar`, `*.tfrecord`, tables, files of a third-party format and plain files, in this order. The
first match is used. If the match is damaged, resolving fails, because a fallback could return an
incomplete dataset without an error.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flarecli import formats, playlists
from flarecli.arguments import Addresses, address_texts, name_list
from flarecli.braces import WILDCARDS, expand_braces
from flarecli.errors import FlareError, FormatError, MissingError, UnfinishedError, UsageError
from flarecli.formats import INDEX, INDEX_FILES
from flarecli.lazy import np
from flarecli.model import Playlist, Stream
from flarecli.names import is_document, is_url, local_path, scheme_of, shell_quoted
from flarecli.redact import redact
from flarecli.storage import Entry, Guard, Location, globbed, locate
from flarecli.storage.append_log import first_entry
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.suggest import choose

if TYPE_CHECKING:
    from flarecli.ingest import Spool

__all__ = [
    "expand",
    "parts_hint",
    "place_of",
    "places_of",
    "read_list",
    "refuse_repeats",
    "resolve",
    "select_streams",
    "without_version_index",
]

_UNFINISHED = (".flare/journal", ".flare/lock")  # an unfinished pack has one or both of these files
_CHECKSUMS = (".md5", ".sha1", ".sha256", ".sha512")
_MAX_LISTED = 1 << 20  # maximum number of files in a listing


def expand(address: str, guard: Guard | None = None) -> list[str]:
    """Expand braces (`{00000..00127}`, `{a,b}`) and globs (`*`, `?`, `[…]`, `**`).

    return  addresses; the matches of a glob are in bytewise order
    raises  MissingError if a glob matches nothing; UsageError if the address cannot be listed, or
            if a glob matches too many files
    """
    return [expanded for expanded, _ in _expanded(address, guard)]


def _expanded(address: str, guard: Guard | None) -> list[tuple[str, bool]]:
    """Return each expanded address, and whether the address is known to exist."""
    if _is_on_disk(address):
        return [(address, True)]  # the name of an existing file may contain `*` or `{`
    out: list[tuple[str, bool]] = []
    for text in expand_braces(address):
        if not any(sign in text for sign in WILDCARDS):
            out.append((text, False))
        elif _is_on_disk(text):
            out.append((text, True))
        elif (
            not _is_path(text)
            and "*" not in text
            and (not _can_list(text) or locate(text, guard).exists())
        ):
            out.append((text, False))  # not a glob: `?` and `[` are characters of the address
        elif _can_list(text):
            out += [(name, True) for name in globbed(text, guard)]
        else:
            raise UsageError(
                "files on a web server cannot be listed",
                where=redact(text),
                hint="Pass the address of each file, or use braces such as {00000..00127}.",
            )
    return out


def _is_path(address: str) -> bool:
    return not is_url(address) or scheme_of(address) == "file"


def _is_on_disk(address: str) -> bool:
    return _is_path(address) and "\0" not in address and os.path.lexists(local_path(address))


def _can_list(address: str) -> bool:
    return scheme_of(address) not in ("http", "https")


def resolve(
    sources: Addresses,
    *,
    format: str | None = None,
    guard: Guard | None = None,
    maps: bool = True,
    expanded: bool = False,
    table: Mapping[str, Any] = MappingProxyType({}),
    opened: Mapping[str, Spool] = MappingProxyType({}),
) -> list[Playlist]:
    """Resolve each address to a Playlist, without opening a shard.

    format    format of shards that no playlist or index lists. If a playlist or index names another
              format, `select_streams` raises UsageError
    maps      map local files into memory; pass False if files may be truncated during reading
    expanded  True if `expand` returned the addresses; braces and globs are then literal text
    table     headers for tables without a playlist: the values of the options `input` and `csv`
    opened    address -> contents of standard input or of a FIFO that the caller opened
    return    one Playlist per source, in order; consecutive shards in one folder share a Playlist
    raises    MissingError if nothing exists at an address; UnfinishedError for an unfinished pack;
              FormatError and UnsafeError for damaged or unsafe data
    """
    texts = address_texts(sources)
    addresses = [
        pair
        for text in texts
        for pair in (
            [(text, _is_on_disk(text))] if expanded or text in opened else _expanded(text, guard)
        )
    ]
    if not addresses:
        raise UsageError("no source given", hint="Pass at least one address.")
    out: list[Playlist] = []
    at: Location | None = None
    for address, exists in addresses:
        if address in opened:
            out.append(_of_stream(opened[address], format, table))
            at = None
            continue
        if address == "-" and not exists:
            raise UsageError(
                "cannot read from standard input",
                hint="Write the data to a file and pass its name.",
            )
        previous, at = at, locate(address, guard)
        at = at if maps else at.unmapped()
        if previous is not None and previous.store == at.store:
            at = replace(at, store=previous.store)  # share open connections
        playlist = _with_headers(_resolved(at, format, exists), table)
        if out and _can_extend(out[-1], playlist):
            urls = out[-1].streams[0].urls
            urls.extend(playlist.streams[0].urls)  # type: ignore[attr-defined]  # a list from `_of_file`
        else:
            out.append(playlist)
    if table.get("csv"):
        streams = [stream for one in out for stream in one.streams]
        unlisted = [stream for one in out if one.at is None for stream in one.streams]
        if not any(formats.facts(stream.format).has_delimited_text(stream) for stream in unlisted):
            shown = ", ".join(dict.fromkeys(str(stream.at) for stream in streams))
            raise UsageError("--csv: the source has no CSV or TSV file", where=shown)
    return out


def _of_stream(spool: Spool, format: str | None, table: Mapping[str, Any]) -> Playlist:
    """Return a playlist whose only shard is the content of standard input or of a FIFO."""
    from flarecli.formats.tables.dialect import Dialect
    from flarecli.ingest import sniff

    kind = table.get("input") or sniff(spool, Dialect.parse(table.get("csv", ())))
    found = formats.INPUTS.get(kind)
    if found is None:
        raise UsageError(
            "the stream is a list of addresses, not a table or a tar",
            where=spool,
            hint="Set the kind of the stream with --input, or pack the list with `flare pack`.",
        )
    if format not in (None, found):
        raise UsageError(
            f"the stream is {kind}, which cannot be read as format {format}",
            where=spool,
            hint="Save the stream to a file, or omit -f.",
        )
    at = spool.location
    stream = Stream("data", at.folder, found, [at.name])
    return _with_headers(Playlist((stream,)), {**table, "input": kind})


def _with_headers(playlist: Playlist, table: Mapping[str, Any]) -> Playlist:
    if not table or playlist.at is not None:
        return playlist
    streams = (
        replace(stream, headers={**stream.headers, **table})
        if formats.facts(stream.format).typed
        else stream
        for stream in playlist.streams
    )
    return replace(playlist, streams=tuple(streams))


def _can_extend(playlist: Playlist, other: Playlist) -> bool:
    """Return whether the shards of both playlists can be listed in one playlist.

    Both playlists must contain only shards whose addresses the user passed. All of these shards
    must be in the same folder and have the same format.
    """
    for one in (playlist, other):
        if one.at is not None or len(one.streams) != 1 or one.streams[0].sizes is not None:
            return False
    stream, added = playlist.streams[0], other.streams[0]
    same_place = (stream.at, stream.format) == (added.at, added.format)
    return same_place and isinstance(stream.urls, list)


def _resolved(at: Location, format: str | None, exists: bool) -> Playlist:
    if at.is_local:
        is_file = bool(at.path) and not _is_folder(at)
    else:
        is_file = at.name.endswith((".yaml", ".yml", ".json"))
    if is_file or formats.of_suffix(at.name):
        return _of_file(at, format, exists)
    return _of_folder(at, format)


def _is_folder(at: Location) -> bool:
    try:
        at.size()
    except FormatError:
        return True
    return False


def read_list(at: Location, format: str | None = None) -> Playlist:
    """Read the playlist or the `index.json` at an address.

    format  shard format for streams whose format is missing or unknown
    raises  MissingError if the address does not exist; FormatError if the file is damaged
    """
    if at.name == INDEX:
        return _formatted(_indexed(at.folder), format)
    found = playlists.read(at)
    if playlists.pin_of(at.name) is not None:
        found = replace(found, streams=tuple(map(without_version_index, found.streams)))
    return _formatted(found, format)


def without_version_index(stream: Stream) -> Stream:
    """Return a stream without its index file.

    Versions of a dataset share one index file, which lists only the shards of the newest version.
    """
    if not formats.is_known(stream.format):
        return stream
    index = formats.find(stream.format or "").version_index
    files = {name: file for name, file in stream.files.items() if name != index}
    return replace(stream, files=files)


def _of_file(at: Location, format: str | None, exists: bool) -> Playlist:
    if at.name.endswith((".yaml", ".yml")):
        if at.is_local or not at.exists():
            refuse_unfinished(at.folder)
        return read_list(at, format)
    if at.name == INDEX:
        return read_list(at, format)
    requested_format = format
    format = format or formats.sniff(at.name) or _sniffed(at)
    if format is None and at.is_local:
        format = formats.FALLBACK
    if format is None:
        raise FormatError(
            "unknown format",
            where=at,
            hint=f"Choose the format with -f: {', '.join(formats.all_names())}.",
        )
    if not exists:
        at.size()  # raises MissingError
    # keep the query, because it may contain the signature of the address
    url = at.path if not at.is_local and "?" in at.path else at.name
    stream = Stream("data", at.folder, format, [url])
    return Playlist((stream,), requested_format=requested_format or "")


def _sniffed(at: Location) -> str | None:
    """Detect the format of a local file from its first bytes; return None if no format matches."""
    if at.is_local:
        with contextlib.suppress(FlareError):  # reading the file later raises the same error
            return formats.sniff(at.name, at.read(0, min(at.size(), formats.HEAD_BYTES)))
    return None


def _of_folder(at: Location, format: str | None) -> Playlist:
    if at.is_local:
        refuse_unfinished(at)
    if (at / playlists.PLAYLIST).exists():
        return _formatted(playlists.read(at / playlists.PLAYLIST), format)
    # In a bucket, an old playlist remains valid while a pack replaces the dataset. Therefore, an
    # unfinished pack is an error only if there is no playlist.
    if not at.is_local:
        refuse_unfinished(at)
    if (at / INDEX).exists():
        return _formatted(_indexed(at), format)
    for index, name in INDEX_FILES.items():
        if index != INDEX and (at / index).exists():
            return _formatted(Playlist((formats.find(name).open_dataset(at),)), format)
    if not _can_list(str(at)):
        lists = ", ".join((playlists.PLAYLIST, *INDEX_FILES))
        raise MissingError(
            f"found none of {lists}", where=at, hint="Pass a playlist, an index.json or a shard."
        )
    if isinstance(at.store, LocalStore) and os.path.join(at.store.root, at.path) == "/":
        raise UsageError(
            "refusing to read the root folder as a dataset",
            where=at,
            hint="Pass the folder of the dataset.",
        )
    entries = list(at.list() if at.is_local else itertools.islice(at.list(), _MAX_LISTED + 1))
    if not entries:
        raise MissingError("folder is empty", where=at)
    if not at.is_local and len(entries) > _MAX_LISTED:
        raise UsageError(
            f"more than {_MAX_LISTED} files in the folder", where=at, hint="Pass a subfolder."
        )
    names = [entry.name for entry in entries]
    in_folder = {formats.of_suffix(name, tables=False) for name in names if "/" not in name}
    for name in formats.names():
        if name in in_folder and formats.find(name).is_listed:
            return _formatted(Playlist((formats.find(name).open_dataset(at),)), format)
    if (tables := _tables_in(at, entries, format)) is not None:
        return Playlist((tables,), requested_format=format or "")
    _refuse_shards_without_index(at, names)
    found = formats.of_folder(names) or formats.find(formats.FALLBACK)
    return Playlist((found.of_listing(at, entries),))


def _tables_in(at: Location, entries: Sequence[Entry], format: str | None) -> Stream | None:
    """Return the tables in a folder and its subfolders as one stream, sorted by name.

    All data files in the folder must be tables of one format; otherwise, the result is None. Hidden
    files, files whose names start with `_`, READMEs, licenses and checksum files of tables are not
    data files. If all tables are `.json` files, the result is also None, because such files are
    often parts of samples.

    format  if not None, return the tables of this format, and ignore all other files
    """
    if format is not None and not formats.facts(format).typed:
        return None
    sizes = {entry.name: entry.size for entry in entries if not _is_hidden(entry.name)}
    named = sorted(filter(formats.looks_like_table, sizes), key=os.fsencode)
    if format is None:
        others = sizes.keys() - set(named)
        if not all(is_document(name.rpartition("/")[2]) for name in others):
            return None
        if all(map(_is_json, named)):
            return None
    kinds = {
        name: kind
        for name in named
        if (kind := formats.of_suffix(name)) and formats.facts(kind).typed
    }
    if format is None:
        others = set(named) - kinds.keys()
        if len(set(kinds.values())) != 1 or not all(_is_checksum(name, kinds) for name in others):
            return None
        (format,) = set(kinds.values())
    names = [name for name in kinds if kinds[name] == format]
    listed = np.array([sizes[name] for name in names], np.int64)
    return Stream("data", at, format, names, sizes=listed) if names else None


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_")) or "/." in name or "/_" in name


def _is_checksum(name: str, tables: Collection[str]) -> bool:
    """Return whether a file contains the checksum of a table, as `t.csv.md5` does for `t.csv`."""
    table, dot, suffix = name.rpartition(".")
    return dot + suffix.lower() in _CHECKSUMS and table in tables


def _is_json(name: str) -> bool:
    return ".json" in name.lower() and ".jsonl" not in name.lower()


def _refuse_shards_without_index(at: Location, names: Sequence[str]) -> None:
    """Raise FormatError if a folder contains shards in a format that requires an index."""
    shards = [
        name
        for name in names
        if (suffix_format := formats.of_suffix(name, tables=False))
        and not formats.find(suffix_format).is_listed
    ]
    if not shards:
        return
    indexes = tuple(f"/{index}" for index in INDEX_FILES)
    subfolders = sorted({name.partition("/")[0] for name in names if name.endswith(indexes)})
    index = formats.facts(formats.of_suffix(shards[0], tables=False)).index_files[0]
    if subfolders:
        hint = f"Pass one of the datasets in this folder: {', '.join(map(shell_quoted, subfolders[:5]))}."
    elif index == INDEX and at.is_local:
        command = f"flare playlist {shell_quoted(str(at))} --reindex"
        hint = f"If no shard is missing, run `{command}` to create the index."
    else:
        hint = "Pass the shards, or pack the dataset again to create the index."
    count = "1 shard" if len(shards) == 1 else f"{len(shards)} shards"
    raise FormatError(f"found {count}, but no {index}", where=at, hint=hint)


def _indexed(at: Location) -> Playlist:
    return Playlist((formats.find(INDEX_FILES[INDEX]).open_dataset(at),), at / INDEX)


def refuse_unfinished(at: Location) -> None:
    """Raise UnfinishedError if a folder contains an unfinished pack or unpack."""
    if at.is_local:
        is_unfinished = any((at / name).exists() for name in _UNFINISHED)
    else:
        is_unfinished = _can_list(str(at)) and _has_files(at / SCRATCH)
    if is_unfinished:
        verb = "unpack" if first_entry(at / _UNFINISHED[0]).get("verb") == "unpack" else "pack"
        raise UnfinishedError(
            f"folder contains an unfinished {verb}",
            where=at,
            hint=parts_hint(at) or f"Run the same `flare {verb}` command again with --resume.",
        )


def parts_hint(at: Location) -> str:
    """Return the hint for a folder with an unfinished `flare pack --part`; otherwise empty."""
    count = first_entry(at / _UNFINISHED[0]).get("parts")
    if type(count) is not int:  # `isinstance` would accept a bool
        return ""
    return f"Run `flare pack … --part K/{count}` for each missing part, then `flare pack … --join`."


def _has_files(at: Location) -> bool:
    try:
        return next(iter(at.list()), None) is not None
    except MissingError:
        return False


def _formatted(playlist: Playlist, format: str | None) -> Playlist:
    """Return a playlist in which every stream has a format.

    format  format of the streams. If the streams are from a playlist or an index, `format` is used
            only for streams whose listed format is missing or unknown. None: detect a missing
            format from the file name of the first shard
    raises  FormatError if a format is unknown or cannot be detected
    """
    if format is not None:
        formats.find(format)
        is_listed = playlist.at is not None  # `format` does not replace a listed format
        streams = tuple(
            stream
            if is_listed and formats.is_known(stream.format)
            else replace(stream, format=format)
            for stream in playlist.streams
        )
        return replace(playlist, streams=streams, requested_format=format)
    streams = tuple(
        _with_format(stream, playlist) if stream.format is None and len(stream) else stream
        for stream in playlist.streams
    )
    for stream in streams:
        if stream.format is not None and not formats.is_known(stream.format):
            raise FormatError(
                f"unknown format {stream.format!r:.60} of stream {stream.name!r}",
                where=playlist.at or "",
            )
    return replace(playlist, streams=streams)


def _with_format(stream: Stream, playlist: Playlist) -> Stream:
    """Return a stream with the format that is detected from the file name of its first shard."""
    url = stream.urls[0]
    # the query of a URL, which may contain a signature, is not part of the file name
    format = formats.sniff(url.partition("?")[0] if is_url(url) else url)
    if format is None:
        raise FormatError(
            f"cannot detect the format of stream {stream.name!r} from the name of its first file",
            where=playlist.at or "",
            hint=f"Choose the format with -f: {', '.join(formats.all_names())}.",
        )
    return replace(stream, format=format)


def select_streams(found: Sequence[Playlist], names: Sequence[str] = ()) -> list[list[Stream]]:
    """Select streams by name, and concatenate the streams of several sources.

    found   one Playlist per source
    names   stream names; empty means all streams
    return  one list per stream name: the streams with this name, in the order of the sources
    raises  UsageError for an unknown name, for sources with different streams or with the same
            shards, and for a stream whose listed format differs from the requested format
    """
    selected, names = [], name_list(names)
    for playlist in found:
        known = [stream.name for stream in playlist.streams]
        for name in names:
            if name not in known:
                raise UsageError(
                    f"no stream {name!r}", where=playlist.at or "", hint=choose(name, known)
                )
        streams = [stream for stream in playlist.streams if not names or stream.name in names]
        for stream in streams:
            if playlist.requested_format not in ("", stream.format):
                raise UsageError(
                    f"stream {stream.name!r} has the format {stream.format}, not {playlist.requested_format}",
                    where=playlist.at or "",
                    hint="Omit -f, which is only for data without a playlist or index.",
                )
        selected.append(streams)
    if len(selected) == 1:
        return [[stream] for stream in selected[0]]
    refuse_repeats(found, selected)
    if all(len(streams) == 1 for streams in selected):  # concatenate even if the names differ
        return [[streams[0] for streams in selected]]
    first = [stream.name for stream in selected[0]]
    by_name = [{stream.name: stream for stream in streams} for streams in selected]
    for playlist, own_streams in zip(found, by_name, strict=True):
        if own_streams.keys() != set(first):
            raise UsageError(
                f"expected the same streams as in the first source: {', '.join(first)}",
                where=playlist.at or "",
                hint="Choose the streams to read with --stream.",
            )
    return [[own_streams[name] for own_streams in by_name] for name in first]


def refuse_repeats(found: Sequence[Playlist], selected: Sequence[Sequence[Stream]]) -> None:
    """Raise UsageError if two different sources contain the same shard.

    The rows of this shard would be read twice. For example, a shell expands `out/*` to an index, a
    playlist and the listed shards. Passing one source twice is not an error.

    found     one Playlist per source
    selected  the selected streams of each source
    """
    # (address of the playlist or index, hashes of its shard addresses) -> source
    sources: dict[tuple[str, frozenset[int]], tuple[Playlist, Sequence[Stream]]] = {}
    for playlist, streams in zip(found, selected, strict=True):
        address = "" if playlist.at is None else place_of(playlist.at)
        shards = frozenset(hash(place) for stream in streams for place in places_of(stream))
        sources[address, shards] = playlist, streams
    first_source: dict[int, Playlist] = {}  # hash of a shard address -> first source that lists it
    for (_, shards), (playlist, streams) in sources.items():
        for stream in streams:
            for i, place in enumerate(places_of(stream)):
                if (other := first_source.get(hash(place))) is not None:
                    lists = " and by ".join(
                        str(one.at or one.streams[0].at) for one in (other, playlist)
                    )
                    raise UsageError(
                        f"the shard is listed by {lists}, so it would be read twice",
                        where=stream.chunk(i).at,
                        hint="Pass only the folder or only its playlist.",
                    )
        first_source |= dict.fromkeys(shards, playlist)


def places_of(stream: Stream) -> Iterator[str]:
    """Yield the absolute address of each shard.

    A shard has the same absolute address in a playlist and in an index.
    """
    folder = place_of(stream.at)
    for url in stream.urls:
        yield url if is_url(url) else f"{folder}/{url.removeprefix('./')}"


def place_of(at: Location) -> str:
    """Return the absolute address of a file. For a local file, the address is the path."""
    return (
        os.path.join(at.store.root, at.path) if isinstance(at.store, LocalStore) else at.key
    ).rstrip("/")
