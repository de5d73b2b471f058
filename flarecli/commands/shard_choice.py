"""Selection of the shards to check: all shards, one of N parts, or a random sample."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass

from flarecli.errors import UsageError

__all__ = ["Choice", "sample_size"]


def sample_size(
    sample: int | float, count: int, round_share: Callable[[float], int] = round
) -> int:
    """Return the size of a sample of `count` items. Raises UsageError for a share above 1.

    sample       number of items as an int, or a share of the items as a float
    round_share  function that rounds the number of items in a share
    """
    if hasattr(sample, "__index__"):
        return operator.index(sample)
    if sample > 1:
        raise UsageError(
            f"invalid sample {sample}: expected a whole number, or a share of at most 1.0",
            hint="Use 5 for five items, or 0.05 for 5%.",
        )
    return round_share(sample * count)


@dataclass(frozen=True)
class Choice:
    """A reproducible selection of shards.

    part    (k, n): shards k, k+n, k+2n, …, counted from 0; parts 0 to n-1 contain each shard once
    sample  number of shards as an int, or a share of the shards as a float, at least one shard;
            with `part`, a sample of this part
    """

    part: tuple[int, int] | None = None
    sample: int | float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.part is not None and not 0 <= self.part[0] < self.part[1]:
            raise UsageError(
                f"invalid part {self.part[0]} of {self.part[1]}: parts are counted from 0"
            )
        if self.sample is not None and self.sample < 0:
            raise UsageError(f"sample: expected at least 0, got {self.sample}")

    @property
    def is_all(self) -> bool:
        """Whether all shards are selected."""
        return self.part is None and self.sample is None

    def of(self, count: int) -> Collection[int]:
        """Return the selected positions among `count` shards."""
        k, n = self.part or (0, 1)
        shards = range(k, count, n)
        if self.sample is None:
            return shards
        import random  # loads numpy

        size = sample_size(self.sample, len(shards), math.ceil)
        return frozenset(random.Random(int(self.seed)).sample(shards, min(size, len(shards))))
