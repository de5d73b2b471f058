"""Queue of shards: threads compress, hash and write shards; the queue records them in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from flarecli.errors import UsageError
from flarecli.model import Chunk
from flarecli.prefetch import OrderedQueue

__all__ = ["ShardQueue", "rows_lost_error"]

Record: TypeAlias = "Callable[[Chunk, int], None]"
_MAX_BYTES = 256 << 20  # maximum total size of the rows in unrecorded shards


class _Task(NamedTuple):
    """A shard to write.

    write  function that writes the shard
    next   position in the selection of the next shard's first row
    size   total size in bytes of the rows in the shard
    """

    write: Callable[[], Chunk]
    next: int
    size: int


class ShardQueue:
    """Queue that writes shards on threads. Its length is the number of unrecorded shards.

    `add` and `close` call `record` for each written shard, in order, with the shard and the
    position of the next shard's first row. `record` is a method of the Writer. The queue does not
    store `record`, because a reference to the Writer would prevent the garbage collection of an
    unused Writer.

    After a shard has failed, all later calls raise an error, so that no dataset is finished without
    the rows of that shard.

    jobs  maximum number of shards to write in parallel; with 1, the calling thread writes the
          shards
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

    def add(self, write: Callable[[], Chunk], next: int, size: int, record: Record) -> None:
        """Queue a shard to write, and record all written shards.

        raises  the error of a shard that could not be written; later shards are not recorded.
                UsageError if an earlier call raised an error
        """
        self._run(lambda: self._queue.put(_Task(write, next, size)), record)

    def close(self, record: Record) -> None:
        """Wait until all shards are written, and record them. Raises the same errors as `add`."""
        self._run(self._queue.drain, record)
        self._queue.close(wait=True)

    def _run(self, finished: Callable[[], Iterable[tuple[Chunk, int]]], record: Record) -> None:
        if self._is_broken:
            raise rows_lost_error()
        try:
            for chunk, next in finished():
                record(chunk, next)
        except BaseException:
            self._is_broken = True
            self._queue.close(wait=True)  # wait for the threads, which may still write shards
            raise


def rows_lost_error() -> UsageError:
    """Return the error for a call to a Writer after a shard could not be written."""
    hint = "Open another Writer with resume=True, and continue after its `rows`."
    return UsageError("an earlier shard could not be written, so later rows are refused", hint=hint)


def _run(task: _Task) -> tuple[Chunk, int]:
    return task.write(), task.next
