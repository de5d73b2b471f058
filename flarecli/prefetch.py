"""Prefetch: calls on one process-wide thread pool, with ordered results and bounded memory.

The threads of the pool are daemons and are reused. Each queue limits its own number of threads. The
pool itself has no maximum size, so a call that runs on the pool may use the pool without a
deadlock. If the system cannot start another thread, queued calls run on the existing threads or on
the calling thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from flarecli import lifetimes
from flarecli.errors import ReachError

__all__ = [
    "OrderedQueue",
    "cpu_count",
    "get_interruptibly",
    "ordered_map",
    "result_interruptibly",
    "run_interruptibly",
    "start_thread",
    "submit",
]

A = TypeVar("A")
T = TypeVar("T")
# Waits have a timeout, because a wait is not interrupted by a signal that a different thread
# receives.
_TICK_S = 0.5

_tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None ends the thread
_idle = threading.Semaphore(0)  # number of threads that are waiting for a task


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises ReachError if the system cannot start it."""
    try:
        thread.start()
    except RuntimeError as error:
        hint = "Lower --jobs, or raise the limit on processes (`ulimit -u`)."
        raise ReachError("cannot start another thread", hint=hint) from error


def _run_task(task: Callable[[], None]) -> None:
    """Run a task on a pool thread. Raises ReachError if no thread can be started."""
    if not _idle.acquire(blocking=False):
        pool = (_tasks, _idle)
        start_thread(threading.Thread(target=_work, args=pool, name="flare-pool", daemon=True))
    _tasks.put(task)


def _work(tasks: SimpleQueue[Callable[[], None] | None], idle: threading.Semaphore) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # frees the task's result before the next task arrives
        idle.release()


def close_idle_threads() -> None:
    """End the idle threads of the pool."""
    while _idle.acquire(blocking=False):
        _tasks.put(None)


def _reset_pool() -> None:
    """Reset the pool in a forked child, which has no copy of the threads."""
    global _tasks, _idle
    _tasks, _idle = SimpleQueue(), threading.Semaphore(0)


lifetimes.after_fork(_reset_pool)
lifetimes.register("prefetch threads", close_idle_threads)


def submit(call: Callable[[], T]) -> Future[T]:
    """Run a call on the pool and return its Future.

    Raises ReachError if no thread can be started.
    """
    future: Future[T] = Future()
    pending = [future]

    def task() -> None:
        future = pending.pop()
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        finally:
            del future  # breaks the reference cycle between the future and its error's traceback

    _run_task(task)
    return future


def run_interruptibly(call: Callable[[], T]) -> T:
    """Run a call and return its result; an interrupt ends the wait even if the call blocks.

    Only the main thread receives interrupts, so other threads run the call directly.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    try:
        future = submit(call)
    except ReachError:
        return call()
    try:
        return result_interruptibly(future)
    finally:
        del future  # breaks a reference cycle, see `submit`


def result_interruptibly(future: Future[T]) -> T:
    """Wait for a future and return its result; an interrupt ends the wait."""
    try:
        while not future.done():
            with contextlib.suppress(TimeoutError):
                future.exception(timeout=_TICK_S)
        return future.result()
    finally:
        del future  # breaks a reference cycle, see `submit`


def get_interruptibly(queue: SimpleQueue[T]) -> T:
    """Return the next item of a queue that other threads fill; an interrupt ends the wait."""
    while True:
        with contextlib.suppress(Empty):
            return queue.get(timeout=_TICK_S)


class _Entry(Generic[A, T]):
    """An item of an OrderedQueue, and the result or the error of its call."""

    __slots__ = ("error", "is_done", "item", "value", "weight")

    def __init__(self, item: A, weight: int) -> None:
        self.item: A | None = item
        self.weight = weight  # bytes
        self.value: T | None = None
        self.error: BaseException | None = None
        self.is_done = False


class OrderedQueue(Generic[A, T]):
    """Queue that calls a function with each item and returns the results in the order of the items.

    Only one thread may put items and remove results. If a call fails, its error is raised in place
    of its result, and the queue is closed. `len()` is the number of items whose results are still
    in the queue.

    call          function to call with each item
    workers       number of threads; with 0, calls run on the thread that uses the queue
    max_items     maximum number of items in the queue (default: 2 * workers, at least 1)
    max_bytes     limit on the total bytes of calls in flight and of results in the queue; a single
                  item may exceed the limit
    weigh         function that returns the memory in bytes that the call of an item needs
                  (default: 0)
    weigh_result  function that returns the size of a result in bytes (default: the same number as
                  for its item)
    """

    def __init__(
        self,
        call: Callable[[A], T],
        *,
        workers: int,
        max_items: int | None = None,
        max_bytes: int | None = None,
        weigh: Callable[[A], int] | None = None,
        weigh_result: Callable[[T], int] | None = None,
    ) -> None:
        self._call, self._workers, self._max_bytes = call, workers, max_bytes
        self._max_items = max(1, 2 * workers if max_items is None else max_items)
        self._weigh, self._weigh_result = weigh, weigh_result
        self._entries: deque[_Entry[A, T]] = deque()  # entries whose results have not been removed
        self._waiting: deque[_Entry[A, T]] = deque()  # entries that have not started
        self._bytes = self._started_bytes = 0  # bytes of all entries; bytes of started entries
        self._running = self._starting = 0  # all workers; workers whose thread has not started yet
        self._calling = 0  # calls in flight
        self._awaited: _Entry[A, T] | None = None  # the entry that `_take` waits for
        self._changed = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def put(self, item: A) -> Iterator[T]:
        """Add an item, and return an iterator over the results that are due.

        A result is due if it is ready or if the queue is full. Exhaust the iterator before putting
        the next item. Raises RuntimeError if the queue is closed.
        """
        if self._is_closed:
            raise RuntimeError("the queue is closed")
        entry: _Entry[A, T] = _Entry(item, self._weigh(item) if self._weigh is not None else 0)
        with self._changed:
            self._entries.append(entry)
            self._waiting.append(entry)
            self._bytes += entry.weight
        self._start()
        return self._due()

    def _due(self) -> Iterator[T]:
        while self._entries and (self._entries[0].is_done or self._is_full()):
            yield self._take()

    def drain(self) -> Iterator[T]:
        """Wait for the results of all items and yield them."""
        while self._entries:
            yield self._take()

    def close(self, wait: bool = False) -> None:
        """Drop all waiting items and results; with `wait`, return after the last call in flight.

        Without `wait`, no lock is acquired, because garbage collection may close an abandoned
        iterator on any thread, even on a thread that has the lock.
        """
        self._is_closed = True
        self._waiting.clear()
        self._entries.clear()
        if wait:
            with self._changed:
                while self._calling:
                    self._changed.wait(_TICK_S)

    def _is_full(self) -> bool:
        return len(self._entries) >= self._max_items or (
            self._max_bytes is not None and self._bytes >= self._max_bytes
        )

    def _may_start(self) -> bool:
        """Return whether the first waiting item may start now."""
        try:
            weight = self._waiting[0].weight
        except IndexError:
            return False
        if self._max_bytes is None or not self._started_bytes:
            return True
        return self._started_bytes + max(1, weight) <= self._max_bytes

    def _start(self) -> None:
        """Start workers while items are waiting and the limits allow one more worker."""
        while True:
            with self._changed:
                if len(self._waiting) <= self._starting or not self._may_start():
                    return
                if self._running >= max(1, self._workers):
                    return
                self._running += 1
                self._starting += 1
            if not self._workers:
                self._run_worker(once=True)
                continue
            try:
                _run_task(self._run_worker)
            except ReachError:
                if self._running > 1:  # a different worker will process the item
                    with self._changed:
                        self._running -= 1
                        self._starting -= 1
                    return
                self._run_worker(once=True)

    def _run_worker(self, once: bool = False) -> None:
        """Process the waiting items one by one, or with `once` only the first of them."""
        with self._changed:
            self._starting -= 1
        while (entry := self._next()) is not None:
            self._run(entry)
            del entry  # frees the result before the next item arrives
            if once:
                with self._changed:
                    self._running -= 1
                return

    def _next(self) -> _Entry[A, T] | None:
        """Remove and return the next entry to process; None ends the worker."""
        with self._changed:
            if self._may_start():
                with contextlib.suppress(IndexError):  # the queue was closed
                    entry = self._waiting.popleft()
                    self._started_bytes += entry.weight
                    self._calling += 1
                    return entry
            self._running -= 1
            return None

    def _run(self, entry: _Entry[A, T]) -> None:
        weight = entry.weight
        try:
            value = entry.value = self._call(cast(A, entry.item))
            if self._weigh_result is not None:
                weight = self._weigh_result(value)
            del value
        except BaseException as error:
            entry.error = error
            self._waiting.clear()  # results after an error are never used
        entry.item = None
        with self._changed:
            self._bytes += weight - entry.weight
            self._started_bytes += weight - entry.weight
            entry.weight, entry.is_done = weight, True
            self._calling -= 1
            # Waking the reader for every entry would take longer than reading a small file.
            if self._is_closed or self._awaited is entry:
                self._changed.notify_all()
        # Break the reference cycle: the entry refers to the error, and the error's traceback refers
        # to this frame.
        del entry

    def _take(self) -> T:
        """Wait for the first entry, remove it and return its result."""
        entry = self._entries[0]
        with self._changed:
            self._awaited = entry
            while not entry.is_done:
                self._changed.wait(_TICK_S)
            self._awaited = None
            self._entries.popleft()
            self._bytes -= entry.weight
            self._started_bytes -= entry.weight
        if entry.error is not None:
            self.close()
            try:
                raise entry.error
            finally:
                del entry, self  # otherwise, the error's traceback would keep both objects alive
        self._start()
        return cast(T, entry.value)


def ordered_map(
    call: Callable[[A], T],
    items: Iterable[A],
    *,
    workers: int,
    max_items: int | None = None,
    max_bytes: int | None = None,
    weigh: Callable[[A], int] | None = None,
    weigh_result: Callable[[T], int] | None = None,
) -> Generator[T, None, None]:
    """Call a function with each item on the thread pool, and yield the results in item order.

    Calls start before their results are requested. The calling thread iterates over the items. When
    the returned iterator is closed, waiting items are dropped, and calls in flight continue.
    `OrderedQueue` describes the arguments and errors.
    """
    queue = OrderedQueue(
        call,
        workers=workers,
        max_items=max_items,
        max_bytes=max_bytes,
        weigh=weigh,
        weigh_result=weigh_result,
    )
    with queue:
        for item in items:
            yield from queue.put(item)
        yield from queue.drain()


def cpu_count() -> int:
    """Return the number of CPUs that this process may use.

    On systems without CPU affinity (macOS, Windows), the result is the number of all CPUs.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
