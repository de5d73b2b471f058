"""What a listing leaves out: rows, sizes and columns from the headers of shards, sums from their bytes, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from flarecli import formats
from flarecli.cpus import cpu_count
from flarecli.errors import IntegrityError, UsageError
from flarecli.hashes import Sums, known
from flarecli.model import Columns, File, Stream
from flarecli.prefetch import ordered_map
from flarecli.storage import Location

__all__ = ["filled", "summed"]

_REMOTE_JOBS = 16  # waiting for a network takes no core

A = TypeVar("A")
B = TypeVar("B")


def _each(work: Callable[[A], B], items: Iterable[A], local: bool) -> Iterator[B]:
    """Do the work on all items in parallel and yield the results in order, up to the first error."""
    return ordered_map(work, items, workers=cpu_count() if local else _REMOTE_JOBS)


def filled(stream: Stream) -> Stream:
    """Give a stream with its rows, sizes and columns known; only shards that are not fully listed are opened.

    raises  UsageError if shards have other columns than the first; whatever opening a shard raises
    """
    rows = np.full(len(stream), -1, np.int64) if stream.rows is None else stream.rows.copy()
    size = np.full(len(stream), -1, np.int64) if stream.sizes is None else stream.sizes.copy()
    unknown = {
        *np.flatnonzero((rows < 0) | (size < 0)).tolist(),
        *([0] if stream.columns is None and len(stream) else []),
    }

    unknown |= {i for i, one in enumerate(stream.parts) if any(file.size is None for file in one)}

    def opened(i: int) -> tuple[int, int, Columns, tuple[File, ...]]:
        chunk = stream.chunk(i)
        main, *beside = (
            _sized(file, at)
            for file, at in zip(chunk.files, (chunk.at, *chunk.beside), strict=True)
        )
        if chunk.rows is not None and stream.columns is not None:
            return main.size or 0, chunk.rows, stream.columns, tuple(beside)
        shard = formats.find(chunk.format or "").open_shard(
            replace(chunk, files=(main, *beside)), stream.columns
        )
        if not beside:  # of a shard that was named alone, only the format knows the companions
            folder = stream.urls[i].rpartition("/")[0]
            named = zip(shard.chunk.files[1:], shard.chunk.beside, strict=True)
            beside = [
                _sized(replace(file, name=f"{folder}/{at.name}" if folder else at.name), at)
                for file, at in named
            ]
        return main.size or 0, shard.rows, shard.columns, tuple(beside)

    columns = stream.columns
    parts = list(stream.parts) or [()] * len(stream)
    order = sorted(unknown)
    for i, (bytes_, count, own, beside) in zip(
        order, _each(opened, order, stream.at.is_local), strict=True
    ):
        size[i], rows[i], parts[i] = bytes_, count, beside
        columns = own if columns is None else columns
        if own != columns:
            raise UsageError(
                "has other columns than the shards before",
                where=stream.chunk(i).at,
                hint="List them as streams of their own.",
            )
    return replace(
        stream, rows=rows, sizes=size, columns=columns, parts=parts if any(parts) else ()
    )


def _sized(file: File, at: Location) -> File:
    return replace(file, size=at.size()) if file.size is None else file


def summed(stream: Stream, names: Sequence[str]) -> Stream:
    """Give a stream with these sums of every chunk, its companions, and every file that belongs to none; only what lacks one is read.

    raises  UsageError for an unknown hash; IntegrityError if what is read is not what is listed
    """
    sums = {name: list(stream.hashes.get(name) or [""] * len(stream)) for name in names}
    order = [i for i in range(len(stream)) if not all(values[i] for values in sums.values())]

    def of_chunk(i: int) -> dict[str, str]:
        chunk = stream.chunk(i)
        return _sums(chunk.at, chunk.files[0], names).hex()

    for i, found in zip(order, _each(of_chunk, order, stream.at.is_local), strict=True):
        for name in names:
            sums[name][i] = found[name]

    def of_file(file: File) -> File:
        if all(one in file.hashes for one in names):
            return file
        whole = _sums(stream.at.join(file.name), file, names)
        return replace(
            file,
            size=whole.size,
            hashes={**file.hashes, **{one: whole.hex()[one] for one in names}},
        )

    parts = list(_each(lambda one: tuple(map(of_file, one)), stream.parts, stream.at.is_local))
    return replace(
        stream,
        hashes={**stream.hashes, **sums},
        files={name: of_file(file) for name, file in stream.files.items()},
        parts=parts,
    )


def _sums(at: Location, listed: File, names: Sequence[str]) -> Sums:
    """Sum a file, and hold it against what is listed of it on the way."""
    sums = Sums({*names, *(name for name in listed.hashes if name in known())})
    for block in at.blocks():
        sums.update(block)
    if wrong := sums.differences(listed.hashes):
        raise IntegrityError(
            f"{sums.size} bytes fail {', '.join(wrong)}",
            where=at,
            hint="Run `flare verify`; a playlist would hide the damage.",
        )
    return sums
