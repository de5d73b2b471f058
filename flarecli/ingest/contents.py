"""What columns of names point at: files of one folder, read side by side, a bounded number of bytes ahead, given in order.

Room is handed out in the order of the rows, so that the row that is waited for is never behind one that waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from flarecli.errors import FlareError, ReachError
from flarecli.media import kind_of
from flarecli.model import ENCODING
from flarecli.storage import Limits, Location
from flarecli.units import format_size

__all__ = ["Flaw", "contents", "filled"]

_STEP, _AHEAD = 512, 1024  # rows of a slice, and of those that are under way
_BATCH_BYTES = 4 << 20
_READERS = 8  # more threads than that only wait for one another


class Flaw(NamedTuple):
    """A file that could not be read: the row of the batch, the column, and why."""

    row: int
    column: str
    error: FlareError


class _Room:
    """Bytes that may be held, handed out by number."""

    def __init__(self, size: int) -> None:
        self._size, self._used, self._next = size, 0, 0
        self._changed = threading.Condition()
        self._is_over = False

    def take(self, number: int, size: int) -> None:
        """Wait for one's turn and for room; what is larger than all of it passes alone."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or (self._next == number and (self._used == 0 or self._used + size <= self._size)))
            self._used += size
            self._next += 1
            self._changed.notify_all()

    def give_back(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


def filled(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Give the schema that batches have with the contents of columns in place of names; text and JSON are told by extension."""
    fields = []
    for field in schema:
        kind = kind_of(f".{field.name}")
        said = {ENCODING: kind.encode()} if kind in ("str", "json") else None
        fields.append(pa.field(field.name, pa.large_binary(), metadata=said) if field.name in columns else field)
    return pa.schema(fields)


class _Slice(NamedTuple):
    batch: pa.RecordBatch
    reads: list[list[Future[bytes] | None]]  # by row, then by column


def contents(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], find: Callable[[str], Location], limits: Limits | None = None
) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
    """Replace columns of names by what the files hold, as large_binary; a null stays null.

    find    gives the place that a name names: `at.__truediv__` of files below a folder, `at.join` of addresses
    limits  `ahead_bytes` are held at most, and one batch; a file of more than `max_bytes` is a flaw
    return  batches as `filled` says, in the order of the rows, and the files that could not be read: null in the batch, with the reason
    """
    limits = limits or Limits()
    room, number, ahead, rows = _Room(limits.ahead_bytes), 0, deque[_Slice](), 0
    pool = ThreadPoolExecutor(min(_READERS, limits.jobs))

    def read(name: str, number: int) -> bytes:
        size = 0
        try:
            place = find(name)
            size = place.size()
            if size > limits.max_bytes:
                raise ReachError(f"{format_size(size)}, more than the {format_size(limits.max_bytes)} that an object may have", where=place)
        except BaseException:
            room.take(number, 0)
            raise
        room.take(number, size)
        try:
            return place.read(0, size)
        except BaseException:
            room.give_back(size)
            raise

    try:
        for batch in batches:
            for start in range(0, batch.num_rows, _STEP):
                part = batch.slice(start, _STEP)
                names = [part.column(column).to_pylist() for column in columns]
                reads: list[list[Future[bytes] | None]] = []
                for row in zip(*names, strict=True):
                    futures: list[Future[bytes] | None] = []
                    for name in row:
                        futures.append(None if name is None else pool.submit(read, name, number))
                        number += name is not None
                    reads.append(futures)
                ahead.append(_Slice(part, reads))
                rows += part.num_rows
                while rows > _AHEAD:
                    rows -= ahead[0].batch.num_rows
                    yield from _filled(ahead.popleft(), columns, room)
        while ahead:
            yield from _filled(ahead.popleft(), columns, room)
    finally:
        room.close()
        pool.shutdown(wait=True, cancel_futures=True)


def _filled(part: _Slice, columns: Sequence[str], room: _Room) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
    """Give the rows of a slice in batches of some megabytes."""
    first, size, flaws = 0, 0, list[Flaw]()
    values: list[list[bytes | None]] = [[] for _ in columns]
    for row, futures in enumerate(part.reads):
        for column, future, held in zip(columns, futures, values, strict=True):
            try:
                data = None if future is None else future.result()
            except FlareError as error:
                flaws.append(Flaw(row - first, column, error))
                data = None
            held.append(data)
            if data is not None:
                room.give_back(len(data))
                size += len(data)
        part.reads[row] = []
        if size >= _BATCH_BYTES or row + 1 == part.batch.num_rows:
            yield _replaced(part.batch.slice(first, row + 1 - first), columns, values), flaws
            first, size, flaws, values = row + 1, 0, [], [[] for _ in columns]


def _replaced(batch: pa.RecordBatch, columns: Sequence[str], values: list[list[bytes | None]]) -> pa.RecordBatch:
    found = dict(zip(columns, values, strict=True))
    schema = filled(batch.schema, columns)
    arrays = [pa.array(found[name], pa.large_binary()) if name in found else batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
