"""Rows in a shuffled order, however many: each gets a number by a key, and the rows come in the order of those.

The order is one of all rows, and it depends on the seed and on how many rows there are before each alone. Few rows wait
in memory; more are put into temporary files by the first bits of their number, and one file after another is sorted.
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

_HELD_BYTES = 128 << 20  # rows that wait in memory
_BITS, _SPAN = 8, 62  # of a number: those that choose a file, at most, and all
_STEP = 8192
_PLACE = "place in the order"  # the last column, whatever those of the source are called


def shuffled(
    batches: Iterable[pa.RecordBatch], seed: int, held_bytes: int = _HELD_BYTES
) -> Iterator[pa.RecordBatch]:
    """Give the rows in the order that a seed says.

    batches     of one schema, in an order that is always the same
    held_bytes  what may wait in memory; the order does not depend on it
    return      batches of 8,192 rows at most
    raises      ReachError if the temporary files cannot be written
    """
    held: list[pa.RecordBatch] = []
    size = row = 0
    files: _Files | None = None
    try:
        for batch in batches:
            places = positions(np.arange(row, row + batch.num_rows), 1 << _SPAN, seed)
            row += batch.num_rows
            held.append(batch.append_column(_PLACE, pa.array(places)))
            del batch  # the loop would keep it until the next one comes
            size += held[-1].nbytes
            if size > held_bytes:
                files = files or _Files(held[0].schema)
                files.put(_joined(held))
                size = 0
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
    """Make one run of memory of some batches, and let go of them: to take rows out of many would copy all of them each time."""
    table = pa.Table.from_batches(held)
    held.clear()
    return table.combine_chunks()


def _places(table: pa.Table) -> IntArray:
    return table.column(table.num_columns - 1).to_numpy()


def _in_order(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows of some batches by their places."""
    if not held:
        return
    table = _joined(held)
    order, table = np.argsort(_places(table)), table.remove_column(table.num_columns - 1)
    for start in range(0, len(order), _STEP):
        yield from table.take(pa.array(order[start : start + _STEP])).combine_chunks().to_batches()


class _Files:
    """Temporary files of no name, one for each value of the first bits of a place; each holds batches one behind the other.

    The fewer files a process may have open, the fewer bits: all of them are open at once, beside what else is.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._bits = (files_limit(2 << _BITS) // 2).bit_length() - 1
        self._files: list[IO[bytes]] = []
        self._writers: list[pa.RecordBatchStreamWriter] = []
        try:
            for _ in range(1 << self._bits):
                self._files.append(tempfile.TemporaryFile(prefix="flare-"))  # noqa: SIM115 - they live as long as this does
                self._writers.append(pa.ipc.new_stream(self._files[-1], schema))
        except OSError as error:
            self.close()
            raise _refusal(error) from None

    def put(self, table: pa.Table) -> None:
        """Put each row into its file; the rows of one keep their order."""
        of = _places(table) >> (_SPAN - self._bits)
        order = np.argsort(of, kind="stable")
        ends = np.searchsorted(of[order], np.arange(1 << self._bits), "right")
        table = table.take(pa.array(order))
        start = 0
        try:
            for writer, end in zip(self._writers, ends, strict=True):
                if end > start:
                    writer.write_table(table.slice(start, end - start))
                start = end
        except OSError as error:
            raise _refusal(error) from None

    def parts(self) -> Iterator[list[pa.RecordBatch]]:
        """Give what each file holds, and empty it."""
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
        "Let the process have more files open (`ulimit -n`)."
        if is_of_files
        else "Set TMPDIR to a larger disk."
    )
    return ReachError(
        f"rows to shuffle cannot wait there: {(error.strerror or str(error)).lower()}",
        where=tempfile.gettempdir(),
        hint=hint,
    )
