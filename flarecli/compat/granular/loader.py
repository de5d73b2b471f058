"""granular's Loader: batches of a source without end, made ahead and given in order, whatever the number of workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from flarecli.errors import FormatError, UsageError
from flarecli.storage.workers import Workers

__all__ = ["Loader"]

Batch = dict[str, Any]


class Loader:
    """Iterate it: dicts of arrays, [batch, …] for each key.

    source    step -> datapoint; the values of a key all have the dtype and the shape of the first one's
    prefetch  batches made ahead
    workers   how many are made side by side: by threads, or by processes where `mp`, a context of multiprocessing, is given
    shard_id, num_shards  which batches are this loader's, when several share the steps
    """

    def __init__(
        self,
        source: Any,
        batch: int,
        prefetch: int = 8,
        workers: int = 32,
        recycle_after: int | bool = False,
        shard_id: int = 0,
        num_shards: int = 1,
        mp: Any = None,
    ) -> None:
        if batch < 1 or prefetch < 0 or not 0 <= shard_id < num_shards:
            raise UsageError(
                f"batch is {batch}, prefetch {prefetch}, shard_id {shard_id} of {num_shards}: those make no batches"
            )
        self.source: Callable[[int], Any] = source if callable(source) else source.__getitem__
        self.batch, self.prefetch, self.shard_id, self.num_shards = (
            batch,
            prefetch,
            shard_id,
            num_shards,
        )
        self.consumed = self._asked = 0
        self._workers, self._mp = max(1, min(workers, prefetch + 1)), mp
        self._pool: Executor | None = None
        self._ahead: deque[Future[Batch]] = deque()

    @cached_property
    def spec(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Key -> dtype and shape of one datapoint's value."""
        return {
            key: (value.dtype, value.shape)
            for key, value in ((key, np.asarray(one)) for key, one in self.source(0).items())
        }

    def __iter__(self) -> Loader:
        if self._pool is None:
            if self._mp is None:
                self._pool = Workers(self._workers, "flare-load")
            else:
                self._pool = ProcessPoolExecutor(self._workers, self._mp)
        return self

    def __next__(self) -> Batch:
        if self._pool is None:
            raise UsageError("the loader was not begun", hint="Call iter() on it first.")
        while len(self._ahead) <= self.prefetch:
            steps = range(
                self._asked + self.shard_id * self.batch,
                self._asked + (self.shard_id + 1) * self.batch,
            )
            self._ahead.append(self._pool.submit(_made, self.source, steps, self.spec))
            self._asked += self.batch * self.num_shards
        try:
            batch = self._ahead.popleft().result()
        except BaseException:
            self.close()
            raise
        self.consumed += self.batch * self.num_shards
        return batch

    def save(self) -> dict[str, int]:
        """Give the place behind the last batch given."""
        return {"step": self.consumed}

    def load(self, d: dict[str, int]) -> None:
        """Go on from there."""
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self.consumed = self._asked = int(d["step"])

    def close(self) -> None:
        """Stop the workers."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None
        self._ahead.clear()


def _made(
    source: Callable[[int], Any], steps: range, spec: dict[str, tuple[Any, tuple[int, ...]]]
) -> Batch:
    out = {key: np.empty((len(steps), *shape), dtype) for key, (dtype, shape) in spec.items()}
    for i, step in enumerate(steps):
        datapoint = source(step)
        if datapoint.keys() != out.keys():
            raise FormatError(
                f"key {min(datapoint.keys() ^ out.keys())!r} is missing or unknown in the datapoint",
                where=f"step {step}",
            )
        for key, one in datapoint.items():
            value, (dtype, shape) = np.asarray(one), spec[key]
            if value.shape != shape or not np.can_cast(value.dtype, dtype, "same_kind"):
                raise FormatError(
                    f"key {key!r} is {value.dtype} {value.shape}, the first one's is {dtype} {shape}",
                    where=f"step {step}",
                )
            out[key][i] = value
            if (
                value.dtype.kind in "iu"
                and value.dtype != dtype
                and not np.array_equal(out[key][i], value)
            ):
                raise FormatError(
                    f"key {key!r} has {value.dtype} numbers that {dtype}, the first one's, cannot hold",
                    where=f"step {step}",
                )
    return out
