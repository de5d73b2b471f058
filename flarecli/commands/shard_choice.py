"""Which shards a check looks at: all, a part of them, some by chance, some of a part."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass

from flarecli.errors import UsageError

__all__ = ["Choice", "sample_size"]


def sample_size(sample: int | float, count: int, whole: Callable[[float], int] = round) -> int:
    """Give how many of `count` a sample has: so many (an int, numpy's too), or that share, made whole. Raises UsageError for a share above 1."""
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
    """A rule; the same one names the same shards each time.

    part    (k, n): shards k, k+n, k+2n, … counted from 0, so that parts 0 to n-1 are all shards, each once
    sample  an int: so many shards; a float: that share of them, one at least; of the part, if both are given
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
        """Whether nothing is left out."""
        return self.part is None and self.sample is None

    def of(self, count: int) -> Collection[int]:
        """Give the positions that are chosen among `count` shards."""
        k, n = self.part or (0, 1)
        found = range(k, count, n)
        if self.sample is None:
            return found
        import random  # and with it all that makes numbers, for the few that ask for them

        size = sample_size(self.sample, len(found), math.ceil)
        return frozenset(random.Random(int(self.seed)).sample(found, min(size, len(found))))
