"""MapDataset for torch's samplers, and IterableDataset for sharded, resumable batches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy.random  # noqa: F401 - workers need this module; forked workers inherit it
from torch.utils import data as torch_data

from flarecli.arguments import check_minimum, checked
from flarecli.errors import UsageError
from flarecli.lifetimes import Closable
from flarecli.model import Cursor
from flarecli.prefetch import ordered_map
from flarecli.read import (
    BatchMaker,
    BatchResult,
    BatchTask,
    Prefetch,
    Rows,
    batch_rows,
    batch_tasks,
    check_cursor,
    check_rows,
    parse_state,
)
from flarecli.torch.ranks import Inherited, Share, inherited_share, share_of
from flarecli.torch.tensor_batches import tensors

__all__ = ["IterableDataset", "MapDataset"]


class MapDataset(Closable, torch_data.Dataset):  # type: ignore[misc]
    """A map-style dataset that reads all rows of a batch in one call.

    data       a Dataset or a Mix
    transform  function that converts a sample to an item of the dataset
    """

    @checked
    def __init__(self, data: Rows, transform: Callable[[Any], Any] | None = None) -> None:
        check_rows(data)
        self.data, self.transform = data, transform
        data.load()

    def __len__(self) -> int:
        return len(self.data)

    def close(self) -> None:
        """Close the open shards of this process."""
        self.data.close()

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = self.data.__getitems__(indices)
        return samples if self.transform is None else [self.transform(sample) for sample in samples]


class IterableDataset(Closable, torch_data.IterableDataset):  # type: ignore[misc]
    """An iterable dataset of batches, for `DataLoader(stream, batch_size=None)`.

    `num_workers` does not change the batches or their order, because worker w of W makes batches w,
    w + W, … of its rank. `set_epoch` sets the epoch of the next loop in all workers.

    data        a Dataset or a Mix
    batch       rows per batch; with a transform, a batch may have more or fewer samples
    seed        random seed of the order
    epoch       epoch of the first loop
    collated    False yields single samples, for `DataLoader(stream, batch_size=batch)`
    rank, ranks rank of this process, and number of ranks; by default from torch.distributed, or
                from RANK and WORLD_SIZE; if accelerate prepared the DataLoader, the default is rank
                0 of 1, because accelerate divides the rows
    threads     number of threads that prefetch batches in each worker
    transform, collate, decode, order, window, drop_last   as in `flare.Loader`; without `collate`,
                arrays become tensors
    raises      UsageError for invalid arguments
    """

    @checked
    def __init__(
        self,
        data: Rows,
        batch: int = 64,
        seed: int = 0,
        *,
        epoch: int = 0,
        order: str = "shuffle",
        window: int = 8,
        rank: int | None = None,
        ranks: int | None = None,
        decode: Mapping[str, Any] | None = None,
        transform: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
        collate: Callable[[list[Any]], Any] | None = None,
        collated: bool = True,
        drop_last: bool = False,
        threads: int = 0,
    ) -> None:
        check_rows(data)
        check_minimum(1, batch=batch)
        check_minimum(0, threads=threads)
        self._given_rank, self._given_ranks = rank, ranks
        self._inherited: Inherited | None = None  # set in spawned processes
        if rank is not None and ranks is not None:
            share_of(self, rank, ranks)  # raises UsageError for an invalid rank
        _check_epoch(epoch)
        self.data = data.decoded(decode) if decode else data
        self.data.load()
        self._transforms = (transform,) if callable(transform) else tuple(transform)
        self._batch, self._order, self._window, self._threads = batch, order, window, threads
        self._collate, self._collated, self._drop_last = collate, collated, drop_last
        self._seed = seed
        self._epoch = _shared(epoch, 0)  # epoch and first step, shared with persistent workers
        self._rows = self.data.order(seed, epoch, order, window).rows
        # Position of the first batch that has not been yielded completely, and the number of its
        # samples that have been yielded.
        self._at = Cursor(seed, epoch, 0, order), 0
        # state that `load_state_dict` set for the next loop: epoch, step, yielded samples, workers
        self._resume: tuple[int, int, int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        if not get_spawning_popen():  # a copy in the same process has its own epoch
            return self.__dict__ | {"_epoch": tuple(self._epoch), "_inherited": None}
        share: Share | UsageError
        try:
            share = self._share(is_iterated=True)
        except UsageError as error:  # the worker raises the error when its iteration starts
            share = error
        return self.__dict__ | {"_inherited": Inherited(os.getpid(), share)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._epoch, tuple):
            self._epoch = _shared(*self._epoch)

    def _share(self, is_iterated: bool = False) -> Share:
        return inherited_share(self._inherited) or share_of(
            self, self._given_rank, self._given_ranks, is_iterated
        )

    @property
    def rank(self) -> int:
        """The rank whose rows this process yields."""
        return self._share().rank

    @property
    def ranks(self) -> int:
        """The number of ranks among which the rows are divided."""
        return self._share().ranks

    @checked
    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Set the epoch of the next loop, and the number of rows that the loop skips.

        step  number of rows to skip, counted over all ranks: `k * batch * ranks` after k batches on
              each rank. The new loop may use a different number of ranks.
        """
        _check_epoch(epoch)
        check_cursor(self.data, self._rows, Cursor(self._seed, epoch, step, self._order))
        self._epoch[0], self._epoch[1], self._resume = epoch, step, None

    def close(self) -> None:
        """Close the open shards of this process."""
        self.data.close()

    def __len__(self) -> int:
        """Return the number of batches per epoch on this rank.

        If `collated` is False, return the number of rows.
        """
        rank, ranks = self._share()
        batch_steps = self._batch * ranks
        if not self._collated:
            stop = self._rows
            if self._drop_last:
                stop = stop // batch_steps * batch_steps
            return len(range(rank, stop, ranks))
        if self._drop_last:
            return self._rows // batch_steps
        return -(-max(0, self._rows - rank) // batch_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch or sample that this process yielded."""
        cursor, given = self._at
        return {
            "seed": cursor.seed,
            "epoch": cursor.epoch,
            "order": cursor.order,
            "window": self._window,
            "rows": self._rows,
            "batch": self._batch,
            "ranks": self.ranks,
            "workers": _worker()[1],
            "step": cursor.step,
            "given": given,
            "checksum": self.data.checksum,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that was saved with the same number of ranks and workers.

        raises  UsageError for an invalid state, or for a state of a different dataset
        """
        current = self.state_dict()
        state = parse_state(state, current.keys(), "an IterableDataset", "state_dict")
        cursor = Cursor(state["seed"], state["epoch"], state["step"], state["order"])
        saved = replace(cursor, rows=state["rows"], checksum=state["checksum"])
        _check_epoch(cursor.epoch)
        # first, because the hint below recommends `set_epoch`, which accepts any data
        check_cursor(self.data, self._rows, saved)
        for key in ("seed", "order", "window", "batch", "ranks"):
            if state[key] != current[key]:
                raise UsageError(
                    f"the state was saved with {key} {state[key]}; this dataset has {key} {current[key]}",
                    hint="Use set_epoch(epoch, step) to resume with a different number of ranks."
                    if key in ("batch", "ranks")
                    else f"Create the dataset with {key}={state[key]!r}.",
                )
        given = state["given"]
        check_minimum(1, workers=state["workers"])
        check_minimum(0, given=given)
        if given and (self._collated or cursor.step == self._rows):
            raise UsageError(
                f"the state was saved after {given} samples of a batch, but this dataset yields complete batches"
                if self._collated
                else f"the state was saved after {given} samples of a batch, but there is no batch "
                f"at step {self._rows}, the end of the epoch",
                hint="Use the same options as when the state was saved.",
            )
        self._at = cursor, given
        self._resume = cursor.epoch, cursor.step, given, state["workers"]

    def __iter__(self) -> Iterator[Any]:
        # In accelerate's dispatch mode, only process 0 runs the loop. Every process must raise the
        # error for invalid ranks, so the ranks are checked before the loop.
        if self._given_ranks is not None:
            self._share(is_iterated=True)
        return self._loop()

    def _loop(self) -> Iterator[Any]:
        worker, workers = _worker()
        share = self._share(is_iterated=True)
        epoch, step, given, saved_workers = self._resume or (*self._epoch, 0, workers)
        self._resume = None
        if saved_workers != workers:
            raise UsageError(
                f"the state was saved with num_workers={saved_workers}; this DataLoader has num_workers={workers}",
                hint="Use the same number of workers, or call set_epoch(epoch, step).",
            )
        order = self.data.order(self._seed, epoch, self._order, self._window)
        start = Cursor(self._seed, epoch, step, self._order)
        self._at = start, given
        batch_steps = self._batch * share.ranks
        if given and step + worker * batch_steps + share.rank >= order.rows:
            raise _batch_changed(given, 0)
        with contextlib.ExitStack() as resources:
            prefetch = Prefetch(self.data, order, start, share.ranks)
            resources.callback(prefetch.close)
            maker = BatchMaker(
                self.data,
                self._transforms,
                self._collate,
                self._seed,
                epoch,
                fetches=prefetch.is_active,
            )
            resources.callback(maker.close)
            threads = 0 if maker.is_inline else self._threads
            results = ordered_map(
                maker,
                self._tasks(order, step, share, worker, workers),
                workers=threads,
                max_items=threads + 3 if threads else 1,
            )
            resources.callback(results.close)
            for result in results:
                prefetch.reached(step)
                step = min(self._rows, step + workers * batch_steps)
                yield from self._yielded(maker, result, given, step)
                given = 0

    def _yielded(
        self, maker: BatchMaker, result: BatchResult, given: int, step: int
    ) -> Iterator[Any]:
        """Yield a batch or its samples; update the saved position before each yield.

        given  number of samples of this batch that were already yielded
        step   step to save as the position after this batch
        """
        here = self._at[0]
        after = Cursor(here.seed, here.epoch, step, here.order)
        samples = [sample for of_row in result.samples or () for sample in of_row]
        if not self._collated:
            if given and given >= len(samples):
                raise _batch_changed(given, len(samples))
            for count in range(given + 1, len(samples) + 1):
                self._at = (after, 0) if count == len(samples) else (here, count)
                yield samples[count - 1]
            self._at = after, 0
            return
        self._at = after, 0
        batch = result.batch
        if result.samples is not None:
            if not samples:
                return
            batch = maker.collate(samples)
        yield tensors(batch) if self._collate is None else batch

    def _tasks(
        self, order: Any, start: int, share: Share, worker: int, workers: int
    ) -> Iterator[BatchTask]:
        blocks = batch_rows(
            order,
            start,
            self._batch,
            rank=share.rank,
            ranks=share.ranks,
            worker=worker,
            workers=workers,
            drop_last=self._drop_last,
        )
        for rows in blocks:
            yield from batch_tasks(rows, self._batch, not self._collated)


def _batch_changed(given: int, samples: int) -> UsageError:
    return UsageError(
        f"the state was saved after {given} samples of a batch, which now has {samples} samples",
        hint="Use the same options and transforms as when the state was saved.",
    )


def _check_epoch(epoch: int) -> None:
    if not 0 <= epoch < 1 << 63:
        raise UsageError(f"epoch: expected at least 0 and less than 2^63, got {epoch}")


def _shared(*values: int) -> Any:
    """Return integers in memory that is shared with forked processes and spawned workers."""
    return RawArray("q", values)


def _worker() -> tuple[int, int]:
    """Return the index of this worker, and the number of workers; (0, 1) in the main process."""
    info = torch_data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
