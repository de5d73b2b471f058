"""Remote shards fetched before a run reaches them: the window it is in, then as much of the next two as there is room for.

Two, or as many as are little data, since batches are made ahead of the run: where a window is a few batches, the next one is read while
this one is still given.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections import deque
from concurrent.futures import Future, wait

from flarecli.errors import FlareError, ReachError
from flarecli.model import Cursor
from flarecli.prefetch import submit
from flarecli.read.protocols import Order, Rows
from flarecli.read.shards import keep_freed

__all__ = ["Fetching", "begun", "expected"]

_THREADS, _AHEAD = 4, 2  # windows ahead
_BESIDE = 8
_LITTLE = 8 << 20  # bytes that are read whatever their pages
_NEAR = (
    32 << 20
)  # bytes that may be at hand however many windows that is: two small ones are read in less than a thread waits for its turn
_TICK_S, _END_S = 0.5, 1.0


def begun(data: Rows, order: Order, place: Cursor, ranks: int) -> Fetching | None:
    """Begin to fetch what a run reads from a place on; None where no cache keeps it, or all of it is read at once.

    ranks  that share the rows; a few of them are on one machine, which then reads all that is there
    """
    expected(data, ranks)
    return Fetching(data, order, place.step) if place.order != "shuffle" and data.room else None


def expected(data: Rows, ranks: int) -> None:
    """Say that this process will read most rows, if not too many ranks share them."""
    keep_freed()  # also where other processes open the shards, and batches come from them
    if ranks <= _BESIDE and (together := data.stored) >= _LITTLE:
        data.expect(together)


class Fetching:
    """Threads that fetch what an order will read, from a step on. What cannot be fetched is left: whoever reads it says why.

    The windows at hand take no more than the data's `room` together, which is less once other processes share the cache: what this one is
    ahead of them must not drive out what they still need, or they would fetch it again.
    """

    def __init__(self, data: Rows, order: Order, step: int) -> None:
        self._data, self._step = data, step
        self._wake, self._closed = threading.Condition(), False
        self._windows = order.windows(step)
        most = order.beside + _AHEAD
        self._firsts: deque[int] = deque(
            [-1] * most, most
        )  # the steps at which windows begin, that which is fetched last
        self._todo: deque[tuple[int, int]] = deque()  # runs of rows of that window
        self._end = 0
        self._bytes = 0  # of what was fetched and is not behind the run
        self._passed: list[
            tuple[int, int, int, int]
        ] = []  # a heap: the step behind a run's window, the run, its bytes
        self._futures: list[Future[None]] = []
        with contextlib.suppress(ReachError):  # without threads, batches fetch what they need
            for _ in range(_THREADS):
                self._futures.append(submit(self._work))

    def reached(self, step: int) -> None:
        """Say where the run is; shards that lie behind it are let go."""
        over = []
        with self._wake:
            may_go_on = any(self._step < first <= step for first in self._firsts)
            self._step = step
            while self._passed and self._passed[0][0] <= step:
                over.append(heapq.heappop(self._passed))
                self._bytes -= over[-1][3]
            if over or may_go_on:  # else each batch would wake threads that find nothing to do
                self._wake.notify_all()
        for _, start, stop, _ in over:
            self._data.release(start, stop)

    def _next(self) -> tuple[int, int] | None:
        """Wait until another run of rows may be fetched; None at the end."""
        with self._wake:
            while not self._closed:
                if not self._todo:
                    window = next(self._windows, None)
                    if window is None:
                        return None
                    first, self._end, spans = window
                    self._firsts.append(first)
                    self._todo.extend(spans)
                    continue
                size = self._data.weight(*self._todo[0])
                bytes_then = self._bytes + size
                is_near = self._step >= self._firsts[0] or bytes_then <= _NEAR
                if self._step >= self._firsts[-1] or (is_near and bytes_then <= self._data.room):
                    self._bytes += size
                    heapq.heappush(self._passed, (self._end, *self._todo[0], size))
                    return self._todo.popleft()
                self._wake.wait(_TICK_S)
        return None

    def _work(self) -> None:
        while (span := self._next()) is not None:
            with contextlib.suppress(FlareError):
                self._data.fetch(*span)
            if self._closed:
                self._data.release(*span)

    def close(self) -> None:
        """End the threads; a transfer under way ends by itself later."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        wait(self._futures, timeout=_END_S)
        for _, start, stop, _ in self._passed:
            self._data.release(start, stop)
