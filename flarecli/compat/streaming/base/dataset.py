"""StreamingDataset, which copies remote shards to a local folder and reads the copies.

The module does not load torch. If torch is loaded, StreamingDataset is an IterableDataset.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flarecli.compat import register
from flarecli.compat.epoch_counter import EpochCounter
from flarecli.compat.streaming.base.format.reader import Array, Shards
from flarecli.compat.streaming.base.spanner import Spanner
from flarecli.compat.streaming.base.stream import Stream, streams_registry
from flarecli.compat.streaming.sampling import (
    BATCHING_METHODS,
    Batching,
    Sampler,
    parse_count,
    samples_per_stream,
)
from flarecli.compat.streaming.shard_cache import ShardCache
from flarecli.errors import MissingError, UsageError
from flarecli.formats.mds import config as mds_config
from flarecli.model import IntArray, Sample
from flarecli.prefetch import OrderedQueue

__all__ = ["StreamingDataset"]

DEFAULT_BLOCK_SIZE = 1 << 18  # approximate number of samples that are shuffled together
MAX_FETCHES = 4  # shards fetched in parallel
STEPS_PER_BLOCK = 1 << 16  # number of steps whose samples are computed together
_ORDER = "flare-1"  # name of the sample order, in saved states
_PARTITIONS, _ALGORITHMS = ("orig", "relaxed"), ("naive", "py1b", "py1br", "py1e", "py1s", "py2s")


class StreamingDataset(Array):
    """Dataset of shards. `data[i]` returns a sample; a loop yields an epoch's samples.

    A loop yields only the samples of this rank and this DataLoader worker.

    streams       the Streams of several datasets; replaces `remote` and `local`
    remote, local  address of a dataset, and folder for copies of its shards; see `Stream`
    split, download_retry, download_timeout, validate_hash, keep_zip  defaults for all streams
    epoch_size    samples per epoch, such as 10000 or `10k`; divided among the streams by their
                  proportions or sizes
    predownload   number of samples for which shards are fetched in advance
    cache_limit   maximum bytes in the local folders, including indexes; must be at least four times
                  the largest shard; the least recently used shard is evicted first
    sampling_method, sampling_granularity  how partial passes over a stream are drawn; see `Sampler`
    batch_size    the DataLoader's batch_size; each worker reads this number of consecutive samples
                  at a time, so that the DataLoader returns the samples in order
    shuffle       shuffle the samples; `shuffle_algo="naive"` shuffles all samples; any other value
                  shuffles the samples of a few shards at a time
    shuffle_block_size  approximate number of samples that are shuffled together
    shuffle_seed  random seed of the order
    batching_method  `random` mixes all streams; for the other methods, see `Batching`
    replication   number of consecutive ranks that receive the same samples
    stream_config  additional arguments for the Stream of `remote` and `local`
    num_canonical_nodes  an epoch is padded with repeated samples to a multiple of this number; the
                  number does not change the order
    partition_algo  ignored; an unknown algorithm is an error
    stream_name   name of a class in `streams_registry`, for `remote`, `local` and `stream_config`
    allow_unsafe_types  True decodes `pkl` columns; a pickle can run code
    raises        UsageError for invalid options; MissingError or FormatError for a missing or
                  invalid index; UnsafeError for pickles, unless `allow_unsafe_types` is set
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
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
    ) -> None:
        if bool(streams) == bool(remote or local):
            raise UsageError("You must provide either `streams` or `remote`/`local`, but not both.")
        _one_of("partition_algo", partition_algo, _PARTITIONS)
        _one_of("shuffle_algo", shuffle_algo, _ALGORITHMS)
        _one_of("batching_method", batching_method, BATCHING_METHODS)
        if (
            shuffle_seed < 0
            or (batch_size is not None and batch_size < 1)
            or (replication is not None and replication < 1)
        ):
            raise UsageError(
                "expected shuffle_seed >= 0, batch_size >= 1 and replication >= 1, got "
                f"{shuffle_seed}, {batch_size} and {replication}"
            )
        if batching_method != "random" and not batch_size:
            raise UsageError(
                "Please pass `batch_size` to StreamingDataset: batching_method "
                f"{batching_method!r} requires it",
                hint="Pass the batch_size of the DataLoader.",
            )
        defaults = {
            "download_retry": download_retry,
            "download_timeout": download_timeout,
            "validate_hash": validate_hash,
            "keep_zip": keep_zip,
        }
        if num_canonical_nodes is not None and num_canonical_nodes < 1:
            raise UsageError(f"num_canonical_nodes must be at least 1, got {num_canonical_nodes}")
        if predownload is not None and batch_size is not None and predownload < batch_size:
            warnings.warn(
                f"predownload < batch_size ({predownload} < {batch_size}), so batches may be slow. "
                "Set predownload to at least batch_size.",
                stacklevel=2,
            )
        where = {"remote": remote, "local": local, "split": split}
        self.streams = list(streams or ()) or [
            streams_registry.get(stream_name)(**{**(stream_config or {}), **defaults, **where})
        ]
        for stream in self.streams:
            stream.apply_default({**defaults, "split": split})
        self._check_locals()
        if predownload is None:
            predownload = 8 * batch_size if batch_size else 64
        self.batch_size, self.predownload = batch_size, predownload
        self.shuffle, self.shuffle_algo, self.shuffle_seed = shuffle, shuffle_algo, shuffle_seed
        self.shuffle_block_size, self.replication = (
            shuffle_block_size or DEFAULT_BLOCK_SIZE,
            replication,
        )
        self.sampling_method, self.sampling_granularity = sampling_method, sampling_granularity
        self.batching_method, self.partition_algo = batching_method, partition_algo
        self.num_canonical_nodes, self.allow_unsafe_types = num_canonical_nodes, allow_unsafe_types
        self.cache_limit = mds_config.size_limit(cache_limit, "cache_limit")
        self._parts: list[Shards] = []
        for stream in self.streams:
            os.makedirs(stream.folder, exist_ok=True)
            with stream.lock():
                self._parts.append(stream.open(allow_unsafe_types))
        self.samples_per_stream = np.array([part.starts[-1] for part in self._parts])
        self.samples_per_shard = np.concatenate([np.diff(part.starts) for part in self._parts])
        self.shards_per_stream = np.array([len(part) for part in self._parts])
        self.shards = ShardCache(self.streams, self._parts, self.cache_limit)
        self.spanner = Spanner(self.samples_per_shard)
        self.num_samples: int = self.spanner.num_samples
        self.num_shards = len(self.shards)
        self.num_streams = len(self.streams)
        sizes = self.samples_per_stream.tolist()
        self._counts = samples_per_stream(
            self.streams, sizes, None if epoch_size is None else parse_count(epoch_size)
        )
        self.epoch_size = sum(self._counts)
        for stream, size, count in zip(self.streams, sizes, self._counts, strict=True):
            stream.derive(size, count, self.epoch_size)
        self._epochs = EpochCounter()
        self._set_seed(shuffle_seed)

    def _check_locals(self) -> None:
        """Raise UsageError if two streams have the same local folder."""
        counts = Counter(os.path.realpath(stream.folder) for stream in self.streams)
        reused = [folder for folder, count in counts.items() if count > 1]
        if reused:
            raise UsageError(
                f"Reused local directory: {', '.join(reused)}. Provide a different one.",
                hint="Pass a different `local` or `split` for each stream.",
            )

    def _set_seed(self, seed: int) -> None:
        """Set the seed of the sample order."""
        self.shuffle_seed = seed
        self._sampler = Sampler(
            [part.starts for part in self._parts],
            self._counts,
            seed,
            self.sampling_method,
            self.sampling_granularity,
        )
        self._cached_batching: Batching | None = None

    @property
    def _batching(self) -> Batching | None:
        """The assignment of batches to streams; None for random batches.

        raises  UsageError for `stratified` if a stream is too small to be in every batch
        """
        if self.batching_method != "random" and self._cached_batching is None:
            self._cached_batching = Batching(
                self.batching_method,
                [self._filled(count) for count in self._counts],
                self.batch_size or 1,
                self._ranks()[1],
                self.shuffle_seed,
            )
        return self._cached_batching

    def _filled(self, count: int) -> int:
        """Round a sample count up to a multiple of `num_canonical_nodes`, as the original does."""
        nodes = self.num_canonical_nodes or 1
        return -(-count // nodes) * nodes

    def _without_filling(self, steps: IntArray) -> IntArray:
        """Replace each padding step after the end of the epoch by a step within the epoch.

        The replacements are evenly spaced, so that the streams keep their proportions.
        """
        extra = self._filled(self.epoch_size) - self.epoch_size
        again: IntArray = (steps - self.epoch_size) * self.epoch_size // max(1, extra)
        return np.where(steps < self.epoch_size, steps, again)

    # -- by position

    @property
    def size(self) -> int:
        """Number of samples in the dataset."""
        return self.num_samples

    def __len__(self) -> int:
        """Return the number of samples per epoch and rank, rounded up."""
        steps = self.epoch_size if self._batching is None else self._batching.steps
        return -(-steps // self._ranks()[1])

    def get_item(self, sample_id: int, retry: int = 7) -> Sample:
        """Return one sample by its position; fetch its shard first if the shard is missing.

        retry   number of retries if another process evicts the shard before the sample is read
        raises  MissingError if the shard is missing in the last attempt
        """
        shard, row = self.spanner[sample_id]
        stream, reader = self.shards.of(shard)
        while True:
            try:
                if reader._shard is None:
                    self.prepare_shard(shard)
                return reader.get_item(row)
            except MissingError:  # another process has evicted the shard
                if retry <= 0 or not stream.is_copied:
                    raise
                retry -= 1

    # -- shards

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard into its folder; evict other shards first if the limit requires it."""
        self.shards.fetch(shard_id)

    def evict_shard(self, shard_id: int) -> None:
        """Remove a shard from its folder if another copy exists."""
        self.shards.evict(shard_id)

    def evict_coldest_shard(self) -> None:
        """Remove the least recently used shard that has another copy."""
        self.shards.evict_coldest()

    @property
    def cache_usage(self) -> int:
        """Size of shards and indexes in the local folders, in bytes."""
        return self.shards.used()

    # -- an epoch

    def _ranks(self) -> tuple[int, int]:
        same = self.replication or 1
        rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        return rank // same, max(1, ranks // same)

    def _steps(self) -> int:
        return self._filled(self.epoch_size) if self._batching is None else self._batching.steps

    def _window(self) -> int:
        shards = max(1, len(self._sampler.edges) - 1)
        window = round(self.shuffle_block_size * shards / max(1, len(self._sampler)))
        return max(1, min(shards, window))

    def _ids(self, epoch: int, step: int, worker: int, workers: int) -> Iterator[IntArray]:
        """Yield the sample numbers of this rank and worker, from a step to the end of the epoch.

        All ranks receive the same number of samples. If necessary, the first samples are repeated.
        """
        rank, ranks = self._ranks()
        total, window, each = self._steps(), self._window(), self.batch_size or 1
        order = "sequential"
        if self.shuffle:
            order = "shuffle" if self.shuffle_algo == "naive" else "windows"
        count = max(0, -(-(total - step) // ranks))
        for start in range(0, count, STEPS_PER_BLOCK):
            turns = np.arange(start, min(count, start + STEPS_PER_BLOCK))
            steps = (step + rank + turns[turns // each % workers == worker] * ranks) % max(1, total)
            if self._batching is None:
                yield self._sampler.samples(self._without_filling(steps), epoch, order, window)
            else:
                streams, places = self._batching.at(steps, epoch, self.shuffle)
                places = places % np.array(self._counts)[streams]
                yield self._sampler.samples_of_streams(streams, places, epoch, order, window)

    def _check_order(self) -> None:
        """Check that the sample order is possible; warn if samples are shuffled only within shards.

        raises  UsageError if the epoch has fewer samples than canonical nodes
        """
        if 0 < self.epoch_size < (self.num_canonical_nodes or 1):
            raise UsageError(
                "The number of samples assigned to a canonical node is 0: the epoch has "
                f"{self.epoch_size} samples, and num_canonical_nodes is {self.num_canonical_nodes}",
                hint="Lower or omit num_canonical_nodes.",
            )
        largest = int(self.samples_per_shard.max())
        if self.shuffle and self.shuffle_algo != "naive" and self.shuffle_block_size < largest:
            warnings.warn(
                "shuffle_block_size is smaller than some shards "
                f"({self.shuffle_block_size} < {largest}), so samples are shuffled only within "
                "single shards. Set shuffle_block_size to a multiple of the shard size.",
                stacklevel=3,
            )

    def __iter__(self) -> Iterator[Any]:
        self._check_order()
        return self._samples(self._ids(*self._epochs.begin()))

    def _samples(self, blocks: Iterator[IntArray]) -> Iterator[Any]:
        """Yield samples through `self[i]`, which a subclass may override; prefetch the shards."""
        ends = self.spanner.shard_bounds[1:]
        pending: deque[tuple[int, int]] = deque()  # (sample, shard), next sample first
        is_copied = any(stream.is_copied for stream in self.streams)
        queued, fetched = set[int](), set[int]()

        def fetch(shard: int) -> int:
            self.prepare_shard(shard)
            return shard

        queue = OrderedQueue(fetch, workers=MAX_FETCHES)

        def next_sample() -> Any:
            sample, shard = pending.popleft()
            while shard in queued and shard not in fetched:
                fetched.add(next(queue.drain()))
            return self[sample]

        try:
            for ids in blocks:
                shards: IntArray = np.searchsorted(ends, ids, "right")
                for sample, shard in zip(ids.tolist(), shards.tolist(), strict=True):
                    pending.append((sample, shard))
                    if is_copied and shard not in queued:
                        queued.add(shard)
                        queue.put(shard)
                    if len(pending) > max(0, self.predownload):
                        yield next_sample()
            while pending:
                yield next_sample()
        finally:
            queue.close(wait=True)

    # -- resuming

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epochs.next()

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Return the position in the epoch.

        num_samples     number of samples that all ranks have yielded
        from_beginning  True if `num_samples` is counted from the beginning of the epoch; False if
                        it is counted from the step at which the epoch was resumed
        """
        epoch, step = self._epochs.last()
        state: dict[str, Any] = {
            "epoch": epoch,
            "order": _ORDER,
            "sample_in_epoch": num_samples + (0 if from_beginning else step),
            "shuffle_seed": self.shuffle_seed,
        }
        if self._batching is not None:
            state["samples_in_batch"] = self._batching.global_size
        nodes = {"num_canonical_nodes": self.num_canonical_nodes or 1, "initial_physical_nodes": 1}
        return state | nodes

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Resume at a saved position with the saved seed, on any number of ranks and workers.

        raises  UsageError for a position outside the epoch; for a position that mosaicml-streaming
                saved in the middle of an epoch, because the sample order of mosaicml-streaming
                differs; and, unless `batching_method` is `random`, for a different global batch
                size
        """
        seed = int(obj.get("shuffle_seed", self.shuffle_seed))
        epoch, step = int(obj.get("epoch", 0)), int(obj.get("sample_in_epoch", 0))
        ranks = self._ranks()[1]
        if 0 < step < self.epoch_size and obj.get("order") != _ORDER:
            raise UsageError(
                f"the state was saved by mosaicml-streaming at sample {step} of epoch {epoch}; "
                "flare uses a different sample order",
                hint="Finish the epoch with mosaicml-streaming, or set sample_in_epoch to 0.",
            )
        if seed < 0 or epoch < 0 or not 0 <= step <= -(-self._steps() // ranks) * ranks:
            raise UsageError(
                f"sample {step} of epoch {epoch} is out of range; there are {self._steps()} samples"
            )
        if self._batching is not None:
            size = self._batching.global_size
            if (saved := obj.get("samples_in_batch", size)) != size:
                raise UsageError(
                    f"expected a global batch of {size} samples, but the state has {saved!r:.60}"
                )
        self._set_seed(seed)
        self._epochs.resume(epoch, step)


def _one_of(name: str, value: str, names: Sequence[str]) -> None:
    if value not in names:
        raise UsageError(f"{name}: expected one of {', '.join(names)}, got {value!r:.60}")
