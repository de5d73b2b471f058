"""External shuffle: each row gets a random sort key, and rows are sorted by it.

The order depends only on the seed and on the number of each row. Few rows are sorted in memory;
more rows are distributed to temporary files by the first bits of their sort key, and each file is
sorted.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np
import pyarrow as pa

from flarecli.errors import ReachError
from flarecli.model import IntArray
from flarecli.read import positions
from flarecli.storage import files_limit

__all__ = ["shuffled"]

_HELD_BYTES = 128 << 20  # of rows sorted in memory
_BITS, _SPAN = 8, 62  # of a sort key: maximum bits that select a file; all bits
_STEP = 8192
_PLACE = "place in the order"  # always the last column


def shuffled(
    batches: Iterable[pa.RecordBatch], seed: int, held_bytes: int = _HELD_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the order of a seed.

    batches     batches with one schema, in a reproducible order
    held_bytes  maximum memory; the order does not depend on it
    return      batches of at most 8,192 rows
    raises      ReachError if the temporary files cannot be written
    """
    held: list[pa.RecordBatch] = []
    size = row = 0
    files: _Files | None = None
    try:
        for batch in batches:
            places = positions(np.arange(row, row + batch.num_rows), 1 << _SPAN, seed)
            row += batch.num_rows
            if held and size + batch.nbytes > held_bytes:
                files = files or _Files(held[0].schema)
                files.put(_joined(held))
                size = 0
            held.append(batch.append_column(_PLACE, pa.array(places)))
            size += held[-1].nbytes
            del batch  # the loop would keep it until the next one comes
        if files is None:
            yield from _in_order(held)
            return
        if held:
            files.put(_joined(held))
        for part in files.parts():
            yield from _in_order(part)
    finally:
        if files is not None:
            files.close()


def _joined(held: list[pa.RecordBatch]) -> pa.Table:
    """Combine batches into one table and release them; `take` from a chunked table would copy it
    each time.
    """
    table = pa.Table.from_batches(held)
    held.clear()
    return table.combine_chunks()


def _places(table: pa.Table) -> IntArray:
    places: IntArray = table.column(table.num_columns - 1).to_numpy()
    return places


def _in_order(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in the order of their sort keys."""
    if not held:
        return
    table = _joined(held)
    order, table = np.argsort(_places(table)), table.remove_column(table.num_columns - 1)
    for start in range(0, len(order), _STEP):
        part = table.take(pa.array(order[start : start + _STEP]))
        if start + _STEP >= len(order):
            table = part  # releases the rows while the last ones are written
        yield from part.combine_chunks().to_batches()


class _Files:
    """Unnamed temporary files, one per value of the first bits of a sort key; each contains
    batches.

    All files are open at once, so the limit of open files bounds the number of bits.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._bits = (files_limit(2 << _BITS) // 2).bit_length() - 1
        self._files: list[IO[bytes]] = []
        self._writers: list[pa.RecordBatchStreamWriter] = []
        try:
            for _ in range(1 << self._bits):
                self._files.append(tempfile.TemporaryFile(prefix="flare-"))  # noqa: SIM115 - closed with this object
                self._writers.append(pa.ipc.new_stream(self._files[-1], schema))
        except OSError as error:
            self.close()
            raise _refusal(error) from None

    def put(self, table: pa.Table) -> None:
        """Write each row to its file, in order."""
        of = _places(table) >> (_SPAN - self._bits)
        order = np.argsort(of, kind="stable")
        ends = np.searchsorted(of[order], np.arange(1 << self._bits), "right")
        start = 0
        try:
            for writer, end in zip(self._writers, ends, strict=True):
                if end > start:  # a copy of all rows would need the memory a second time
                    writer.write_table(table.take(pa.array(order[start:end])))
                start = end
        except OSError as error:
            raise _refusal(error) from None

    def parts(self) -> Iterator[list[pa.RecordBatch]]:
        """Yield the rows of each file, and empty it."""
        for file, writer in zip(self._files, self._writers, strict=True):
            try:
                writer.close()
                file.seek(0)
                with pa.ipc.open_stream(file) as reader:
                    found = list(reader)
            except OSError as error:
                raise _refusal(error) from None
            yield found
            file.close()

    def close(self) -> None:
        for file in self._files:
            file.close()


def _refusal(error: OSError) -> ReachError:
    is_of_files = error.errno in (errno.EMFILE, errno.ENFILE)
    hint = (
        "Raise the limit of open files (`ulimit -n`)."
        if is_of_files
        else "Set TMPDIR to a larger disk."
    )
    return ReachError(
        f"cannot write temporary files for the shuffle: {(error.strerror or str(error)).lower()}",
        where=tempfile.gettempdir(),
        hint=hint,
    )
