"""Selection of the shards to check: all, one of N parts, a random sample."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass

from flarecli.errors import UsageError

__all__ = ["Choice", "sample_size"]


def sample_size(sample: int | float, count: int, whole: Callable[[float], int] = round) -> int:
    """Return the size of a sample of `count`: the int, or the rounded share. Raises UsageError for
    a share above 1.
    """
    if hasattr(sample, "__index__"):
        return operator.index(sample)
    if sample > 1:
        raise UsageError(
            f"a sample of {sample} is more than all",
            hint="Give a whole number, or a share from 0.0 to 1.0.",
        )
    return whole(sample * count)


@dataclass(frozen=True)
class Choice:
    """A reproducible selection of shards.

    part    (k, n): shards k, k+n, k+2n, …, counted from 0; parts 0 to n-1 contain each shard once
    sample  int: number of shards; float: share of them, at least one shard; of the part, if both
            are set
    """

    part: tuple[int, int] | None = None
    sample: int | float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.part is not None and not 0 <= self.part[0] < self.part[1]:
            raise UsageError(f"there is no part {self.part[0]} of {self.part[1]}")
        if self.sample is not None and self.sample < 0:
            raise UsageError(f"{self.sample} is no size of a sample")

    @property
    def is_all(self) -> bool:
        """Whether all shards are selected."""
        return self.part is None and self.sample is None

    def of(self, count: int) -> Collection[int]:
        """Return the selected positions among `count` shards."""
        k, n = self.part or (0, 1)
        found = range(k, count, n)
        if self.sample is None:
            return found
        import random  # loads numpy

        size = sample_size(self.sample, len(found), math.ceil)
        return frozenset(random.Random(int(self.seed)).sample(found, min(size, len(found))))
