"""Spanner, which finds the shard that contains a sample."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from flarecli.errors import RowsError
from flarecli.model import IntArray

__all__ = ["Spanner"]


class Spanner:
    """Mapping from a sample number to a shard and a position in this shard.

    shard_sizes  number of samples of each shard: int64 [shards]
    span_size    ignored; accepted for compatibility
    """

    def __init__(self, shard_sizes: IntArray, span_size: int = 1 << 10) -> None:
        self.shard_sizes, self.span_size = shard_sizes, span_size
        self.shard_bounds: IntArray = np.concatenate(([0], np.cumsum(shard_sizes)))
        self._bounds: list[int] = self.shard_bounds.tolist()  # faster than numpy for one sample
        self.num_samples = self._bounds[-1]

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the shard that contains a sample, and the position of the sample in the shard.

        raises  RowsError (an IndexError) if there is no sample with the number `index`
        """
        if not 0 <= index < self.num_samples:
            raise RowsError(f"Invalid sample index `{index}`: there are {self.num_samples} samples")
        shard = bisect_right(self._bounds, index) - 1
        return shard, int(index) - self._bounds[shard]
