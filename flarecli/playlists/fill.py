"""Add missing facts to a playlist, in parallel.

Rows, sizes and columns are read from the headers of shards. Checksums are computed from the bytes
of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from flarecli import encodings, formats
from flarecli.errors import IntegrityError, UsageError
from flarecli.hashes import Sums, known
from flarecli.model import Columns, File, Stream
from flarecli.playlists.schema import SCHEMA
from flarecli.prefetch import cpu_count, ordered_map
from flarecli.progress import Progress
from flarecli.storage import Location
from flarecli.units import format_list

__all__ = ["described", "filled", "summed", "without_sums"]

_REMOTE_JOBS = 16  # may exceed the CPU count, because remote jobs wait for the network

A = TypeVar("A")
B = TypeVar("B")


def _map(call: Callable[[A], B], items: Iterable[A], at: Location) -> Iterator[B]:
    """Call a function for all items in parallel, and yield the results in the items' order."""
    return ordered_map(call, items, workers=cpu_count() if at.is_local else _REMOTE_JOBS)


def described(streams: Sequence[Stream]) -> Sequence[Stream]:
    """Return the streams of one dataset with the columns and Arrow types of all its table files.

    If all streams list the same columns and types, no file is opened. If the format of any stream
    does not store Arrow types, all streams are returned unchanged.

    raises  FormatError if files have different columns; any error from opening a file
    """
    if not all(formats.facts(stream.format).typed for stream in streams):
        return streams
    listed = [_with_listed_types(stream) for stream in streams]
    return formats.facts(streams[0].format).described(listed)


def _with_listed_types(stream: Stream) -> Stream:
    header: Any = stream.headers.get(SCHEMA)
    if stream.types or not header or stream.columns is None:
        return stream
    if header.keys() != {one.name for one in stream.columns}:
        return stream
    types = {name: encodings.parse_type(kind) for name, kind in header.items()}
    return replace(stream, types=types)


def filled(stream: Stream, progress: Progress | None = None) -> Stream:
    """Return a stream with its columns, and with the row count and size of every shard.

    A shard is opened only if its row count or the columns are not listed. If the format stores
    Arrow types and a playlist can list all of these types, the types are added to the headers.

    progress  receives the number of finished shards, including shards that are not opened
    raises    UsageError if shards have different columns; any error from opening a shard
    """
    (stream,) = described([stream])
    rows = np.full(len(stream), -1, np.int64) if stream.rows is None else stream.rows.copy()
    sizes = np.full(len(stream), -1, np.int64) if stream.sizes is None else stream.sizes.copy()
    incomplete = {
        *np.flatnonzero((rows < 0) | (sizes < 0)).tolist(),
        *(i for i, files in enumerate(stream.parts) if any(file.size is None for file in files)),
    }
    if stream.columns is None and len(stream):
        incomplete.add(0)

    def read_header(i: int) -> tuple[int, int, Columns, tuple[File, ...]]:
        chunk = stream.chunk(i)
        main, *companions = (
            _with_size(file, at)
            for file, at in zip(chunk.files, (chunk.at, *chunk.companions), strict=True)
        )
        if chunk.rows is not None and stream.columns is not None:
            return main.size or 0, chunk.rows, stream.columns, tuple(companions)
        shard = formats.find(chunk.format or "").open_shard(
            replace(chunk, files=(main, *companions)), stream.columns
        )
        if not companions:  # add the companion files that the format found
            folder = stream.urls[i].rpartition("/")[0]
            for file, at in zip(shard.chunk.files[1:], shard.chunk.companions, strict=True):
                name = f"{folder}/{at.name}" if folder else at.name
                companions.append(_with_size(replace(file, name=name), at))
        return main.size or 0, shard.rows, shard.columns, tuple(companions)

    columns = stream.columns
    parts = list(stream.parts) or [()] * len(stream)
    order, progress = sorted(incomplete), progress or Progress()
    progress.advance(len(stream) - len(order), 0)
    headers = _map(read_header, order, stream.at)
    for i, (size, count, shard_columns, companions) in zip(order, headers, strict=True):
        progress.advance(1, 0)
        sizes[i], rows[i], parts[i] = size, count, companions
        columns = shard_columns if columns is None else columns
        if shard_columns != columns:
            raise UsageError(
                "columns differ from the columns of earlier shards",
                where=stream.chunk(i).at,
                hint="List these shards as a separate stream.",
            )
    stream = replace(
        stream, rows=rows, sizes=sizes, columns=columns, parts=parts if any(parts) else ()
    )
    return _with_schema_header(stream) if stream.types else stream


def _with_schema_header(stream: Stream) -> Stream:
    kinds = {name: encodings.without_variants(kind) for name, kind in stream.types.items()}
    header = {name: encodings.type_header(kind) for name, kind in kinds.items()}
    if None in header.values():  # a playlist cannot list this type, so readers open the files
        return stream
    return replace(stream, headers={**stream.headers, SCHEMA: header})


def _with_size(file: File, at: Location) -> File:
    return replace(file, size=at.size()) if file.size is None else file


def without_sums(stream: Stream, names: Sequence[str]) -> list[int]:
    """Return the positions of the chunks for which at least one of the checksums is not listed."""
    listed = [stream.hashes.get(name) or [""] * len(stream) for name in names]
    return [i for i in range(len(stream)) if not all(values[i] for values in listed)]


def summed(stream: Stream, names: Sequence[str], progress: Progress | None = None) -> Stream:
    """Return a stream with checksums of all its chunks, companion files and other listed files.

    A file is read only if one of its checksums is not listed.

    names     names of the hash functions, such as `xxh3_128`
    progress  receives the number of chunks that were read, and the number of their bytes
    raises    UsageError for an unknown hash function; IntegrityError if the checksum of a file
              differs from the playlist
    """
    hashes = {name: list(stream.hashes.get(name) or [""] * len(stream)) for name in names}
    order, reported = without_sums(stream, names), progress or Progress()

    def sum_chunk(i: int) -> dict[str, str]:
        chunk = stream.chunk(i)
        return _compute_sums(chunk.at, chunk.files[0], names, reported).hex()

    for i, found in zip(order, _map(sum_chunk, order, stream.at), strict=True):
        reported.advance(1, 0)
        for name in names:
            hashes[name][i] = found[name]

    def sum_file(file: File) -> File:
        if all(name in file.hashes for name in names):
            return file
        sums = _compute_sums(stream.at.join(file.name), file, names)
        found = sums.hex()
        new = {name: found[name] for name in names}
        return replace(file, size=sums.size, hashes={**file.hashes, **new})

    def sum_files(files: tuple[File, ...]) -> tuple[File, ...]:
        return tuple(sum_file(file) for file in files)

    return replace(
        stream,
        hashes={**stream.hashes, **hashes},
        files={name: sum_file(file) for name, file in stream.files.items()},
        parts=list(_map(sum_files, stream.parts, stream.at)),
    )


def _compute_sums(
    at: Location, file: File, names: Sequence[str], progress: Progress | None = None
) -> Sums:
    """Return the checksums of a file. Raises IntegrityError if they differ from the playlist."""
    sums = Sums({*names, *(name for name in file.hashes if name in known())})
    for block in at.blocks():
        sums.update(block)
        if progress is not None:
            progress.advance(0, len(block))
    if different := sums.differences(file.hashes):
        raise IntegrityError(
            f"checksum mismatch: the {sums.size} bytes read do not match "
            f"{format_list(different)} in the playlist",
            where=at,
            hint="Find the damaged files with `flare verify`, and repair them first.",
        )
    return sums
