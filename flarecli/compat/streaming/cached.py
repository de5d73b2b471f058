"""The shards of a StreamingDataset in its local folders: brought, counted, and evicted."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

from flarecli.cache import BATCH_SHARE, MANY, NamedFiles, coldest_first
from flarecli.compat.streaming.local import Shards
from flarecli.compat.streaming.reader import Reader
from flarecli.compat.streaming.streams import Stream
from flarecli.errors import UsageError
from flarecli.formats import INDEX

__all__ = ["Cached"]

_SHARDS_IN_LIMIT = 4  # so many of the largest shard must fit


class Cached(Sequence[Any]):
    """The shards of all streams, one after the other.

    limit   bytes that the local folders may take, indexes included; None: no limit
    raises  UsageError for a limit that is too small
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        parts: Sequence[Shards],
        firsts: Sequence[int],
        limit: int | None,
    ) -> None:
        self._streams, self._parts, self._firsts, self.limit = streams, parts, firsts, limit
        self._index_bytes = sum(os.path.getsize(os.path.join(one.folder, INDEX)) for one in streams)
        if limit is None:
            return
        if limit <= self._index_bytes:
            raise UsageError(
                f"Minimum cache usage ({self._index_bytes} bytes) is larger than the cache limit ({limit} bytes)",
                hint="Raise `cache_limit`: the indexes alone take that much.",
            )
        largest = max(
            sum(size for _, size in part.files(i)) for part in parts for i in range(len(part))
        )
        if limit < _SHARDS_IN_LIMIT * largest:
            raise UsageError(
                f"Cache limit ({limit} bytes) is too low. Increase the `cache_limit` to at least "
                f"{_SHARDS_IN_LIMIT * largest} bytes, four times the largest shard"
            )

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        return self.of(range(len(self))[i])[1]

    def of(self, shard: int) -> tuple[Stream, Reader]:
        """Return a shard and its stream."""
        k = bisect_right(self._firsts, shard) - 1
        return self._streams[k], self._parts[k][shard - self._firsts[k]]

    def bring(self, shard: int) -> None:
        """Bring a shard into its folder; evict others first if the limit requires it."""
        stream, reader = self.of(shard)
        if not stream.is_present(reader):
            with stream.turn():
                if not stream.is_present(reader):
                    if self.limit:
                        self._make_room(shard)
                    with self._changing(shard):
                        stream.prepare(reader)
        if self.limit:
            for raw, _ in reader.file_pairs:
                _touch(os.path.join(stream.folder, raw.basename))

    def let_go(self, shard: int) -> int:
        """Remove a shard from its folder unless that is its only copy; return the bytes freed."""
        stream, reader = self.of(shard)
        if not stream.is_copied:
            return 0
        with self._changing(shard):
            stream.forget(reader)
            return reader.evict()

    def let_go_of_coldest(self) -> None:
        """Remove the shard that was used longest ago, among those that have another copy."""
        for _, shard, _ in self._by_use():
            if self.let_go(shard):
                return

    def used(self) -> int:
        """Return the bytes that shards and indexes take in the local folders now."""
        return self._index_bytes + sum(one.used() for one in self._folders.values())

    @cached_property
    def _owners(self) -> dict[str, dict[str, int]]:
        """Folder -> file name -> shard, for all files that shards may have there."""
        owners: dict[str, dict[str, int]] = {}
        for shard in range(len(self)):
            for folder, name, _ in self._files(shard):
                owners.setdefault(folder, {})[name] = shard
        return owners

    @cached_property
    def _folders(self) -> dict[str, NamedFiles]:
        sizes: dict[str, dict[str, int]] = {}
        for shard in range(len(self)):
            for folder, name, size in self._files(shard):
                sizes.setdefault(folder, {})[name] = size
        return {folder: NamedFiles(folder, one) for folder, one in sizes.items()}

    def _files(self, shard: int) -> Iterator[tuple[str, str, int]]:
        """Yield folder, name and bytes of each file of a shard, compressed ones included."""
        k = bisect_right(self._firsts, shard) - 1
        for name, size in self._parts[k].files(shard - self._firsts[k]):
            folder, name = os.path.split(os.path.join(self._streams[k].folder, name))
            yield folder, name, size

    @contextmanager
    def _changing(self, shard: int) -> Iterator[None]:
        """Add or remove a shard's files inside the block, and keep count of them if anything is counted."""
        with ExitStack() as stack:
            if "_folders" in self.__dict__:
                names: dict[str, list[str]] = {}
                for folder, name, _ in self._files(shard):
                    names.setdefault(folder, []).append(name)
                for folder, own in names.items():
                    stack.enter_context(self._folders[folder].changing(own))
            yield

    def _by_use(self) -> list[tuple[float, int, int]]:
        """List the shards that are in the folders, coldest first: when each was last used, its number, its bytes."""
        found: dict[int, tuple[float, int, int]] = {}
        for folder, files in self._folders.items():
            for used, name, size in files.copies():
                shard = self._owners[folder][name]
                before = found.get(shard, (0.0, shard, 0))
                found[shard] = max(used, before[0]), shard, size + before[2]
        return coldest_first(found.values())

    def _make_room(self, wanted: int) -> None:
        """Evict the coldest shards until one more fits; where there are many, more than that, so that they are listed seldom."""
        limit = self.limit or 0
        there = sum(
            self._folders[folder].present([name]) for folder, name, _ in self._files(wanted)
        )
        excess = self.used() - there + sum(size for _, _, size in self._files(wanted)) - limit
        if excess <= 0:
            return
        copies = self._by_use()
        if len(copies) > MANY:
            excess += limit // BATCH_SHARE
        for _, shard, _ in copies:
            if excess <= 0:
                return
            if shard != wanted:
                excess -= self.let_go(shard)


def _touch(path: str) -> None:
    """Note that a file is used now; one that was evicted meanwhile is no error."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return
