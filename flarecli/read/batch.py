"""Batches of an epoch: choose their rows, then read, decode, transform and collate the rows."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flarecli.errors import FlareError, TransformError
from flarecli.model import IntArray

if TYPE_CHECKING:
    from flarecli.read.dataset import Dataset
    from flarecli.read.epoch_order import Epoch
    from flarecli.read.mixture import Mix, MixOrder

__all__ = [
    "BatchMaker",
    "BatchResult",
    "BatchTask",
    "GatheredBatches",
    "Order",
    "Rows",
    "batch_rows",
    "batch_tasks",
]

Rows: TypeAlias = "Dataset | Mix"
Order: TypeAlias = "Epoch | MixOrder"  # the row order of one epoch
_BLOCK_STEPS = 1 << 16  # approximate number of steps for which rows are computed together


class GatheredBatches(NamedTuple):
    """Consecutive batches whose stored values are already gathered from the shards.

    rows   the number of gathered rows
    batch  function(start, stop) that returns the gathered rows start..stop as a batch
    """

    rows: int
    batch: Callable[[int, int], dict[str, Any]]


class Block:
    """Consecutive batches of one worker. One call can gather the rows of several batches.

    rows  int64 [k]: the row numbers of all these batches
    """

    def __init__(self, rows: IntArray) -> None:
        self.rows = rows
        self._can_gather = True
        # Position in `rows` of the first gathered row, and the gathered rows. Several threads use
        # this attribute. Because it is one tuple, both values are always from the same gather.
        self._gathered: tuple[int, GatheredBatches] | None = None

    def batch(self, data: Rows, start: int, stop: int) -> dict[str, Any]:
        """Return rows start..stop as one batch. Raises the same errors as `Dataset.collated`."""
        at = self._gathered
        if at is None or not at[0] <= start <= stop <= at[0] + at[1].rows:
            found = data.gather(self.rows[start:], stop - start) if self._can_gather else None
            if found is None:
                self._can_gather = False
                return data.collated(self.rows[start:stop])
            at = self._gathered = start, found
        first, gathered = at
        return gathered.batch(start - first, stop - first)


class BatchTask(NamedTuple):
    """A request for one batch.

    rows        row numbers of the batch, int64 [k]
    as_samples  True: return the samples of each row, as a list per row, because transforms may
                return several samples for one row; False: return a batch
    block       the block that contains the batch
    start       position of the batch's first row in the block
    """

    rows: IntArray
    as_samples: bool = False
    block: Block | None = None
    start: int = 0


def batch_rows(
    order: Order,
    start: int,
    batch: int,
    *,
    rank: int,
    ranks: int,
    worker: int = 0,
    workers: int = 1,
    drop_last: bool = False,
) -> Iterator[IntArray]:
    """Yield the row numbers of a worker's batches in order.

    Each array, int64 [k], contains the row numbers of one or more batches. A step is a position in
    `order`, and reads one row. Every group of `batch * ranks` consecutive steps is divided into one
    batch for each rank. Worker w of W makes the batches w, w + W, … of its rank.

    start      first step to read
    drop_last  omit batches that are not complete on every rank
    """
    batch_steps, stop = batch * ranks, order.rows
    if drop_last:
        stop = start + (stop - start) // batch_steps * batch_steps
    # The steps of this rank in a group of `batch_steps` steps, counted from the start of the group.
    # `range` and `min` are used because they accept integers that exceed int64.
    own_steps = np.array(range(rank, min(batch_steps, stop), ranks), np.int64)
    begin, stride = start + worker * batch_steps, workers * batch_steps
    block = stride  # the first array contains one batch, so that this batch is ready early
    while begin < stop:
        firsts = np.arange(begin, min(begin + block, stop), min(stride, stop), dtype=np.int64)
        steps = (firsts[:, None] + own_steps).ravel()
        yield order.at(steps[steps < stop])
        begin, block = begin + block, max(1, _BLOCK_STEPS // batch) * stride


def batch_tasks(rows: IntArray, batch: int, as_samples: bool = False) -> Iterator[BatchTask]:
    """Split row numbers into tasks of `batch` rows each; the last task may have fewer rows.

    All tasks refer to one `Block`, so one call can gather the rows of several tasks.
    """
    block = Block(rows)
    for start in range(0, len(rows), batch):
        yield BatchTask(rows[start : start + batch], as_samples, block, start)


class BatchResult(NamedTuple):
    """The result of a task: a batch, or the samples of each row.

    batch    None if `samples` is set
    samples  set if `as_samples` of the task is True, or if a transform did not return exactly one
             sample for each row
    """

    rows: IntArray
    batch: Any
    samples: list[list[Any]] | None = None


class BatchMaker:
    """A callable that makes the batch for a task.

    It can be pickled if its functions can be pickled.

    fetches  True: download complete shards into the cache before reading their rows
    """

    def __init__(
        self,
        data: Rows,
        transforms: Sequence[Callable[..., Any]],
        collate: Callable[[list[Any]], Any] | None,
        seed: int,
        epoch: int,
        fetches: bool = False,
    ) -> None:
        self._data, self._collate, self._key, self._fetches = data, collate, (seed, epoch), fetches
        # Only this process releases shards, so worker processes must not keep shards in memory.
        self._pid, self._is_closed = os.getpid(), False
        self._transforms = [(transform, _takes_rng(transform)) for transform in transforms]

    @property
    def is_inline(self) -> bool:
        """Return whether the thread that uses the batches should also make the batches.

        This is the case if making a batch only copies mapped bytes, because the copy costs less
        than passing a batch between threads.
        """
        return not self._transforms and self._collate is None and self._data.is_copied

    def __call__(self, task: BatchTask) -> BatchResult:
        if self._fetches:
            # If rows were read first, their bytes would be downloaded twice: once for the rows, and
            # once with the complete shards.
            self._data.shards.fetch_rows(task.rows, passing=os.getpid() == self._pid)
            if self._is_closed:  # `close` ran before this call downloaded its shards
                self._data.shards.release_all()
        if not task.as_samples and not self._transforms and self._collate is None:
            if self._fetches or task.block is None:
                return BatchResult(task.rows, self._data.collated(task.rows))
            stop = task.start + len(task.rows)
            return BatchResult(task.rows, task.block.batch(self._data, task.start, stop))
        samples = self.samples(task.rows)
        if task.as_samples or any(len(of_row) != 1 for of_row in samples):
            return BatchResult(task.rows, None, samples)
        return BatchResult(task.rows, self.collate([sample for (sample,) in samples]))

    def close(self) -> None:
        """Release the shards of prefetched batches. A call in progress releases its own shards."""
        self._is_closed = True
        if self._fetches:
            self._data.shards.release_all()

    def samples(self, rows: IntArray) -> list[list[Any]]:
        """Return the samples of each row. Raises TransformError, which names the row."""
        return [
            self._transformed(int(row), sample)
            for row, sample in zip(rows, self._data.__getitems__(rows), strict=True)
        ]

    def _transformed(self, row: int, sample: Any) -> list[Any]:
        samples, rng = [sample], None
        try:
            if any(takes_rng for _, takes_rng in self._transforms):
                rng = np.random.default_rng((*self._key, row))
            for transform, takes_rng in self._transforms:
                options = {"rng": rng} if takes_rng else {}
                results: list[Any] = []
                for sample in samples:
                    results += _samples_of(transform(sample, **options))
                samples = results
        except Exception as error:
            message = (
                error.message
                if isinstance(error, FlareError)
                else f"{type(error).__name__}: {error}"
            )
            raise TransformError(f"the transform failed: {message}", row=row) from error
        return samples

    def collate(self, samples: list[Any]) -> Any:
        """Collate samples into a batch."""
        return self._data.collate(samples) if self._collate is None else self._collate(samples)


def _samples_of(result: Any) -> Iterable[Any]:
    """Return the samples in a transform's result, which is a sample, a list or a generator."""
    return result if isinstance(result, list) or inspect.isgenerator(result) else [result]


def _takes_rng(transform: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
