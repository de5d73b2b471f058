"""Shard cache of a StreamingDataset. It fetches shards into local folders and evicts shards."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from itertools import accumulate
from typing import Any

from flarecli.cache import BATCH_SHARE, MANY_COPIES, least_recently_used_first
from flarecli.compat.streaming.base.format.reader import Reader, Shards
from flarecli.compat.streaming.base.stream import Stream
from flarecli.errors import UsageError
from flarecli.formats import INDEX

__all__ = ["ShardCache"]

MIN_SHARDS_IN_LIMIT = 4  # minimum cache limit, in multiples of the largest shard


class ShardCache(Sequence[Any]):
    """The concatenated shards of all streams.

    parts   the shards of each stream
    limit   maximum bytes in the local folders, including indexes; None means unlimited
    raises  UsageError for a limit that is too small
    """

    def __init__(
        self, streams: Sequence[Stream], parts: Sequence[Shards], limit: int | None
    ) -> None:
        self._streams, self._parts, self.limit = streams, parts, limit
        self._firsts = [0, *accumulate(map(len, parts))]  # the first shard of each stream
        self._index_bytes = sum(
            os.path.getsize(os.path.join(stream.folder, INDEX)) for stream in streams
        )
        if limit is None:
            return
        if limit <= self._index_bytes:
            raise UsageError(
                f"Minimum cache usage ({self._index_bytes} bytes) is larger than the cache limit "
                f"({limit} bytes)",
                hint="Increase `cache_limit` above the size of the indexes.",
            )
        largest = max(
            sum(size for _, size in part.files(i)) for part in parts for i in range(len(part))
        )
        if limit < MIN_SHARDS_IN_LIMIT * largest:
            raise UsageError(
                f"Cache limit ({limit} bytes) is too low. Increase the `cache_limit` to at least "
                f"{MIN_SHARDS_IN_LIMIT * largest} bytes, four times the largest shard"
            )

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        return self.of(range(len(self))[i])[1]

    def of(self, shard: int) -> tuple[Stream, Reader]:
        """Return the stream and the reader of a shard."""
        k = bisect_right(self._firsts, shard) - 1
        return self._streams[k], self._parts[k][shard - self._firsts[k]]

    def fetch(self, shard: int) -> None:
        """Fetch a shard into its folder; evict other shards first if the limit requires it."""
        stream, reader = self.of(shard)
        if not stream.is_present(reader):
            with stream.lock():
                if not stream.is_present(reader):
                    if self.limit:
                        self._make_room(shard)
                    with self._changing(shard):
                        stream.prepare(reader)
        if self.limit:
            for raw, _ in reader.file_pairs:
                with suppress(FileNotFoundError):  # another process has evicted the file
                    os.utime(os.path.join(stream.folder, raw.basename))

    def evict(self, shard: int) -> int:
        """Remove a shard from its folder if another copy exists.

        Return the number of freed bytes.
        """
        stream, reader = self.of(shard)
        if not stream.is_copied:
            return 0
        with self._changing(shard):
            stream.forget(reader)
            return reader.evict()

    def evict_coldest(self) -> None:
        """Remove the least recently used shard that has another copy."""
        for _, shard, _ in self._by_use():
            if self.evict(shard):
                return

    def used(self) -> int:
        """Return the size of shards and indexes in the local folders, in bytes."""
        return self._index_bytes + sum(folder.used() for folder in self._folders.values())

    @cached_property
    def _folders(self) -> dict[str, _Folder]:
        """The local folders of all shards."""
        files: dict[str, dict[str, tuple[int, int]]] = {}
        for shard in range(len(self)):
            for folder, name, size in self._files(shard):
                files.setdefault(folder, {})[name] = shard, size
        return {folder: _Folder(folder, listed) for folder, listed in files.items()}

    def _files(self, shard: int) -> Iterator[tuple[str, str, int]]:
        """Yield the folder, name and size of each file of a shard, including compressed files."""
        k = bisect_right(self._firsts, shard) - 1
        for name, size in self._parts[k].files(shard - self._firsts[k]):
            folder, name = os.path.split(os.path.join(self._streams[k].folder, name))
            yield folder, name, size

    @contextmanager
    def _changing(self, shard: int) -> Iterator[None]:
        """Update the used sizes after the `with` block, which adds or removes the files of a shard.

        No folder is listed.
        """
        with ExitStack() as stack:
            if "_folders" in self.__dict__:
                names: dict[str, list[str]] = {}
                for folder, name, _ in self._files(shard):
                    names.setdefault(folder, []).append(name)
                for folder, changed in names.items():
                    stack.enter_context(self._folders[folder].changing(changed))
            yield

    def _by_use(self) -> list[tuple[float, int, int]]:
        """Return (time of last use, shard, bytes) for each local shard, sorted by time."""
        uses: dict[int, tuple[float, int, int]] = {}
        for folder in self._folders.values():
            for used, shard, size in folder.uses():
                known = uses.get(shard, (0.0, shard, 0))
                uses[shard] = max(used, known[0]), shard, size + known[2]
        return least_recently_used_first(uses.values())

    def _make_room(self, new: int) -> None:
        """Evict the least recently used shards until shard `new` fits in the limit.

        If the folders contain many shards, evict more shards than necessary, because each
        eviction reads the times of last use of all shards.
        """
        limit = self.limit or 0
        excess = self.used() - limit
        for folder, name, size in self._files(new):
            if not os.path.exists(os.path.join(folder, name)):
                excess += size
        if excess <= 0:
            return
        copies = self._by_use()
        if len(copies) > MANY_COPIES:
            excess += limit // BATCH_SHARE
        for _, shard, _ in copies:
            if excess <= 0:
                return
            if shard != new:
                excess -= self.evict(shard)


class _Folder:
    """A folder with files of shards.

    After a change by this process, the folder is not listed again, because a listing of 10,000
    files takes 15 ms. Its modification time shows a change by another process.

    files  file name -> (shard, size in the index); all other files are ignored
    """

    def __init__(self, path: str, files: Mapping[str, tuple[int, int]]) -> None:
        self._path, self._files = path, files
        self._used, self._changed = 0, -1

    def used(self) -> int:
        """Return the total size of the shard files in the folder, as listed in the index."""
        changed = self._mtime_ns()
        if changed != self._changed:
            self._used, self._changed = self._size(self._names()), changed
        return self._used

    @contextmanager
    def changing(self, names: Sequence[str]) -> Iterator[None]:
        """Update the used size after the `with` block, which adds or removes files."""
        rest = self.used() - self._size(self._present(names))
        yield
        self._used, self._changed = rest + self._size(self._present(names)), self._mtime_ns()

    def uses(self) -> Iterator[tuple[float, int, int]]:
        """Yield (time of last use, shard, size in the index) for each shard file in the folder."""
        for name in self._names():
            if name in self._files:
                with suppress(FileNotFoundError):
                    yield os.lstat(os.path.join(self._path, name)).st_mtime, *self._files[name]

    def _names(self) -> list[str]:
        with suppress(FileNotFoundError):
            return os.listdir(self._path)
        return []

    def _present(self, names: Iterable[str]) -> Iterator[str]:
        return (name for name in names if os.path.exists(os.path.join(self._path, name)))

    def _size(self, names: Iterable[str]) -> int:
        return sum(self._files[name][1] for name in names if name in self._files)

    def _mtime_ns(self) -> int:
        """Return the modification time of the folder in nanoseconds; 0 if it does not exist."""
        try:
            return os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return 0
