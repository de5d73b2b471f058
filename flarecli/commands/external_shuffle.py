"""External shuffle: sort rows by a random sort key.

The order depends only on the seed and the row numbers. If all rows fit in memory, they are sorted
in memory. Otherwise, rows are distributed to temporary files by the first bits of their sort keys,
and each file is sorted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np
import pyarrow as pa

from flarecli.model import IntArray
from flarecli.read import positions
from flarecli.storage import files_limit
from flarecli.storage.local import temporary_file_error

__all__ = ["shuffled"]

_MEMORY_BYTES = 128 << 20  # maximum size of rows sorted in memory
_MAX_FILE_BITS, _KEY_BITS = 8, 62  # sort key bits: maximum that select a file; total
_BATCH_ROWS = 8192
_SORT_KEY = "place in the order"  # name of the last column


def shuffled(
    batches: Iterable[pa.RecordBatch], seed: int, memory_bytes: int = _MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in a shuffled order that the seed determines.

    batches       batches with one schema, in a reproducible order
    memory_bytes  maximum size of rows in memory; the order does not depend on this limit
    return        batches of at most 8,192 rows
    raises        ReachError if the temporary files cannot be written
    """
    buffered: list[pa.RecordBatch] = []
    size = row = 0
    files: _Files | None = None
    try:
        for batch in batches:
            keys = positions(np.arange(row, row + batch.num_rows), 1 << _KEY_BITS, seed)
            row += batch.num_rows
            if buffered and size + batch.nbytes > memory_bytes:
                files = files or _Files(buffered[0].schema)
                files.write(_joined(buffered))
                size = 0
            buffered.append(batch.append_column(_SORT_KEY, pa.array(keys)))
            size += buffered[-1].nbytes
            del batch  # release the batch, which the loop would keep until the next iteration
        if files is None:
            yield from _sorted(buffered)
            return
        if buffered:
            files.write(_joined(buffered))
        for part in files.parts():
            yield from _sorted(part)
    finally:
        if files is not None:
            files.close()


def _joined(buffered: list[pa.RecordBatch]) -> pa.Table:
    """Combine batches into one contiguous table, and release the batches.

    With a chunked table, each call of `take` would copy the table.
    """
    table = pa.Table.from_batches(buffered)
    buffered.clear()
    return table.combine_chunks()


def _sort_keys(table: pa.Table) -> IntArray:
    keys: IntArray = table.column(table.num_columns - 1).to_numpy()
    return keys


def _sorted(buffered: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in the order of their sort keys."""
    if not buffered:
        return
    table = _joined(buffered)
    order, table = np.argsort(_sort_keys(table)), table.remove_column(table.num_columns - 1)
    for start in range(0, len(order), _BATCH_ROWS):
        part = table.take(pa.array(order[start : start + _BATCH_ROWS]))
        if start + _BATCH_ROWS >= len(order):
            table = part  # release the rows before the last batch is processed
        yield from part.combine_chunks().to_batches()


class _Files:
    """Unnamed temporary files for batches, one for each value of the first bits of the sort key.

    All files are open at the same time, so the limit on open files bounds the number of bits.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._bits = (files_limit(2 << _MAX_FILE_BITS) // 2).bit_length() - 1
        self._files: list[IO[bytes]] = []
        self._writers: list[pa.RecordBatchStreamWriter] = []
        try:
            for _ in range(1 << self._bits):
                self._files.append(tempfile.TemporaryFile(prefix="flare-"))  # noqa: SIM115 - closed by `close`
                self._writers.append(pa.ipc.new_stream(self._files[-1], schema))
        except OSError as error:
            self.close()
            raise temporary_file_error(error, "the shuffle") from None

    def write(self, table: pa.Table) -> None:
        """Write each row to its file, in order."""
        file_numbers = _sort_keys(table) >> (_KEY_BITS - self._bits)
        order = np.argsort(file_numbers, kind="stable")
        ends = np.searchsorted(file_numbers[order], np.arange(1 << self._bits), "right")
        start = 0
        try:
            for writer, end in zip(self._writers, ends, strict=True):
                if end > start:  # copy the rows of one file at a time to limit memory
                    writer.write_table(table.take(pa.array(order[start:end])))
                start = end
        except OSError as error:
            raise temporary_file_error(error, "the shuffle") from None

    def parts(self) -> Iterator[list[pa.RecordBatch]]:
        """Yield the batches of each file, and then close the file."""
        for file, writer in zip(self._files, self._writers, strict=True):
            try:
                writer.close()
                file.seek(0)
                with pa.ipc.open_stream(file) as reader:
                    batches = list(reader)
            except OSError as error:
                raise temporary_file_error(error, "the shuffle") from None
            yield batches
            file.close()

    def close(self) -> None:
        for file in self._files:
            file.close()
