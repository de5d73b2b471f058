"""StreamingDataset: remote shards through a local folder, in an order that depends on seed and epoch alone.

torch takes it for one of its IterableDatasets as soon as torch is loaded, and it loads no torch itself.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import accumulate
from typing import Any

import numpy as np

from flarecli.compat import register
from flarecli.compat.streaming.batching import METHODS, Batching
from flarecli.compat.streaming.cached import Cached
from flarecli.compat.streaming.choice import Choice, chosen, count_of
from flarecli.compat.streaming.epochs import Clock
from flarecli.compat.streaming.local import Shards
from flarecli.compat.streaming.reader import items
from flarecli.compat.streaming.registry import streams_registry
from flarecli.compat.streaming.spanner import Spanner
from flarecli.compat.streaming.streams import Stream
from flarecli.errors import MissingError, UsageError
from flarecli.formats import mds_config
from flarecli.model import IntArray, Sample
from flarecli.storage.workers import Workers

__all__ = ["StreamingDataset"]

_SHUFFLED = 1 << 18  # samples that are mixed, about
_FETCHERS = 4
_BLOCK = 1 << 16  # steps whose samples are worked out at a time
_ORDER = "flare-1"  # in a state: which order of samples `sample_in_epoch` counts in
_PARTITIONS, _ALGORITHMS = ("orig", "relaxed"), ("naive", "py1b", "py1br", "py1e", "py1s", "py2s")


class StreamingDataset:
    """Samples by position, fetching what is not there yet, or an epoch of them at a time, shared among ranks and a DataLoader's workers.

    streams       several datasets; or remote, local and split of one
    download_retry, download_timeout, validate_hash, keep_zip  of each stream that does not say so itself
    epoch_size    samples of an epoch, a number or `10k`: of streams with proportions, or of whole streams in proportion to their size
    predownload   samples ahead of which shards are fetched
    cache_limit   bytes that the local folders may take, indexes included, at least four times the largest shard; the coldest shard leaves first
    sampling_method, sampling_granularity  how a part of a stream is chosen: anew for each epoch or not; so many in a row
    batch_size    samples that a worker gives in a row, so that a DataLoader's batches are those of the order
    shuffle       mix the samples; `shuffle_algo="naive"` all of them, any other those of some shards at a time
    shuffle_seed  what the order depends on, with the epoch
    batching_method  whether batches are of all streams at random, or in the same parts, or of one stream each
    replication   ranks in a row that get the same samples
    stream_config more arguments of the one Stream, where remote or local is given
    num_canonical_nodes  an epoch is filled up to a multiple of it with some of its samples; the order does not depend on it
    partition_algo  accepted; it has no effect
    stream_name   name of a class in `streams_registry`, for remote, local and stream_config
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
        _one_of("batching_method", batching_method, METHODS)
        if (
            shuffle_seed < 0
            or (batch_size is not None and batch_size < 1)
            or (replication is not None and replication < 1)
        ):
            raise UsageError(
                f"shuffle_seed is {shuffle_seed}, batch_size {batch_size}, replication {replication}: at least 0, 1 and 1 are wanted"
            )
        how = {
            "download_retry": download_retry,
            "download_timeout": download_timeout,
            "validate_hash": validate_hash,
            "keep_zip": keep_zip,
        }
        if num_canonical_nodes is not None and num_canonical_nodes < 1:
            raise UsageError(f"num_canonical_nodes must be at least 1, got {num_canonical_nodes}")
        if predownload is not None and batch_size is not None and predownload < batch_size:
            warnings.warn(
                f"predownload < batch_size ({predownload} < {batch_size}). This may result in slower "
                "batch time. Recommendation is to set predownload to at least batch_size.",
                stacklevel=2,
            )
        where = {"remote": remote, "local": local, "split": split}
        self.streams = list(streams or ()) or [
            streams_registry.get(stream_name)(**{**(stream_config or {}), **how, **where})
        ]
        for one in self.streams:
            one.apply_default({**how, "split": split})
        self._check_locals()
        self.batch_size, self.predownload = (
            batch_size,
            predownload if predownload is not None else 8 * batch_size if batch_size else 64,
        )
        self.shuffle, self.shuffle_algo, self.shuffle_seed = shuffle, shuffle_algo, shuffle_seed
        self.shuffle_block_size, self.replication = shuffle_block_size or _SHUFFLED, replication
        self.sampling_method, self.sampling_granularity = sampling_method, sampling_granularity
        self.batching_method, self.partition_algo, self.num_canonical_nodes = (
            batching_method,
            partition_algo,
            num_canonical_nodes,
        )
        self.allow_unsafe_types, self.cache_limit = (
            allow_unsafe_types,
            mds_config.size_limit(cache_limit, "cache_limit"),
        )
        self._parts: list[Shards] = []
        for one in self.streams:
            os.makedirs(one.folder, exist_ok=True)
            with one.turn():
                self._parts.append(one.open(allow_unsafe_types))
        self._first_samples = [0, *accumulate(part.starts[-1] for part in self._parts)]
        self.num_samples, self.num_streams = self._first_samples[-1], len(self.streams)
        self.samples_per_stream = np.array([part.starts[-1] for part in self._parts])
        self.samples_per_shard = np.concatenate([np.diff(part.starts) for part in self._parts])
        self.shards_per_stream = np.array([len(part) for part in self._parts])
        self._first_shards = [0, *accumulate(self.shards_per_stream.tolist())]
        self.num_shards = self._first_shards[-1]
        self.shards = Cached(self.streams, self._parts, self._first_shards, self.cache_limit)
        self.spanner = Spanner(self.samples_per_shard)
        sizes = self.samples_per_stream.tolist()
        self._counts = chosen(
            self.streams, sizes, None if epoch_size is None else count_of(epoch_size)
        )
        self.epoch_size = sum(self._counts)
        for one, size, count in zip(self.streams, sizes, self._counts, strict=True):
            one.derive(size, count, self.epoch_size)
        self._clock = Clock()
        self._ordered(shuffle_seed)

    def _check_locals(self) -> None:
        """Refuse two streams with one local folder: the shards of one would be read as those of the other."""
        counts = Counter(os.path.realpath(one.folder) for one in self.streams)
        reused = [folder for folder, count in counts.items() if count > 1]
        if reused:
            raise UsageError(
                f"Reused local directory: {', '.join(reused)}. Provide a different one.",
                hint="Give each stream its own `local` or `split`.",
            )

    def _ordered(self, seed: int) -> None:
        """Lay out the epochs of a seed."""
        self.shuffle_seed = seed
        self._choice = Choice(
            [part.starts for part in self._parts],
            self._counts,
            seed,
            self.sampling_method,
            self.sampling_granularity,
        )
        self._made_batching: Batching | None = None
        if self.batching_method != "random" and not self.batch_size:
            raise UsageError(
                f"Please pass `batch_size` to StreamingDataset: batching_method {self.batching_method!r} needs it",
                hint="Give batch_size as the DataLoader has it.",
            )

    @property
    def _batching(self) -> Batching | None:
        """Batches by stream; None for random ones. Raises UsageError if a stream is too small to be in every batch."""
        if self.batching_method != "random" and self._made_batching is None:
            self._made_batching = Batching(
                self.batching_method,
                [self._filled(count) for count in self._counts],
                self.batch_size or 1,
                self._ranks()[1],
                self.shuffle_seed,
            )
        return self._made_batching

    def _filled(self, count: int) -> int:
        """Round up to a multiple of the canonical nodes: as in the original, some samples come again to fill up an epoch."""
        nodes = self.num_canonical_nodes or 1
        return -(-count // nodes) * nodes

    def _unfilled(self, steps: IntArray) -> IntArray:
        """Replace the steps that fill up an epoch by steps of the epoch itself, evenly spaced, so that streams keep their shares."""
        extra = self._filled(self.epoch_size) - self.epoch_size
        again: IntArray = (steps - self.epoch_size) * self.epoch_size // max(1, extra)
        return np.where(steps < self.epoch_size, steps, again)

    # -- by position

    @property
    def size(self) -> int:
        """How many samples there are."""
        return self.num_samples

    def __len__(self) -> int:
        """Return how many samples an epoch has on each rank, without those that fill it up to a multiple of the canonical nodes."""
        steps = self.epoch_size if self._batching is None else self._batching.steps
        return -(-steps // self._ranks()[1])

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

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Bring a shard into its folder, first letting go of others where the limit asks for it. It is there when this returns."""
        self.shards.bring(shard_id)

    def evict_shard(self, shard_id: int) -> None:
        """Remove a shard from its folder; never one that has no other copy."""
        self.shards.let_go(shard_id)

    def evict_coldest_shard(self) -> None:
        """Remove the shard that was used longest ago, of those that have another copy."""
        self.shards.let_go_of_coldest()

    @property
    def cache_usage(self) -> int:
        """Bytes that the shards take in the local folders now."""
        return self.shards.used()

    # -- an epoch

    def _ranks(self) -> tuple[int, int]:
        rank, ranks, same = (
            int(os.environ.get("RANK", 0)),
            int(os.environ.get("WORLD_SIZE", 1)),
            self.replication or 1,
        )
        return rank // same, max(1, ranks // same)

    def _steps(self) -> int:
        return self._filled(self.epoch_size) if self._batching is None else self._batching.steps

    def _window(self) -> int:
        shards = max(1, len(self._choice.edges) - 1)
        return max(
            1, min(shards, round(self.shuffle_block_size * shards / max(1, len(self._choice))))
        )

    def _ids(self, epoch: int, step: int, worker: int, workers: int) -> Iterator[IntArray]:
        """Give the samples of this rank and worker, from a step on: each rank has as many, the first ones again where that takes it."""
        rank, ranks = self._ranks()
        total, window, each = self._steps(), self._window(), self.batch_size or 1
        order = (
            "sequential"
            if not self.shuffle
            else "shuffle"
            if self.shuffle_algo == "naive"
            else "windows"
        )
        count = max(0, -(-(total - step) // ranks))
        for start in range(0, count, _BLOCK):
            turns = np.arange(start, min(count, start + _BLOCK))
            steps = (step + rank + turns[turns // each % workers == worker] * ranks) % max(1, total)
            if self._batching is None:
                yield self._choice.samples(self._unfilled(steps), epoch, order, window)
            else:
                streams, places = self._batching.at(steps, epoch, self.shuffle)
                places = places % np.array(self._counts)[streams]
                yield self._choice.parted(streams, places, epoch, order, window)

    def _check_order(self) -> None:
        """Raise for an epoch smaller than its canonical nodes; warn if samples are mixed within single shards only."""
        if 0 < self.epoch_size < (self.num_canonical_nodes or 1):
            raise UsageError(
                "The number of samples assigned to a canonical node is 0: the epoch has "
                f"{self.epoch_size}, num_canonical_nodes is {self.num_canonical_nodes}",
                hint="Give a smaller num_canonical_nodes, or none.",
            )
        largest = int(self.samples_per_shard.max())
        if self.shuffle and self.shuffle_algo != "naive" and self.shuffle_block_size < largest:
            warnings.warn(
                "Shuffle block size was smaller than shard size for some shards "
                f"({self.shuffle_block_size} < {largest}): samples are mixed within single shards only. "
                "Recommendation is to set shuffle_block_size to some multiple of the shard size.",
                stacklevel=3,
            )

    def __iter__(self) -> Iterator[Any]:
        self._check_order()
        return self._samples(self._ids(*self._clock.begin()))

    def _samples(self, blocks: Iterator[IntArray]) -> Iterator[Any]:
        """Give samples through `self[i]`, which a subclass may have changed, with the shards of those that follow on their way."""
        ends = np.cumsum(self.samples_per_shard)
        ahead: deque[tuple[int, int]] = deque()  # samples and their shards
        known: dict[int, Future[None] | None] = {}
        pool = (
            Workers(_FETCHERS, "flare-fetch")
            if any(one.is_copied for one in self.streams)
            else None
        )

        def given() -> Any:
            sample, shard = ahead.popleft()
            if (future := known.get(shard)) is not None:
                future.result()
                known[shard] = None
            return self[sample]

        try:
            for ids in blocks:
                shards: IntArray = np.searchsorted(ends, ids, "right")
                for sample, shard in zip(ids.tolist(), shards.tolist(), strict=True):
                    ahead.append((sample, shard))
                    if pool is not None and shard not in known:
                        known[shard] = pool.submit(self.prepare_shard, shard)
                    if len(ahead) > max(0, self.predownload):
                        yield given()
            while ahead:
                yield given()
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
        state: dict[str, Any] = {
            "epoch": epoch,
            "order": _ORDER,
            "sample_in_epoch": num_samples + (0 if from_beginning else step),
            "shuffle_seed": self.shuffle_seed,
        }
        if self._batching is not None:
            state["samples_in_batch"] = self._batching.whole
        return {
            **state,
            "num_canonical_nodes": self.num_canonical_nodes or 1,
            "initial_physical_nodes": 1,
        }

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Go on from there with the next iteration, on any number of ranks and workers, in the order of the state's seed.

        raises  UsageError for a place outside the epoch; for a state of mosaicml-streaming from within an epoch, whose order of samples is
                another; for batches by stream, if those of all ranks have another size than the state's
        """
        seed, step, epoch = (
            int(obj.get(name, default))
            for name, default in (
                ("shuffle_seed", self.shuffle_seed),
                ("sample_in_epoch", 0),
                ("epoch", 0),
            )
        )
        ranks = self._ranks()[1]
        if 0 < step < self.epoch_size and obj.get("order") != _ORDER:
            raise UsageError(
                f"the state was saved by mosaicml-streaming at sample {step} of epoch {epoch}; "
                "its order of samples is not the order here",
                hint="Finish that epoch with mosaicml-streaming, or set sample_in_epoch to 0 to start it again.",
            )
        if seed < 0 or epoch < 0 or not 0 <= step <= -(-self._steps() // ranks) * ranks:
            raise UsageError(
                f"sample {step} of epoch {epoch} is outside the epoch, which has {self._steps()}"
            )
        if (
            self._batching is not None
            and obj.get("samples_in_batch", self._batching.whole) != self._batching.whole
        ):
            raise UsageError(
                f"a batch of all ranks has {self._batching.whole} samples, the state's has {obj['samples_in_batch']!r:.60}"
            )
        self._ordered(seed)
        self._clock.resume(epoch, step)


def _one_of(name: str, value: str, names: Sequence[str]) -> None:
    if value not in names:
        raise UsageError(f"{name} is {value!r:.60}", hint=f"Choose one of {', '.join(names)}.")
