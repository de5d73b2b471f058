"""granular's sources: what gives the datapoint of each step. Orders are numpy's, the same as the original's of the same seed."""

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
    if hasattr(source, "__getitem__"):
        found: Callable[[int], Any] = source.__getitem__
        return found
    raise UsageError(
        f"{type(source).__name__} is no source",
        hint="Give a function of the step, or what can be indexed.",
    )


class Epochs:
    """All of a source again and again, each time in another order if shuffled; `seed` counts, which the original takes for 0."""

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
    """A source's datapoints through `fn(datapoint, seed)`; the seed is [seed, step]."""

    def __init__(self, source: Any, fn: Callable[..., Any], seed: int = 0) -> None:
        self.source, self.fn, self.seed = _called(source), fn, seed

    def __call__(self, step: int) -> Any:
        return self.fn(self.source(step), seed=[self.seed, step])


class Sample:
    """Any datapoint at each step, also the same one again."""

    def __init__(self, source: Any, length: int | None = None, seed: int = 0) -> None:
        self.length, self.seed = length or len(source), seed
        self.source = _called(source)

    def __call__(self, step: int) -> Any:
        return self.source(int(np.random.default_rng([self.seed, step]).choice(self.length)))


class Truncate:
    """The first datapoints of a source, again and again."""

    def __init__(self, source: Any, limit: int, length: int | None = None) -> None:
        self.limit, self.source = min(length or len(source), limit), _called(source)

    def __call__(self, step: int) -> Any:
        return self.source(step % self.limit)


class Interleave:
    """Sources in turn."""

    def __init__(self, sources: Sequence[Any]) -> None:
        self.sources = [_called(source) for source in sources]

    def __call__(self, step: int) -> Any:
        inner, outer = divmod(step, len(self.sources))
        return self.sources[outer](inner)


class Mix:
    """One of several sources at each step, as often as its weight says; each is given the step itself."""

    def __init__(self, sources: Sequence[Any], weights: Sequence[float], seed: int = 0) -> None:
        self.sources, self.seed = [_called(source) for source in sources], seed
        given = np.asarray(weights, np.float32)
        self.weights = given / given.sum()

    def __call__(self, step: int) -> Any:
        return self.sources[
            int(np.random.default_rng([self.seed, step]).choice(len(self.sources), p=self.weights))
        ](step)
