"""Bags: concatenated byte records, and a table with the end of each.

Little-endian, N records (source: files written by granular 0.19.0, 0.21.2 and 0.24.2):

    NAME.bag                 NAME.idx
    0     bytes  records     0   uint64[N]  end of each record

    NAME.bag, without an .idx
    0     bytes      records
    E     uint64[N]  end of each record; in files by 0.19 and older N+1 entries, the first one 0

E is the last end, so the last 8 bytes of the file are the offset of its table. An empty bag is an
empty file, or a single zero. A table that starts with 0 is of the older kind; a table whose first
record is empty looks the same, so an empty record is never written.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flarecli import encodings
from flarecli.errors import FormatError
from flarecli.formats import byte_ranges as spans
from flarecli.lazy import pa
from flarecli.model import Chunk, IntArray
from flarecli.storage import Location

__all__ = [
    "Bag",
    "DAMAGED",
    "TORN",
    "array",
    "body",
    "gathered",
    "opened",
    "pair",
    "single",
    "table",
]

TORN = "A writer was interrupted: append to the dataset to repair it, or fetch it again."
DAMAGED = "The file was damaged or cut short; fetch or pack it again."
_TAIL_BYTES = 1 << 16  # read from the end of a bag before the size of its table is known
_STEP_BYTES = 1 << 20  # bytes of a table per read: avoids a second copy of the table


@dataclass(frozen=True, slots=True)
class Bag:
    """A bag that can be read.

    chunk   its file
    starts  int64 [N+1]: the start of each record, and the end of the last
    table   a view of `starts`, whose items are Python integers
    held    the bytes of the file if they are mapped or in memory, else None
    """

    chunk: Chunk
    starts: IntArray
    table: memoryview
    held: bytes | mmap.mmap | None

    def __len__(self) -> int:
        return len(self.starts) - 1


def pair(bag: Chunk, idx: Chunk) -> IntArray:
    """Read the table of a bag from its `.idx` file.

    return  int64 [N+1]: 0, then the end of each record
    raises  FormatError if it is incomplete, decreases, or does not end with the bag
    """
    size = spans.stored_size(idx)
    if size % 8:
        raise FormatError(
            f"file is {size} bytes, expected a multiple of 8", where=idx.at, hint=TORN
        )
    starts = table(idx.at, 0, size)
    end, there = int(starts[-1]), spans.stored_size(bag)
    if there < end:
        raise FormatError(
            f"file is {there} bytes; its index needs {end}", where=bag.at, hint=DAMAGED
        )
    if there > end:
        raise FormatError(
            f"{there - end} bytes follow the last record of its index", where=bag.at, hint=TORN
        )
    return starts


def single(bag: Chunk) -> IntArray:
    """Read the table at the end of a bag without an `.idx`, of either version.

    return  int64 [N+1]: 0, then the end of each record
    raises  FormatError if the last 8 bytes are not the offset of a valid table
    """
    at, size = bag.at, spans.stored_size(bag)
    if size == 0:
        return np.zeros(1, np.int64)
    if size < 8:
        raise FormatError(f"file is {size} bytes, expected at least 8", where=at)
    first = 0 if size <= _TAIL_BYTES else size - _TAIL_BYTES
    tail = at.read(first, size)
    begin = int.from_bytes(tail[-8:], "little")
    if begin > size - 8:
        raise FormatError(
            f"file is {size} bytes; its table should start at byte {begin}",
            where=at,
            hint=DAMAGED,
        )
    if (size - begin) % 8:
        raise FormatError(
            f"the table at byte {begin} is {size - begin} bytes, expected a multiple of 8",
            where=at,
            hint=DAMAGED,
        )
    zero = tail[begin - first : begin - first + 8] if begin >= first else at.read(begin, begin + 8)
    begin += 0 if any(zero) else 8
    return table(at, begin, size, tail[begin - first :] if begin >= first else None)


def table(at: Location, start: int, stop: int, data: bytes | None = None) -> IntArray:
    """Read a table of uint64 ends, in steps if the file is local.

    data    the bytes of the table, if they were read already
    return  int64 [N+1]: 0, then the end of each record
    raises  FormatError if the ends decrease
    """
    starts = np.zeros((stop - start) // 8 + 1, np.int64)
    step = _STEP_BYTES if at.is_local and data is None else max(1, stop - start)
    for piece in range(start, stop, step):
        ends = np.frombuffer(
            at.read(piece, min(stop, piece + step)) if data is None else data, "<i8"
        )
        row = 1 + (piece - start) // 8
        # an end of 2^63 or more becomes negative, and so decreases
        starts[row : row + len(ends)] = ends
    _check(starts, at)
    return starts


def _check(starts: IntArray, at: Location) -> None:
    """Raise FormatError for a table that decreases: reads would return bytes of other records."""
    decreases = starts[1:] < starts[:-1]
    if decreases.any():
        row = int(np.argmax(decreases))
        end = int(starts[row + 1]) % (1 << 64)
        raise FormatError(
            f"record {row} starts at byte {int(starts[row])} and ends at byte {end}",
            where=at,
            hint=DAMAGED,
        )


def opened(bag: Chunk, starts: IntArray) -> Bag:
    """Map a bag if possible. Raises FormatError if the file is shorter than its table needs."""
    view = spans.whole(bag)
    held = (
        view.obj
        if view is not None
        and isinstance(view.obj, (bytes, mmap.mmap))
        and len(view.obj) == len(view)
        else None
    )
    if view is not None and len(view) < int(starts[-1]):
        raise FormatError(
            f"file is {len(view)} bytes; its table needs {int(starts[-1])}",
            where=bag.at,
            hint=DAMAGED,
        )
    return Bag(bag, starts, starts.data, held)


def array(bag: Bag, start: int, stop: int) -> pa.Array:
    """Return records start..stop as large_binary over the mapped file, or over one read."""
    offsets = bag.starts[start : stop + 1]
    if bag.held is not None:
        data = pa.py_buffer(bag.held)
    else:
        low, high = int(offsets[0]), int(offsets[-1])
        (part,) = spans.read(bag.chunk, [(low, high)])
        data, offsets = pa.py_buffer(part), offsets - low
    return pa.Array.from_buffers(
        encodings.BINARY, stop - start, [None, pa.py_buffer(offsets), data]
    )


def gathered(bag: Bag, records: IntArray) -> pa.Array:
    """Return some records as large_binary.

    records  int64 [k], increasing, each in [0, N)
    """
    if not len(records):
        return pa.array([], encodings.BINARY)
    first, last = int(records[0]), int(records[-1])
    if last - first == len(records) - 1:
        return array(bag, first, last + 1)
    starts, ends = bag.starts[records], bag.starts[records + 1]
    if bag.held is None:
        parts = spans.read(bag.chunk, list(zip(starts.tolist(), ends.tolist(), strict=True)))
        return pa.array([bytes(part) for part in parts], encodings.BINARY)
    low = int(starts[0])
    return spans.ragged(
        np.frombuffer(bag.held, np.uint8)[low : int(ends[-1])], starts - low, ends - starts
    )


def body(columns: Sequence[pa.Array]) -> tuple[list[memoryview], IntArray]:
    """Return the contents of a bag of these records.

    columns  large_binary arrays without nulls, in order
    return   the bytes, and the end of each record, int64 [records]
    """
    parts, ends, base = [], [np.zeros(0, np.int64)], 0
    for column in columns:
        offsets = (
            np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
            if len(column)
            else np.zeros(1, np.int64)
        )
        low, high = int(offsets[0]), int(offsets[-1])
        if high > low:
            parts.append(memoryview(column.buffers()[2])[low:high])
        ends.append(offsets[1:] + (base - low))
        base += high - low
    return parts, np.concatenate(ends)
