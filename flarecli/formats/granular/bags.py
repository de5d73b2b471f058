"""Bags: byte records back to back, and a table of where each ends.

Little-endian, N records (source: files written by granular 0.19.0, 0.21.2 and 0.24.2):

    NAME.bag                 NAME.idx
    0     bytes  records     0   uint64[N]  end of each record

    NAME.bag, without an .idx beside it
    0     bytes      records
    E     uint64[N]  end of each record; in files by 0.19 and before N+1 of them, of which the first is 0

E is the last end, so the file's last 8 bytes say where its table begins; an empty bag is an empty file, or one zero.
A table that begins with 0 is the older one: a first record of no bytes cannot be told from it, so none may be written.
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

TORN = "A writer was stopped in it: append to the dataset again to mend it, or fetch it again."
DAMAGED = "It was damaged or cut short; fetch or pack it again."
_HEAD = 1 << 16  # bytes of a remote bag's end that are asked for before its table's size is known
_STEP = 1 << 20  # bytes of a table read at once: no second copy of it is held


@dataclass(frozen=True, slots=True)
class Bag:
    """A bag ready to be read: its file, where its records start (int64 [N+1]), and its bytes if they are at hand."""

    chunk: Chunk
    starts: IntArray
    table: memoryview
    held: bytes | mmap.mmap | None

    def __len__(self) -> int:
        return len(self.starts) - 1


def pair(bag: Chunk, idx: Chunk) -> IntArray:
    """Read the table of a bag out of the `.idx` beside it.

    return  int64 [N+1]: 0, then the end of each record
    raises  FormatError if it is not whole, falls, or does not end where the bag does
    """
    size = spans.stored_size(idx)
    if size % 8:
        raise FormatError(
            f"{size} bytes are no whole number of 8-byte ends", where=idx.at, hint=TORN
        )
    starts = table(idx.at, 0, size)
    end, there = int(starts[-1]), spans.stored_size(bag)
    if there < end:
        raise FormatError(
            f"ends at byte {there}, its index needs {end}", where=bag.at, hint=DAMAGED
        )
    if there > end:
        raise FormatError(
            f"{there - end} bytes follow the last record of its index", where=bag.at, hint=TORN
        )
    return starts


def single(bag: Chunk) -> IntArray:
    """Read the table at the end of a bag that is one file, of either version.

    return  int64 [N+1]: 0, then the end of each record
    raises  FormatError if the last 8 bytes are not the start of a table that rises up to them
    """
    at, size = bag.at, spans.stored_size(bag)
    if size == 0:
        return np.zeros(1, np.int64)
    if size < 8:
        raise FormatError(f"{size} bytes is less than the 8 of a table's last end", where=at)
    first = 0 if size <= _HEAD else size - _HEAD
    tail = at.read(first, size)
    begin = int.from_bytes(tail[-8:], "little")
    if begin > size - 8:
        raise FormatError(
            f"its last 8 bytes say that its table begins at byte {begin}, the file ends at {size}",
            where=at,
            hint=DAMAGED,
        )
    if (size - begin) % 8:
        raise FormatError(
            f"{size - begin} bytes from byte {begin} on are no whole number of 8-byte ends",
            where=at,
            hint=DAMAGED,
        )
    zero = tail[begin - first : begin - first + 8] if begin >= first else at.read(begin, begin + 8)
    begin += 0 if any(zero) else 8
    return table(at, begin, size, tail[begin - first :] if begin >= first else None)


def table(at: Location, start: int, stop: int, data: bytes | None = None) -> IntArray:
    """Read uint64 ends, a piece at a time where that costs no request.

    data    their bytes, if they are at hand
    return  int64 [N+1]: 0, then the end of each record
    raises  FormatError if they fall
    """
    starts = np.zeros((stop - start) // 8 + 1, np.int64)
    step = _STEP if at.is_local and data is None else max(1, stop - start)
    for piece in range(start, stop, step):
        ends = np.frombuffer(
            at.read(piece, min(stop, piece + step)) if data is None else data, "<i8"
        )
        row = 1 + (piece - start) // 8
        starts[row : row + len(ends)] = ends  # an end past 2^63 becomes negative, and falls
    _check(starts, at)
    return starts


def _check(starts: IntArray, at: Location) -> None:
    """Refuse a table that falls anywhere: it would aim a read at other records, or at none."""
    falls = starts[1:] < starts[:-1]
    if falls.any():
        row = int(np.argmax(falls))
        end = int(starts[row + 1]) % (1 << 64)
        raise FormatError(
            f"record {row} starts at byte {int(starts[row])} and ends at byte {end}",
            where=at,
            hint=DAMAGED,
        )


def opened(bag: Chunk, starts: IntArray) -> Bag:
    """Make a bag ready to be read. Raises FormatError if it became shorter than its table since that was read."""
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
            f"ends at byte {len(view)}, its table needs {int(starts[-1])}",
            where=bag.at,
            hint=DAMAGED,
        )
    return Bag(bag, starts, memoryview(starts), held)


def array(bag: Bag, start: int, stop: int) -> pa.Array:
    """Give records start..stop as large_binary over the file's own bytes: mapped, or read in one go."""
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
    """Give some records, in rising order, as large_binary.

    records  int64 [k], rising, each in [0, N)
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
    """Give what a bag of these records holds.

    columns  large_binary arrays, one behind the other, without nulls
    return   their bytes, and the end of each record, int64 [records]
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
