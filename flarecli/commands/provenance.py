"""Provenance of rows: the name of the source, and the file and row number of each row.

The name of a source in outputs does not depend on how its path was typed.

A resumed pack needs the position of a row in the selection. The report of a failed row needs the
row number in the source. If the selected rows are consecutive rows of the source, the difference
between the two numbers is constant. Otherwise, a column of the batches contains the source row
numbers, and they are kept in memory until the rows are processed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from flarecli.model import IntArray, Stream
from flarecli.names import is_url, local_path, scheme_of, whole_path
from flarecli.read import Dataset
from flarecli.redact import redact
from flarecli.storage import stream_name
from flarecli.write import Failure

__all__ = ["PLACE", "Places", "SourceName", "shard_of", "source_name"]

PLACE = "place in the source"  # internal int64 column: row numbers in the source


class Places:
    """Source row numbers of the rows that are being processed.

    find    function that returns the file of a source row, and the row number in that file; None if
            unknown
    column  name of the column that contains row numbers
    start   source row number of the first selected row, if the selected rows are consecutive
    """

    def __init__(
        self,
        find: Callable[[int], tuple[str, int]] | None,
        column: str = PLACE,
        start: int | None = None,
    ) -> None:
        self._find, self._column, self._start = find, column, start
        # per batch: position of its first row in the selection, source row numbers, row count
        self._runs = deque[tuple[int, IntArray | None, int]]()

    def passed(
        self, batches: Iterator[pa.RecordBatch], first: int, keep: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Record the row numbers of batches, and yield the batches.

        first  position of the first row in the selection
        keep   whether the yielded batches include the column of row numbers
        """
        return batches if self._start is not None else self._recorded(batches, first, keep)

    def _recorded(
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
        """Discard the row numbers of all selected rows before position `until`."""
        while self._runs and self._runs[0][0] + self._runs[0][2] <= until:
            self._runs.popleft()

    def placed(self, failure: Failure) -> Failure:
        """Add the source file and the row number to a failure, unless a query created the row."""
        number = self._number(failure.row)
        if number is None or self._find is None:
            return failure
        file, row = self._find(number)
        return replace(failure, file=file, file_row=row)

    def _number(self, row: int) -> int | None:
        if self._start is not None:
            return self._start + row
        numbers = (
            places[row - first]
            for first, places, count in self._runs
            if places is not None and first <= row < first + count
        )
        number = next(numbers, None)
        return None if number is None else int(number)


def shard_of(data: Dataset, streams: Sequence[Stream], row: int) -> tuple[str, int]:
    """Return the shard that contains a row of a dataset, and the row number in the shard.

    streams  the `Stream` objects for the first stream of the dataset, one per source
    """
    chunk = int(np.searchsorted(data.edges, row, "right")) - 1
    first = int(data.edges[chunk])
    for stream in streams:
        if chunk < len(stream):
            break
        chunk -= len(stream)
    return str(stream.chunk(chunk).at), row - first


@dataclass(frozen=True)
class SourceName:
    """Name of a source for playlists, journals and lists of failed rows.

    text    name of the source file or folder; for several files, name of the folder that contains
            all of them; for a remote source, the addresses as typed, without secrets
    folder  real path of the folder to which file names are relative; empty for a remote source
    """

    text: str
    folder: str = ""

    def of_file(self, file: str) -> str:
        """Return the path of a file relative to the folder, or its address without secrets."""
        if not self.folder or _is_remote(file):
            return redact(stream_name(file))
        name = os.path.relpath(_real_path(file), self.folder)
        return self.text if name == "." else name

    def listed(self, failure: Failure) -> Failure:
        """Return a copy of a failure whose file name is converted by `of_file`."""
        if failure.file is None:
            return failure
        return replace(failure, file=self.of_file(failure.file))


def source_name(addresses: Sequence[str], expanded: Sequence[str]) -> SourceName:
    """Return the name of the source at one or more addresses.

    addresses  addresses as typed
    expanded   addresses of the matching files and folders
    """
    addresses, expanded = ([stream_name(one) for one in names] for names in (addresses, expanded))
    if any(_is_remote(one) for one in expanded) or not expanded:
        return SourceName(" ".join(redact(one) for one in addresses))
    paths = [_real_path(one) for one in expanded]
    folders = [one if os.path.isdir(one) else os.path.dirname(one) for one in paths]
    folder = os.path.commonpath(folders)
    return SourceName(os.path.basename(paths[0] if len(paths) == 1 else folder), folder)


def _is_remote(address: str) -> bool:
    return address == "-" or (is_url(address) and scheme_of(address) != "file")


def _real_path(address: str) -> str:
    return os.path.realpath(whole_path(local_path(address)))
