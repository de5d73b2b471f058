"""What of its shards a StreamingDataset has in its local folders: brought, counted, and let go of."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from flarecli.compat.streaming.local import Shards
from flarecli.compat.streaming.reader import Reader
from flarecli.compat.streaming.streams import Stream
from flarecli.errors import UsageError

__all__ = ["Cached"]


class Cached(Sequence[Any]):
    """The shards of all streams, one after the other.

    limit   bytes that they may take in the local folders; None: no limit
    raises  UsageError for a limit that is smaller than a shard
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        parts: Sequence[Shards],
        firsts: Sequence[int],
        limit: int | None,
    ) -> None:
        self._streams, self._parts, self._firsts, self.limit = streams, parts, firsts, limit
        largest = max((one.get_max_size() for one in self), default=0) if limit else 0
        if limit and limit < largest:
            raise UsageError(f"a cache_limit of {limit} bytes cannot hold a shard of {largest}")

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        return self.of(range(len(self))[i])[1]

    def of(self, shard: int) -> tuple[Stream, Reader]:
        """Give a shard and the stream that it is of."""
        k = bisect_right(self._firsts, shard) - 1
        return self._streams[k], self._parts[k][shard - self._firsts[k]]

    def bring(self, shard: int) -> None:
        """Bring a shard into its folder, first letting go of others where the limit asks for it."""
        stream, reader = self.of(shard)
        if not stream.is_present(reader):
            with stream.turn():
                if not stream.is_present(reader):
                    if self.limit:
                        self._make_room(reader.get_max_size())
                    stream.prepare(reader)
        if self.limit:
            _touch(stream, reader)

    def let_go(self, shard: int) -> None:
        """Remove a shard from its folder; never one that has no other copy."""
        stream, reader = self.of(shard)
        if stream.is_copied:
            reader.evict()

    def let_go_of_coldest(self) -> None:
        """Remove the shard that was used longest ago, if one of those that are there has another copy."""
        for _, _, shard in sorted(self._there()):
            if self.of(shard)[0].is_copied:
                return self.let_go(shard)
        return None

    def used(self) -> int:
        """Bytes that the shards take in the local folders now."""
        return sum(size for _, size, _ in self._there())

    def _there(self) -> list[tuple[float, int, int]]:
        """Give the shards that are there: when each was last used, its bytes, its number."""
        found = []
        for i in range(len(self)):
            stream, reader = self.of(i)
            states = [
                _stat(os.path.join(stream.folder, info.basename))
                for pair in reader.file_pairs
                for info in pair
                if info
            ]
            sizes = [one.st_size for one in states if one is not None]
            if sizes:
                found.append(
                    (max(one.st_mtime for one in states if one is not None), sum(sizes), i)
                )
        return found

    def _make_room(self, wanted: int) -> None:
        there = sorted(self._there())
        used = sum(size for _, size, _ in there)
        for _, size, i in there:
            if used + wanted <= (self.limit or used + wanted):
                return
            if self.of(i)[0].is_copied:
                self.let_go(i)
                used -= size


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _touch(stream: Stream, reader: Reader) -> None:
    for raw, _ in reader.file_pairs:
        if _stat(path := os.path.join(stream.folder, raw.basename)) is not None:
            os.utime(path, (time.time(), time.time()))
