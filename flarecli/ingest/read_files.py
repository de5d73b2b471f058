"""Parallel reader for the files whose names are in columns. Rows stay in order; memory is bounded.

Memory is reserved in row order, so a row never waits for a later row. A small file is read before
memory is reserved for it, so that the file is opened only once, for its size and its contents.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from flarecli.errors import FlareError
from flarecli.media import kind_of
from flarecli.model import ENCODING
from flarecli.prefetch import OrderedQueue
from flarecli.storage import Limits, Location, Store

__all__ = ["Flaw", "contents", "filled"]

SLICE_ROWS, READ_AHEAD_ROWS = 512, 1024
_BATCH_BYTES = 4 << 20
FIRST_GROUP_ROWS, MAX_GROUP_ROWS = 16, 64  # rows per call: initial and maximum number
MAX_GROUP_BYTES = 16 << 20  # maximum size of the files that one call reads ahead
SMALL_BYTES = 1 << 20  # bytes that one call reads before it reserves memory
MAX_READERS = 8  # more threads are not faster


class Flaw(NamedTuple):
    """A file that could not be read: its row in the batch, its column, and the error."""

    row: int
    column: str
    error: FlareError


class _MemoryBudget:
    """Memory limit for groups of rows. Groups reserve bytes in the order of their numbers."""

    def __init__(self, size: int) -> None:
        self._size, self._used, self._next = size, 0, 0
        self._changed = threading.Condition()
        self._is_over = False

    def take(self, number: int, size: int) -> None:
        """Reserve bytes for a group, after all earlier groups have reserved their bytes.

        A group that needs more than the budget waits until all other bytes are released.
        """
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

    def release(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


def filled(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of batches whose file names were replaced with file contents.

    If the name of a column is a file extension of text or JSON, the name determines the encoding.
    """
    fields = []
    for field in schema:
        kind = kind_of(f".{field.name}")
        metadata = {ENCODING: kind.encode()} if kind in ("str", "json") else None
        fields.append(
            pa.field(field.name, pa.large_binary(), metadata=metadata)
            if field.name in columns
            else field
        )
    return pa.schema(fields)


_Value = bytes | FlareError | None
_Names = Sequence[str | None]  # file names of rows: the names of the first row, of the second, …
_Queue = OrderedQueue[tuple[int, _Names, int], list[_Value] | None]


@dataclass(frozen=True)
class _Reader:
    """Reader for the files of a group of rows. One call per file would be slow for small files.

    max_bytes  maximum size of a file
    caller     identifier of the thread that uses the results
    """

    locate: Callable[[str], Location]
    budget: _MemoryBudget
    max_bytes: int
    caller: int

    def group(self, number: int, names: _Names, max_group_bytes: int) -> list[_Value] | None:
        """Read the files of a group of rows; return None if the group is too large to read ahead.

        The caller's thread reads nothing and returns None, because a wait for memory would be a
        deadlock. `release` releases the memory of the result.

        number           number of the group
        max_group_bytes  maximum size of a group that is read ahead
        """
        if threading.get_ident() == self.caller:
            self.budget.take(number, 0)
            return None
        size = -1
        try:
            found = self._read(names, SMALL_BYTES)
            size = sum(one if isinstance(one, int) else _size(one) for one in found)
        finally:
            is_small = 0 <= size <= max_group_bytes
            self.budget.take(number, size if is_small else 0)
        if not is_small:
            return None
        values = [
            self.value(name) if isinstance(one, int) else one
            for name, one in zip(names, found, strict=True)
        ]
        self.budget.release(size - sum(map(_size, values)))
        return values

    def release(self, values: Sequence[_Value]) -> None:
        """Release the memory that `group` reserved for its result."""
        self.budget.release(sum(map(_size, values)))

    def value(self, name: str | None) -> _Value:
        """Return the contents of a file, or the error that reading it raised."""
        (value,) = self._read([name], self.max_bytes)
        return cast(_Value, value)  # `_read` returns sizes only of larger files

    def _read(self, names: _Names, room: int) -> list[_Value | int]:
        """Read files of at most `room` bytes in total, and return the sizes of the other files."""
        values: list[_Value | int] = [None] * len(names)
        located: list[tuple[Store, str, int]] = []
        for i, name in enumerate(names):
            if name is not None:
                try:
                    at = self.locate(name)
                except FlareError as error:
                    values[i] = error
                else:
                    located.append((at.store, at.path, i))
        for store, files in itertools.groupby(located, operator.itemgetter(0)):
            _, paths, positions = zip(*files, strict=True)
            found = store.read_files(paths, self.max_bytes, room)
            for i, value in zip(positions, found, strict=True):
                values[i] = value
                room -= _size(value)
        return values


def _size(value: object) -> int:
    return len(value) if isinstance(value, bytes) else 0


class _Slice(NamedTuple):
    batch: pa.RecordBatch
    names: list[str | None]
    starts: deque[int]  # first row of each group of rows


def contents(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    locate: Callable[[str], Location],
    limits: Limits | None = None,
    max_group_rows: int = MAX_GROUP_ROWS,
    has_addresses: bool = False,
) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
    """Replace the file names in columns with file contents, as large_binary; keep nulls.

    locate      function that returns the location for a name: `at.__truediv__` for files below a
                folder, `at.join` for addresses
    limits      memory is bounded by `ahead_bytes` and one batch; a file larger than `max_bytes` is
                a flaw
    max_group_rows  maximum number of rows that one call reads; 1 for remote files. The number of
                rows per call is adapted, so that the size of their files is about SMALL_BYTES.
    has_addresses   whether names may be URLs; in a slice of rows that contains a URL, each call
                    reads one row, because remote files are read in parallel
    return      batches with the schema of `filled`, in the order of the rows, and the files that
                could not be read, whose values are null
    """
    limits = limits or Limits()
    budget, number, ahead, rows = _MemoryBudget(limits.ahead_bytes), 0, deque[_Slice](), 0
    reader = _Reader(
        locate,
        budget,
        limits.max_bytes,
        threading.get_ident(),
    )
    queue: _Queue = OrderedQueue(
        lambda read: reader.group(*read), workers=min(MAX_READERS, limits.jobs)
    )
    group_rows = min(FIRST_GROUP_ROWS, max_group_rows)
    max_group_bytes = min(MAX_GROUP_BYTES, limits.ahead_bytes)
    try:
        for batch in batches:
            for start in range(0, batch.num_rows, SLICE_ROWS):
                part = batch.slice(start, SLICE_ROWS)
                texts = [part.column(column).to_pylist() for column in columns]
                names = [name for row in zip(*texts, strict=True) for name in row]
                is_remote = max_group_rows == 1 or (
                    has_addresses and any("://" in name for name in names if name is not None)
                )
                max_bytes = limits.max_bytes if is_remote else max_group_bytes
                rows_per_call = 1 if is_remote else group_rows
                starts = deque(range(0, part.num_rows, rows_per_call))
                step = rows_per_call * len(columns)
                for first in range(0, len(names), step):
                    queue.put((number, names[first : first + step], max_bytes))
                    number += 1
                ahead.append(_Slice(part, names, starts))
                rows += part.num_rows
                while rows > READ_AHEAD_ROWS:
                    done = ahead.popleft()
                    rows -= done.batch.num_rows
                    size = yield from _fill_slice(done, columns, reader, queue)
                    group_rows = SMALL_BYTES * done.batch.num_rows // max(1, size)
                    group_rows = max(1, min(group_rows, max_group_rows))
        while ahead:
            yield from _fill_slice(ahead.popleft(), columns, reader, queue)
    finally:
        budget.close()
        queue.close(wait=True)


def _fill_slice(
    part: _Slice, columns: Sequence[str], reader: _Reader, queue: _Queue
) -> Generator[tuple[pa.RecordBatch, list[Flaw]], None, int]:
    """Yield the rows of a slice in batches of a few megabytes, and return the size of the files."""
    first, size, total, flaws = 0, 0, 0, list[Flaw]()
    values: list[list[bytes | None]] = [[] for _ in columns]
    for row, found in _rows(part, reader, queue):
        for column, value, contents_of_column in zip(columns, found, values, strict=True):
            if isinstance(value, FlareError):
                flaws.append(Flaw(row - first, column, value))
                value = None
            contents_of_column.append(value)
            size += len(value or b"")
        if size >= _BATCH_BYTES or row + 1 == part.batch.num_rows:
            yield _replace_columns(part.batch.slice(first, row + 1 - first), columns, values), flaws
            total += size
            first, size, flaws, values = row + 1, 0, [], [[] for _ in columns]
    return total


def _rows(part: _Slice, reader: _Reader, queue: _Queue) -> Iterator[tuple[int, list[_Value]]]:
    """Yield the values of each row. Groups that were too large to read ahead are read now."""
    width = len(part.names) // part.batch.num_rows
    while part.starts:
        first = part.starts.popleft()
        last = part.starts[0] if part.starts else part.batch.num_rows
        found = next(queue.drain())
        for row in range(first, last):
            if found is None:
                names = part.names[row * width : (row + 1) * width]
                yield row, [reader.value(name) for name in names]
            else:
                start = (row - first) * width
                yield row, found[start : start + width]
        if found is not None:
            reader.release(found)


def _replace_columns(
    batch: pa.RecordBatch, columns: Sequence[str], values: list[list[bytes | None]]
) -> pa.RecordBatch:
    found = dict(zip(columns, values, strict=True))
    schema = filled(batch.schema, columns)
    arrays = [
        _binary_array(found[name]) if name in found else batch.column(name) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """Return a large_binary array of values. Unlike `pa.array`, this copies each value once."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    valid = None
    if None in values:
        valid = pa.array([value is not None for value in values]).buffers()[1]
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(
        pa.large_binary(), len(values), [valid, pa.py_buffer(offsets), data]
    )
