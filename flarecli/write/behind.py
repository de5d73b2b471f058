"""Shards compressed, summed and written behind the rows that come in: a few at once, each noted in its turn when it is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from flarecli.model import Chunk

__all__ = ["Behind"]

_BYTES = 256 << 20  # of rows in shards that are being made


class _Making(NamedTuple):
    """A shard on its way: the row at which the next one begins, and the bytes of its rows."""

    chunk: Future[Chunk]
    next: int
    size: int


class Behind:
    """What is being made, in order; its length is how many shards are not noted yet.

    jobs  made at once; 1: each by whoever adds it, with no thread
    note  called with each shard and the row at which the next one begins, in order, by whoever adds or closes
    """

    def __init__(self, jobs: int, note: Callable[[Chunk, int], None]) -> None:
        self._jobs, self._note = jobs, note
        self._pool: ThreadPoolExecutor | None = None
        self._making: deque[_Making] = deque()

    def __len__(self) -> int:
        return len(self._making)

    def add(self, make: Callable[[], Chunk], next: int, size: int) -> None:
        """Make a shard of so many bytes. Raises what this or an earlier one failed with; nothing behind that one is noted."""
        if self._jobs == 1:
            self._note(make(), next)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._jobs, "shards")
        while self._making and (self._is_full(size) or self._making[0].chunk.done()):
            self._settle()
        self._making.append(_Making(self._pool.submit(make), next, size))

    def _is_full(self, size: int) -> bool:
        return len(self._making) >= self._jobs or sum(one.size for one in self._making) + size > _BYTES

    def _settle(self) -> None:
        """Note the first that is being made, once it is there."""
        first = self._making.popleft()
        try:
            self._note(first.chunk.result(), first.next)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        """Leave what is not noted; none of it is still being written after this."""
        self._making.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Wait for all and note them. Raises what one of them failed with."""
        while self._making:
            self._settle()
        self._end()
