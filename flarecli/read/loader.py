"""Loader: resumable batches for training, prefetched by threads or processes."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NamedTuple

from flarecli.arguments import check_minimum, checked
from flarecli.errors import UsageError
from flarecli.lifetimes import Closable
from flarecli.model import Cursor
from flarecli.prefetch import ordered_map
from flarecli.read.batch import (
    BatchMaker,
    BatchResult,
    BatchTask,
    Order,
    Rows,
    batch_rows,
    batch_tasks,
)
from flarecli.read.decode import DecodeRule
from flarecli.read.epoch import WINDOW, check_cursor, check_rows, parse_state
from flarecli.read.process_pool import Process, WorkerEndedError, close_all
from flarecli.read.shard_prefetch import Prefetch

__all__ = ["Loader"]

_MAX_WORKERS = 1 << 16
_MAX_SHOWN_ROWS = 8  # maximum number of row numbers in a message
_KEYS = {"seed", "epoch", "step", "order", "window", "rows", "ranks", "skip", "checksum"}


class _Pending(NamedTuple):
    """A sample and the loader position after the sample.

    rows  number of rows that this rank has completed since the iterator started
    skip  number of samples yielded from the row that is not completed yet
    """

    sample: Any
    rows: int
    skip: int


class Loader(Closable):
    """An iterable over the batches of a dataset; each loop reads one epoch.

    A batch is a dict: column -> array [batch, …] or list. If a loop ends early, the next loop
    continues the same epoch. `save()` returns the position, and `load()` resumes at a position,
    even in another process and with any number of workers or ranks. The number of workers does not
    change the batches.

    data        a Dataset or a Mix
    batch       samples per batch; the last batch of an epoch may be smaller, unless `drop_last`
    seed        random seed of the order
    workers     number of threads that prefetch batches; with 0, the calling thread makes batches
    order       `shuffle`, `windows` (for remote data: permute the chunks, and mix the rows of
                `window` chunks at a time) or `sequential`
    rank, ranks rank r of R reads steps r, r + R, … of an epoch; each step reads one row
    decode      column -> decoder, as in `Dataset.decoded`
    transform   one or several functions that convert a sample to a sample or to a list of samples,
                which may be empty; a function with a parameter `rng` receives a numpy Generator
                that depends only on seed, epoch and row
    collate     function that makes a batch from a list of samples
    processes   use processes instead of threads, for transforms that hold the interpreter lock
    start       start method of the processes: `fork`, `spawn` or `forkserver`
    ahead       maximum number of prefetched batches
    drop_last   omit batches that are not complete on every rank
    raises      UsageError for invalid arguments; during iteration, TransformError, which names the
                row, and any error from reading a row
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
        decode: Mapping[str, DecodeRule] | None = None,
        transform: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
        collate: Callable[[list[Any]], Any] | None = None,
        processes: bool = False,
        start: str | None = None,
        ahead: int | None = None,
        drop_last: bool = False,
    ) -> None:
        check_rows(data)
        check_minimum(1, batch=batch, ahead=ahead)
        check_minimum(0, workers=workers)
        if workers >= _MAX_WORKERS:
            raise UsageError(f"workers: expected fewer than {_MAX_WORKERS:,}, got {workers}")
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks}: expected a rank below the number of ranks")
        self.data = data.decoded(decode) if decode else data
        self.batch, self.workers, self.drop_last = batch, workers, drop_last
        self.rank, self.ranks = rank, ranks
        self._transforms = (transform,) if callable(transform) else tuple(transform)
        self._collate, self._processes, self._start = collate, processes, start
        # a small default, so that the allocator can reuse the memory of earlier batches
        self._ahead = ahead or workers + 2
        self._window = window
        self._skip = 0  # number of samples already yielded from the row at the current step
        self._cursor, self._loop = Cursor(seed, epoch, 0, order), 0
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        self._order()

    def _order(self) -> Order:
        at = self._cursor
        return self.data.order(at.seed, at.epoch, at.order, self._window)

    @property
    def cursor(self) -> Cursor:
        """Return the current position.

        The position assumes that every rank has read the same number of batches.
        """
        rows, checksum = self._order().rows, self.data.checksum
        return replace(self._cursor, rows=rows, window=self._window, checksum=checksum)

    def __repr__(self) -> str:
        at, rows = self._cursor, self._order().rows
        position = f"seed {at.seed}, epoch {at.epoch}, step {at.step} of {rows}, {at.order}"
        return f"<Loader: {len(self)} batches of {self.batch} left, {position}>"

    def __len__(self) -> int:
        """Return the number of batches that remain in this epoch if each row is one sample."""
        steps, batch_steps = self._order().rows - self._cursor.step, self.batch * self.ranks
        if self.drop_last:
            return steps // batch_steps
        return -(-max(0, steps - self.rank) // batch_steps)

    def save(self) -> dict[str, Any]:
        """Return the position after the last yielded batch, as a dict of integers and strings."""
        at = self._cursor
        return {
            "seed": at.seed,
            "epoch": at.epoch,
            "step": at.step,
            "order": at.order,
            "window": self._window,
            "rows": self._order().rows,
            "ranks": self.ranks,
            "skip": self._skip,
            "checksum": self.data.checksum,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume at a state that `save` returned.

        raises  UsageError for an invalid state, and for a state that was saved with different data
        """
        state = parse_state(state, _KEYS, "a Loader", "save")
        skip, window = state["skip"], state["window"]
        cursor = Cursor(state["seed"], state["epoch"], state["step"], state["order"])
        rows = self.data.order(cursor.seed, cursor.epoch, cursor.order, window).rows
        saved = replace(cursor, rows=state["rows"], window=window, checksum=state["checksum"])
        check_cursor(self.data, rows, saved)
        check_minimum(1, ranks=state["ranks"])
        check_minimum(0, skip=skip)
        if skip and state["ranks"] != self.ranks:
            raise UsageError(
                f"the state was saved in the middle of a row, with ranks={state['ranks']}; this loader has ranks={self.ranks}",
                hint=f"Resume with {state['ranks']} ranks.",
            )
        if skip and (not self._transforms or cursor.step == rows):
            raise UsageError(
                f"the state was saved after {skip} samples of one row, but this loader has no transform, so each row is one sample"
                if not self._transforms
                else f"the state was saved after {skip} samples of one row, but there is no row at step {rows}, the end of the epoch",
                hint="Use the same transforms as when the state was saved.",
            )
        self._cursor, self._window, self._skip = cursor, window, skip
        self._loop += 1

    # -- batches

    def __iter__(self) -> Iterator[Any]:
        """End the previous iterator. Return an iterator over the rest of this epoch's batches."""
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
        order, start, skip, rows = self._order(), self._cursor, self._skip, 0
        pending = deque[_Pending]()  # samples that are not in a batch yet
        with contextlib.ExitStack() as resources:
            prefetch = Prefetch(self.data, order, start, self.ranks)
            resources.callback(prefetch.close)
            maker = BatchMaker(
                self.data,
                self._transforms,
                self._collate,
                start.seed,
                start.epoch,
                fetches=prefetch.is_active,
            )
            resources.callback(maker.close)
            tasks = self._tasks(order, start.step, skip, pending)
            for result in self._results(maker, tasks, resources):
                prefetch.reached(self._cursor.step)
                if result.samples is None and not pending and not skip:
                    rows += len(result.rows)
                    self._move(start, rows, 0, order.rows)
                    yield result.batch
                else:
                    several = result.samples
                    if several is None:
                        several = maker.samples(result.rows)
                    for row, samples in zip(result.rows, several, strict=True):
                        if skip and skip >= len(samples):
                            raise UsageError(
                                f"the state was saved after {skip} samples of row {row}, "
                                f"which now has {len(samples)} samples",
                                hint="Use the same transforms as when the state was saved.",
                            )
                        for count, sample in enumerate(samples, 1):
                            if count > skip:
                                rows_read = rows + (count == len(samples))
                                pending.append(_Pending(sample, rows_read, count % len(samples)))
                        rows, skip = rows + 1, 0
                    while len(pending) >= self.batch and self._loop == loop:
                        yield self._next_batch(maker, pending, start, order.rows)
                if self._loop != loop:
                    return
            while pending and not self.drop_last and self._loop == loop:
                yield self._next_batch(maker, pending, start, order.rows)
            if self._loop == loop:
                self._cursor, self._skip = Cursor(start.seed, start.epoch + 1, 0, start.order), 0

    def _tasks(
        self, order: Order, first: int, skip: int, pending: deque[_Pending]
    ) -> Iterator[BatchTask]:
        """Yield this rank's tasks.

        As long as `pending` contains samples of earlier rows, each task returns samples instead of
        a batch. The first task also returns samples if `skip` is above 0, because the first `skip`
        samples of its first row were already yielded.
        """
        for rows in batch_rows(
            order,
            first,
            self.batch,
            rank=self.rank,
            ranks=self.ranks,
            drop_last=self.drop_last,
        ):
            for task in batch_tasks(rows, self.batch):
                yield task._replace(as_samples=True) if pending or skip else task
                skip = 0

    def _results(
        self, maker: BatchMaker, tasks: Iterator[BatchTask], resources: contextlib.ExitStack
    ) -> Iterator[BatchResult]:
        """Start the workers, and return an iterator over their results in the order of the tasks.

        Closing `resources` ends the workers.
        """
        workers = 0 if not self._processes and maker.is_inline else self.workers
        # the prefetched batches, and one more batch, which the caller uses
        max_items = max(self._ahead, workers) + 1 if workers else 1
        make: Callable[[BatchTask], BatchResult] = maker
        if workers and self._processes:
            self.data.load()
            idle, processes = SimpleQueue[Process](), list[Process]()
            resources.callback(close_all, processes)
            for _ in range(workers):
                processes.append(Process(maker, self._start))
                idle.put(processes[-1])

            def make_in_process(task: BatchTask) -> BatchResult:
                process = idle.get()
                try:
                    # Do not send the block to the process, because the block contains the row
                    # numbers of many batches, and the process needs only those of this batch.
                    result: BatchResult = process(task._replace(block=None))
                    return result
                except WorkerEndedError as error:
                    numbers = ", ".join(map(str, task.rows[:_MAX_SHOWN_ROWS].tolist()))
                    more = ", …" if len(task.rows) > _MAX_SHOWN_ROWS else ""
                    message = f"{error.message} during the batch of rows {numbers}{more}"
                    raise error.changed(message=message) from None
                finally:
                    idle.put(process)

            make = make_in_process
        results = ordered_map(make, tasks, workers=workers, max_items=max_items)
        resources.callback(results.close)
        return results

    def _move(self, start: Cursor, rows: int, skip: int, steps: int) -> None:
        """Set the position of the loader to the position after a batch.

        start  position at which the iterator started
        rows   number of rows that this rank has completed since `start`
        skip   number of samples yielded from the row that is not completed yet
        steps  number of steps in the epoch
        """
        step = min(steps, start.step + rows * self.ranks)
        self._cursor = Cursor(start.seed, start.epoch, step, start.order)
        self._skip = skip

    def _next_batch(
        self, maker: BatchMaker, pending: deque[_Pending], start: Cursor, steps: int
    ) -> Any:
        """Make a batch from the first samples in `pending`; update the position of the loader."""
        taken = [pending.popleft() for _ in range(min(self.batch, len(pending)))]
        batch = maker.collate([item.sample for item in taken])
        self._move(start, taken[-1].rows, taken[-1].skip, steps)
        return batch
