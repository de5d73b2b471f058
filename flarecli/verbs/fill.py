"""What a listing leaves out: rows, sizes and columns from the headers of shards, sums from their bytes, in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np

from flarecli import formats
from flarecli.errors import IntegrityError, UsageError
from flarecli.hashes import Sums, known
from flarecli.model import Columns, File, Stream
from flarecli.storage import Location

__all__ = ["filled", "summed"]

_REMOTE_JOBS = 16  # waiting for a network takes no core

A = TypeVar("A")
B = TypeVar("B")


def _each(work: Callable[[A], B], items: Iterable[A], local: bool) -> Iterator[B]:
    """Do the work on all items in parallel; results come in order, and the first error ends it."""
    pool = ThreadPoolExecutor((os.cpu_count() or 1) if local else _REMOTE_JOBS, "fill")
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def filled(stream: Stream) -> Stream:
    """Give a stream with its rows, sizes and columns known; only shards that are not fully listed are opened.

    raises  UsageError if shards have other columns than the first; whatever opening a shard raises
    """
    rows = np.full(len(stream), -1, np.int64) if stream.rows is None else stream.rows.copy()
    size = np.full(len(stream), -1, np.int64) if stream.sizes is None else stream.sizes.copy()
    unknown = {*np.flatnonzero((rows < 0) | (size < 0)).tolist(), *([0] if stream.columns is None and len(stream) else [])}

    def opened(i: int) -> tuple[int, int, Columns]:
        chunk = stream.chunk(i)
        (listed,) = chunk.files
        listed = replace(listed, size=chunk.at.size()) if listed.size is None else listed
        if chunk.rows is not None and stream.columns is not None:
            return listed.size or 0, chunk.rows, stream.columns
        shard = formats.find(chunk.format or "").open_shard(replace(chunk, files=(listed,)), stream.columns)
        return listed.size or 0, shard.rows, shard.columns

    columns = stream.columns
    order = sorted(unknown)
    for i, (bytes_, count, own) in zip(order, _each(opened, order, stream.at.is_local), strict=True):
        size[i], rows[i] = bytes_, count
        columns = own if columns is None else columns
        if own != columns:
            raise UsageError("has other columns than the shards before", where=stream.chunk(i).at, hint="List them as streams of their own.")
    return replace(stream, rows=rows, sizes=size, columns=columns)


def summed(stream: Stream, names: Sequence[str]) -> Stream:
    """Give a stream with these sums of every chunk and of every file that belongs to none; only what lacks one is read.

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
    files = {}
    for name, file in stream.files.items():
        if not all(one in file.hashes for one in names):
            whole = _sums(stream.at.join(name), file, names)
            file = File(file.name, whole.size, {**file.hashes, **{one: whole.hex()[one] for one in names}})
        files[name] = file
    return replace(stream, hashes={**stream.hashes, **sums}, files=files)


def _sums(at: Location, listed: File, names: Sequence[str]) -> Sums:
    """Sum a file, and hold it against what is listed of it on the way."""
    sums = Sums({*names, *(name for name in listed.hashes if name in known())})
    for block in at.blocks():
        sums.update(block)
    if wrong := sums.differences(listed.hashes):
        raise IntegrityError(f"{sums.size} bytes fail {', '.join(wrong)}", where=at, hint="Run `flare verify`; a playlist would hide the damage.")
    return sums
