"""Parallel reader for the files whose names are in columns. Rows stay in order; memory is bounded.

A first call reads the small files of a group of rows, and returns the sizes of the other files. A
second call reads the other files of a few rows, as soon as enough memory is available. Because the
first call returns both sizes and contents, each small file is opened only once.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from flarecli.errors import FlareError
from flarecli.media import kind_of
from flarecli.model import ENCODING
from flarecli.prefetch import ordered_map
from flarecli.storage import Limits, Location, Store, keep_freed

__all__ = ["Flaw", "binary_array", "contents", "filled"]

SLICE_ROWS = 512  # maximum number of rows in a batch
_BATCH_BYTES = 4 << 20
GROUP_ROWS = 64  # rows per call that reads small local files
SMALL_BYTES = 2 << 20  # maximum number of bytes per call that reads small files
# Maximum number of unfinished calls and unused results. The limit applies to small files and to
# other files separately.
MAX_CALLS = 32
MAX_READERS = 8  # maximum number of threads; more threads are not faster


class Flaw(NamedTuple):
    """A file that could not be read: its row in the batch, its column, and the error."""

    row: int
    column: str
    error: FlareError


def filled(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of batches after `contents` has replaced file names with file contents.

    If the name of a column is a file extension of text or JSON, the name determines the encoding.

    columns  columns of file names
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


class _Group(NamedTuple):
    """Adjacent rows of a batch. One call reads the files of these rows.

    first   position of the first row in the batch
    names   file names: all names of the first row, all names of the second row, …
    values  contents of these files, or errors; for a file that has not been read, its size, or 0 if
            its size is unknown
    """

    batch: pa.RecordBatch
    first: int
    names: Sequence[str | None]
    values: Sequence[_Value | int]

    def part(self, start: int, stop: int, width: int) -> _Group:
        """Return the rows start..stop of the group.

        width  number of file names per row
        """
        names = slice(start * width, stop * width)
        return self._replace(
            first=self.first + start, names=self.names[names], values=self.values[names]
        )


def contents(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    locate: Callable[[str], Location],
    limits: Limits | None = None,
    is_remote: bool = False,
    has_addresses: bool = False,
) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
    """Replace the file names in columns with file contents, as large_binary; keep nulls.

    locate      function that returns the location for a name: `at.__truediv__` for files below a
                folder, `at.join` for addresses
    limits      memory is bounded by `ahead_bytes` and one batch; a file larger than `max_bytes` is
                not read, and is returned as a Flaw
    is_remote   whether all files are remote
    has_addresses   whether names may be URLs, so that some files may be remote
    return      batches with the schema of `filled`, in the order of the rows, and a Flaw for each
                file that could not be read; the values of these files are null
    """
    keep_freed()  # otherwise, reading large files would cause many page faults
    limits = limits or Limits()
    small_bytes = limits.ahead_bytes // 4  # memory for small files that are read in advance
    workers = min(MAX_READERS, limits.jobs)
    read = partial(_read, locate, limits.max_bytes)
    groups = ordered_map(
        partial(read, SMALL_BYTES),
        _groups(batches, columns, is_remote, has_addresses),
        workers=workers,
        max_items=MAX_CALLS,
        max_bytes=small_bytes,
        weigh=lambda _: SMALL_BYTES,
        weigh_result=lambda group: sum(map(_size, group.values)),
    )
    complete = ordered_map(
        partial(read, sys.maxsize),
        _pieces(groups, len(columns)),
        workers=workers,
        max_items=MAX_CALLS,
        max_bytes=limits.ahead_bytes - small_bytes,
        weigh=_group_size,
    )
    with contextlib.closing(groups), contextlib.closing(complete):
        yield from _batches(complete, columns)


def _groups(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], is_remote: bool, has_addresses: bool
) -> Iterator[_Group]:
    """Yield the rows in groups, which are read in parallel.

    If a file may be remote, each group has only one row, so that more requests are in flight.
    """
    for batch in batches:
        for start in range(0, batch.num_rows, SLICE_ROWS):
            part = batch.slice(start, SLICE_ROWS)
            texts = [part.column(column).to_pylist() for column in columns]
            names = [name for row in zip(*texts, strict=True) for name in row]
            has_remote = is_remote or (
                has_addresses and any("://" in name for name in names if name is not None)
            )
            values = [None if name is None else 0 for name in names]
            whole = _Group(part, 0, names, values)
            step = 1 if has_remote else GROUP_ROWS
            for first in range(0, part.num_rows, step):
                yield whole.part(first, first + step, len(columns))


def _pieces(groups: Iterable[_Group], width: int) -> Iterator[_Group]:
    """Split each group into smaller groups, each with about SMALL_BYTES of unread files."""
    for group in groups:
        rows, start, size = len(group.names) // width, 0, 0
        for row in range(rows):
            values = group.values[row * width : (row + 1) * width]
            size += sum(value for value in values if isinstance(value, int))
            if size >= SMALL_BYTES or row + 1 == rows:
                yield group.part(start, row + 1, width)
                start, size = row + 1, 0


def _group_size(group: _Group) -> int:
    """Return the total size of the files of a group in bytes, both read and unread."""
    return sum(value if isinstance(value, int) else _size(value) for value in group.values)


def _size(value: _Value | int) -> int:
    return len(value) if isinstance(value, bytes) else 0


def _read(locate: Callable[[str], Location], max_bytes: int, room: int, group: _Group) -> _Group:
    """Read the files of a group that have not been read yet, at most `room` bytes in total."""
    values = list(group.values)
    located: list[tuple[Store, str, int]] = []
    for i, (name, value) in enumerate(zip(group.names, values, strict=True)):
        if name is not None and isinstance(value, int):
            try:
                at = locate(name)
            except FlareError as error:
                values[i] = error
            else:
                located.append((at.store, at.path, i))
    for store, files in itertools.groupby(located, operator.itemgetter(0)):
        _, paths, positions = zip(*files, strict=True)
        for i, value in zip(positions, store.read_files(paths, max_bytes, room), strict=True):
            values[i] = value
            room -= _size(value)
    return group._replace(values=values)


def _batches(
    groups: Iterable[_Group], columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, list[Flaw]]]:
    """Yield the rows of groups in batches of a few megabytes, and the files with errors."""
    first, size, flaws = 0, 0, list[Flaw]()
    found: list[list[bytes | None]] = [[] for _ in columns]
    for group in groups:
        for place, value in enumerate(group.values):
            row, column = divmod(place, len(columns))
            row += group.first
            if isinstance(value, FlareError):
                flaws.append(Flaw(row - first, columns[column], value))
            content = value if isinstance(value, bytes) else None
            found[column].append(content)
            size += len(content or b"")
            is_end = column + 1 == len(columns)
            if is_end and (size >= _BATCH_BYTES or row + 1 == group.batch.num_rows):
                rows = group.batch.slice(first, row + 1 - first)
                yield _replace_columns(rows, columns, found), flaws
                first = 0 if row + 1 == group.batch.num_rows else row + 1
                size, flaws, found = 0, [], [[] for _ in columns]


def _replace_columns(
    batch: pa.RecordBatch, columns: Sequence[str], values: list[list[bytes | None]]
) -> pa.RecordBatch:
    found = dict(zip(columns, values, strict=True))
    schema = filled(batch.schema, columns)
    arrays = [
        binary_array(found[name]) if name in found else batch.column(name) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """Return a large_binary array of values. Unlike `pa.array`, copy each value only once."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    valid = None
    if None in values:
        valid = pa.array([value is not None for value in values]).buffers()[1]
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(
        pa.large_binary(), len(values), [valid, pa.py_buffer(offsets), data]
    )
