"""Shards that are compressed, hashed and written while rows come in; each is noted in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from flarecli.errors import UsageError
from flarecli.model import Chunk
from flarecli.prefetch import OrderedQueue

__all__ = ["ShardQueue", "rows_lost"]

Note: TypeAlias = "Callable[[Chunk, int], None]"
_MAX_BYTES = 256 << 20  # rows in shards that are being written


class _Task(NamedTuple):
    """A shard to write: the row at which the next shard begins, and the bytes of its rows."""

    write: Callable[[], Chunk]
    next: int
    size: int


class ShardQueue:
    """Writes shards on threads; its length is the number of shards that are not noted yet.

    jobs  shards written at a time; 1: each by the thread that adds it

    `note` is called for each shard, in order, with the row at which the next one begins, by the
    thread that adds or closes. It is an argument of each call because the queue must not refer to
    its Writer, which is abandoned when nothing refers to it. After a shard has failed its rows are
    lost: every later call raises, so that no dataset is finished without them.
    """

    def __init__(self, jobs: int) -> None:
        self._queue = OrderedQueue(
            _run,
            workers=jobs if jobs > 1 else 0,
            max_items=jobs + 1,
            max_bytes=_MAX_BYTES,
            weigh=lambda task: task.size,
        )
        self._is_broken = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, write: Callable[[], Chunk], next: int, size: int, note: Note) -> None:
        """Write a shard of `size` bytes, and note those that are done.

        raises  the error of this or an earlier shard; no shard after that one is noted. UsageError
                once an error was raised
        """
        self._run(lambda: self._queue.put(_Task(write, next, size)), note)

    def close(self, note: Note) -> None:
        """Wait for all shards and note them. Raises what `add` raises."""
        self._run(self._queue.drain, note)
        self._queue.close(wait=True)

    def _run(self, due: Callable[[], Iterable[tuple[Chunk, int]]], note: Note) -> None:
        if self._is_broken:
            raise rows_lost()
        try:
            for chunk, next in due():
                note(chunk, next)
        except BaseException:
            self._is_broken = True
            self._queue.close(wait=True)  # no shard is being written after this
            raise


def rows_lost() -> UsageError:
    """Return the error for calls after rows were lost."""
    hint = "Open another Writer with resume=True: its `rows` says where to go on."
    return UsageError("a shard before could not be written, so none is taken behind it", hint=hint)


def _run(task: _Task) -> tuple[Chunk, int]:
    return task.write(), task.next
