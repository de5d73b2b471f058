"""Index files that lie far away: each is read on another thread, and the next few are begun while one is worked on.

Rows come in the order of the files, whichever came first. A few megabytes of each wait; an error comes where its rows would. Who
takes one batch and leaves, as a look at the first rows does, has caused one to be read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TypeAlias

import pyarrow as pa

from flarecli.prefetch import get_interruptibly, submit

__all__ = ["Placed", "in_turn"]

Placed: TypeAlias = tuple[
    int, pa.RecordBatch
]  # the place of its first row in the file, and a batch

_FILES, _BYTES = 4, 8 << 20  # that are read at a time, and what waits of each
_MORE = 1 << 20  # what waits at first, once somebody came back for a second batch; it doubles


class _Reader:
    """One file: a thread reads until enough waits, and is asked again when some was taken. What is left alone reads no further."""

    def __init__(self, batches: Iterator[Placed], most: int) -> None:
        self._batches, self._most = batches, most
        self._arrived: SimpleQueue[Placed | BaseException | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._held, self._is_reading, self._is_over = 0, False, False

    def begin(self) -> None:
        """Read on, unless enough waits."""
        with self._lock:
            if self._is_reading or self._is_over or (self._held and self._held >= self._most):
                return
            self._is_reading = True
        submit(self._read)

    def _read(self) -> None:
        try:
            while (found := next(self._batches, None)) is not None:
                with self._lock:
                    self._held += found[1].nbytes
                    self._is_reading = self._held < self._most and not self._is_over
                    is_enough = not self._is_reading
                    self._arrived.put(found)  # before anybody else may read on, and overtake it
                if is_enough:
                    return
        except BaseException as error:
            found = None
            self._arrived.put(error)
        else:
            self._arrived.put(None)
        self._is_over = True

    def __iter__(self) -> Iterator[Placed]:
        while True:
            self.begin()
            found = get_interruptibly(self._arrived)
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            with self._lock:
                self._held -= found[1].nbytes
            yield found
            self._most = min(_BYTES, max(_MORE, 2 * self._most))

    def stop(self) -> None:
        self._is_over = True


def in_turn(files: Iterable[Callable[[], Iterator[Placed]]]) -> Iterator[Iterator[Placed]]:
    """Give the batches of each file when its turn comes; the next few are being read by then."""
    begun = deque[_Reader]()
    waiting = iter(files)

    def grow(most: int, ahead: int) -> None:
        while len(begun) < most and (file := next(waiting, None)) is not None:
            begun.append(_Reader(file(), ahead))
            begun[-1].begin()

    def batches(of: _Reader) -> Iterator[Placed]:
        for batch in of:
            yield batch
            grow(_FILES, _BYTES)

    try:
        grow(1, 0)
        while begun:
            yield batches(begun[0])
            begun.popleft()
            grow(1, 0)
    finally:
        for one in begun:
            one.stop()
