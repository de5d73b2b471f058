"""Prefetch of remote shards: the current window of a run, then the next windows as space permits.

Up to two of the next windows are prefetched, because workers that prefetch batches may already read
from the next window. If the windows are small, more than two are prefetched.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import threading
from collections import deque
from concurrent.futures import Future, wait

from flarecli.errors import FlareError, ReachError
from flarecli.model import Cursor
from flarecli.prefetch import submit
from flarecli.read.batch import Order, Rows
from flarecli.storage import keep_freed

__all__ = ["Prefetch"]

_THREADS, _WINDOWS_AHEAD = 4, 2
_MAX_LOCAL_RANKS = 8
_MIN_LARGE_PAGE_BYTES = 8 << 20  # smaller datasets are read with normal pages
_MIN_AHEAD_BYTES = 32 << 20  # windows after the next two are prefetched up to this total size
_POLL_S = 0.5  # interval between checks for free space in the cache
_END_S = 1.0  # maximum time for which `close` waits for transfers


class Prefetch:
    """A group of threads that download the shards of an epoch, starting at a cursor.

    Download errors are ignored here, because reading the shard raises them. Prefetched windows use
    at most `Shards.room` bytes. If other processes share the cache, the limit is lower, because
    prefetched shards must not evict shards that the other processes still need.

    ranks      number of ranks among which the rows are divided. With 8 ranks or fewer, all ranks
               are assumed to run on this machine. The machine then reads all shards, and large
               memory pages are therefore requested for local shards
    is_active  False if shards are not prefetched, because there is no cache or the order is
               `shuffle`
    """

    def __init__(self, data: Rows, order: Order, start: Cursor, ranks: int) -> None:
        keep_freed()  # reuse freed memory for the batches that worker processes send
        self._shards, self._step = data.shards, start.step
        if ranks <= _MAX_LOCAL_RANKS:
            self._shards.expect_epoch(_MIN_LARGE_PAGE_BYTES)
        self.is_active = start.order != "shuffle" and self._shards.room > 0
        self._wake, self._closed = threading.Condition(), False
        self._windows = order.windows(start.step)
        max_windows = order.parallel_windows + _WINDOWS_AHEAD
        # first steps of the most recent windows
        self._firsts: deque[int] = deque([-1] * max_windows, max_windows)
        # row ranges of the most recent window; no thread has started to download these rows
        self._todo: deque[tuple[int, int]] = deque()
        self._end = 0  # the step at which the most recent window ends
        self._bytes = 0  # total size of the row ranges in `_fetched`
        # heap of (end step of the window, first row, end row, bytes)
        self._fetched: list[tuple[int, int, int, int]] = []
        self._futures: list[Future[None]] = []
        with contextlib.suppress(ReachError):  # if no thread can start, readers download the shards
            for _ in range(_THREADS if self.is_active else 0):
                self._futures.append(submit(self._work))

    def reached(self, step: int) -> None:
        """Set the current step of the run, and release the shards of windows before this step."""
        if not self.is_active:
            return
        ended = []
        with self._wake:
            is_next_window = any(self._step < first <= step for first in self._firsts)
            self._step = step
            while self._fetched and self._fetched[0][0] <= step:
                ended.append(heapq.heappop(self._fetched))
                self._bytes -= ended[-1][3]
            if ended or is_next_window:
                # Waiting threads can continue, because space is free or a new window has begun.
                self._wake.notify_all()
        for _, start, stop, _ in ended:
            self._shards.release(start, stop)

    def _next(self) -> tuple[int, int, int] | None:
        """Wait until another download may start. Return None if there is nothing left to download.

        return  (end, start, stop): the step at which the window ends, and the rows start..stop to
                download
        """
        with self._wake:
            while not self._closed:
                if not self._todo:
                    window = next(self._windows, None)
                    if window is None:
                        return None
                    first, self._end, ranges = window
                    self._firsts.append(first)
                    self._todo.extend(ranges)
                    continue
                size = self._shards.weight(*self._todo[0])
                total = self._bytes + size
                is_near = self._step >= self._firsts[0] or total <= _MIN_AHEAD_BYTES
                if self._step >= self._firsts[-1] or (is_near and total <= self._shards.room):
                    self._bytes += size
                    start, stop = self._todo.popleft()
                    heapq.heappush(self._fetched, (self._end, start, stop, size))
                    return self._end, start, stop
                self._wake.wait(_POLL_S)
        return None

    def _work(self) -> None:
        while (work := self._next()) is not None:
            end, start, stop = work
            with contextlib.suppress(FlareError):
                self._shards.fetch(start, stop, functools.partial(self._is_current, end))
            if self._closed:
                self._shards.release(start, stop)

    def _is_current(self, end: int) -> bool:
        """Return True until the run reaches step `end`, at which the window of a download ends."""
        return self._step < end

    def close(self) -> None:
        """End the threads, and release all shards that the run keeps in memory.

        `close` waits at most one second. A thread that is still downloading ends after its
        download.
        """
        if not self.is_active:
            return
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        wait(self._futures, timeout=_END_S)
        for _, start, stop, _ in self._fetched:
            self._shards.release(start, stop)
        self._shards.release_all()
