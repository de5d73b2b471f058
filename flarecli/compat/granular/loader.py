"""granular's Loader: endless batches of a source, prefetched in parallel and returned in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property, partial
from typing import Any

import numpy as np

from flarecli.errors import FormatError, UsageError
from flarecli.prefetch import OrderedQueue

__all__ = ["Loader"]

Batch = dict[str, Any]


class Loader:
    """An endless iterator over batches; each batch is a dict: key -> array [batch, …].

    source    function from a step to a datapoint; the datapoint of step 0 determines the shape and
              dtype of each key
    prefetch  number of batches to prefetch
    workers   number of threads; if `mp` is set, number of processes
    mp        multiprocessing context for worker processes; None means threads
    shard_id, num_shards  index of this loader, and number of loaders that divide the steps
    recycle_after  ignored; accepted for compatibility
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
                "expected batch >= 1, prefetch >= 0 and 0 <= shard_id < num_shards, got "
                f"{batch}, {prefetch}, {shard_id} and {num_shards}"
            )
        self.source: Callable[[int], Any] = source if callable(source) else source.__getitem__
        self.batch, self.prefetch = batch, prefetch
        self.shard_id, self.num_shards = shard_id, num_shards
        self.consumed = self._submitted = 0
        self._workers, self._mp = max(1, min(workers, prefetch + 1)), mp
        self._queue: OrderedQueue[Callable[[], Batch], Batch] | None = None
        self._processes: ProcessPoolExecutor | None = None

    @cached_property
    def spec(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """The dtype and shape of each key's value in one datapoint: key -> (dtype, shape)."""
        return {
            key: (value.dtype, value.shape)
            for key, value in ((key, np.asarray(item)) for key, item in self.source(0).items())
        }

    def __iter__(self) -> Loader:
        if self._queue is None:
            self._queue = OrderedQueue(lambda make: make(), workers=self._workers)
            if self._mp is not None:
                self._processes = ProcessPoolExecutor(self._workers, self._mp)
        return self

    def _start(self, steps: range) -> Callable[[], Batch]:
        make = partial(_make_batch, self.source, steps, self.spec)
        return make if self._processes is None else self._processes.submit(make).result

    def __next__(self) -> Batch:
        if self._queue is None:
            raise UsageError("the loader is not running", hint="Call iter(loader) first.")
        while len(self._queue) <= self.prefetch:
            steps = range(
                self._submitted + self.shard_id * self.batch,
                self._submitted + (self.shard_id + 1) * self.batch,
            )
            self._queue.put(self._start(steps))
            self._submitted += self.batch * self.num_shards
        try:
            batch = next(self._queue.drain())
        except BaseException:
            self.close()
            raise
        self.consumed += self.batch * self.num_shards
        return batch

    def save(self) -> dict[str, int]:
        """Return the position after the last batch that the iterator returned."""
        return {"step": self.consumed}

    def load(self, d: dict[str, int]) -> None:
        """Resume at a position that `save` returned."""
        is_started = self._queue is not None
        self.close()
        self.consumed = self._submitted = int(d["step"])
        if is_started:
            iter(self)

    def close(self) -> None:
        """Stop the workers and discard prefetched batches."""
        if self._queue is not None:
            self._queue.close(wait=True)
        if self._processes is not None:
            self._processes.shutdown(wait=True, cancel_futures=True)
        self._queue = self._processes = None


def _make_batch(
    source: Callable[[int], Any], steps: range, spec: dict[str, tuple[Any, tuple[int, ...]]]
) -> Batch:
    out = {key: np.empty((len(steps), *shape), dtype) for key, (dtype, shape) in spec.items()}
    for i, step in enumerate(steps):
        datapoint = source(step)
        if datapoint.keys() != out.keys():
            key = min(datapoint.keys() ^ out.keys())
            fault = "missing" if key in out else "unknown"
            raise FormatError(f"{fault} key {key!r}", where=f"step {step}")
        for key, item in datapoint.items():
            value, (dtype, shape) = np.asarray(item), spec[key]
            if value.shape != shape or not np.can_cast(value.dtype, dtype, "same_kind"):
                raise FormatError(
                    f"key {key!r}: expected dtype {dtype} and shape {shape} as in the first "
                    f"datapoint, got {value.dtype} and {value.shape}",
                    where=f"step {step}",
                )
            out[key][i] = value
            if (
                value.dtype.kind in "iu"
                and value.dtype != dtype
                and not np.array_equal(out[key][i], value)
            ):
                raise FormatError(
                    f"key {key!r} has {value.dtype} values that do not fit in {dtype}, "
                    "the dtype of the first datapoint",
                    where=f"step {step}",
                )
    return out
