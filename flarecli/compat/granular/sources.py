"""granular's sources: functions from a step to a datapoint.

numpy draws the random orders. With the same seed, flare and granular draw the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flarecli.errors import UsageError

__all__ = ["Epochs", "Interleave", "Mix", "Sample", "Transform", "Truncate"]


def _called(source: Any) -> Callable[[int], Any]:
    if callable(source):
        called: Callable[[int], Any] = source
        return called
    if hasattr(source, "__getitem__"):  # the original accepts any indexable object
        getitem: Callable[[int], Any] = source.__getitem__
        return getitem
    raise UsageError(
        f"expected a function or an indexable object, got {type(source).__name__}",
    )


class Epochs:
    """Endless repetition of a source; with `shuffle`, each repetition has a new random order.

    length  number of datapoints in each repetition; None means all datapoints of the source
    seed    seed of the random orders; granular ignores `seed` and always uses 0
    """

    def __init__(
        self, source: Any, length: int | None = None, shuffle: bool = True, seed: int = 0
    ) -> None:
        self.length, self.shuffle, self.seed = length or len(source), shuffle, seed
        self.source = _called(source)
        self._order: tuple[int, Any] = (-1, None)

    def __call__(self, step: int) -> Any:
        epoch, index = divmod(int(step), self.length)
        if self.shuffle:
            known, order = self._order
            if known != epoch:
                order = np.random.default_rng([self.seed, epoch]).permutation(
                    np.arange(self.length)
                )
                self._order = epoch, order
            index = int(order[index])
        return self.source(index)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": (-1, None)}


class Transform:
    """Source that applies `fn(datapoint, seed=[seed, step])` to the datapoints of a source."""

    def __init__(self, source: Any, fn: Callable[..., Any], seed: int = 0) -> None:
        self.source, self.fn, self.seed = _called(source), fn, seed

    def __call__(self, step: int) -> Any:
        return self.fn(self.source(step), seed=[self.seed, step])


class Sample:
    """Source that draws a random datapoint for each step, with replacement."""

    def __init__(self, source: Any, length: int | None = None, seed: int = 0) -> None:
        self.length, self.seed = length or len(source), seed
        self.source = _called(source)

    def __call__(self, step: int) -> Any:
        return self.source(int(np.random.default_rng([self.seed, step]).choice(self.length)))


class Truncate:
    """Source that repeats the first `limit` datapoints of a source."""

    def __init__(self, source: Any, limit: int, length: int | None = None) -> None:
        self.limit, self.source = min(length or len(source), limit), _called(source)

    def __call__(self, step: int) -> Any:
        return self.source(step % self.limit)


class Interleave:
    """Source that takes its datapoints from several sources in turn."""

    def __init__(self, sources: Sequence[Any]) -> None:
        self.sources = [_called(source) for source in sources]

    def __call__(self, step: int) -> Any:
        inner, outer = divmod(step, len(self.sources))
        return self.sources[outer](inner)


class Mix:
    """Source that selects a random source for each step, in proportion to the weights."""

    def __init__(self, sources: Sequence[Any], weights: Sequence[float], seed: int = 0) -> None:
        self.sources, self.seed = [_called(source) for source in sources], seed
        self.weights = np.asarray(weights, np.float32)
        self.weights /= self.weights.sum()

    def __call__(self, step: int) -> Any:
        rng = np.random.default_rng([self.seed, step])
        return self.sources[int(rng.choice(len(self.sources), p=self.weights))](step)
