"""Read-ahead of remote index files: each is read by a thread, and the next few are started early.

Rows are returned in the order of the files. A few megabytes of each file are buffered; an error is
raised in place of the rows. Only one file is read until its second batch is taken, because previews
need no more than one batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TypeAlias

import pyarrow as pa

from flarecli.prefetch import get_interruptibly, submit

__all__ = ["NumberedBatch", "read_ahead"]

NumberedBatch: TypeAlias = tuple[int, pa.RecordBatch]  # number of the first row in its file, batch

MAX_OPEN_FILES = 4
MIN_BUFFER_BYTES, MAX_BUFFER_BYTES = 1 << 20, 8 << 20  # per file; doubled with each batch taken


class _Reader:
    """One file: a thread reads until the buffer is full, and continues when some of it was taken."""

    def __init__(self, batches: Iterator[NumberedBatch], max_bytes: int) -> None:
        self._batches, self._max_bytes = batches, max_bytes
        self._arrived: SimpleQueue[NumberedBatch | BaseException | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._held, self._is_reading, self._is_over = 0, False, False

    def start(self) -> None:
        """Start to read, unless the buffer is full."""
        with self._lock:
            if self._is_reading or self._is_over or (self._held and self._held >= self._max_bytes):
                return
            self._is_reading = True
        submit(self._read)

    def _read(self) -> None:
        try:
            while (found := next(self._batches, None)) is not None:
                with self._lock:
                    self._held += found[1].nbytes
                    self._is_reading = self._held < self._max_bytes and not self._is_over
                    is_enough = not self._is_reading
                    self._arrived.put(found)  # inside the lock, to keep the order of batches
                if is_enough:
                    return
        except BaseException as error:
            found = None
            self._arrived.put(error)
        else:
            self._arrived.put(None)
        self._is_over = True

    def __iter__(self) -> Iterator[NumberedBatch]:
        while True:
            self.start()
            found = get_interruptibly(self._arrived)
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            with self._lock:
                self._held -= found[1].nbytes
            yield found
            self._max_bytes = min(MAX_BUFFER_BYTES, max(MIN_BUFFER_BYTES, 2 * self._max_bytes))

    def stop(self) -> None:
        self._is_over = True


def read_ahead(
    files: Iterable[Callable[[], Iterator[NumberedBatch]]],
) -> Iterator[Iterator[NumberedBatch]]:
    """Yield the batches of each file in order, while the next few files are read."""
    readers = deque[_Reader]()
    waiting = iter(files)

    def open_files(count: int, max_bytes: int) -> None:
        while len(readers) < count and (file := next(waiting, None)) is not None:
            readers.append(_Reader(file(), max_bytes))
            readers[-1].start()

    def batches(reader: _Reader) -> Iterator[NumberedBatch]:
        for batch in reader:
            yield batch
            open_files(MAX_OPEN_FILES, MAX_BUFFER_BYTES)

    try:
        open_files(1, 0)
        while readers:
            yield batches(readers[0])
            readers.popleft()
            open_files(1, 0)
    finally:
        for reader in readers:
            reader.stop()
