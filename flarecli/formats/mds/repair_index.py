"""A lost `index.json` made again out of the shards: each holds its config, all else is counted and summed.

Where the original wrote the shards, the index comes out as it was, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flarecli.compress import SUFFIXES
from flarecli.errors import FormatError, MissingError, UsageError
from flarecli.formats import byte_ranges as spans
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds.index import (
    FAMILY,
    Listed,
    entry,
    name_of,
    open_dataset,
    raw_name,
    write_entries,
)
from flarecli.formats.registry import INDEX, find
from flarecli.hashes import Sums
from flarecli.model import Chunk, File, Settings, Shard, Stream
from flarecli.storage import Location

__all__ = ["rebuild"]

_NAME = re.compile(
    rf"shard\.(\d{{5,12}})\.({'|'.join(FAMILY)})(\.meta)?(?:\.({'|'.join(SUFFIXES)}))?", re.ASCII
)


@dataclass
class _Found:
    """The files of one shard: the name it has when it is not compressed, and what is there of the data and of the `.meta`."""

    form: str
    name: str
    data: set[str]
    meta: set[str]


def rebuild(at: Location, replace: bool = False) -> Stream:
    """Write the `index.json` of a folder of shards, in the order of their numbers; give what it lists.

    replace  whether an index that is there is written over
    raises   MissingError if there are no shards, or one lacks its `.meta`; FormatError for a gap in the numbers, a broken shard, or
             shards that differ in format or columns; UsageError if an index is there
    """
    if not replace and (at / INDEX).exists():
        raise UsageError(
            "there is an index",
            where=at / INDEX,
            hint="Delete it first, if `flare verify` finds it wrong.",
        )
    entries, columns, listed = [], None, Listed()
    for found in _shards(at):
        shard, config = _opened(at, found)
        if columns is not None and shard.columns != columns:
            raise FormatError(f"other columns than {name_of(0, found.form)}", where=shard.chunk.at)
        columns = shard.columns
        entries.append(_entry(at, found, shard, config))
        listed.add(
            entries[-1], f"{shard.chunk.at}: its config", frozenset()
        )  # nothing is written that would not be read
    write_entries(at, {"shards": entries, "version": 2}, replace=replace)
    return open_dataset(at)


def _shards(at: Location) -> list[_Found]:
    """Sort the names of a folder into shards; what has another name is no shard."""
    shards: dict[int, _Found] = {}
    for listed in at.list():
        match = _NAME.fullmatch(listed.name)
        if not match or match[1] != f"{int(match[1]):05d}":
            continue
        found = shards.setdefault(
            int(match[1]), _Found(match[2], name_of(int(match[1]), match[2]), set(), set())
        )
        if found.form != match[2]:
            raise FormatError(f"both {found.form} and {match[2]} have a shard {match[1]}", where=at)
        (found.meta if match[3] else found.data).add(listed.name)
    if not shards:
        raise MissingError(
            "no shards in it",
            where=at,
            hint="Name the folder that holds files such as shard.00000.mds.",
        )
    for want, number in enumerate(sorted(shards)):
        if number != want or not shards[number].data:
            name, last = name_of(want, shards[number].form), shards[max(shards)]
            raise FormatError(
                f"{name} is missing, {min(last.data | last.meta)} is there",
                where=at,
                hint="Fetch it first.",
            )
    forms = {found.form for found in shards.values()}
    if len(forms) > 1:
        raise FormatError(
            f"shards of {' and '.join(sorted(forms))}",
            where=at,
            hint="Move those of one format to a folder of their own.",
        )
    return [shards[number] for number in sorted(shards)]


def _stored(names: set[str], plain: str, where: Location) -> str:
    """Choose the file that is compressed, if there is one. Raises FormatError for several."""
    zipped = sorted(names - {plain})
    if len(zipped) > 1:
        raise FormatError(
            f"both {zipped[0]} and {zipped[1]} are there",
            where=where,
            hint="Move one of them away.",
        )
    return zipped[0] if zipped else plain


def _opened(at: Location, found: _Found) -> tuple[Shard, dict[str, Any]]:
    main = _stored(found.data, found.name, at)
    beside: tuple[Location, ...] = ()
    files: tuple[File, ...] = (File(main),)
    if found.form != "mds":
        meta = _stored(found.meta, f"{found.name}.meta", at)
        beside, files = (at / meta,), (File(main), File(meta))
    shard = find(found.form).open_shard(Chunk(at / main, None, files, found.form, beside))
    config, _ = mds_config.parse_config(_config(shard, found.form), found.form, shard.chunk.at)
    wanted = mds_config.config(found.form, shard.columns, Settings())
    if config.keys() != wanted.keys():
        raise FormatError(
            f"its config has the keys {', '.join(sorted(config))}, {', '.join(sorted(wanted))} are wanted"[
                :300
            ],
            where=shard.chunk.at,
        )
    if config["format"] != found.form:
        raise FormatError(
            f"its config is of format {config['format']!r:.60}, not {found.form}",
            where=shard.chunk.at,
        )
    return shard, config


def _config(shard: Shard, form: str) -> bytes:
    """Read the config: before the first sample, or at the end of the `.meta`."""
    chunk, start = shard.chunk, 8 + 4 * shard.rows
    if form == "mds":
        stop = int(shard.layout["starts"][0])
    else:
        chunk = spans.of(chunk.beside[0])
        view = spans.whole(chunk)
        stop = spans.stored_size(chunk) if view is None else len(view)
    return bytes(spans.read(chunk, [(start, stop)])[0])


def _entry(at: Location, found: _Found, shard: Shard, config: Mapping[str, Any]) -> dict[str, Any]:
    chunk = shard.chunk
    locations = (chunk.at, *chunk.beside)
    zipped = {spans.suffix(spans.of(one)) for one in locations}
    said = config["compression"]
    if len(zipped) > 1 or (
        any(zipped) and (not isinstance(said, str) or {said.partition(":")[0]} != zipped)
    ):
        raise FormatError(
            f"its config says compression {said!r:.60}, its name {' and '.join(sorted(zipped))!r}",
            where=chunk.at,
        )
    hashes = config["hashes"]
    if not isinstance(hashes, list) or not all(isinstance(name, str) for name in hashes):
        raise FormatError("its config's hashes are not a list of names", where=chunk.at)
    try:
        files = tuple(_summed(one, hashes) for one in locations)
    except UsageError as error:
        raise FormatError(
            f"its config names hashes that are not known: {error.message}", where=chunk.at
        ) from None
    now = {**config, "compression": said if any(zipped) else None}
    return entry(now, Chunk(chunk.at, shard.rows, files, found.form))


def _summed(at: Location, hashes: list[str]) -> File:
    """Weigh and sum one file, and what it is when decompressed."""
    chunk, sums = spans.of(at), Sums(hashes)
    size = at.size()
    for block in at.blocks(size) if hashes else ():
        sums.update(block)
    view = spans.whole(chunk) if raw_name(at.name) != at.name else None
    if view is None:
        return File(at.name, size, sums.hex())
    raw = Sums(hashes)
    raw.update(view)
    return File(at.name, size, sums.hex(), len(view), raw.hex())
