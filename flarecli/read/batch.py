"""The work of a loader: cut an epoch into batches; read, decode, transform and collate their rows."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flarecli.errors import FlareError, TransformError
from flarecli.model import IntArray
from flarecli.read.protocols import LocatedBatches, Order, Rows

__all__ = ["Made", "Part", "Work", "batch_rows", "parts_of"]

_BLOCK_ROWS = 512  # rows whose position in memory is looked up together
_BLOCK_STEPS = 1 << 14  # approximate number of steps that are mapped to rows at once


class Block:
    """Rows of several consecutive batches, int64 [k], which are located in memory together."""

    def __init__(self, rows: IntArray) -> None:
        self.rows, self._is_read = rows, False  # `_is_read`: rows cannot be located
        self._first = 0  # index of the first located row
        self._located: LocatedBatches | None = None

    def batch(self, data: Rows, start: int, stop: int) -> dict[str, Any]:
        """Return rows start..stop as one batch. Raises the errors of `Rows.collated`."""
        located = self._located
        if not self._is_read and (
            located is None or not self._first <= start <= stop <= self._first + located.rows
        ):
            located = self._located = data.locate(self.rows[start:], stop - start)
            self._first, self._is_read = start, located is None
        if located is None:
            return data.collated(self.rows[start:stop])
        return located.batch(start - self._first, stop - self._first)


class Part(NamedTuple):
    """The rows of one batch.

    rows   int64 [k]
    apart  return the samples of each row instead of a batch
    block  the block that contains the rows, from its row `start` on
    """

    rows: IntArray
    apart: bool = False
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
    """Yield the rows of consecutive batches, int64 [k]: several batches at once, in order.

    One batch of all ranks is `batch * ranks` steps. Worker w of W makes batches w, w + W, … of its
    rank.

    start      first step of the run
    drop_last  leave out batches that are not complete on every rank
    """
    whole, stop = batch * ranks, order.rows
    if drop_last:
        stop = start + (stop - start) // whole * whole
    # the steps of a batch of this rank; `range` and `min`, because arguments may exceed int64
    inside = np.array(range(rank, min(whole, stop), ranks), np.int64)
    begin, stride = start + worker * whole, workers * whole
    block = stride  # the first block is one batch, so that it is ready early
    while begin < stop:
        firsts = np.arange(begin, min(begin + block, stop), min(stride, stop), dtype=np.int64)
        steps = (firsts[:, None] + inside).ravel()
        yield order.at(steps[steps < stop])
        begin, block = begin + block, max(1, _BLOCK_STEPS // batch) * stride


def parts_of(rows: IntArray, batch: int, apart: bool = False) -> Iterator[Part]:
    """Split rows into batches; consecutive batches share a block."""
    block_rows = batch * max(1, _BLOCK_ROWS // batch)
    for first in range(0, len(rows), block_rows):
        block = Block(rows[first : first + block_rows])
        for start in range(0, len(block.rows), batch):
            yield Part(block.rows[start : start + batch], apart, block, start)


class Made(NamedTuple):
    """The result of a part: a batch, or the samples of each row.

    samples  set if the part has `apart`, or if a transform returned other than one sample per row
    """

    rows: IntArray
    batch: Any
    samples: list[list[Any]] | None = None


class Work:
    """Make a batch of each part. Picklable if the transforms are.

    fetches  download whole shards into the cache before reading them
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
        self._pid, self._is_over = os.getpid(), False  # only this process releases shards
        self._transforms = [(one, _takes_rng(one)) for one in transforms]

    @property
    def is_inline(self) -> bool:
        """Whether the thread that takes the batches makes them.

        Copying mapped bytes costs less than passing a batch between threads.
        """
        return not self._transforms and self._collate is None and self._data.is_copied

    def __call__(self, part: Part) -> Made:
        if self._fetches:  # a range read first would be downloaded again with its shard
            self._data.shards.fetch_rows(part.rows, passing=os.getpid() == self._pid)
            if self._is_over:  # `end` ran before this call added its shards
                self._data.shards.release_all()
        if not part.apart and not self._transforms and self._collate is None:
            if self._fetches or part.block is None:
                return Made(part.rows, self._data.collated(part.rows))
            stop = part.start + len(part.rows)
            return Made(part.rows, part.block.batch(self._data, part.start, stop))
        samples = self.samples(part.rows)
        if part.apart or any(len(one) != 1 for one in samples):
            return Made(part.rows, None, samples)
        return Made(part.rows, self.collated([one[0] for one in samples]))

    def end(self) -> None:
        """Release the shards that prefetched batches keep; a call in flight releases its own."""
        self._is_over = True
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
                results = [
                    transform(one, rng=rng) if takes_rng else transform(one) for one in samples
                ]
                samples = [one for result in results for one in _several(result)]
        except Exception as error:
            message = (
                error.message
                if isinstance(error, FlareError)
                else f"{type(error).__name__}: {error}"
            )
            raise TransformError(f"the transform failed: {message}", row=row) from error
        return samples

    def collated(self, samples: list[Any]) -> Any:
        """Collate samples into a batch."""
        return self._data.collate(samples) if self._collate is None else self._collate(samples)


def _several(result: Any) -> Iterable[Any]:
    """Return the samples of a transform's result: a sample, a list or a generator."""
    return result if isinstance(result, list) or inspect.isgenerator(result) else [result]


def _takes_rng(transform: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a builtin
        return False
