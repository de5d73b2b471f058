"""Parts of a pack: datasets in `00000/`, `00001/`, … below one target, put behind one another by one index and one playlist.

A part is a dataset of its own, packed by itself, in any order and by anybody; what joins them reads their playlists alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flarecli import playlists
from flarecli.errors import FormatError
from flarecli.formats import FAMILY, mds_merge
from flarecli.hashes import DEFAULT, Sums
from flarecli.model import File, IntArray, Playlist, Stream
from flarecli.storage import Location
from flarecli.write.failures import FAILED

__all__ = ["join", "part_name", "span"]


def part_name(number: int) -> str:
    """Name the folder of a part: five digits, more past 99,999."""
    return f"{number:05d}"


def span(number: int, part_rows: int, rows: int) -> tuple[int, int]:
    """Give the rows of the source, from and to, that a part packs."""
    return number * part_rows, min((number + 1) * part_rows, rows)


def join(at: Location, names: Sequence[str], headers: Mapping[str, Any]) -> Stream:
    """Write the index and the playlist over parts below a folder, the playlist last; give what it lists.

    names   folders of the parts, in the order of the rows; one without a playlist is passed over: no row of it was selected
    raises  FormatError for a playlist that cannot be read, or parts of other columns
    """
    parts = [(name, playlists.read(at / f"{name}/{playlists.PLAYLIST}").streams[0]) for name in names]
    files = {file.name: file for name, part in parts for file in _files(at, name, part)}
    if any(FAILED in part.files for _, part in parts):
        written = (at / FAILED).write(_failures(at, parts), {DEFAULT})
        files[FAILED] = File(FAILED, written.size, written.hashes)
    format = parts[0][1].format or ""
    if format in FAMILY:
        files |= mds_merge.merge(at, [at / name for name, part in parts if len(part)])
    stream = _joined(at, parts, headers, files)
    playlists.write(at / playlists.PLAYLIST, Playlist((stream,)))
    return stream


def _files(at: Location, name: str, part: Stream) -> Iterator[File]:
    """Give the files of a part that are no shards, as its folder's parent sees them; its playlist is one of them."""
    for file in part.files.values():
        yield replace(file, name=f"{name}/{file.name}")
    listing = at / f"{name}/{playlists.PLAYLIST}"
    sums = Sums([DEFAULT])
    for block in listing.blocks():
        sums.update(block)
    yield File(f"{name}/{playlists.PLAYLIST}", sums.size, sums.hex())


def _failures(at: Location, parts: Sequence[tuple[str, Stream]]) -> Iterator[bytes]:
    """Give the failed rows of all parts, each at its place in the whole selection."""
    before = 0
    for name, part in parts:
        failed = 0
        if FAILED in part.files:
            where = at / f"{name}/{FAILED}"
            for line in where.read(0, where.size()).splitlines():
                entry = json.loads(line)
                yield (json.dumps({**entry, "row": before + entry["row"]}) + "\n").encode()
                failed += 1
        before += failed + (0 if part.rows is None else int(part.rows.sum()))


def _joined(at: Location, parts: Sequence[tuple[str, Stream]], headers: Mapping[str, Any], files: Mapping[str, File]) -> Stream:
    held = [(name, part) for name, part in parts if len(part)] or list(parts[:1])
    first = held[0][1]
    for name, part in held:
        if (part.columns, part.format) != (first.columns, first.format):
            raise FormatError("has other columns than the parts before", where=at / name, hint="Give --encode for the columns that differ.")
    hashes = {key: [one for _, part in held for one in part.hashes[key]] for key in first.hashes}
    companions = [tuple(replace(file, name=f"{name}/{file.name}") for file in one) for name, part in held for one in (part.parts or [()] * len(part))]
    kept = {key: value for key, value in first.headers.items() if key not in headers}
    return Stream(
        "data",
        at,
        first.format,
        [f"{name}/{url}" for name, part in held for url in part.urls],
        first.columns,
        _counts([part.rows for _, part in held]),
        _counts([part.sizes for _, part in held]),
        hashes,
        None if first.raw_sizes is None else _counts([part.raw_sizes for _, part in held]),
        {},
        {**kept, **headers},
        files,
        companions if any(companions) else (),
    )


def _counts(counts: Sequence[IntArray | None]) -> IntArray:
    return np.concatenate([np.zeros(0, np.int64), *(one for one in counts if one is not None)])
