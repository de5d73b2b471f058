"""Checksum of a shard listing, saved with each cursor so that no run resumes on different data.

The checksum covers the columns. It also covers the listed facts of each shard, in order: number of
rows, size and checksums, and the sizes and checksums of companion files. Shard names are covered
only if checksums are missing. Addresses are not covered, so moved and copied datasets keep the
checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from flarecli.hashes import DEFAULT, Sums
from flarecli.model import Columns, IntArray, Stream

__all__ = ["checksum_of", "listing_checksum"]


def listing_checksum(streams: Sequence[Stream], columns: Columns, rows: IntArray) -> str:
    """Return the listing checksum of the first `len(rows)` shards of concatenated streams.

    rows    int64 [shards]: number of rows in each shard
    raises  ReachError if the size of a file is not listed and the file cannot be reached
    """
    parts = [_json([(column.name, column.encoding) for column in columns]), _int64_bytes(rows)]
    shards = len(rows)
    for stream in streams:
        count = min(shards, len(stream))
        if count:
            parts += _listing(stream, count)
        shards -= count
    return checksum_of(parts)


def checksum_of(parts: Sequence[bytes]) -> str:
    """Return one checksum of several byte strings and of their lengths."""
    sums = Sums([DEFAULT])
    for part in parts:
        sums.update(len(part).to_bytes(8, "little"))
        sums.update(part)
    return sums.hex()[DEFAULT]


def _listing(stream: Stream, count: int) -> Iterator[bytes]:
    """Yield the listed sizes, checksums and names of the first `count` shards of a stream."""
    sizes = np.full(count, -1, np.int64)
    if stream.sizes is not None:
        sizes[:] = stream.sizes[:count]
    for i in np.flatnonzero(sizes < 0).tolist():
        sizes[i] = stream.at.join(stream.urls[i]).size()
    yield _int64_bytes(sizes)
    is_complete = False
    for kind, hashes in (("stored", stream.hashes), ("raw", stream.raw_hashes)):
        for name in sorted(hashes):
            values = list(islice(hashes[name], count))
            is_complete = is_complete or all(values)
            if not any(values) and any(hashes[name]):
                continue  # only later shards have this checksum, such as shards of an append
            yield _json([kind, name, values])
    if not is_complete:
        names = (url.partition("?")[0].rpartition("/")[2] for url in stream.urls)
        yield _json(list(islice(names, count)))
    if any(stream.parts):
        companions = islice(stream.parts, count)
        yield _json(
            [[(file.size, sorted(file.hashes.items())) for file in files] for files in companions]
        )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _int64_bytes(values: IntArray) -> bytes:
    return np.asarray(values, "<i8").tobytes()
