"""ffrecord's torch datasets and loader, which read batches of records. This module loads torch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any

import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from flarecli.compat.ffrecord.files import FileReader, by_part
from flarecli.errors import RowsError, UsageError

__all__ = ["ConcatDataset", "DataLoader", "Dataset", "ReaderRegistry", "Subset"]


class ReaderRegistry:
    """Base class of the datasets. It finds the FileReaders that a dataset uses."""

    def ffreaders(self) -> list[FileReader]:
        """Return the readers in the attributes, in lists in attributes, and in nested datasets."""
        readers = []
        for attribute in vars(self).values():
            for value in attribute if isinstance(attribute, list) else [attribute]:
                if isinstance(value, FileReader):
                    readers.append(value)
                elif isinstance(value, ReaderRegistry):
                    readers += value.ffreaders()
        return readers


class Dataset(torch.utils.data.Dataset, ReaderRegistry):  # type: ignore[misc, type-arg, unused-ignore]
    """Dataset of the records in FFRecord files.

    `data[[3, 4, 1]]` reads three records and returns `process([3, 4, 1], records)`.
    """

    def __init__(self, fnames: Any, check_data: bool = True) -> None:
        self.fnames = fnames
        self.reader = FileReader(fnames, check_data)

    def __len__(self) -> int:
        return self.reader.n

    def __getitem__(self, indices: Sequence[int]) -> Any:
        if not isinstance(indices, (list, tuple)):
            raise TypeError("expected a list of numbers")
        return self.process(list(indices), self.reader.read(indices))

    def __getitems__(self, indices: Sequence[int]) -> Any:  # called by torch's DataLoader
        return self[list(indices)]

    def process(self, indices: list[int], data: list[Any]) -> Any:
        """Convert a batch of records to samples. Subclasses define this method."""
        raise NotImplementedError

    def __add__(self, other: Any) -> ConcatDataset:
        return ConcatDataset([self, other])


class Subset(Dataset):
    """A selection of the rows of a dataset."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, indices: Sequence[int]) -> Any:
        return self.dataset[[self.indices[index] for index in indices]]


class ConcatDataset(Dataset):
    """Concatenation of several datasets; negative indices count from the end."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise UsageError("no datasets to concatenate")
        self.cumulative_sizes = list(accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, indices: Sequence[int]) -> Any:
        rows = [index + len(self) if index < 0 else index for index in indices]
        for index, row in zip(indices, rows, strict=True):
            if not 0 <= row < len(self):
                raise RowsError(f"sample {index} is out of range; there are {len(self)} samples")
        starts = [0, *self.cumulative_sizes]
        out: list[Any] = [None] * len(rows)
        for k, places in sorted(by_part(starts, rows).items()):
            samples = self.datasets[k][[rows[place] - starts[k] for place in places]]
            for place, sample in zip(places, samples, strict=True):
                out[place] = sample
        return out


class _Skipping:
    """Batch sampler that skips the first `step` batches.

    The skipped batches are drawn and discarded, so that `step` does not change the later batches.
    """

    def __init__(self, batches: Any) -> None:
        self.batches, self.step = batches, 0

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.batches), self.step, None)

    def __len__(self) -> int:
        return len(self.batches) - self.step


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[misc, type-arg, unused-ignore]
    """torch's DataLoader with forked workers; `set_step(k)` skips the first k batches.

    skippable  False disables `set_step`

    All other arguments are the arguments of torch's DataLoader.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = 2,
        persistent_workers: bool = False,
        skippable: bool = True,
        **kwargs: Any,
    ) -> None:
        self._skipping: _Skipping | None = None
        kwargs |= {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "generator": generator,
            "persistent_workers": persistent_workers,
        }
        if num_workers:
            kwargs.setdefault("multiprocessing_context", multiprocessing.get_context("fork"))
            kwargs["prefetch_factor"] = prefetch_factor
        if not skippable:
            if batch_sampler is None:
                kwargs |= {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
            super().__init__(dataset, sampler=sampler, batch_sampler=batch_sampler, **kwargs)
            return
        if batch_sampler is None:
            if batch_size is None:
                raise UsageError(
                    "a loader without batch_size cannot skip batches", hint="Pass skippable=False."
                )
            if sampler is None and shuffle:
                sampler = RandomSampler(dataset, generator=generator)
            elif sampler is None:
                sampler = SequentialSampler(dataset)
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        skipping = _Skipping(batch_sampler)
        super().__init__(dataset, batch_sampler=skipping, **kwargs)
        self._skipping = skipping

    def set_step(self, step: int) -> None:
        """Skip the first `step` batches of every later iteration.

        raises  UsageError for an invalid step, or if the loader cannot skip steps
        """
        if self._skipping is None:
            raise UsageError("the loader cannot skip steps")
        if not 0 <= step < len(self._skipping.batches):
            raise UsageError(
                f"step {step} is out of range; there are {len(self._skipping.batches)} batches"
            )
        self._skipping.step = step
