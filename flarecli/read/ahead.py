"""Work done ahead of whoever takes it: calls on threads of their own, results in order, never more than a few of them at once."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from flarecli.storage.threads import start

__all__ = ["Ahead", "Call"]

A = TypeVar("A")
T = TypeVar("T")
Call = Callable[[list[A]], list[T]]
_TURN_S = 0.004  # what is asked of a thread at once should take this long: less, and handing it over costs more than doing it
_QUICK_S = 0.002  # what takes less is little but bytes moved
_LITTLE_S = 0.00025  # what takes less is done before a thread is awake
_TRY = (
    64  # items handed over before it is tried again whether they are quick; each time twice as many
)
_MOST = 16  # items handed over at once
_TICK_S = 0.5
_END_S = 1.0  # how long the end of a call under way is waited for


class Ahead(Generic[A, T]):
    """An iterator: the result for each item, in the order of the items, whatever the number of threads.

    calls  one for each thread: it gives the results for a list of items
    most   items under way or waiting to be taken, at least 1 a thread; quick ones are handed over several at a time
    own    the same call, for whoever takes the results: it makes them itself as long as they are quick and it comes back at once for the
           next, since threads that do no more than move bytes only get into its way (measured: 1.6 times the CPU)
    waited seconds for which the last call of `own` waited for what threads of others bring: more threads would bring nothing sooner
    quick  whether items are likely to be quick; if not, threads begin with the first of them
    raises what a call raises, where its result would have been; ReachError where no thread can be started
    """

    def __init__(
        self,
        calls: Sequence[Call[A, T]],
        items: Iterator[A],
        most: int,
        own: Call[A, T] | None = None,
        waited: Callable[[], float] = lambda: 0.0,
        quick: bool = True,
    ) -> None:
        self._waited = waited
        self._items, self._most, self._calls, self._own = items, max(most, len(calls)), calls, own
        self._apart: float = (
            (0 if quick else _TRY) if own else math.inf
        )  # items that are still handed over before the taker tries again
        self._slow: list[
            float
        ] = []  # seconds that the last items took, one after the other no longer quick
        self._try, self._left = _TRY if quick else 2 * _TRY, time.perf_counter()
        self._wake, self._closed = threading.Condition(), False
        self._todo: deque[tuple[int, list[A]]] = deque()
        self._done: dict[int, list[T] | BaseException] = {}
        self._ready: deque[T] = deque()
        self._begun = self._given = 0  # turns
        self._under_way: dict[int, int] = {}  # turn -> items
        self._item_s = _TURN_S  # seconds: what one item takes, as far as known
        self._threads: list[threading.Thread] = []
        if self._apart:
            self._start()

    def _start(self) -> None:
        self._threads = [
            threading.Thread(target=self._work, args=(call,), name="flare-loader", daemon=True)
            for call in self._calls
        ]
        try:
            for thread in self._threads:
                start(thread, "workers")
        except BaseException:
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.close()
            raise

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._apart and not self._ready and not self._under_way and self._own:
            return self._made(self._own)
        self._ask()
        while not self._ready:
            if self._given == self._begun:
                raise StopIteration
            self._ready.extend(self._taken())
            self._ask()
        return self._ready.popleft()

    def _made(self, call: Call[A, T]) -> T:
        """Make the next result here."""
        began = time.perf_counter()
        away = began - self._left
        out = call([next(self._items)])[0]
        self._left = time.perf_counter()
        took = self._left - began - self._waited()
        self._slow = [*self._slow, took] if took > _QUICK_S or away > took > _LITTLE_S else []
        if (
            len(self._slow) > 1 and sum(self._slow) > 2 * _QUICK_S
        ):  # threads would be done by now; a single one was held up by something else
            self._slow, self._apart, self._try = [], self._try, 2 * self._try
            if not self._threads:
                self._start()
        return out

    def _ask(self) -> None:
        """Hand over as many items as there is room for."""
        turn_size = max(
            1,
            min(
                _MOST, self._most // (len(self._calls) + 1), int(_TURN_S / max(self._item_s, 1e-6))
            ),
        )
        room = min(self._apart, self._most - len(self._ready) - sum(self._under_way.values()))
        while room >= turn_size or (room > 0 and not self._under_way):
            size = int(min(turn_size, room))
            turn = [item for _, item in zip(range(size), self._items, strict=False)]
            if not turn:
                return
            self._under_way[self._begun] = len(turn)
            with self._wake:
                self._todo.append((self._begun, turn))
                self._wake.notify_all()
            self._begun += 1
            room -= len(turn)
            self._apart -= len(turn)

    def _taken(self) -> list[T]:
        with self._wake:
            while self._given not in self._done:
                self._wake.wait(_TICK_S)  # an interrupt ends it
            out = self._done.pop(self._given)
        del self._under_way[self._given]
        self._given += 1
        if isinstance(out, BaseException):
            raise out
        return out

    def _work(self, call: Call[A, T]) -> None:
        while True:
            with self._wake:
                while not self._todo and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                at, turn = self._todo.popleft()
            began = time.perf_counter()
            out: Any
            try:
                out = call(turn)
            except BaseException as error:
                out = error
            with self._wake:
                self._item_s = (time.perf_counter() - began) / len(turn)
                self._done[at] = out
                self._wake.notify_all()

    def stop(self) -> None:
        """Begin no further call."""
        with self._wake:
            self._closed = True
            self._todo.clear()
            self._wake.notify_all()

    def close(self) -> None:
        """End the threads; a call that goes on for longer than a second ends by itself later."""
        self.stop()
        end = time.monotonic() + _END_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
