"""Samples in an epoch of a StreamingDataset: the number of samples per stream, and the order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from flarecli.compat.streaming.base.stream import Stream
from flarecli.errors import UsageError
from flarecli.model import IntArray
from flarecli.read import positions
from flarecli.read.epoch_order import Epoch

__all__ = ["BATCHING_METHODS", "Batching", "Sampler", "parse_count", "samples_per_stream"]

SAMPLING_METHODS = ("balanced", "fixed")
BATCHING_METHODS = ("random", "stratified", "per_stream", "device_per_stream")
MAX_EDGES = 1 << 20


def samples_per_stream(
    streams: Sequence[Stream], sizes: Sequence[int], epoch_size: int | None
) -> list[int]:
    """Return the number of samples that each stream has in an epoch.

    raises  UsageError if only some streams have a proportion, if all proportions are 0, or if
            `epoch_size` is combined with `repeat` or `choose`
    """
    total = epoch_size if epoch_size is not None else sum(sizes)
    weights = [stream.given for stream in streams]
    shares = [weight.proportion for weight in weights]
    if any(share is not None for share in shares):
        if any(share is None for share in shares) or not sum(share or 0 for share in shares):
            raise UsageError(
                "expected a proportion for every stream or for no stream"
                if None in shares
                else "expected at least one proportion > 0",
                hint="Omit repeat and choose if you pass proportions.",
            )
        return _divide([share or 0 for share in shares], total)
    if epoch_size is not None and any(
        weight.repeat is not None or weight.choose is not None for weight in weights
    ):
        raise UsageError(
            "epoch_size cannot be combined with repeat or choose",
            hint="Omit epoch_size, or omit repeat and choose.",
        )
    counts = [
        weight.choose
        if weight.choose is not None
        else int(size * weight.repeat)
        if weight.repeat is not None
        else size
        for weight, size in zip(weights, sizes, strict=True)
    ]
    return counts if epoch_size is None else _divide(counts, total)


def _divide(weights: Sequence[float], total: int) -> list[int]:
    """Divide `total` into integers in proportion to the weights."""
    weight = sum(weights) or 1
    ends = [round(total * end / weight) for end in accumulate(weights)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def parse_count(value: float | str) -> int:
    """Parse a number of samples such as 1000, `10k` or `1.5m`.

    raises  UsageError for an invalid number or a number below 1
    """
    text = str(value).lower().strip()
    unit = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}.get(text[-1:], 1)
    try:
        count = int(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise UsageError(f"expected a number of samples, got {value!r:.60}")
    return count


class Sampler:
    """The samples of an epoch: complete passes over each stream, and then a partial pass.

    starts       for each stream: number of the first sample of each shard, then the total number of
                 samples
    counts       number of samples that each stream has in the epoch
    method       `balanced` draws new samples for the partial pass of each epoch; `fixed` uses the
                 same samples in each epoch
    granularity  number of consecutive samples that are drawn together in a partial pass
    """

    def __init__(
        self,
        starts: Sequence[Sequence[int]],
        counts: Sequence[int],
        seed: int,
        method: str = "balanced",
        granularity: int = 1,
    ) -> None:
        if method not in SAMPLING_METHODS:
            raise UsageError(
                f"Invalid sampling method: {method!r:.60}. Must be one of `balanced` or `fixed`."
            )
        if granularity < 1:
            raise UsageError(f"sampling_granularity must be at least 1, got {granularity}")
        self._sizes, self.counts, self._seed = [stream[-1] for stream in starts], list(counts), seed
        self._is_fixed, self._granularity = method == "fixed", granularity
        self._firsts = np.cumsum([0, *self._sizes])  # first sample of each stream
        self._places = np.cumsum([0, *counts])  # first position of each stream
        self._edges = [_edges(stream, count) for stream, count in zip(starts, counts, strict=True)]
        ends = [
            edges[1:] + first
            for edges, first in zip(self._edges, self._places.tolist(), strict=False)
        ]
        self.edges: IntArray = np.concatenate([np.zeros(1, np.int64), *ends])

    def __len__(self) -> int:
        return int(self._places[-1])

    def samples(self, steps: IntArray, epoch: int, order: str, window: int) -> IntArray:
        """Return the number of the sample at each step, in an order that mixes all streams.

        return  int64 [k]
        """
        places = Epoch(self.edges, self._seed, epoch, order, window).at(steps)
        streams: IntArray = np.searchsorted(self._places, places, "right") - 1
        return self._at(streams, places - self._places[streams], epoch)

    def samples_of_streams(
        self, streams: IntArray, places: IntArray, epoch: int, order: str, window: int
    ) -> IntArray:
        """For each i, return the number of the sample at `places[i]` in the order of `streams[i]`.

        streams  stream numbers: int64 [k]
        places   positions, each in the order of its own stream: int64 [k]
        return   int64 [k]
        """
        in_stream: IntArray = np.empty(len(places), np.int64)
        for k in np.unique(streams).tolist():
            of_k = streams == k
            in_stream[of_k] = Epoch(self._edges[k], self._seed + 1 + k, epoch, order, window).at(
                places[of_k]
            )
        return self._at(streams, in_stream, epoch)

    def _at(self, streams: IntArray, in_stream: IntArray, epoch: int) -> IntArray:
        """Return the number of the sample at each position: int64 [k].

        streams    number of the stream that contains the sample: int64 [k]
        in_stream  position among the samples that the stream has in the epoch: int64 [k]
        """
        out: IntArray = np.empty(len(in_stream), np.int64)
        for k in np.unique(streams).tolist():
            of_k, size = streams == k, self._sizes[k]
            part = in_stream[of_k]
            is_rest = part >= self.counts[k] // size * size
            part = part % size
            if is_rest.any():
                part[is_rest] = self._partial(part[is_rest], size, 0 if self._is_fixed else epoch)
            out[of_k] = self._firsts[k] + part
        return out

    def _partial(self, part: IntArray, size: int, epoch: int) -> IntArray:
        """Return the samples at the given positions of the partial pass over a stream.

        A partial pass draws groups of consecutive samples. If the size of the stream is not a
        multiple of the group size, the last group is smaller. The first group then begins at a
        random sample, so that the smaller group contains other samples in each epoch.
        """
        if self._granularity == 1:
            return positions(part, size, self._seed, epoch)
        groups = size // self._granularity
        group = part // self._granularity
        complete = group < groups
        if complete.any():
            group[complete] = positions(group[complete], groups, self._seed, epoch)
        shift = (
            int(positions(np.array([epoch % size], np.int64), size, self._seed, 0)[0])
            if size % self._granularity
            else 0
        )
        return (group * self._granularity + part % self._granularity + shift) % size


def _edges(starts: Sequence[int], count: int) -> IntArray:
    """Return the positions at which shards begin if a stream is repeated up to `count` samples.

    The last item is `count`. If there are more than MAX_EDGES positions, return evenly spaced
    positions instead. The samples between two such positions may be in several shards.
    """
    size, ends = starts[-1], np.array(starts[1:], np.int64)
    turns = -(-count // size) if size else 0
    if turns * len(ends) > MAX_EDGES:
        return np.append(np.arange(0, count, -(-count // MAX_EDGES)), count)
    edges = (np.arange(turns)[:, None] * size + ends).reshape(-1)
    return np.unique(np.concatenate(([0], edges[edges < count], [count])))


class Batching:
    """Assignment of a stream to each step. Rank `s % ranks` reads the sample of step s.

    A global batch consists of batch × ranks consecutive steps.

    method  stratified: each global batch has the same stream proportions as the epoch;
            per_stream: each global batch has one stream; device_per_stream: each rank's batch has
            one stream
    counts  number of samples of each stream in an epoch; an incomplete last batch is dropped
    raises  UsageError for `stratified` if a stream is too small to be in every batch
    """

    def __init__(
        self, method: str, counts: Sequence[int], batch: int, ranks: int, seed: int
    ) -> None:
        self._method, self._batch, self._ranks, self._seed = method, batch, ranks, seed
        self.global_size = batch * ranks
        if method == "stratified":
            self._shares = _shares(counts, self.global_size)
            self.batches = min(
                count // share for count, share in zip(counts, self._shares.tolist(), strict=True)
            )
            self.steps = self.batches * self.global_size
            return
        self._size = self.global_size if method == "per_stream" else batch
        self._ends = np.cumsum([count // self._size for count in counts])
        self.batches = int(self._ends[-1])
        self.steps = self.batches * self._size // self.global_size * self.global_size

    def at(self, steps: IntArray, epoch: int, shuffle: bool) -> tuple[IntArray, IntArray]:
        """Return the stream of each step, and the position of the step in the stream's order.

        return  two arrays, int64 [k] each
        """
        if self._method == "stratified":
            bounds = np.cumsum(self._shares)
            number, offset = np.divmod(steps, self.global_size)
            stream: IntArray = np.searchsorted(bounds, offset, "right")
            return stream, number * self._shares[stream] + offset - (bounds - self._shares)[stream]
        if self._method == "per_stream":
            number, offset = np.divmod(steps, self.global_size)
        else:
            turn, rank = np.divmod(steps, self._ranks)
            number, offset = turn // self._batch * self._ranks + rank, turn % self._batch
        if shuffle:
            number = positions(number, self.batches, self._seed, epoch)
        stream = np.searchsorted(self._ends, number, "right")
        firsts = np.concatenate(([0], self._ends))[stream]
        return stream, (number - firsts) * self._size + offset


def _shares(counts: Sequence[int], whole: int) -> IntArray:
    """Divide a batch of `whole` samples among the streams, in proportion to the counts.

    Shares are rounded down. The remaining samples are added to the shares with the largest
    remainders. If remainders are equal, later streams have priority, as in mosaicml-streaming.
    """
    exact = np.array(counts, np.float64) * whole / max(1, sum(counts))
    shares: IntArray = np.floor(exact).astype(np.int64)
    for k in np.argsort(exact - shares, kind="stable")[::-1][: whole - int(shares.sum())]:
        shares[k] += 1
    if not shares.all():
        k = int(np.flatnonzero(shares == 0)[0])
        raise UsageError(
            f"the number of samples for stream {k} is 0 in a batch of {whole}, because the share "
            "of the stream is too small",
            hint="Increase the proportion of the stream, or batch_size.",
        )
    return shares
