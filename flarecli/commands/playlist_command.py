"""The `playlist` command: write a playlist of datasets, or the `index.json` of MosaicML's formats.

Missing row counts, sizes and columns are read from the headers of shards. Missing checksums are
computed from the bytes. Files below the folder of the playlist are listed by relative addresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flarecli import formats
from flarecli import hashes as sums
from flarecli.arguments import (
    Address,
    address_text,
    address_texts,
    checked,
    from_options,
    name_list,
    shown,
)
from flarecli.commands.options import Pairs, PlaylistOptions
from flarecli.commands.verifying.listings import check_own_checksum
from flarecli.errors import FlareError, FormatError, UnfinishedError, UsageError
from flarecli.formats import DEFAULT, INDEX, find
from flarecli.model import Chunk, File, Finding, Playlist, Stream, finding_of, joined_columns
from flarecli.names import is_url, local_path, scheme_of, shell_quoted, whole_path
from flarecli.playlists import faults, parse, places, stored, text
from flarecli.playlists.fill import filled, summed, without_sums
from flarecli.progress import Progress
from flarecli.read import parts_hint, refuse_repeats, resolve, select_streams
from flarecli.redact import address_key, redact, without_user
from flarecli.storage import Guard, Location, locate, with_reach
from flarecli.storage.local import LocalStore

__all__ = ["check_playlist", "merge_index", "playlist", "reindex"]

_NAMED_SOURCE = re.compile(r"([^/:?=]+)=(.+)", re.DOTALL)
_PAIRS_HINT = 'Use a dict, such as {"OLD": "NEW"}.'
_RESERVED = ("format", "columns", "rows", "bytes", "raw_bytes", "files", "content")
_UNFINISHED = (".flare/journal", ".flare/lock")


@from_options(PlaylistOptions)
def playlist(options: PlaylistOptions) -> str:
    """Return a playlist of datasets as YAML, and write it to `out` if this option is set.

    `NAME=ADDRESS` names a stream; sources with the same name are concatenated. Files below the
    folder of the playlist are listed by relative addresses. Without `out`, this folder is the
    working folder. `rebase` and `header` are dicts or lists of pairs. Of the prefixes in `rebase`
    that match an address, only the first is replaced. Checksums that are already listed are not
    computed again. Raises UsageError for sources that cannot be listed, and the errors of resolving
    and reading a dataset.
    """
    named = address_texts(options.sources)
    guard, out, base = options.guard(named), options.out, options.base
    rebase, headers = _pairs("rebase", options.rebase), _pairs("header", options.header)
    for name, _ in headers:
        if name in (*_RESERVED, *sums.known()):
            raise UsageError(f"the header {name!r} is reserved", hint="Choose another name.")
    hashes = name_list(options.hash)
    sums.Sums(hashes)
    if not named:
        raise UsageError("missing argument: SOURCE")
    place = _Place(None if out is None else address_text(out), base, rebase, guard)
    if place.at is not None and not options.overwrite:
        _check_is_playlist(place.at)
    grouped = _grouped(named, options, guard)
    if options.open:
        grouped = _completed(grouped, hashes, options.progress or Progress())
    streams = [_joined(name, parts, place, dict(headers)) for name, parts in grouped.items()]
    data = text(Playlist(tuple(streams)))
    if place.at is not None:
        place.at.write([data])
    return data.decode()


def _check_is_playlist(at: Location) -> None:
    """Raise UsageError if a file that is not a playlist would be replaced."""
    try:
        at.size()
    except FlareError:  # nothing to replace, or the write reports the error
        return
    try:
        parse(stored(at), at)
    except FormatError:
        raise UsageError(
            "file exists and is not a playlist",
            where=at,
            hint="Use --overwrite to replace the file, or specify another file.",
        ) from None


def _completed(
    grouped: Mapping[str, Sequence[Stream]], hashes: Sequence[str], progress: Progress
) -> dict[str, list[Stream]]:
    """Add missing row counts, sizes, columns and checksums; return the completed streams."""
    count = sum(len(part) for parts in grouped.values() for part in parts)
    progress.start("playlist", count, unit="file")
    out = {name: [filled(part, progress) for part in parts] for name, parts in grouped.items()}
    chosen = [(part, without_sums(part, hashes)) for parts in out.values() for part in parts]
    size = sum(int(part.stored[order].sum()) for part, order in chosen if part.stored is not None)
    progress.start("playlist", sum(len(order) for _, order in chosen), size, unit="file")
    return {name: [summed(part, hashes, progress) for part in parts] for name, parts in out.items()}


def _pairs(name: str, value: Pairs) -> list[tuple[str, str]]:
    """Return pairs of strings as a list. Raises UsageError for any other value."""
    error = UsageError(f"{name}: expected pairs of strings, got {shown(value)}", hint=_PAIRS_HINT)
    try:
        items = value.items() if isinstance(value, Mapping) else value
        pairs = [(key, text) for key, text in items]
    except (TypeError, ValueError):
        raise error from None
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise error
    return pairs


def _grouped(
    sources: Sequence[str], options: PlaylistOptions, guard: Guard
) -> dict[str, list[Stream]]:
    """Resolve the sources; return stream name -> streams to concatenate, in order."""
    format, table = options.source_format(options.format), options.table_headers()
    out: dict[str, list[Stream]] = {}
    unnamed: dict[str, list[tuple[Playlist, list[Stream]]]] = {}
    for source in sources:
        match = None if os.path.lexists(source) else _NAMED_SOURCE.fullmatch(source)
        address = match[2] if match else source
        playlists = resolve(address, format=format, guard=guard, table=table)
        parts = select_streams(playlists)
        if match and len(parts) > 1:
            names = ", ".join(one[0].name for one in parts)
            raise UsageError(
                f"cannot use the name {match[1]!r} for several streams: {names}",
                where=redact(match[2]),
                hint="Omit the name.",
            )
        for one in parts:
            out.setdefault(match[1] if match else one[0].name, []).extend(one)
            # Streams that the user named with NAME= are not checked for repeated shards.
            if not match:
                unnamed.setdefault(one[0].name, []).append((playlists[0], one))
    for pairs in unnamed.values():
        refuse_repeats([listed for listed, _ in pairs], [one for _, one in pairs])
    return out


class _Place:
    """Location of the new playlist, which determines how addresses are written to it."""

    def __init__(
        self, out: str | None, base: str | None, rebase: Sequence[tuple[str, str]], guard: Guard
    ) -> None:
        self._is_remote = out is not None and is_url(out) and scheme_of(out) != "file"
        if out is not None and scheme_of(out) in ("http", "https"):
            raise UsageError("cannot write to a web server", where=redact(out))
        if out is not None and not self._is_remote and os.path.isdir(local_path(out)):
            raise UsageError("expected a file, got a folder", where=out)
        self.at = locate(out, replace(guard, keeper=None)) if out is not None else None
        self._path = (
            str(self.at)
            if self._is_remote
            else os.path.realpath(whole_path(local_path(out)))
            if out is not None
            else ""
        )
        self._folder = (
            os.path.dirname(self._path) if out is not None else os.path.realpath(whole_path("."))
        )
        if base is None and self._is_remote:
            base = self._folder
        self._base = None if base is None else base.rstrip("/") + "/"
        self._rebase, self._guard = rebase, guard

    def address(self, at: Location) -> str | None:
        """Return the address of a file for the new playlist; None for the playlist itself.

        raises  UsageError if readers would reject the address, or if the address contains a secret
        """
        if isinstance(at.store, LocalStore):
            real = os.path.join(at.store.root, at.path)
            if real == self._path:
                return None
            if self._is_remote:
                raise UsageError(f"a playlist in {self._folder} cannot list a local file", where=at)
            address = os.path.relpath(real, self._folder).replace(os.sep, "/")
            names = [str(at), address, real]
        else:
            # for a web server, `path` is the complete URL
            address = without_user(at.path) if is_url(at.path) else str(at)
            if self._is_remote and address == self._path:
                return None
            names = [address]
        is_typed = False
        for old, new in self._rebase:
            if match := next((name for name in names if name.startswith(old)), None):
                address = new + match[len(old) :]
                is_typed = not {"?", ";"} & {*match[len(old) :]}
                break
        if self._base is not None and address.startswith(self._base):
            address = address[len(self._base) :]
        is_public = (address_key if is_typed else redact)(address) == address
        if scheme_of(address) in ("http", "https") and not is_public:
            raise UsageError(
                "the address has a query or path parameters that may be secret; a playlist would store them",
                where=at,
                hint="Use --rebase OLD=NEW, or an address without these parameters.",
            )
        if (
            not is_url(address)
            and (address.startswith("/") or ".." in address.split("/"))
            and not self._guard.allow_local
        ):
            hint = "Write the playlist to a folder above its files, or use --rebase OLD=NEW. Otherwise, readers need --allow-local."
            raise UsageError(
                f"file is outside {self._folder}; a playlist in this folder cannot list it",
                where=at,
                hint=hint,
            )
        return address


def _joined(
    name: str, parts: Sequence[Stream], place: _Place, headers: Mapping[str, Any]
) -> Stream:
    """Concatenate streams into one stream with the shard addresses to write to the new playlist."""
    first, hint = parts[0], "Name the streams differently: NAME=ADDRESS."
    for part in parts:
        if part.format != first.format:
            raise UsageError(
                f"cannot join format {part.format} with {first.format} in stream {name!r}",
                where=part.at,
                hint=hint,
            )
        if part.columns != first.columns and first.columns is not None and part.columns is not None:
            raise UsageError(
                f"columns differ from the columns of earlier sources in stream {name!r}",
                where=part.at,
                hint=hint,
            )
    listed = [
        (part, i, url)
        for part in parts
        for i in range(len(part))
        if (url := place.address(part.chunk(i).at)) is not None
    ]
    files = {}
    for part in parts:
        for own, file in part.files.items():
            if (url := place.address(part.at.join(own))) is not None:
                files[url] = replace(file, name=url)
    common = {
        key: value
        for key, value in first.headers.items()
        if all(part.headers.get(key) == value for part in parts)
    }
    known = {key for part in parts for key, values in part.hashes.items() if any(values)}
    return Stream(
        name,
        first.at,
        first.format,
        [url for *_, url in listed],
        joined_columns(first.columns, [part.columns or () for part in parts])
        if first.columns and all(part.columns == first.columns for part in parts)
        else None,
        _counts(listed, lambda part: part.rows),
        _counts(listed, lambda part: part.sizes),
        {
            key: [(part.hashes.get(key) or [""] * len(part))[i] for part, i, _ in listed]
            for key in sorted(known)
        },
        _counts(listed, lambda part: part.raw_sizes),
        {},
        {**common, **headers},
        files,
        [_companions(part.chunk(i), place) for part, i, _ in listed]
        if any(any(part.parts) for part in parts)
        else (),
    )


def _companions(chunk: Chunk, place: _Place) -> tuple[File, ...]:
    """Return the companion files of a chunk, with the addresses for the new playlist."""
    return tuple(
        replace(file, name=place.address(at) or "")
        for file, at in zip(chunk.files[1:], chunk.companions, strict=True)
    )


def _counts(listed: Sequence[tuple[Stream, int, str]], of: Callable[[Stream], Any]) -> Any:
    """Return one count per chunk, -1 for an unknown count; None if all are unknown."""
    counts = [-1 if of(part) is None else int(of(part)[i]) for part, i, _ in listed]
    return np.array(counts, np.int64) if any(count >= 0 for count in counts) else None


def check_playlist(path: str, guard: Guard | None = None) -> list[Finding]:
    """Return all faults in a playlist, each with line and column.

    raises  MissingError or ReachError if the playlist cannot be read
    """
    at = locate(path, with_reach(guard or Guard(), sources=[path]))
    data = stored(at)
    out = [finding_of(error) for error in faults(data, at)]
    if out:
        return out
    parsed = parse(data, at)
    refused = [entry for stream in parsed.streams for entry in _refused_entries(stream)]
    for mark, (_, error) in zip(places(data, [path for path, _ in refused]), refused, strict=True):
        out.append(
            replace(
                finding_of(error), address=str(at), line=mark >> 32, character=mark & 0xFFFFFFFF
            )
        )
    _, own, _ = check_own_checksum(parsed)
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    return out + [
        replace(
            one,
            address=str(at),
            row=None,
            line=lines,
            character=1,
            hint="Write the playlist again with `flare playlist`.",
        )
        for one in own
    ]


def _refused_entries(stream: Stream) -> Iterator[tuple[tuple[str | int, ...], FlareError]]:
    """Yield (path in the YAML, error) for each invalid value of a stream."""
    if stream.format is not None and not formats.is_known(stream.format):
        hint = f"Choose one of {', '.join(formats.all_names())}."
        yield (
            (stream.name, "headers", "format"),
            FormatError(f"format {stream.format!r:.60} is not supported", hint=hint),
        )
    named: list[tuple[tuple[str | int, ...], str]] = [
        (("content", i), url) for i, url in enumerate(stream.urls)
    ]
    named += [(("headers", "files", name), name) for name in stream.files]
    named += [
        (("headers", "parts", i, file.name), file.name)
        for i, one in enumerate(stream.parts)
        for file in one
    ]
    for steps, name in named:
        try:
            stream.at.join(name)
        except FlareError as error:
            yield (stream.name, *steps), error


@checked
def reindex(folder: Address, *, replace: bool = False, allow_local: bool = False) -> str:
    """Rebuild the lost `index.json` of a folder of shards, and return its address.

    The shards may be MDS, JSON, CSV, TSV or XSV. The new index has the same bytes as the lost index
    if the original library or flare wrote the shards. The index of a changed dataset lists the
    shards of the newest version; for WebDataset, this index is `shardindex.json`.

    replace      whether to overwrite an existing index
    allow_local  whether to follow symbolic links
    raises       UnfinishedError for an unfinished pack; UsageError if an index exists and `replace`
                 is False; the errors of `Format.repair_index`; for a changed dataset, BusyError if
                 another process holds the commit lock, and MissingError if a file is missing
    """
    at = _writable_folder(folder, Guard(allow_local=allow_local))
    if any((at / name).exists() for name in _UNFINISHED):
        raise UnfinishedError(
            "folder contains an unfinished pack",
            where=at,
            hint=parts_hint(at) or "Run the same `flare pack` command again with --resume.",
        )
    # imported late, because `write` loads Arrow, which takes longer than to write a playlist
    from flarecli.write.versions import numbers, write_newest_index

    index = write_newest_index(at, replace) if numbers(at) else None
    if index is None:
        find(DEFAULT).repair_index(at, replace)
        index = at / INDEX
    return str(index)


@checked
def merge_index(
    root: Address, parts: Sequence[Address] | None = None, *, allow_local: bool = False
) -> str:
    """Write one `index.json` for the datasets below a folder, and return its address.

    Shards are not changed.

    parts        dataset folders, or their `index.json` files, in row order; None: all datasets
                 below the root, in bytewise order
    allow_local  whether to follow symbolic links
    raises       the errors of `Format.merge_indexes`
    """
    guard = Guard(allow_local=allow_local)
    at = _writable_folder(root, guard)
    find(DEFAULT).merge_indexes(
        at, None if parts is None else [locate(part, guard) for part in address_texts(parts)]
    )
    return str(at / INDEX)


def _writable_folder(address: Address, guard: Guard) -> Location:
    folder = address_text(address)
    if is_url(folder) and not folder.startswith("file://"):
        raise UsageError("expected a local folder", where=redact(folder))
    if os.path.isfile(local_path(folder)):
        raise UsageError(
            "expected a folder of shards, got a file",
            where=folder,
            hint=f"Use the folder instead: {shell_quoted(os.path.dirname(folder) or '.')}.",
        )
    return locate(folder, guard)
