"""Weighted mix of datasets. The dataset for each step is computed, so runs can resume at any step.

Each block of 10,000 steps reads each dataset a fixed number of times. The seed determines the order
of the datasets in a block.

The steps that read one dataset are numbered from 0, across all blocks and epochs of the mix. These
numbers are called the dataset steps of the dataset. The first n dataset steps of a dataset with n
rows use the row order of the dataset's epoch 0, the next n dataset steps use the row order of its
epoch 1, and so on. Therefore, every row of a dataset is read once before any row is repeated.
"""

from __future__ import annotations

import copy
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flarecli.arguments import check_minimum, checked, number, shown
from flarecli.errors import RowsError, UsageError
from flarecli.model import IntArray, Sample
from flarecli.read.batch import Order
from flarecli.read.dataset import Dataset
from flarecli.read.decode import DecodeRule, collate_samples, stack_values
from flarecli.read.epoch import DATASET_HINT, Data
from flarecli.read.epoch_order import positions
from flarecli.read.fingerprint import checksum_of
from flarecli.read.table import Shards, row_numbers

__all__ = ["Mix", "MixOrder", "mix"]

BLOCK = 10_000  # steps per block; weights are rounded to 1 / BLOCK
_MAX_STEPS = 1 << 62  # limit for the total steps of all epochs, because steps are int64
_MAX_MIXES = 1 << 16  # maximum number of mixes of earlier versions that `is_compaction_of` compares
# The permutation of a block uses the number of the block plus this constant as `epoch`.
_FIRST_BLOCK_KEY = 1 << 40


@checked
def mix(weights: Mapping[Dataset, float], rows: int | None = None) -> Mix:
    """Mix datasets by weight: with `flare.mix({a: 0.7, b: 0.3})`, 7 of 10 samples are from `a`.

    weights  dataset -> weight above 0; the ratio of the weights is rounded to 1 / 10,000
    rows     number of steps per epoch (default: the total number of rows of the datasets)
    raises   UsageError for an invalid weight, an empty dataset or datasets with different columns
    """
    return Mix(tuple(weights), tuple(weights.values()), rows)


class Mix(Data):
    """A weighted mix of datasets; a Loader reads it like a Dataset.

    Row numbers refer to the concatenated datasets.
    """

    @checked
    def __init__(
        self, parts: Sequence[Dataset], weights: Sequence[float], rows: int | None = None
    ) -> None:
        for part in parts if isinstance(parts, Sequence) else [parts]:
            if not isinstance(part, Dataset):
                raise UsageError(f"expected a dataset, got {shown(part)}", hint=DATASET_HINT)
        if not isinstance(weights, (Sequence, np.ndarray)) or np.ndim(weights) == 0:
            weights = []
        if not parts or len(parts) != len(weights) or not all(map(_is_weight, weights)):
            raise UsageError(
                "expected datasets, each with a weight above 0",
                hint="Pass a dict, as in flare.mix({a: 0.7, b: 0.3}).",
            )
        if not all(len(part) for part in parts):
            raise UsageError("cannot mix an empty dataset")
        check_minimum(1, rows=rows)
        names = [column.name for column in parts[0].columns]
        for part in parts:
            if differing := {column.name for column in part.columns} ^ set(names):
                raise UsageError(
                    f"column {min(differing)!r} is missing in some datasets",
                    hint="Select the same columns in each dataset.",
                    column=min(differing),
                )
        self.parts, self._names = tuple(parts), names
        self._firsts = np.cumsum([0, *(len(part) for part in parts)])
        self.quotas = _quotas(np.asarray(weights, np.float64))
        self.rows = rows or int(self._firsts[-1])

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self._names))
        return f"<Mix: {len(self.parts)} datasets, {len(self)} rows of {names}>"

    def __len__(self) -> int:
        """Return the total number of rows of the datasets."""
        return int(self._firsts[-1])

    def __getitem__(self, row: int) -> Sample:
        return self.__getitems__([row])[0]

    def __getitems__(self, indices: Sequence[int] | IntArray) -> list[Sample]:
        out: list[Sample] = [{}] * len(indices)
        for part, at, rows in self._split(indices):
            for k, sample in zip(at.tolist(), part.__getitems__(rows), strict=True):
                out[k] = sample
        return out

    def _split(
        self, indices: Sequence[int] | IntArray
    ) -> Iterator[tuple[Dataset, IntArray, IntArray]]:
        """Yield (dataset, positions in `indices`, row numbers in the dataset) for each dataset."""
        rows = row_numbers(indices)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise RowsError(f"row is outside the mix, which has {len(self)} rows")
        owner = np.searchsorted(self._firsts, rows, "right") - 1
        for k in np.unique(owner):
            at = np.flatnonzero(owner == k)
            yield self.parts[k], at, rows[at] - self._firsts[k]

    @property
    def checksum(self) -> str:
        """Return one checksum of the dataset checksums, the quotas and the steps per epoch.

        The quota of a dataset is its number of steps per block.
        """
        return self._checksum_of([part.checksum for part in self.parts])

    def _checksum_of(self, parts: Sequence[str]) -> str:
        """Return the checksum that the mix has if its datasets have these checksums."""
        numbers = np.asarray([self.rows, *self.quotas.tolist()], "<i8").tobytes()
        return checksum_of([*(part.encode() for part in parts), numbers])

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return False, because a mix cannot resume after rows are appended to its datasets."""
        return False

    def is_compaction_of(self, checksum: str) -> bool:
        """Return whether `checksum` belongs to a mix of earlier versions with the same rows."""
        versions = ([part.checksum, *part.same_row_checksums()] for part in self.parts)
        mixes = itertools.islice(itertools.product(*versions), _MAX_MIXES)
        return any(self._checksum_of(parts) == checksum for parts in mixes)

    def version_with(self, checksum: str) -> str:
        """Return an empty string: a mix has no versions, so no version has the checksum."""
        return ""

    def collated(self, indices: Sequence[int] | IntArray) -> dict[str, Any]:
        """Return rows as one batch; see `Dataset.collated`."""
        if not len(indices):
            return self.parts[0].collated(indices)
        batches = [(at, part.collated(rows)) for part, at, rows in self._split(indices)]
        return {
            name: _merged([(at, batch[name]) for at, batch in batches], len(indices))
            for name in self._names
        }

    def gather(self, rows: IntArray, least: int) -> None:
        """Return None, because rows of several datasets cannot be gathered in one call."""

    @property
    def is_copied(self) -> bool:
        """Return whether `is_copied` is True for all datasets; see `Dataset.is_copied`."""
        return all(part.is_copied for part in self.parts)

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch; numbers have the dtypes of the first dataset."""
        return collate_samples(samples, self.parts[0].dtypes)

    def decoded(self, how: Mapping[str, DecodeRule]) -> Mix:
        """Return a mix with other decoders for the given columns; see `Dataset.decoded`."""
        out = copy.copy(self)
        out.parts = tuple(part.decoded(how) for part in self.parts)
        return out

    @checked
    def order(self, seed: int, epoch: int, order: str, window: int) -> MixOrder:
        """Return the row order of an epoch."""
        return MixOrder(self, seed, epoch, order, window)

    def close(self) -> None:
        """Close the open shards of all datasets."""
        for part in self.parts:
            part.close()

    def load(self) -> None:
        """Import the format modules of all datasets, so that forked processes share them."""
        for part in self.parts:
            part.load()

    @property
    def shards(self) -> Shards:
        """Return the shards of all datasets, so that the caller can prefetch and release them."""
        return Shards(
            [
                (int(first), part._table)
                for first, part in zip(self._firsts, self.parts, strict=False)
            ]
        )


class MixOrder:
    """The row order of one epoch of a mix.

    rows              number of steps
    parallel_windows  number of windows that are read at the same time
    """

    def __init__(self, mix: Mix, seed: int, epoch: int, order: str, window: int) -> None:
        if (epoch + 1) * mix.rows > _MAX_STEPS:
            raise UsageError(f"epoch: expected less than {_MAX_STEPS // mix.rows}, got {epoch}")
        self.rows, self.parallel_windows = mix.rows, len(mix.parts)
        self._mix, self._seed, self._options = mix, seed, (order, window)
        self._first = epoch * mix.rows  # number of steps in the preceding epochs
        self._orders: dict[tuple[int, int], Order] = {}
        self._part_order(0, 0)  # raises UsageError for an unknown order

    def at(self, steps: IntArray) -> IntArray:
        """Return the row of each step: int64 [k] -> int64 [k]."""
        blocks, offsets = np.divmod(self._first + np.asarray(steps, np.int64), BLOCK)
        out = np.empty(len(blocks), np.int64)
        for block in np.unique(blocks):
            at = np.flatnonzero(blocks == block)
            part, dataset_steps = self._block(int(block))
            parts = part[offsets[at]]
            for k in np.unique(parts):
                at_k = at[parts == k]
                out[at_k] = self._rows_of(int(k), dataset_steps[offsets[at_k]])
        return out

    def windows(self, step: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield the windows of all datasets, sorted by first step."""
        return heapq.merge(
            *(self._windows(k, step) for k in range(self.parallel_windows)),
            key=lambda window: window[0],
        )

    def _windows(self, k: int, step: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield the windows of dataset `k`, starting at the window that contains `step`."""
        rows, row = len(self._mix.parts[k]), int(self._mix._firsts[k])
        dataset_step, end = self._dataset_step(k, step), self._dataset_step(k, self.rows)
        while dataset_step < end:
            epoch, at = divmod(dataset_step, rows)
            for first, stop, ranges in self._part_order(k, epoch).windows(at):
                if epoch * rows + first >= end:
                    return
                yield (
                    self._mix_step(k, epoch * rows + first),
                    self._mix_step(k, epoch * rows + stop),
                    [(row + range_start, row + range_stop) for range_start, range_stop in ranges],
                )
            dataset_step = (epoch + 1) * rows

    def _dataset_step(self, k: int, step: int) -> int:
        """Return the number of steps that read dataset `k` before `step` of this epoch.

        Steps of earlier epochs are included.
        """
        block, offset = divmod(self._first + step, BLOCK)
        in_block = np.count_nonzero(self._block(block)[0][:offset] == k)
        return block * int(self._mix.quotas[k]) + int(in_block)

    def _mix_step(self, k: int, dataset_step: int) -> int:
        """Return the step of this epoch that reads dataset `k` after `dataset_step` earlier reads.

        Only reads of dataset `k` are counted, including reads in earlier epochs.
        """
        block, which = divmod(dataset_step, int(self._mix.quotas[k]))
        return block * BLOCK + int(np.flatnonzero(self._block(block)[0] == k)[which]) - self._first

    def _block(self, block: int) -> tuple[IntArray, IntArray]:
        """Return, for each step of a block, the dataset and the number of its earlier reads.

        return  two arrays, int64 [BLOCK]; reads in earlier blocks and epochs are included
        """
        ends = np.cumsum(self._mix.quotas)
        part = np.searchsorted(
            ends, positions(np.arange(BLOCK), BLOCK, self._seed, _FIRST_BLOCK_KEY + block), "right"
        )
        dataset_steps = np.empty(BLOCK, np.int64)
        for k, quota in enumerate(self._mix.quotas.tolist()):
            dataset_steps[part == k] = block * quota + np.arange(quota)
        return part, dataset_steps

    def _rows_of(self, k: int, dataset_steps: IntArray) -> IntArray:
        """Convert dataset steps of dataset `k` to row numbers of the mix.

        dataset_steps  int64 [n]
        return         int64 [n]
        """
        rows = len(self._mix.parts[k])
        out = np.empty(len(dataset_steps), np.int64)
        epochs = dataset_steps // rows
        for epoch in np.unique(epochs):
            at = epochs == epoch
            out[at] = self._part_order(k, int(epoch)).at(dataset_steps[at] - epoch * rows)
        out += self._mix._firsts[k]
        return out

    def _part_order(self, k: int, epoch: int) -> Order:
        if len(self._orders) > 4 * len(self._mix.parts):
            self._orders.clear()
        order = self._orders.get((k, epoch))
        if order is None:  # if several threads create this order, their results are equal
            order = self._mix.parts[k].order(self._seed + k, epoch, *self._options)
            self._orders[k, epoch] = order
        return order


def _is_weight(value: object) -> bool:
    """Return whether a value is a finite Python or numpy number above 0; a bool is not a number."""
    try:
        return 0 < float(number(value)) < float("inf")
    except (TypeError, ValueError, OverflowError):
        return False


def _quotas(weights: Any) -> IntArray:
    """Return integers of at least 1 whose sum is BLOCK, in the ratio of the weights."""
    if len(weights) > BLOCK:
        raise UsageError(f"cannot mix {len(weights)} datasets; the maximum is {BLOCK}")
    shares = weights / weights.max()  # otherwise, the sum of large weights may overflow
    shares = shares / shares.sum()
    exact = shares * (BLOCK - len(weights)) + 1 if (shares * BLOCK < 1).any() else shares * BLOCK
    out: IntArray = np.floor(exact + 1e-9).astype(np.int64)
    out[np.argsort(out - exact, kind="stable")[: BLOCK - int(out.sum())]] += 1
    return out


def _merged(parts: Sequence[tuple[IntArray, Any]], rows: int) -> Any:
    """Merge the values of one column from several datasets.

    parts  for each dataset: positions in the batch, int64 [k], and the values at these positions
    rows   number of rows in the batch
    """
    first = parts[0][1]
    if len(parts) == 1:
        return first
    if all(
        isinstance(values, np.ndarray)
        and values.dtype == first.dtype
        and values.shape[1:] == first.shape[1:]
        for _, values in parts
    ):
        out = np.empty((rows, *first.shape[1:]), first.dtype)
        for at, values in parts:
            out[at] = values
        return out
    merged: list[Any] = [None] * rows
    for at, values in parts:
        for k, value in zip(at.tolist(), values, strict=True):
            merged[k] = value
    return stack_values(merged)
