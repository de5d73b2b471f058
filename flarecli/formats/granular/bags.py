"""Bags: concatenated byte records, and a table with the end of each record.

Little-endian, N records (source: files written by granular 0.19.0, 0.21.2 and 0.24.2):

    NAME.bag                 NAME.idx
    0     bytes  records     0   uint64[N]  end of each record

    NAME.bag, without an .idx
    0     bytes      records
    E     uint64[N]  end of each record; files by 0.19 and older have an extra first entry, 0

E is the end of the last record and the offset of the table. E is also the last entry of the table,
so readers find E in the last 8 bytes of the file. A bag without records is an empty file, or a
table with a single zero. If the first record of a bag without an .idx were empty, the table would
start with 0, like the tables of 0.19 and older. So flare writes no empty records to such bags.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flarecli import encodings
from flarecli.encodings import lookup
from flarecli.errors import FormatError, ValueFitError
from flarecli.formats import byte_ranges
from flarecli.formats.shard_files import DAMAGED
from flarecli.lazy import pa, pc
from flarecli.model import Chunk, Column, IntArray
from flarecli.storage import Location

__all__ = [
    "Bag",
    "TORN",
    "array",
    "body",
    "gathered",
    "opened",
    "pair",
    "records",
    "single",
    "table",
]

TORN = "A writer was interrupted; append to the dataset to repair it, or fetch it again."
_TAIL_BYTES = 1 << 16  # bytes to read first, from the end of a bag
_STEP_BYTES = 1 << 20  # bytes per read of a table; a single read would double the memory use


@dataclass(frozen=True, slots=True)
class Bag:
    """An open bag with N records.

    chunk   the file of the bag
    starts  int64 [N+1]: the start of each record, and the end of the last record
    table   memoryview of `starts`; indexing returns Python integers
    source  the bytes of the file if the file is mapped or in memory, otherwise None
    """

    chunk: Chunk
    starts: IntArray
    table: memoryview
    source: bytes | mmap.mmap | None

    def __len__(self) -> int:
        return len(self.starts) - 1


def pair(bag: Chunk, idx: Chunk) -> IntArray:
    """Read the table of a bag from its `.idx` file.

    return  int64 [N+1]: 0, then the end of each record
    raises  FormatError if the table is incomplete, if the ends decrease, or if the last end is not
            the end of the bag
    """
    size = byte_ranges.stored_size(idx)
    if size % 8:
        raise FormatError(
            f"file is {size} bytes; expected a multiple of 8", where=idx.at, hint=TORN
        )
    starts = table(idx.at, 0, size)
    end, size = int(starts[-1]), byte_ranges.stored_size(bag)
    if size < end:
        raise FormatError(
            f"file is {size} bytes; its index needs {end}", where=bag.at, hint=DAMAGED
        )
    if size > end:
        raise FormatError(
            f"{size - end} bytes follow the last record that the index lists",
            where=bag.at,
            hint=TORN,
        )
    return starts


def single(bag: Chunk) -> IntArray:
    """Read the table at the end of a bag without an `.idx` file.

    return  int64 [N+1]: 0, then the end of each record
    raises  FormatError if the last 8 bytes are not the offset of a valid table
    """
    at, size = bag.at, byte_ranges.stored_size(bag)
    if size == 0:
        return np.zeros(1, np.int64)
    if size < 8:
        raise FormatError(f"file is {size} bytes; expected at least 8", where=at)
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
            f"the table at byte {begin} is {size - begin} bytes; expected a multiple of 8",
            where=at,
            hint=DAMAGED,
        )
    zero = tail[begin - first : begin - first + 8] if begin >= first else at.read(begin, begin + 8)
    begin += 0 if any(zero) else 8
    return table(at, begin, size, tail[begin - first :] if begin >= first else None)


def table(at: Location, start: int, stop: int, data: bytes | None = None) -> IntArray:
    """Read a table of record ends, which are uint64. A local file is read in steps.

    start, stop  byte range of the table in the file
    data         the bytes of the table; None to read the bytes from the file
    return       int64 [N+1]: 0, then the end of each record
    raises       FormatError if the ends decrease
    """
    starts = np.zeros((stop - start) // 8 + 1, np.int64)
    step = _STEP_BYTES if at.is_local and data is None else max(1, stop - start)
    for piece in range(start, stop, step):
        ends = np.frombuffer(
            at.read(piece, min(stop, piece + step)) if data is None else data, "<i8"
        )
        first = 1 + (piece - start) // 8
        # An end of 2^63 or more becomes negative, so the check below rejects the table.
        starts[first : first + len(ends)] = ends
    row = byte_ranges.first_decrease(starts)
    if row is not None:
        end = int(starts[row + 1]) % (1 << 64)
        raise FormatError(
            f"record {row} starts at byte {int(starts[row])} but ends at byte {end}",
            where=at,
            hint=DAMAGED,
        )
    return starts


def opened(bag: Chunk, starts: IntArray) -> Bag:
    """Open a bag, mapped if possible. Raises FormatError if the file is too short for its table."""
    view = byte_ranges.whole(bag)
    if view is not None and len(view) < int(starts[-1]):
        raise FormatError(
            f"file is {len(view)} bytes; its offset table requires {int(starts[-1])}",
            where=bag.at,
            hint=DAMAGED,
        )
    return Bag(bag, starts, starts.data, byte_ranges.sliceable(view))


def array(bag: Bag, start: int, stop: int) -> pa.Array:
    """Return records start..stop as a large_binary array. A mapped file is not copied."""
    offsets = bag.starts[start : stop + 1]
    if bag.source is not None:
        return byte_ranges.rows_by_offsets(bag.source, offsets)
    low, high = int(offsets[0]), int(offsets[-1])
    (part,) = byte_ranges.read(bag.chunk, [(low, high)])
    return byte_ranges.rows_by_offsets(part, offsets - low)


def gathered(bag: Bag, records: IntArray) -> pa.Array:
    """Return the given records as a large_binary array.

    records  record numbers between 0 and N - 1 in increasing order: int64 [k]
    """
    if not len(records):
        return pa.array([], encodings.BINARY)
    first, last = int(records[0]), int(records[-1])
    if last - first == len(records) - 1:
        return array(bag, first, last + 1)
    starts, ends = bag.starts[records], bag.starts[records + 1]
    if bag.source is None:
        parts = byte_ranges.read(bag.chunk, list(zip(starts.tolist(), ends.tolist(), strict=True)))
        return pa.array([bytes(part) for part in parts], encodings.BINARY)
    low = int(starts[0])
    return byte_ranges.ragged(
        np.frombuffer(bag.source, np.uint8)[low : int(ends[-1])], starts - low, ends - starts
    )


def body(columns: Sequence[pa.Array]) -> tuple[list[memoryview], IntArray]:
    """Return the contents of a bag.

    columns  the records of the bag, in order: large_binary arrays without nulls
    return   the bytes of the records, and the end of each record: int64 [records]
    """
    parts, ends, base = [], [np.zeros(0, np.int64)], 0
    for column in columns:
        data, offsets = byte_ranges.value_bytes(column), byte_ranges.value_offsets(column)
        if len(data):
            parts.append(data)
        ends.append(offsets[1:] + (base - offsets[0]))
        base += len(data)
    return parts, np.concatenate(ends)


def records(
    one: Column, batches: Sequence[pa.RecordBatch]
) -> tuple[list[pa.Array], IntArray | None]:
    """Return the records of one column in each batch.

    return  a large_binary array per batch, and the number of records in each row of all batches,
            int64 [rows]. The second result is None if the column is not a list
    raises  ValueFitError with the number of the first row that contains a null
    """
    arrays, counts, first = [], [np.zeros(0, np.int64)], 0
    for batch in batches:
        array = batch.column(one.name)
        _raise_if_null(one, array, first + np.arange(len(array)))
        if one.encoding.endswith("[]"):
            offsets = array.offsets.to_numpy()
            counts.append(np.diff(offsets))
            array = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            _raise_if_null(one, array, first + np.repeat(np.arange(batch.num_rows), counts[-1]))
        arrays.append(encodings.stored(array, lookup(one.encoding.removesuffix("[]"))))
        first += batch.num_rows
    return arrays, np.concatenate(counts) if one.encoding.endswith("[]") else None


def _raise_if_null(one: Column, array: pa.Array, rows: IntArray) -> None:
    if array.null_count:
        row = int(rows[pc.index(array.is_null(), True).as_py()])
        raise ValueFitError(
            f"column {one.name!r} is null; granular cannot store nulls", row=row, column=one.name
        )
