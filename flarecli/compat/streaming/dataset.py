"""StreamingDataset: remote shards through a local folder, in an order that depends on seed and epoch alone.

torch takes it for one of its IterableDatasets as soon as torch is loaded, and it loads no torch itself.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import numpy as np

from flarecli.compat import register
from flarecli.compat.streaming.epochs import Choice, Clock
from flarecli.compat.streaming.local import Shards
from flarecli.compat.streaming.reader import items
from flarecli.compat.streaming.streams import Stream
from flarecli.errors import MissingError, UsageError
from flarecli.formats import mds_config
from flarecli.model import IntArray, Sample

__all__ = ["StreamingDataset"]

_BLOCK = 1 << 18  # samples that are mixed, about
_FETCHERS = 4


class StreamingDataset:
    """Samples by position, fetching what is not there yet, or an epoch of them at a time, shared among ranks and a DataLoader's workers.

    streams       several datasets; or remote, local and split of one
    shuffle       mix the samples; `shuffle_algo="naive"` all of them, any other those of some shards at a time
    shuffle_seed  what the order depends on, with the epoch
    batch_size    samples that a worker gives in a row, so that a DataLoader's batches are those of the order
    predownload   samples ahead of which shards are fetched
    cache_limit   bytes that the local folders may take; the shard that was used longest ago goes first
    epoch_size    samples of an epoch
    validate_hash every sum that is listed is checked when a shard is fetched; this one must be
    raises        UsageError, MissingError, FormatError, UnsafeError (pickles, unless allow_unsafe_types)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> StreamingDataset:
        register(StreamingDataset, cls)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        num_canonical_nodes: int | None = None,
        **ignored: Any,
    ) -> None:
        if bool(streams) == bool(remote or local):
            raise UsageError("give either streams, or remote or local")
        unknown = sorted(
            set(ignored) - {"sampling_method", "sampling_granularity", "partition_algo", "batching_method", "stream_name", "stream_config"}
        )
        if unknown:
            raise UsageError(f"no argument {unknown[0]!r}")
        how: dict[str, Any] = {"download_retry": download_retry, "download_timeout": download_timeout}
        how |= {"validate_hash": validate_hash, "keep_zip": keep_zip}
        self.streams = list(streams or ()) or [Stream(remote=remote, local=local, split=split, **how)]
        self.batch_size, self.predownload = batch_size, predownload if predownload is not None else 8 * batch_size if batch_size else 64
        self.shuffle, self.shuffle_algo, self.shuffle_seed = shuffle, shuffle_algo, shuffle_seed
        self.shuffle_block_size, self.replication = shuffle_block_size or _BLOCK, replication
        self.cache_limit = mds_config.size_limit(cache_limit, "cache_limit")
        self._parts: list[Shards] = []
        for one in self.streams:
            with one.turn() if os.path.isdir(one.folder) else _made(one).turn():
                self._parts.append(one.open(allow_unsafe_types))
        self._first_shards = [0, *accumulate(map(len, self._parts))]
        self._first_samples = [0, *accumulate(part.starts[-1] for part in self._parts)]
        self.shards = _Joined(self)
        largest = max(one.get_max_size() for one in self.shards) if self.cache_limit else 0
        if self.cache_limit and self.cache_limit < largest:
            raise UsageError(f"a cache_limit of {self.cache_limit} bytes cannot hold a shard of {largest}")
        self._choice = Choice([part.starts for part in self._parts], self._chosen(epoch_size), shuffle_seed)
        self._clock = Clock()
        self._turns: dict[int, int] = {}

    def _chosen(self, epoch_size: int | str | None) -> list[int]:
        sizes = [part.starts[-1] for part in self._parts]
        shares = [one.proportion for one in self.streams]
        total = _count(epoch_size) if epoch_size is not None else sum(sizes)
        if any(share is not None for share in shares):
            if any(share is None for share in shares) or not sum(share or 0 for share in shares):
                raise UsageError("either every stream has a proportion, or none")
            whole = sum(share or 0 for share in shares)
            ends = [round(total * end / whole) for end in accumulate(share or 0 for share in shares)]
            return [end - start for start, end in zip([0, *ends], ends, strict=False)]
        out = [
            one.choose if one.choose is not None else int(size * one.repeat) if one.repeat is not None else size
            for one, size in zip(self.streams, sizes, strict=True)
        ]
        if epoch_size is None:
            return out
        ends = [round(total * end / max(1, sum(out))) for end in accumulate(out)]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]

    # -- by position

    @property
    def size(self) -> int:
        """How many samples there are."""
        return self._first_samples[-1]

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return self.size

    def __len__(self) -> int:
        """How many samples an epoch has on this rank: as many as on each other."""
        return -(-len(self._choice) // self._ranks()[1])

    def __getitem__(self, at: Any) -> Any:
        return items(at, self.size, self.get_item)

    def get_item(self, sample_id: int, retry: int = 7) -> Sample:
        """Give one sample by its position, fetching its shard first where it is not there."""
        k = bisect_right(self._first_samples, sample_id) - 1
        shard, row = self._parts[k].find(sample_id - self._first_samples[k])
        for left in range(retry, -1, -1):
            reader = self._parts[k][shard]
            try:
                if reader._shard is None:
                    self.prepare_shard(self._first_shards[k] + shard)
                sample: Sample = reader.get_item(row)
                return sample
            except MissingError:  # another process took it away in between
                if not left or not self.streams[k].is_copied:
                    raise
        raise MissingError("never there", where=self.streams[k].folder)

    # -- shards

    def _shard(self, shard_id: int) -> tuple[Stream, Any]:
        k = bisect_right(self._first_shards, shard_id) - 1
        return self.streams[k], self._parts[k][shard_id - self._first_shards[k]]

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Bring a shard into its folder, first letting go of others where the limit asks for it."""
        stream, reader = self._shard(shard_id)
        if not stream.is_present(reader):
            with stream.turn():
                if not stream.is_present(reader):
                    if self.cache_limit:
                        self._make_room(reader.get_max_size())
                    stream.prepare(reader)
        if self.cache_limit:
            _touch(stream, reader)

    def evict_shard(self, shard_id: int) -> None:
        """Remove a shard from its folder; never one that has no other copy."""
        stream, reader = self._shard(shard_id)
        if stream.is_copied:
            reader.evict()

    @property
    def cache_usage(self) -> int:
        """Bytes that the shards take in the local folders now."""
        return sum(size for _, size, _ in self._there())

    def _there(self) -> list[tuple[float, int, int]]:
        """Give the shards that are there: when each was last used, its bytes, its number."""
        found = []
        for i in range(self._first_shards[-1]):
            stream, reader = self._shard(i)
            states = [_stat(os.path.join(stream.folder, info.basename)) for pair in reader.file_pairs for info in pair if info]
            sizes = [one.st_size for one in states if one is not None]
            if sizes:
                found.append((max(one.st_mtime for one in states if one is not None), sum(sizes), i))
        return found

    def _make_room(self, wanted: int) -> None:
        there = sorted(self._there())
        used = sum(size for _, size, _ in there)
        for _, size, i in there:
            if used + wanted <= (self.cache_limit or used + wanted):
                return
            if self._shard(i)[0].is_copied:
                self.evict_shard(i)
                used -= size

    # -- an epoch

    def _ranks(self) -> tuple[int, int]:
        rank, ranks, same = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), self.replication or 1
        return rank // same, max(1, ranks // same)

    def _window(self) -> int:
        shards = max(1, len(self._choice.edges) - 1)
        return max(1, min(shards, round(self.shuffle_block_size * shards / max(1, len(self._choice)))))

    def _ids(self, epoch: int, step: int, worker: int, workers: int) -> IntArray:
        """Give the samples of this rank and worker, from a step on: each rank has as many, the first ones again where that takes it."""
        rank, ranks = self._ranks()
        total = len(self._choice)
        steps = np.arange(step + rank, -(-total // ranks) * ranks, ranks) % max(1, total)
        own = steps[np.arange(len(steps)) // (self.batch_size or 1) % workers == worker]
        return self._choice.samples(own, epoch, self.shuffle, "shuffle" if self.shuffle_algo == "naive" else "windows", self._window())

    def __iter__(self) -> Iterator[Any]:
        info = sys.modules["torch.utils.data"].get_worker_info() if "torch.utils.data" in sys.modules else None
        seed = None if info is None else int(info.seed - info.id)
        turn = 0 if seed is None else self._turns.get(seed, 0)
        if seed is not None:
            self._turns[seed] = turn + 1
        epoch, step = self._clock.begin(seed, turn)
        ids = self._ids(epoch, step, 0 if info is None else info.id, 1 if info is None else info.num_workers)
        return self._samples(ids)

    def _samples(self, ids: IntArray) -> Iterator[Any]:
        """Give samples through `self[i]`, which a subclass may have changed, with the shards of those that follow on their way."""
        starts = np.array([0, *accumulate(count for part in self._parts for count in np.diff(part.starts).tolist())])
        shards: IntArray = np.searchsorted(starts, ids, "right") - 1
        ahead, known = 0, set[int]()
        futures: dict[int, Future[None]] = {}
        pool = ThreadPoolExecutor(_FETCHERS, "flare-fetch") if any(one.is_copied for one in self.streams) else None
        try:
            for at, sample in enumerate(ids.tolist()):
                while pool is not None and ahead < min(len(ids), at + 1 + self.predownload):
                    if (shard := int(shards[ahead])) not in known:
                        known.add(shard)
                        futures[shard] = pool.submit(self.prepare_shard, shard)
                    ahead += 1
                if (future := futures.pop(int(shards[at]), None)) is not None:
                    future.result()
                yield self[sample]
        finally:
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)

    # -- resuming

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration goes through."""
        return self._clock.next()

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Say where the epoch is; `num_samples` were given by all ranks, since its beginning or since it was resumed."""
        epoch, step = self._clock.last()
        state = {"epoch": epoch, "sample_in_epoch": num_samples + (0 if from_beginning else step), "shuffle_seed": self.shuffle_seed}
        return {**state, "num_canonical_nodes": 1, "initial_physical_nodes": 1}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Go on from there with the next iteration, on any number of ranks and workers. Raises UsageError for another seed."""
        if obj.get("shuffle_seed", self.shuffle_seed) != self.shuffle_seed:
            raise UsageError(f"shuffle_seed is {self.shuffle_seed}, the state has {obj['shuffle_seed']!r}")
        step = int(obj["sample_in_epoch"])
        if not 0 <= step <= len(self) * self._ranks()[1]:
            raise UsageError(f"sample {step} is outside the epoch, which has {len(self._choice)}")
        self._clock.resume(int(obj["epoch"]), step)


class _Joined(Sequence[Any]):
    """The shards of all streams."""

    def __init__(self, data: StreamingDataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data._first_shards[-1]

    def __getitem__(self, i: Any) -> Any:
        return self._data._shard(range(len(self))[i])[1]


def _made(stream: Stream) -> Stream:
    os.makedirs(stream.folder, exist_ok=True)
    return stream


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _touch(stream: Stream, reader: Any) -> None:
    for raw, _ in reader.file_pairs:
        if _stat(path := os.path.join(stream.folder, raw.basename)) is not None:
            os.utime(path, (time.time(), time.time()))


def _count(value: int | str) -> int:
    """Read a number of samples, such as 1000, `10k` or `1.5m`. Raises UsageError."""
    text = str(value).lower().strip()
    unit = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}.get(text[-1:], 1)
    try:
        count = int(float(text[:-1] if unit > 1 else text) * unit)
    except ValueError:
        count = 0
    if count < 1:
        raise UsageError(f"{value!r} is no number of samples")
    return count
