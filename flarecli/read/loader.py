"""A loader for training: batches in a keyed order, read, decoded, transformed and collated ahead by threads or processes."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from flarecli.arguments import checked
from flarecli.errors import UsageError
from flarecli.model import Cursor
from flarecli.prefetch import ordered_map
from flarecli.read.batch import Made, Part, Work, parts_of
from flarecli.read.decode import How
from flarecli.read.epoch import WINDOW, check_place, parse_state
from flarecli.read.process_pool import Process, close_all
from flarecli.read.protocols import Closable, Order, Rows, check_rows
from flarecli.read.shard_ahead import begun

__all__ = ["Loader"]

_BLOCK = 1 << 14  # steps mapped to rows at once, about
_WORKERS = 1 << 16  # no machine starts as many
_KEYS = {"seed", "epoch", "step", "order", "window", "rows", "ranks", "skip", "checksum"}


class Loader(Closable):
    """Batches of a dataset, one epoch a loop: `for batch in loader`, column -> array [batch, …], or a list where there is none.

    The next loop is the next epoch. A loop that was left goes on where it was left; `save()` tells that place and `load()` goes
    there, in another process, with any other number of workers or ranks. Batches are the same whatever the workers.

    data        a Dataset or a Mix
    batch       samples in a batch; the last one of an epoch may have fewer, unless `drop_last`
    seed        which shuffle
    workers     threads that work ahead; 0: everything happens where a batch is taken
    order       `shuffle`, `windows` (for data that is fetched: `window` chunks are open at a time) or `sequential`
    rank, ranks rank r of R takes steps r, r + R, … of an epoch: each step has one row, whatever the ranks
    decode      as in `Dataset.decoded`
    transform   a function, or several in turn: a sample -> a sample, or a list of samples, which may be empty. One with a parameter
                `rng` is given a numpy Generator that depends on seed, epoch and row alone
    collate     a list of samples -> a batch, instead of arrays by dtype and shape
    processes   the workers are processes, for transforms that hold the interpreter's lock; `start` is how they begin
    ahead       batches made ahead at most
    drop_last   leave out what is no whole batch on every rank, so that all ranks give as many
    raises      UsageError for what makes no sense; while iterating TransformError naming the row, and what reading raises
    """

    @checked
    def __init__(
        self,
        data: Rows,
        batch: int = 64,
        seed: int = 0,
        workers: int = 2,
        *,
        epoch: int = 0,
        order: str = "shuffle",
        window: int = WINDOW,
        rank: int = 0,
        ranks: int = 1,
        decode: Mapping[str, How] | None = None,
        transform: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
        collate: Callable[[list[Any]], Any] | None = None,
        processes: bool = False,
        start: str | None = None,
        ahead: int | None = None,
        drop_last: bool = False,
    ) -> None:
        check_rows(data)
        if batch < 1 or workers < 0 or (ahead is not None and ahead < 1):
            raise UsageError(
                f"batch is {batch}, workers {workers}, ahead {ahead}: at least 1, 0 and 1 are wanted"
            )
        if workers >= _WORKERS:
            raise UsageError(f"workers is {workers}: fewer than {_WORKERS:,} are wanted")
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks} is no rank")
        self.data = data.decoded(decode) if decode else data
        self.batch, self.workers, self.rank, self.ranks, self.drop_last = (
            batch,
            workers,
            rank,
            ranks,
            drop_last,
        )
        self._transforms = (transform,) if callable(transform) else tuple(transform)
        self._collate, self._processes, self._start = collate, processes, start
        self._ahead = (
            ahead or workers + 2
        )  # few: memory that is used again costs less than fresh memory (measured: half)
        self._window, self._skip = (
            window,
            0,
        )  # samples of the row at the place that were given already
        self._place, self._loop = Cursor(seed, epoch, 0, order), 0
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        self._order()

    def _order(self) -> Order:
        place = self._place
        return self.data.order(place.seed, place.epoch, place.order, self._window)

    @property
    def cursor(self) -> Cursor:
        """The place behind the batches given so far, if every rank gave as many."""
        place = self._place
        return Cursor(
            place.seed,
            place.epoch,
            place.step,
            place.order,
            self._order().rows,
            self._window,
            self.data.checksum,
        )

    def __repr__(self) -> str:
        at = self._place
        place = (
            f"seed {at.seed}, epoch {at.epoch}, step {at.step} of {self._order().rows}, {at.order}"
        )
        return f"<Loader: {len(self)} batches of {self.batch} left, {place}>"

    def __len__(self) -> int:
        """How many batches are left of this epoch, where each row is one sample."""
        left = self._order().rows - self._place.step
        return (
            left // (self.batch * self.ranks)
            if self.drop_last
            else -(-max(0, left - self.rank) // (self.batch * self.ranks))
        )

    def save(self) -> dict[str, Any]:
        """Tell the place behind the last batch given, as plain numbers and text: JSON can hold it."""
        place = self._place
        known = {"seed": place.seed, "epoch": place.epoch, "step": place.step, "order": place.order}
        return known | {
            "window": self._window,
            "rows": self._order().rows,
            "ranks": self.ranks,
            "skip": self._skip,
            "checksum": self.data.checksum,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to a place that `save` returned. Raises UsageError for any other state, and for one of other data."""
        state = parse_state(state, _KEYS, "a Loader", "save")
        skip, window = state["skip"], state["window"]
        place = Cursor(state["seed"], state["epoch"], state["step"], state["order"])
        rows = self.data.order(place.seed, place.epoch, place.order, window).rows
        saved = replace(place, rows=state["rows"], window=window, checksum=state["checksum"])
        check_place(self.data, rows, saved)
        if state["ranks"] < 1 or skip < 0:
            raise UsageError(f"ranks is {state['ranks']}, skip {skip}: expected at least 1 and 0")
        if skip and state["ranks"] != self.ranks:
            hint = f"Go on with {state['ranks']} ranks until a row ends, or to the next epoch."
            raise UsageError(
                "saved in the middle of what a transform made of a row, on another number of ranks",
                hint=hint,
            )
        if skip and (not self._transforms or place.step == rows):
            raise UsageError(
                f"saved after {skip} samples of a row; here a row is one sample"
                if not self._transforms
                else f"saved after {skip} samples of the row at step {rows}, where the epoch ends",
                hint="Use the transforms that it was saved with.",
            )
        self._place, self._window, self._skip = place, window, skip
        self._loop += 1

    # -- batches

    def __iter__(self) -> Iterator[Any]:
        """Give the batches that are left of this epoch; whichever loop was begun before ends."""
        self._loop += 1
        epoch = self._epoch(self._loop)
        self._running = weakref.ref(epoch)
        return epoch

    def close(self) -> None:
        """End the loop that is running, with its workers, and close the shards that are open.

        Another loop goes on at the same place.
        """
        self._loop += 1
        if self._running is not None and (epoch := self._running()) is not None:
            epoch.close()
        self.data.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_running": None}

    def _epoch(self, loop: int) -> Generator[Any, None, None]:
        if self._loop != loop:
            return
        order, place = self._order(), self._place
        fetching = begun(self.data, order, place, self.ranks)
        work = Work(
            self.data,
            self._transforms,
            self._collate,
            place.seed,
            place.epoch,
            fetching is not None,
        )
        held: deque[tuple[Any, int, int]] = (
            deque()
        )  # samples that no batch has yet, and the place behind each: rows, and samples of the next one
        try:
            flow, close = self._flow(work, self._parts(order, place.step, self._skip, held))
        except BaseException:
            if fetching:
                fetching.close()
            raise
        rows, skip = 0, self._skip
        try:
            for made in flow:
                if fetching:
                    fetching.reached(self._place.step)
                if made.samples is None and not held and not skip:
                    rows += len(made.rows)
                    yield self._given(made.batch, place, rows, 0, order.rows)
                else:
                    several = work.samples(made.rows) if made.samples is None else made.samples
                    for row, samples in zip(made.rows, several, strict=True):
                        if skip and skip >= len(samples):
                            raise UsageError(
                                f"saved after {skip} samples of row {row}, which has {len(samples)} now",
                                hint="Use the transforms that it was saved with.",
                            )
                        held.extend(
                            (one, rows + (at == len(samples)), at % len(samples))
                            for at, one in enumerate(samples, 1)
                            if at > skip
                        )
                        rows, skip = rows + 1, 0
                    while len(held) >= self.batch and self._loop == loop:
                        yield self._joined(work, held, place, order.rows)
                if self._loop != loop:
                    return
            while held and not self.drop_last and self._loop == loop:
                yield self._joined(work, held, place, order.rows)
            if self._loop == loop:
                self._place, self._skip = Cursor(place.seed, place.epoch + 1, 0, place.order), 0
        finally:
            if fetching:
                fetching.close()
            close()
            work.end()

    def _parts(self, order: Order, first: int, skip: int, held: Sequence[Any]) -> Iterator[Part]:
        """Give the rows of each batch of this rank."""
        stop, whole = order.rows, self.batch * self.ranks
        if self.drop_last:
            stop = first + (stop - first) // whole * whole
        start, block, most = (
            first + self.rank,
            whole,
            max(1, _BLOCK // self.batch) * whole,
        )  # the first batch waits for itself alone
        while start < stop:
            rows = order.at(np.arange(start, min(start + block, stop), self.ranks, dtype=np.int64))
            for part in parts_of(rows, self.batch):
                yield part._replace(apart=True) if held or skip else part
                skip = 0
            start, block = start + block, most

    def _flow(self, work: Work, parts: Iterator[Part]) -> tuple[Iterator[Made], Callable[[], None]]:
        """Start the workers; return the batches in order, and the function that ends the workers."""
        workers = 0 if not self._processes and work.is_inline else self.workers
        max_items = max(self._ahead, workers) + 1 if workers else 1  # the one that is taken counts
        if not workers or not self._processes:
            flow = ordered_map(work, parts, workers=workers, max_items=max_items)
            return flow, flow.close
        self.data.load()
        idle, processes = SimpleQueue[Process](), list[Process]()
        try:
            for _ in range(workers):
                processes.append(Process(work, self._start))
                idle.put(processes[-1])
        except BaseException:
            close_all(processes)
            raise

        def call(part: Part) -> Made:
            process = idle.get()
            try:
                made: Made = process(part)
                return made
            finally:
                idle.put(process)

        whole = (part._replace(block=None) for part in parts)
        flow = ordered_map(call, whole, workers=workers, max_items=max_items)

        def close() -> None:
            flow.close()
            close_all(processes)

        return flow, close

    def _given(self, batch: Any, place: Cursor, rows: int, skip: int, end: int) -> Any:
        self._place, self._skip = (
            Cursor(place.seed, place.epoch, min(end, place.step + rows * self.ranks), place.order),
            skip,
        )
        return batch

    def _joined(
        self, work: Work, held: deque[tuple[Any, int, int]], place: Cursor, end: int
    ) -> Any:
        taken = [held.popleft() for _ in range(min(self.batch, len(held)))]
        return self._given(work.collated([one for one, _, _ in taken]), place, *taken[-1][1:], end)
