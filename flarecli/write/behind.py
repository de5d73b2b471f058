"""Shards compressed, summed and written behind the rows that come in: a few at once, each noted in its turn when it is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, TypeAlias

from flarecli.errors import UsageError
from flarecli.model import Chunk
from flarecli.storage.workers import Workers

__all__ = ["Behind", "lost"]

Note: TypeAlias = "Callable[[Chunk, int], None]"
_BYTES = 256 << 20  # of rows in shards that are being made


class _Making(NamedTuple):
    """A shard on its way: the row at which the next one begins, and the bytes of its rows."""

    chunk: Future[Chunk]
    next: int
    size: int


class Behind:
    """What is being made, in order; its length is how many shards are not noted yet.

    jobs  made at once; 1: each by whoever adds it, with no thread

    Each shard is noted in order, with the row at which the next one begins, by whoever adds or closes: `note` is given each time, since a
    Behind must not hold who holds it. Once a shard failed, its rows are gone: whoever goes on all the same would end a dataset without them.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._pool: Workers | None = None
        self._making: deque[_Making] = deque()
        self._is_broken = False

    def __len__(self) -> int:
        return len(self._making)

    def add(self, make: Callable[[], Chunk], next: int, size: int, note: Note) -> None:
        """Make a shard of so many bytes.

        raises  what this or an earlier one failed with, nothing behind that one is noted; UsageError once that was raised
        """
        self._check()
        if self._jobs == 1:
            try:
                note(make(), next)
            except BaseException:
                self._is_broken = True
                raise
            return
        if self._pool is None:
            self._pool = Workers(self._jobs, "shards")
        while self._making and (self._is_full(size) or self._making[0].chunk.done()):
            self._settle(note)
        chunk: Future[Chunk] = Future()
        try:  # an interrupt may come while the thread starts: it is listed before
            self._making.append(_Making(chunk, next, size))
            self._pool.submit(_make, [(chunk, make)])
        except BaseException:
            self._break()
            raise

    def _check(self) -> None:
        if self._is_broken:
            raise lost()

    def _is_full(self, size: int) -> bool:
        return (
            len(self._making) >= self._jobs or sum(one.size for one in self._making) + size > _BYTES
        )

    def _settle(self, note: Note) -> None:
        """Note the first that is being made, once it is there."""
        try:
            made, next = self._making[0].chunk.result(), self._making[0].next
            self._making.popleft()
            note(made, next)
        except BaseException:
            self._break()
            raise

    def _break(self) -> None:
        self._is_broken = True
        self._end()

    def _end(self) -> None:
        """Leave what is not noted; none of it is still being written after this."""
        for one in self._making:
            if (
                not one.chunk.cancel()
            ):  # it has begun, in a thread that the pool may not know of yet
                one.chunk.exception()
        self._making.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def close(self, note: Note) -> None:
        """Wait for all and note them. Raises what one of them failed with, or UsageError once that was raised."""
        self._check()
        while self._making:
            self._settle(note)
        self._end()


def lost() -> UsageError:
    """Make what is said to whoever goes on although rows were lost."""
    hint = "Open another Writer with resume=True: its `rows` says where to go on."
    return UsageError("a shard before could not be written, so none is taken behind it", hint=hint)


def _make(one: list[tuple[Future[Chunk], Callable[[], Chunk]]]) -> None:
    """Make a shard, unless it was given up before; it is taken out of the list, since an error has frames that hold what they were given."""
    chunk, make = one.pop()
    if not chunk.set_running_or_notify_cancel():
        return
    try:
        chunk.set_result(make())
    except BaseException as error:
        chunk.set_exception(error)
        del chunk
