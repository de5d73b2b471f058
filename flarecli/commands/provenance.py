"""Provenance of selected rows: source file and row number.

A pack counts rows in the selection, for resume; a failed row is reported with its number in the
source. If the selection is one run of rows, the difference is constant. Otherwise a column has the
source row numbers, which are kept until the rows can no longer fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from flarecli.model import IntArray, Stream
from flarecli.read import Dataset
from flarecli.write import Failure

__all__ = ["PLACE", "Places", "shard_of"]

PLACE = "place in the source"  # internal column: int64, the number of each row in the whole source


class Places:
    """Source rows of the rows that are being processed.

    find    returns file and row in the file of a source row; None if unknown
    column  name of the column of row numbers
    start   number of the first selected row if the selection is one run; then no column is needed
    """

    def __init__(
        self,
        find: Callable[[int], tuple[str, int]] | None,
        column: str = PLACE,
        start: int | None = None,
    ) -> None:
        self._find, self._column, self._start = find, column, start
        self._runs = deque[
            tuple[int, IntArray | None, int]
        ]()  # first row in the selection, source rows, count

    def passed(
        self, batches: Iterator[pa.RecordBatch], first: int, keep: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Record the row numbers of batches that start at row `first` of the selection, and remove
        their column.
        """
        return batches if self._start is not None else self._remembered(batches, first, keep)

    def _remembered(
        self, batches: Iterator[pa.RecordBatch], first: int, keep: bool
    ) -> Iterator[pa.RecordBatch]:
        self._runs.clear()
        for batch in batches:
            at = batch.schema.get_field_index(self._column)
            self._runs.append(
                (first, None if at < 0 else batch.column(at).to_numpy(), batch.num_rows)
            )
            first += batch.num_rows
            yield batch if at < 0 or keep else batch.remove_column(at)

    def forget(self, until: int) -> None:
        """Forget the rows of the selection before `until`."""
        while self._runs and self._runs[0][0] + self._runs[0][2] <= until:
            self._runs.popleft()

    def placed(self, failure: Failure) -> Failure:
        """Return a failure with file and row; unchanged if a query created the row."""
        number = self._number(failure.row)
        if number is None or self._find is None:
            return failure
        file, row = self._find(number)
        return replace(failure, file=file, file_row=row)

    def _number(self, row: int) -> int | None:
        if self._start is not None:
            return self._start + row
        found = (
            places[row - first]
            for first, places, count in self._runs
            if places is not None and first <= row < first + count
        )
        number = next(found, None)
        return None if number is None else int(number)


def shard_of(data: Dataset, streams: Sequence[Stream], row: int) -> tuple[str, int]:
    """Return the shard with a row of a dataset, and the row in it; `streams` are the parts of its
    first stream.
    """
    chunk = int(np.searchsorted(data.edges, row, "right")) - 1
    first = int(data.edges[chunk])
    for stream in streams:
        if chunk < len(stream):
            break
        chunk -= len(stream)
    return str(stream.chunk(chunk).at), row - first
