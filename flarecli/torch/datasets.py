"""Map-style dataset for torch's samplers, and iterable dataset of batches that can resume."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

from torch.utils import data as torch_data

from flarecli.arguments import checked
from flarecli.errors import FlareError, UsageError
from flarecli.model import Cursor
from flarecli.prefetch import ordered_map
from flarecli.read import (
    Closable,
    Made,
    Part,
    Rows,
    Work,
    batch_rows,
    check_place,
    check_rows,
    parse_state,
    parts_of,
    start_prefetch,
)
from flarecli.torch.ranks import Inherited, Share, inherited_share, share_of
from flarecli.torch.tensor_batches import tensors

__all__ = ["IterableDataset", "MapDataset"]

_MAX_COUNT = 1 << 31  # of rows per batch, and of threads
_KEYS = {"seed", "epoch", "order", "window", "rows", "batch", "ranks", "workers", "step", "given"}
_KEYS |= {"checksum"}


class MapDataset(Closable, torch_data.Dataset):  # type: ignore[misc]
    """A map-style dataset. The rows of a batch are read together.

    transform  function of a sample that returns the item
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
        with _hint_shown():
            samples = self.data.__getitems__(indices)
        return samples if self.transform is None else [self.transform(sample) for sample in samples]


class IterableDataset(Closable, torch_data.IterableDataset):  # type: ignore[misc]
    """An iterable dataset of batches, for `DataLoader(stream, batch_size=None)`.

    `num_workers` does not change the batches or their order: worker w of W makes batches w, w + W,
    … of its rank. `set_epoch` sets the epoch of the next loop in all workers.

    data        a Dataset or a Mix
    batch       rows per batch; a batch has more or fewer samples if a transform returns other than
                one sample per row
    collated    False: yield single samples, for `DataLoader(stream, batch_size=batch)`
    rank, ranks default: those of torch.distributed, or of RANK and WORLD_SIZE; in a DataLoader
                prepared by accelerate all rows, because accelerate divides them
    threads     threads that make batches ahead in each worker
    transform, collate, decode, order, window, drop_last   as in `flare.Loader`; arrays become
                tensors unless `collate` is given
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
        if not 1 <= batch < _MAX_COUNT or not 0 <= threads < _MAX_COUNT:
            raise UsageError(
                f"batch is {batch}, threads {threads}: expected at least 1 and 0, "
                "and less than 2^31"
            )
        self._given_rank, self._given_ranks = rank, ranks
        self._inherited: Inherited | None = None  # set in spawned processes
        if rank is not None and ranks is not None:
            share_of(self, rank, ranks)  # raises UsageError for a rank outside the ranks
        _check_epoch(epoch)
        self.data = data.decoded(decode) if decode else data
        self.data.load()
        self._transforms = (transform,) if callable(transform) else tuple(transform)
        self._batch, self._order, self._window, self._threads = batch, order, window, threads
        self._collate, self._collated, self._drop_last = collate, collated, drop_last
        self._seed = seed
        self._epoch = _shared(epoch, 0)  # epoch and first step; persistent workers read them
        self._rows = self.data.order(seed, epoch, order, window).rows
        # the position of the loop, and the number of samples already yielded of the next batch
        self._at = Cursor(seed, epoch, 0, order), 0
        self._resume: tuple[int, int, int, int] | None = None  # epoch, step, given, workers

    def __getstate__(self) -> dict[str, Any]:
        if not get_spawning_popen():  # a copy has its own epoch
            return self.__dict__ | {"_epoch": tuple(self._epoch), "_inherited": None}
        found: Share | UsageError
        try:
            found = self._share(is_iterated=True)
        except UsageError as error:  # raised in the worker that iterates
            found = error
        return self.__dict__ | {"_inherited": Inherited(os.getpid(), found)}

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
        """The number of ranks that share the rows."""
        return self._share().ranks

    @checked
    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Set the epoch of the next loop, and its first step.

        step  after k batches on every rank: k * batch * ranks; the number of ranks may change
        """
        _check_epoch(epoch)
        check_place(self.data, self._rows, Cursor(self._seed, epoch, step, self._order))
        self._epoch[0], self._epoch[1], self._resume = epoch, step, None

    def close(self) -> None:
        """Close the open shards of this process."""
        self.data.close()

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank, or of rows if not `collated`."""
        rank, ranks = self._share()
        whole = self._batch * ranks
        if not self._collated:
            stop = self._rows // whole * whole if self._drop_last else self._rows
            return len(range(rank, stop, ranks))
        if self._drop_last:
            return self._rows // whole
        return -(-max(0, self._rows - rank) // whole)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loop of this process."""
        place, given = self._at
        return {
            "seed": place.seed,
            "epoch": place.epoch,
            "order": place.order,
            "window": self._window,
            "rows": self._rows,
            "batch": self._batch,
            "ranks": self.ranks,
            "workers": _worker()[1],
            "step": place.step,
            "given": given,
            "checksum": self.data.checksum,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a state saved with the same number of ranks and workers.

        raises  UsageError for an invalid state, or a state of another dataset
        """
        state = parse_state(state, _KEYS, "an IterableDataset", "state_dict")
        own = self.state_dict()
        for key in ("seed", "order", "window", "rows", "batch", "ranks"):
            if state[key] != own[key]:
                raise UsageError(
                    f"saved with {key} {state[key]}, this dataset has {own[key]}",
                    hint="Use set_epoch(epoch, step) to resume with other ranks.",
                )
        place = Cursor(state["seed"], state["epoch"], state["step"], state["order"])
        saved = replace(place, rows=state["rows"], checksum=state["checksum"])
        _check_epoch(place.epoch)
        check_place(self.data, self._rows, saved)
        given = state["given"]
        if state["workers"] < 1 or given < 0:
            raise UsageError(
                f"workers is {state['workers']}, given {given}: expected at least 1 and 0"
            )
        if given and (self._collated or place.step == self._rows):
            raise UsageError(
                f"saved after {given} samples of a batch; this dataset yields whole batches"
                if self._collated
                else f"saved after {given} samples of the batch at step {self._rows}, "
                "the end of the epoch",
                hint="Use the options that the state was saved with.",
            )
        self._at, self._resume = (
            (place, state["given"]),
            (state["epoch"], state["step"], state["given"], state["workers"]),
        )

    def __iter__(self) -> Iterator[Any]:
        # With accelerate only process 0 may iterate, so the check runs here, in all processes
        if self._given_ranks is not None:
            self._share(is_iterated=True)
        return self._loop() if torch_data.get_worker_info() is None else self._reported()

    def _reported(self) -> Iterator[Any]:
        with _hint_shown():
            yield from self._loop()

    def _loop(self) -> Iterator[Any]:
        worker, workers = _worker()
        rank, ranks = share = self._share(is_iterated=True)
        epoch, step, given, saved = self._resume or (*self._epoch, 0, workers)
        self._resume = None
        if saved != workers:
            hint = "Use the same number, or set_epoch(epoch, step)."
            raise UsageError(f"saved with {saved} workers, not {workers}", hint=hint)
        order = self.data.order(self._seed, epoch, self._order, self._window)
        self._at = Cursor(self._seed, epoch, step, self._order), given
        if given and step + worker * self._batch * ranks + rank >= order.rows:
            raise _changed(given, 0)
        prefetch = start_prefetch(self.data, order, self._at[0], ranks)
        work = Work(
            self.data, self._transforms, self._collate, self._seed, epoch, prefetch is not None
        )
        threads = 0 if work.is_inline else self._threads
        flow = ordered_map(
            work,
            self._parts(order, step, share, worker, workers),
            workers=threads,
            max_items=threads + 3 if threads else 1,
        )
        try:
            for made in flow:
                if prefetch:
                    prefetch.reached(step)
                behind = min(self._rows, step + workers * self._batch * ranks)
                yield from self._given(work, made, given, behind)
                step, given = behind, 0
        finally:
            if prefetch:
                prefetch.close()
            flow.close()
            work.end()

    def _given(self, work: Work, made: Made, given: int, step: int) -> Iterator[Any]:
        """Yield the batch or the samples of a part; before the last one the position moves to
        `step`.
        """
        place = self._at[0]
        behind = Cursor(place.seed, place.epoch, step, place.order)
        if not self._collated:
            samples = [one for row in made.samples or () for one in row]
            if given and given >= len(samples):
                raise _changed(given, len(samples))
            for at in range(given, len(samples)):
                self._at = (behind, 0) if at + 1 == len(samples) else (place, at + 1)
                yield samples[at]
            self._at = behind, 0
            return
        self._at = behind, 0
        if made.samples is not None:
            samples = [one for row in made.samples for one in row]
            if not samples:
                return
            batch = work.collated(samples)
        else:
            batch = made.batch
        yield tensors(batch) if self._collate is None else batch

    def _parts(
        self, order: Any, start: int, share: Share, worker: int, workers: int
    ) -> Iterator[Part]:
        rows = batch_rows(
            order,
            start,
            self._batch,
            rank=share.rank,
            ranks=share.ranks,
            worker=worker,
            workers=workers,
            drop_last=self._drop_last,
        )
        for some in rows:
            yield from parts_of(some, self._batch, not self._collated)


@contextlib.contextmanager
def _hint_shown() -> Iterator[None]:
    """Add the hint of an error to its traceback: torch sends only the traceback from a worker."""
    try:
        yield
    except FlareError as error:
        if error.hint and torch_data.get_worker_info() is not None:
            error.add_note(f"hint: {error.hint}")
        raise


def _changed(given: int, samples: int) -> UsageError:
    return UsageError(
        f"saved after {given} samples of a batch, which now has {samples}",
        hint="Use the options and transforms that the state was saved with.",
    )


def _check_epoch(epoch: int) -> None:
    if not 0 <= epoch < 1 << 63:
        raise UsageError(f"epoch is {epoch}: expected at least 0 and less than 2^63")


def _shared(*values: int) -> Any:
    """Return integers in memory that is shared with forked processes, and with spawned workers."""
    return RawArray("q", values)


def _worker() -> tuple[int, int]:
    """Return the worker's number and the number of workers; 0, 1 in the main process."""
    info = torch_data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
