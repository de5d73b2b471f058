"""External shuffle: sort rows by a random sort key.

The order depends only on the seed and the row numbers. If all rows fit in memory, they are sorted
in memory. Otherwise, they are written to a temporary file that is divided into parts. The first
bits of a row's sort key select the part. Then each part is sorted in the same way, by the remaining
bits, so a part that does not fit in memory is divided again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from flarecli.model import IntArray
from flarecli.read import positions
from flarecli.storage.local import temporary_file_error

__all__ = ["shuffled"]

_MEMORY_BYTES = 32 << 20  # maximum size of rows sorted in memory
# A part may use only 1/4 of the memory limit, because the caller also has a shard in memory.
_PART_SHARE = 4
_PART_BITS, _KEY_BITS = 6, 62  # number of bits that select a part; bits of a sort key
_BATCH_ROWS = 8192
_SORT_KEY = "place in the order"  # name of the last column, which contains the sort keys


def shuffled(
    batches: Iterable[pa.RecordBatch], seed: int, memory_bytes: int = _MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in a shuffled order that the seed determines.

    batches       batches with one schema, in a reproducible order
    memory_bytes  maximum size of rows in memory; the order does not depend on this limit
    return        batches of at most 8,192 rows
    raises        ReachError if the temporary file cannot be written
    """
    row = 0

    def with_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal row
        keys = positions(np.arange(row, row + batch.num_rows), 1 << _KEY_BITS, seed)
        row += batch.num_rows
        return batch.append_column(_SORT_KEY, pa.array(keys))

    # unlike a generator, `map` does not keep a batch in memory until the next batch is read
    return _sorted(map(with_keys, batches), memory_bytes, memory_bytes // _PART_SHARE, _KEY_BITS)


def _sorted(
    batches: Iterable[pa.RecordBatch], memory_bytes: int, part_bytes: int, bits: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the order of their sort keys, without the last column (the sort keys).

    memory_bytes  maximum size of the rows in memory
    part_bytes    maximum size of a part in memory
    bits          number of low bits of the sort keys that are compared; all other bits are equal
    """
    buffered: list[pa.RecordBatch] = []
    size = 0
    file: _SortFile | None = None
    try:
        for batch in batches:
            if buffered and size + batch.nbytes > memory_bytes:
                file = file or _SortFile(buffered[0].schema, bits - _PART_BITS)
                file.write(_joined(buffered))
                size = 0
            buffered.append(batch)
            size += batch.nbytes
            del batch  # release the batch, which the loop would keep until the next iteration
        if file is None:
            if buffered:
                yield from _in_order(_joined(buffered))
            return
        if buffered:
            file.write(_joined(buffered))
        pa.default_memory_pool().release_unused()  # the caller needs memory for its shards
        for part in file.parts():
            yield from _sorted(part, part_bytes, part_bytes, bits - _PART_BITS)
            if bits == _KEY_BITS:
                # Arrow would keep the memory of this part while rows of later parts are buffered
                pa.default_memory_pool().release_unused()
    finally:
        if file is not None:
            file.close()


def _joined(buffered: list[pa.RecordBatch]) -> pa.Table:
    """Combine batches into one contiguous table, and release the batches.

    If the table were chunked, each call of `take` would copy it.
    """
    table = pa.Table.from_batches(buffered)
    buffered.clear()
    return table.combine_chunks()


def _sort_keys(table: pa.Table) -> IntArray:
    keys: IntArray = table.column(table.num_columns - 1).to_numpy()
    return keys


def _in_order(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a contiguous table in the order of their sort keys."""
    order, table = np.argsort(_sort_keys(table)), table.remove_column(table.num_columns - 1)
    for start in range(0, len(order), _BATCH_ROWS):
        part = table.take(pa.array(order[start : start + _BATCH_ROWS]))
        if start + _BATCH_ROWS >= len(order):
            table = part  # release the other rows before yielding the last batch
        yield from part.combine_chunks().to_batches()


class _SortFile:
    """An unnamed temporary file for batches. Some bits of a row's sort key select its part.

    Each call of `write` appends one segment to each part. A segment is an IPC message of one batch,
    without the schema. If no row belongs to a part, its segment has 0 bytes.

    shift  number of bits of a sort key that are lower than the bits that select the part
    """

    def __init__(self, schema: pa.Schema, shift: int) -> None:
        self._schema, self._shift = schema, shift
        # for each call of `write`: starts of its segments, and end of the last: int64 [parts + 1]
        self._offsets: list[IntArray] = []
        try:
            self._file = tempfile.TemporaryFile(prefix="flare-")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise temporary_file_error(error, "the shuffle") from None

    def write(self, table: pa.Table) -> None:
        """Append each row to its part, in order."""
        numbers = (_sort_keys(table) >> self._shift) & ((1 << _PART_BITS) - 1)
        numbers = numbers.astype(np.uint8)  # NumPy sorts small integers faster (radix sort)
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(1 << _PART_BITS), "right")
        offsets, start = [self._file.tell()], 0
        try:
            for end in ends.tolist():
                if end > start:  # copy the rows of one part at a time to limit memory
                    rows = table.take(pa.array(order[start:end]))
                    (batch,) = rows.combine_chunks().to_batches()
                    self._file.write(batch.serialize())
                offsets.append(self._file.tell())
                start = end
        except OSError as error:
            raise temporary_file_error(error, "the shuffle") from None
        self._offsets.append(np.array(offsets))

    def parts(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the batches of each part.

        `write` must not be called after the first part was read.
        """
        for number in range(1 << _PART_BITS):
            yield self._segments(number)

    def _segments(self, number: int) -> Iterator[pa.RecordBatch]:
        for offsets in self._offsets:
            start, stop = offsets[number : number + 2].tolist()
            if stop > start:
                yield pa.ipc.read_record_batch(self._read(start, stop), self._schema)

    def _read(self, start: int, stop: int) -> pa.Buffer:
        data = pa.allocate_buffer(stop - start)  # Arrow's memory pool reuses memory
        try:
            self._file.seek(start)
            if self._file.readinto(data) < stop - start:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        except OSError as error:
            raise temporary_file_error(error, "the shuffle") from None
        return data

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):  # the failed `write` has already raised the error
            self._file.close()
