"""A loader for training: threads or processes make batches ahead, in a keyed order."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from flarecli.arguments import checked
from flarecli.errors import UsageError
from flarecli.model import Cursor
from flarecli.prefetch import ordered_map
from flarecli.read.batch import Made, Part, Work, batch_rows, parts_of
from flarecli.read.decode import How
from flarecli.read.epoch import WINDOW, check_place, check_rows, parse_state
from flarecli.read.process_pool import Process, close_all
from flarecli.read.protocols import Closable, Order, Rows
from flarecli.read.shard_prefetch import start_prefetch

__all__ = ["Loader"]

_MAX_WORKERS = 1 << 16
_KEYS = {"seed", "epoch", "step", "order", "window", "rows", "ranks", "skip", "checksum"}


class Loader(Closable):
    """Batches of a dataset, one epoch per loop. A batch is a dict: column -> array [batch, …] or
    list.

    The next loop is the next epoch; a loop that was left early is continued. `save()` returns the
    position and `load()` resumes there, also in another process and with any number of workers or
    ranks. The number of workers does not change the batches.

    data        a Dataset or a Mix
    batch       samples per batch; the last batch of an epoch may be smaller, unless `drop_last`
    seed        random seed of the order
    workers     threads that make batches ahead; 0: the calling thread makes them
    order       `shuffle`, `windows` (for remote data: `window` chunks are open at a time) or
                `sequential`
    rank, ranks rank r of R reads steps r, r + R, … of an epoch; each step reads one row
    decode      as in `Dataset.decoded`
    transform   one or several functions of a sample; they return a sample or a list of samples,
                which may be empty. A function with a parameter `rng` receives a numpy Generator
                that depends only on seed, epoch and row
    collate     function of a list of samples that returns the batch
    processes   use worker processes, for transforms that hold the interpreter lock
    start       start method of the processes: `fork`, `spawn` or `forkserver`
    ahead       maximum number of batches made ahead
    drop_last   drop batches that are not complete on every rank
    raises      UsageError for invalid arguments; while iterating, TransformError, which names the
                row, and the errors of reading
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
                f"batch is {batch}, workers {workers}, ahead {ahead}: expected at least 1, 0 and 1"
            )
        if workers >= _MAX_WORKERS:
            raise UsageError(f"workers is {workers}: expected fewer than {_MAX_WORKERS:,}")
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks}: expected a rank below the number of ranks")
        self.data = data.decoded(decode) if decode else data
        self.batch, self.workers, self.drop_last = batch, workers, drop_last
        self.rank, self.ranks = rank, ranks
        self._transforms = (transform,) if callable(transform) else tuple(transform)
        self._collate, self._processes, self._start = collate, processes, start
        self._ahead = ahead or workers + 2  # few, so that the allocator reuses the memory
        self._window = window
        self._skip = 0  # samples of the current row that were already yielded
        self._place, self._loop = Cursor(seed, epoch, 0, order), 0
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        self._order()

    def _order(self) -> Order:
        place = self._place
        return self.data.order(place.seed, place.epoch, place.order, self._window)

    @property
    def cursor(self) -> Cursor:
        """The current position, if every rank has read as many batches."""
        rows, checksum = self._order().rows, self.data.checksum
        return replace(self._place, rows=rows, window=self._window, checksum=checksum)

    def __repr__(self) -> str:
        at, rows = self._place, self._order().rows
        place = f"seed {at.seed}, epoch {at.epoch}, step {at.step} of {rows}, {at.order}"
        return f"<Loader: {len(self)} batches of {self.batch} left, {place}>"

    def __len__(self) -> int:
        """Return the number of batches left in this epoch, if each row is one sample."""
        left, whole = self._order().rows - self._place.step, self.batch * self.ranks
        return left // whole if self.drop_last else -(-max(0, left - self.rank) // whole)

    def save(self) -> dict[str, Any]:
        """Return the position after the last batch as a dict of integers and strings."""
        place = self._place
        return {
            "seed": place.seed,
            "epoch": place.epoch,
            "step": place.step,
            "order": place.order,
            "window": self._window,
            "rows": self._order().rows,
            "ranks": self.ranks,
            "skip": self._skip,
            "checksum": self.data.checksum,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume at a state that `save` returned.

        raises  UsageError for an invalid state, and for a state of other data
        """
        state = parse_state(state, _KEYS, "a Loader", "save")
        skip, window = state["skip"], state["window"]
        place = Cursor(state["seed"], state["epoch"], state["step"], state["order"])
        rows = self.data.order(place.seed, place.epoch, place.order, window).rows
        saved = replace(place, rows=state["rows"], window=window, checksum=state["checksum"])
        check_place(self.data, rows, saved)
        if state["ranks"] < 1 or skip < 0:
            raise UsageError(f"ranks is {state['ranks']}, skip {skip}: expected at least 1 and 0")
        if skip and state["ranks"] != self.ranks:
            hint = f"Resume with {state['ranks']} ranks."
            raise UsageError(
                f"saved between samples of one row with {state['ranks']} ranks, not {self.ranks}",
                hint=hint,
            )
        if skip and (not self._transforms or place.step == rows):
            raise UsageError(
                f"saved after {skip} samples of a row; without transforms a row is one sample"
                if not self._transforms
                else f"saved after {skip} samples of the row at step {rows}, the end of the epoch",
                hint="Use the transforms that the state was saved with.",
            )
        self._place, self._window, self._skip = place, window, skip
        self._loop += 1

    # -- batches

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the remaining batches of this epoch; an earlier iterator ends."""
        self._loop += 1
        epoch = self._epoch(self._loop)
        self._running = weakref.ref(epoch)
        return epoch

    def close(self) -> None:
        """End the running loop and its workers, and close all open shards.

        The next loop continues at the same position.
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
        prefetch = start_prefetch(self.data, order, place, self.ranks)
        fetches = prefetch is not None
        work = Work(self.data, self._transforms, self._collate, place.seed, place.epoch, fetches)
        # samples that are not in a batch yet, and the position after each: rows, samples of the row
        held: deque[tuple[Any, int, int]] = deque()
        try:
            flow, close = self._flow(work, self._parts(order, place.step, self._skip, held))
        except BaseException:
            if prefetch:
                prefetch.close()
            raise
        rows, skip = 0, self._skip
        try:
            for made in flow:
                if prefetch:
                    prefetch.reached(self._place.step)
                if made.samples is None and not held and not skip:
                    rows += len(made.rows)
                    yield self._moved(made.batch, place, rows, 0, order.rows)
                else:
                    several = work.samples(made.rows) if made.samples is None else made.samples
                    for row, samples in zip(made.rows, several, strict=True):
                        if skip and skip >= len(samples):
                            raise UsageError(
                                f"saved after {skip} samples of row {row}, "
                                f"which now has {len(samples)}",
                                hint="Use the transforms that the state was saved with.",
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
            if prefetch:
                prefetch.close()
            close()
            work.end()

    def _parts(self, order: Order, first: int, skip: int, held: Sequence[Any]) -> Iterator[Part]:
        """Yield the rows of each batch of this rank."""
        for rows in batch_rows(
            order,
            first,
            self.batch,
            rank=self.rank,
            ranks=self.ranks,
            drop_last=self.drop_last,
        ):
            for part in parts_of(rows, self.batch):
                yield part._replace(apart=True) if held or skip else part
                skip = 0

    def _flow(self, work: Work, parts: Iterator[Part]) -> tuple[Iterator[Made], Callable[[], None]]:
        """Start the workers; return the batches in order, and a function that ends the workers."""
        workers = 0 if not self._processes and work.is_inline else self.workers
        # one more than the batches made ahead: the batch that is being taken
        max_items = max(self._ahead, workers) + 1 if workers else 1
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

        plain = (part._replace(block=None) for part in parts)  # a block cannot be pickled
        flow = ordered_map(call, plain, workers=workers, max_items=max_items)

        def close() -> None:
            flow.close()
            close_all(processes)

        return flow, close

    def _moved(self, batch: Any, place: Cursor, rows: int, skip: int, end: int) -> Any:
        """Set the position after a batch, and return the batch.

        rows, skip  rows of this rank since `place`, and samples of the next row
        end         the number of steps of the epoch
        """
        self._place = replace(place, step=min(end, place.step + rows * self.ranks))
        self._skip = skip
        return batch

    def _joined(
        self, work: Work, held: deque[tuple[Any, int, int]], place: Cursor, end: int
    ) -> Any:
        taken = [held.popleft() for _ in range(min(self.batch, len(held)))]
        return self._moved(work.collated([one for one, _, _ in taken]), place, *taken[-1][1:], end)
