"""Blocking calls side by side, on threads of their own.

A library's call cannot be interrupted, so the main thread never makes one: it waits, and an interrupt ends the wait. The
threads are daemons, shared by all stores of a process, and never wait for one another. Where the system allows no more of
them, calls are made where they are asked for, one after the other.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from flarecli.errors import FlareError, ReachError

__all__ = [
    "Outcome",
    "ahead",
    "alone",
    "begin",
    "in_order",
    "none_left",
    "side_by_side",
    "start",
    "wait_for",
]

T = TypeVar("T")
A = TypeVar("A")
D = TypeVar("D", bound=Sized)
_TICK_S = 0.5
_TELL = 32  # how many results come before their taker is woken
_tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
_idle = threading.Semaphore(
    0
)  # threads that wait for a task: one is started only when there is none


class Outcome(Generic[T]):
    """What the call with the item at a position came to: its value, or the exception that it raised."""

    __slots__ = ("at", "error", "value")

    def __init__(self, at: int) -> None:
        self.at = at
        self.value: Any = None
        self.error: BaseException | None = None

    def get(self) -> T:
        """Give the value, or raise the exception."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                del self  # the error's own frames would hold it, and all that the callers had, until the collector comes
        value: T = self.value
        return value


def _work() -> None:
    while True:
        _tasks.get()()
        _idle.release()


def none_left(error: BaseException, of: str = "--jobs") -> FlareError | None:
    """Give what to tell the user where Python could start no thread, and which number to lower; None for any other error."""
    if not isinstance(error, RuntimeError) or not str(error).startswith("can't start new thread"):
        return None
    hint = (
        f"Give it fewer {of}, or let the user or the container have more processes (`ulimit -u`)."
    )
    return ReachError("the system lets no further thread start", hint=hint)


def start(thread: threading.Thread, of: str = "--jobs") -> None:
    """Start a thread; `of` is what its number comes from. Raises ReachError where the system allows no more of them."""
    try:
        thread.start()
    except RuntimeError as error:
        raise none_left(error, of) or error from None


def _start(task: Callable[[], None]) -> None:
    """Have a thread do a task. Raises ReachError."""
    if not _idle.acquire(blocking=False):
        start(threading.Thread(target=_work, name="flare-store", daemon=True))
    _tasks.put(task)


def wait_for(arrived: SimpleQueue[T]) -> T:
    """Take what other threads put; an interrupt ends the wait, also one that another thread was given."""
    while True:
        with contextlib.suppress(Empty):
            return arrived.get(timeout=_TICK_S)


def _submit(
    call: Callable[[A], T], item: A, at: int, arrived: SimpleQueue[Outcome[T]], apart: bool = False
) -> None:
    """Have a call made on a thread, or here if there is none to be had: unless it is to be made `apart`, then that raises ReachError."""

    def task() -> None:
        outcome: Outcome[T] = Outcome(at)
        try:
            outcome.value = call(item)
        except BaseException as error:
            outcome.error = error
        arrived.put(outcome)
        del outcome

    try:
        _start(task)
    except ReachError:
        if apart:
            raise
        task()


def alone(call: Callable[[], T]) -> T:
    """Make one call; away from the main thread it is made where it is asked for."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    return wait_for(_begun(call, False)).get()


def begin(call: Callable[[], T]) -> SimpleQueue[Outcome[T]]:
    """Make one call on another thread; its outcome will be put where this points at. Raises ReachError if there is no thread to be had."""
    return _begun(call, True)


def _begun(call: Callable[[], T], apart: bool) -> SimpleQueue[Outcome[T]]:
    arrived: SimpleQueue[Outcome[T]] = SimpleQueue()
    _submit(lambda _: call(), None, 0, arrived, apart)
    return arrived


def side_by_side(call: Callable[[A], T], items: Sequence[A], jobs: int) -> list[T]:
    """Call with each item, at most `jobs` at a time; give the results in order. The first error is raised, and no further call begun."""
    if len(items) == 1:
        return [alone(lambda: call(items[0]))]
    done: list[Any] = [None] * len(items)
    todo = deque(enumerate(items))
    arrived: SimpleQueue[Outcome[None]] = SimpleQueue()

    def some(_: int) -> None:  # a task for each item would cost more than a small object does
        while todo:
            try:
                at, item = todo.popleft()
            except IndexError:  # another thread took the last one
                return
            done[at] = call(item)

    threads = range(min(jobs, len(items)))
    try:
        for thread in threads:
            _submit(some, thread, thread, arrived)
        for _ in threads:
            wait_for(arrived).get()
    finally:
        todo.clear()
    return done


def ahead(call: Callable[[A], T], items: Iterable[A], jobs: int) -> Iterator[T]:
    """Give the result of each call in order, while up to `jobs` calls are under way or wait to be given."""
    arrived: SimpleQueue[Outcome[T]] = SimpleQueue()
    done: dict[int, Outcome[T]] = {}
    wanted = begun = 0
    for item in items:
        _submit(call, item, begun, arrived)
        begun += 1
        if begun - wanted == jobs:
            yield _taken(wanted, done, arrived)
            wanted += 1
    while wanted < begun:
        yield _taken(wanted, done, arrived)
        wanted += 1


def _taken(wanted: int, done: dict[int, Outcome[T]], arrived: SimpleQueue[Outcome[T]]) -> T:
    while wanted not in done:
        outcome = wait_for(arrived)
        done[outcome.at] = outcome
        del outcome  # an error that it holds would hold it
    return done.pop(wanted).get()


def in_order(call: Callable[[A], D], items: Sequence[A], jobs: int, most: int) -> Iterator[D]:
    """Give the data of each call in order while others come. An error is raised as soon as it is met, and no further call begun.

    jobs  calls at a time, at most
    most  bytes that may wait to be given before no further call is begun; those under way come on top
    """
    done: dict[int, D] = {}
    todo = deque(enumerate(items))
    arrived: SimpleQueue[Outcome[int]] = (
        SimpleQueue()
    )  # how many threads have run out of items or of room: none, to say that there are results
    news: Outcome[int] = Outcome(0)
    news.value = 0
    lock = threading.Lock()
    held = ended = 0

    def some(_: int) -> int:
        nonlocal held, ended
        while not held or held < most:
            try:
                at, item = todo.popleft()
            except IndexError:  # another thread took the last one
                break
            data = done[at] = call(item)
            with lock:
                held += len(data)
                ended += 1
                is_time = not ended % _TELL
            if is_time:  # waking the taker for each would cost more than a small object does
                arrived.put(news)
        return 1

    threads = 0
    try:
        for wanted in range(len(items)):
            while True:
                while threads < jobs and todo and held <= most // 2:
                    _submit(some, 0, 0, arrived)
                    threads += 1
                if wanted in done:
                    break
                threads -= wait_for(arrived).get()
            data = done.pop(wanted)
            with lock:
                held -= len(data)
            yield data
    finally:
        todo.clear()


def _forked() -> None:
    """In a child the threads are gone."""
    global _tasks, _idle
    _tasks, _idle = SimpleQueue(), threading.Semaphore(0)


os.register_at_fork(after_in_child=_forked)
