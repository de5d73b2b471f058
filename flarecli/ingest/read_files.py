"""What columns of names point at: files of one folder, read side by side, a bounded number of bytes ahead, given in order.

Room is handed out in the order of the rows, so that the row that is waited for is never behind one that waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from flarecli.errors import FlareError, ReachError
from flarecli.media import kind_of
from flarecli.model import ENCODING
from flarecli.prefetch import OrderedQueue
from flarecli.storage import Limits, Location
from flarecli.units import format_size

__all__ = ["Flaw", "contents", "filled"]

_STEP, _AHEAD = 512, 1024  # rows of a slice, and of those that are under way
_BATCH_BYTES = 4 << 20
_ROWS, _TOGETHER = 16, 16 << 20  # rows, and bytes of them, that one thread reads in one go
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
            self._changed.wait_for(
                lambda: (
                    self._is_over
                    or (
                        self._next == number
                        and (self._used == 0 or self._used + size <= self._size)
                    )
                )
            )
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
        fields.append(
            pa.field(field.name, pa.large_binary(), metadata=said)
            if field.name in columns
            else field
        )
    return pa.schema(fields)


_Value = bytes | FlareError | None
_Names = Sequence[str | None]
_Queue = OrderedQueue[tuple[int, Sequence[_Names]], list[list[_Value]] | None]


@dataclass(frozen=True)
class _Reader:
    """Reads a few rows' files in one go: a thread that is woken for each small file spends its time waking."""

    find: Callable[[str], Location]
    room: _Room
    most: int  # bytes of a file
    together: int  # bytes of files that one go takes; more is read when its row is given out
    caller: int  # identifier of the thread that takes the rows

    def rows(self, number: int, names: Sequence[_Names]) -> list[list[_Value]] | None:
        """Read the files of some rows; None if they are large. `number` says whose turn it is.

        Without a thread to read ahead, None too: waiting for room would block the caller's thread.
        """
        if threading.get_ident() == self.caller:
            self.room.take(number, 0)
            return None
        size = -1
        try:
            size = sum(self._size(name) for row in names for name in row if name is not None)
        finally:
            is_small = 0 <= size <= self.together
            self.room.take(number, size if is_small else 0)
        if not is_small:
            return None
        found = [[self.value(name) for name in row] for row in names]
        self.room.give_back(
            size - sum(len(value) for row in found for value in row if isinstance(value, bytes))
        )
        return found

    def _size(self, name: str) -> int:
        try:
            size = self.find(name).size()
        except FlareError:
            return 0
        return size if size <= self.most else 0

    def value(self, name: str | None) -> _Value:
        """Read a file, or give why it cannot be read."""
        if name is None:
            return None
        try:
            place = self.find(name)
            size = place.size()
            if size > self.most:
                raise ReachError(
                    f"{format_size(size)}, more than the {format_size(self.most)} that an object may have",
                    where=place,
                )
            return place.read(0, size)
        except FlareError as error:
            return error


class _Slice(NamedTuple):
    batch: pa.RecordBatch
    names: list[_Names]
    starts: deque[int]  # the first row of each read


def contents(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    find: Callable[[str], Location],
    limits: Limits | None = None,
    together: int = _ROWS,
) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
    """Replace columns of names by what the files hold, as large_binary; a null stays null.

    find      gives the place that a name names: `at.__truediv__` of files below a folder, `at.join` of addresses
    limits    `ahead_bytes` are held at most, and one batch; a file of more than `max_bytes` is a flaw
    together  rows that one thread reads in one go; 1 where each file is far away
    return    batches as `filled` says, in the order of the rows, and the files that could not be read: null in the
              batch, with the reason
    """
    limits = limits or Limits()
    room, number, ahead, rows = _Room(limits.ahead_bytes), 0, deque[_Slice](), 0
    reader = _Reader(
        find,
        room,
        limits.max_bytes,
        min(_TOGETHER, limits.ahead_bytes) if together > 1 else limits.max_bytes,
        threading.get_ident(),
    )
    queue: _Queue = OrderedQueue(
        lambda read: reader.rows(*read), workers=min(_READERS, limits.jobs)
    )
    try:
        for batch in batches:
            for start in range(0, batch.num_rows, _STEP):
                part = batch.slice(start, _STEP)
                names: list[_Names] = list(
                    zip(*(part.column(column).to_pylist() for column in columns), strict=True)
                )
                starts = deque(range(0, part.num_rows, together))
                for row in starts:
                    queue.put((number, names[row : row + together]))
                    number += 1
                ahead.append(_Slice(part, names, starts))
                rows += part.num_rows
                while rows > _AHEAD:
                    rows -= ahead[0].batch.num_rows
                    yield from _filled(ahead.popleft(), columns, reader, queue)
        while ahead:
            yield from _filled(ahead.popleft(), columns, reader, queue)
    finally:
        room.close()
        queue.close(wait=True)


def _filled(
    part: _Slice, columns: Sequence[str], reader: _Reader, queue: _Queue
) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
    """Give the rows of a slice in batches of some megabytes."""
    first, size, flaws = 0, 0, list[Flaw]()
    values: list[list[bytes | None]] = [[] for _ in columns]
    for row, found in _rows(part, reader, queue):
        for column, value, held in zip(columns, found, values, strict=True):
            if isinstance(value, FlareError):
                flaws.append(Flaw(row - first, column, value))
                value = None
            held.append(value)
            size += len(value or b"")
        if size >= _BATCH_BYTES or row + 1 == part.batch.num_rows:
            yield _replaced(part.batch.slice(first, row + 1 - first), columns, values), flaws
            first, size, flaws, values = row + 1, 0, [], [[] for _ in columns]


def _rows(part: _Slice, reader: _Reader, queue: _Queue) -> Iterator[tuple[int, list[_Value]]]:
    """Give the values of one row after another; what was too large to be read ahead is read now."""
    while part.starts:
        first = part.starts.popleft()
        last = part.starts[0] if part.starts else len(part.names)
        found = next(queue.drain())
        for row in range(first, last):
            if found is None:
                yield row, [reader.value(name) for name in part.names[row]]
                continue
            values, found[row - first] = found[row - first], []
            reader.room.give_back(sum(len(value) for value in values if isinstance(value, bytes)))
            yield row, values


def _replaced(
    batch: pa.RecordBatch, columns: Sequence[str], values: list[list[bytes | None]]
) -> pa.RecordBatch:
    found = dict(zip(columns, values, strict=True))
    schema = filled(batch.schema, columns)
    arrays = [
        pa.array(found[name], pa.large_binary()) if name in found else batch.column(name)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
