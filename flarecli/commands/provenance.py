"""Where the rows of a selection come from: which file, and which row of it.

Rows are counted in the selection while they are on their way, since that is what a resume goes on from. A user looks for a
failed row in the index. Where the selection is one run of rows of the source, the one number tells the other; else the number
of each row in the source travels beside it until its batch is handed on, and is remembered as long as the row may still fail.
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

PLACE = "place in the source"  # a column that no source has by accident: int64, the number of each row in the whole source


class Places:
    """The places of the rows that are on their way.

    find    gives the file, and the row in it, of a row of the whole source; None where nothing tells
    column  of the numbers of rows
    start   the number of the first row of the selection, where that is one run of rows: then no column is needed
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
        ]()  # first row in the selection, places in the source, how many

    def passed(
        self, batches: Iterator[pa.RecordBatch], first: int, keep: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Take the numbers off batches of the selection, from its row `first` on, and remember them; or leave them there too."""
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
        """Let go of rows of the selection before `until`."""
        while self._runs and self._runs[0][0] + self._runs[0][2] <= until:
            self._runs.popleft()

    def placed(self, failure: Failure) -> Failure:
        """Give a failure with the file and the row of its row; as it is where a query made that row."""
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
    """Give the shard that holds a row of a dataset, and the row in it; `streams` are the parts of its first stream."""
    chunk = int(np.searchsorted(data.edges, row, "right")) - 1
    first = int(data.edges[chunk])
    for stream in streams:
        if chunk < len(stream):
            break
        chunk -= len(stream)
    return str(stream.chunk(chunk).at), row - first
