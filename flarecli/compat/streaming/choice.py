"""Which samples of its streams an epoch of a StreamingDataset has, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from flarecli.compat.streaming.streams import Stream
from flarecli.errors import UsageError
from flarecli.model import IntArray
from flarecli.read import positions
from flarecli.read.windows import Epoch

__all__ = ["Choice", "chosen", "count_of"]

METHODS = ("balanced", "fixed")
_EDGES = 1 << 20


def chosen(streams: Sequence[Stream], sizes: Sequence[int], epoch_size: int | None) -> list[int]:
    """Say how many samples of each stream an epoch has.

    raises  UsageError where shares and numbers of samples are mixed, or an epoch's size is given with numbers
    """
    total = epoch_size if epoch_size is not None else sum(sizes)
    given = [one.given for one in streams]
    shares = [one.proportion for one in given]
    if any(share is not None for share in shares):
        if any(share is None for share in shares) or not sum(share or 0 for share in shares):
            raise UsageError(
                "either every stream has a proportion, or none",
                hint="Leave out repeat and choose, too.",
            )
        return _parts([share or 0 for share in shares], total)
    if epoch_size is not None and any(
        one.repeat is not None or one.choose is not None for one in given
    ):
        raise UsageError(
            "epoch_size goes with proportions, or with whole streams",
            hint="Leave out epoch_size, or repeat and choose.",
        )
    counts = [
        one.choose
        if one.choose is not None
        else int(size * one.repeat)
        if one.repeat is not None
        else size
        for one, size in zip(given, sizes, strict=True)
    ]
    return counts if epoch_size is None else _parts(counts, total)


def _parts(weights: Sequence[float], total: int) -> list[int]:
    """Cut a number into parts as large as their weights say."""
    whole = sum(weights) or 1
    ends = [round(total * end / whole) for end in accumulate(weights)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def count_of(value: float | str) -> int:
    """Read a number of samples, such as 1000, `10k` or `1.5m`. Raises UsageError."""
    text = str(value).lower().strip()
    unit = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}.get(text[-1:], 1)
    try:
        count = int(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise UsageError(f"{value!r:.60} is no number of samples")
    return count


class Choice:
    """An epoch's samples: of each stream so many, all of it as often as it goes, then a part of it.

    starts       of each stream: the sample at which each of its shards begins, and the end
    counts       how many samples of each stream
    method       `balanced`: that part is chosen anew for each epoch; `fixed`: it is the same in all
    granularity  samples of that part that lie behind one another
    """

    def __init__(
        self,
        starts: Sequence[Sequence[int]],
        counts: Sequence[int],
        seed: int,
        method: str = "balanced",
        granularity: int = 1,
    ) -> None:
        if method not in METHODS:
            raise UsageError(
                f"Invalid sampling method: {method!r:.60}. Must be one of `balanced` or `fixed`."
            )
        if granularity < 1:
            raise UsageError(f"sampling_granularity is {granularity}, at least 1 is wanted")
        self._sizes, self.counts, self._seed = [one[-1] for one in starts], list(counts), seed
        self._is_fixed, self._granularity = method == "fixed", granularity
        self._firsts = np.cumsum([0, *self._sizes])  # each stream's first sample
        self._places = np.cumsum([0, *counts])  # each stream's first place in an epoch
        self._edges = [_edges(own, count) for own, count in zip(starts, counts, strict=True)]
        whole = [
            edges[1:] + first
            for edges, first in zip(self._edges, self._places.tolist(), strict=False)
        ]
        self.edges: IntArray = np.concatenate([np.zeros(1, np.int64), *whole])

    def __len__(self) -> int:
        return int(self._places[-1])

    def samples(self, steps: IntArray, epoch: int, order: str, window: int) -> IntArray:
        """Give the sample of each step, the streams mixed with each other: int64 [k]."""
        places = Epoch(self.edges, self._seed, epoch, order, window).at(steps)
        streams: IntArray = np.searchsorted(self._places, places, "right") - 1
        return self._found(streams, places - self._places[streams], epoch)

    def parted(
        self, streams: IntArray, places: IntArray, epoch: int, order: str, window: int
    ) -> IntArray:
        """Give samples by stream and by place in its own order of this epoch: int64 [k]."""
        own: IntArray = np.empty(len(places), np.int64)
        for k in np.unique(streams).tolist():
            of_k = streams == k
            own[of_k] = Epoch(self._edges[k], self._seed + 1 + k, epoch, order, window).at(
                places[of_k]
            )
        return self._found(streams, own, epoch)

    def _found(self, streams: IntArray, own: IntArray, epoch: int) -> IntArray:
        """Turn places in the chosen part of a stream into samples."""
        out: IntArray = np.empty(len(own), np.int64)
        for k in np.unique(streams).tolist():
            of_k, size = streams == k, self._sizes[k]
            part = own[of_k]
            is_rest = part >= self.counts[k] // size * size
            part = part % size
            if is_rest.any():
                part[is_rest] = self._picked(part[is_rest], size, 0 if self._is_fixed else epoch)
            out[of_k] = self._firsts[k] + part
        return out

    def _picked(self, part: IntArray, size: int, epoch: int) -> IntArray:
        """Put groups of samples into a keyed order; where they do not go into the stream evenly, what is left moves from epoch to epoch."""
        if self._granularity == 1:
            return positions(part, size, self._seed, epoch)
        groups = size // self._granularity
        group = part // self._granularity
        whole = group < groups
        if whole.any():
            group[whole] = positions(group[whole], groups, self._seed, epoch)
        shift = (
            int(positions(np.array([epoch % size], np.int64), size, self._seed, 0)[0])
            if size % self._granularity
            else 0
        )
        return (group * self._granularity + part % self._granularity + shift) % size


def _edges(starts: Sequence[int], count: int) -> IntArray:
    """Give where each shard begins among so many samples of a stream that is gone through again and again, and the end.

    Of a great many, evenly spaced places stand in for them: a mixed order then goes from more shards at a time.
    """
    size, ends = starts[-1], np.array(starts[1:], np.int64)
    turns = -(-count // size) if size else 0
    if turns * len(ends) > _EDGES:
        return np.append(np.arange(0, count, -(-count // _EDGES)), count)
    whole = (np.arange(turns)[:, None] * size + ends).reshape(-1)
    return np.unique(np.concatenate(([0], whole[whole < count], [count])))
