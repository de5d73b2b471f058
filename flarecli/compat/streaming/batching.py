"""Batches made of one stream each, or of all streams in the same parts: which stream, and which place in it, each step of an epoch has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flarecli.errors import UsageError
from flarecli.model import IntArray
from flarecli.read import positions

__all__ = ["METHODS", "Batching"]

METHODS = ("random", "stratified", "per_stream", "device_per_stream")


class Batching:
    """Steps of an epoch by stream. Step s belongs to rank s % ranks; a batch of all ranks is batch × ranks steps in a row.

    method  stratified: each such batch has of each stream as large a part as the epoch has
            per_stream: each such batch is of one stream; device_per_stream: each rank's part of it is
    counts  samples of each stream in an epoch; those that make no whole batch are left out
    raises  UsageError for another method, or a stream too small to be in every batch
    """

    def __init__(
        self, method: str, counts: Sequence[int], batch: int, ranks: int, seed: int
    ) -> None:
        if method not in METHODS[1:]:
            raise UsageError(
                f"batching_method is {method!r:.60}", hint=f"Choose one of {', '.join(METHODS)}."
            )
        self._method, self._batch, self._ranks, self._seed = method, batch, ranks, seed
        self.whole = batch * ranks
        if method == "stratified":
            self._shares = _shares(counts, self.whole)
            self.batches = min(
                count // share for count, share in zip(counts, self._shares.tolist(), strict=True)
            )
            self.steps = self.batches * self.whole
            return
        self._size = self.whole if method == "per_stream" else batch
        self._ends = np.cumsum([count // self._size for count in counts])
        self.batches = int(self._ends[-1])
        self.steps = self.batches * self._size // self.whole * self.whole

    def at(self, steps: IntArray, epoch: int, shuffle: bool) -> tuple[IntArray, IntArray]:
        """Give the stream of each step, and the place in that stream's order: int64 [k] each."""
        if self._method == "stratified":
            bounds = np.cumsum(self._shares)
            number, offset = np.divmod(steps, self.whole)
            stream: IntArray = np.searchsorted(bounds, offset, "right")
            return stream, number * self._shares[stream] + offset - (bounds - self._shares)[stream]
        if self._method == "per_stream":
            number, offset = np.divmod(steps, self.whole)
        else:
            turn, rank = np.divmod(steps, self._ranks)
            number, offset = turn // self._batch * self._ranks + rank, turn % self._batch
        if shuffle:
            number = positions(number, self.batches, self._seed, epoch)
        stream = np.searchsorted(self._ends, number, "right")
        firsts = np.concatenate(([0], self._ends))[stream]
        return stream, (number - firsts) * self._size + offset


def _shares(counts: Sequence[int], whole: int) -> IntArray:
    """Divide a batch in proportion to the counts: the largest remainders are rounded up, and of equal ones the last, as in the original."""
    exact = np.array(counts, np.float64) * whole / max(1, sum(counts))
    shares: IntArray = np.floor(exact).astype(np.int64)
    for k in np.argsort(exact - shares, kind="stable")[::-1][: whole - int(shares.sum())]:
        shares[k] += 1
    if not shares.all():
        k = int(np.flatnonzero(shares == 0)[0])
        raise UsageError(
            f"Number of samples for stream {k} is 0 in a batch of {whole}: its part is too small",
            hint="Raise its proportion, or batch_size.",
        )
    return shares
