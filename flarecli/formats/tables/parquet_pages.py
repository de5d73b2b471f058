"""Parquet: read a few rows without reading the complete row group.

The pages that contain the rows are copied to a small Parquet file in memory, and Arrow reads this
file. The footer of the original file determines the footer of the small file. The page index lists
the rows of each page. If a local file has no page index, the page headers are read instead. Without
a page index, the pages of remote files and of most list columns cannot be read separately.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from flarecli.errors import FormatError
from flarecli.expansion import check_decoded, check_values
from flarecli.formats.tables.parquet_metadata import (
    ColumnChunk,
    Footer,
    LeafSlice,
    PageRows,
    pages,
    parse_offset_index,
)
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore

__all__ = ["MAX_EXPANDED_BYTES", "PageRun", "RowGroupPages", "SmallFile"]

MAX_INDEX_BYTES = 1 << 24
MAX_EXPANDED_BYTES = 64 << 20  # maximum decoded size if each value is as long as the longest value
_MAGIC = b"PAR1"


class PageRun(NamedTuple):
    """Consecutive pages of a column, which contain the rows start..stop of the row group."""

    column: str
    start: int
    stop: int


class SmallFile(NamedTuple):
    """A small Parquet file in memory.

    dictionaries  (column chunk, number of values) for each column chunk whose dictionary is so
                  large that the decoded values may need too much memory
    """

    at: Location
    dictionaries: list[tuple[ColumnChunk, int]]


class RowGroupPages:
    """The pages of one row group.

    chunks  column chunks of the row group, in the order of the leaf columns
    rows    number of rows in the row group
    flat    for each leaf column: whether each row has exactly one value
    """

    def __init__(
        self,
        at: Location,
        number: int,
        chunks: Sequence[ColumnChunk],
        rows: int,
        flat: Sequence[bool],
    ) -> None:
        self._at, self._number, self._chunks, self._rows = at, number, chunks, rows
        self._flat = flat
        self._leaves: dict[str, list[int]] = {}
        for leaf, chunk in enumerate(chunks):
            self._leaves.setdefault(chunk.column, []).append(leaf)
        self._pages: dict[int, list[PageRows] | None] = {}
        self._edges: dict[str, list[int]] = {}

    def find(self, columns: Sequence[str]) -> bool:
        """Locate the pages of columns. Return False if the pages of any column are unknown."""
        leaves = [leaf for name in columns for leaf in self._leaves.get(name, [])]
        new = [leaf for leaf in leaves if leaf not in self._pages]
        size = self._at.size()
        listed = [
            (leaf, span)
            for leaf in new
            if (span := self._chunks[leaf].offsets) is not None
            and 0 <= span[0] < span[0] + span[1] <= size
            and span[1] <= MAX_INDEX_BYTES
        ]
        indexes = self._at.read_many([(start, start + length) for _, (start, length) in listed])
        for (leaf, _), data in zip(listed, indexes, strict=True):
            self._pages[leaf] = parse_offset_index(data, self._chunks[leaf], self._rows)
        for leaf in new:
            if self._pages.get(leaf) is None:
                self._pages[leaf] = self._from_headers(leaf) if self._at.is_local else None
        for name in columns:
            if name not in self._edges and all(
                self._pages[leaf] is not None for leaf in self._leaves.get(name, [])
            ):
                starts = [
                    {page.row for page in self._pages[leaf] or ()}
                    for leaf in self._leaves.get(name, [])
                ]
                common = set.intersection(*starts) if starts else {0}
                self._edges[name] = [*sorted(common), self._rows]
        return all(name in self._edges for name in columns)

    def _from_headers(self, leaf: int) -> list[PageRows] | None:
        out, row = list[PageRows](), 0
        for page in pages(self._at, self._at.size(), self._chunks[leaf]):
            if page.is_dictionary or not page.values:
                continue
            out.append(PageRows(row, page.start, page.stop))
            if page.rows < 0 and not self._flat[leaf]:
                return None
            row += page.values if page.rows < 0 else page.rows
        return out if row == self._rows and out else None

    def runs(self, column: str, start: int, stop: int) -> list[PageRun]:
        """Return the page runs that contain rows start..stop of the row group.

        The caller must call `find` first.
        """
        edges = self._edges[column]
        first, last = bisect_right(edges, start) - 1, bisect_left(edges, stop)
        return [PageRun(column, *edges[i : i + 2]) for i in range(first, last)]

    def stored_size(self, runs: Sequence[PageRun]) -> int:
        """Return the total stored size, in bytes, of the data pages of `runs`."""
        return sum(
            stop - start
            for run in runs
            for leaf in self._leaves[run.column]
            for start, stop in self._ranges(leaf, run)[-1:]
        )

    def read(
        self,
        runs: Sequence[PageRun],
        footer: Footer,
        read_file: Callable[[SmallFile, Sequence[str], int], pa.Table | None],
    ) -> list[tuple[PageRun, pa.Array]] | None:
        """Return (run, values) for each run; None if the values may need too much memory.

        footer     footer of the original file
        read_file  function that returns columns of a small file, or None if the values may need too
                   much memory. Arguments: the file, column names, the number of rows
        raises     FormatError for invalid pages
        """
        ranges = {
            leaf: self._ranges(leaf, run) for run in runs for leaf in self._leaves[run.column]
        }
        ordered = [one for own in ranges.values() for one in own]
        parts = dict(zip(ordered, self._at.read_many(ordered), strict=True))
        out = []
        same: dict[tuple[int, int], list[PageRun]] = {}
        for run in runs:
            same.setdefault(run[1:], []).append(run)
        for (start, stop), group in same.items():
            leaves = [leaf for run in group for leaf in self._leaves[run.column]]
            file = self._file(leaves, ranges, parts, footer, stop - start)
            if file is None:
                return None
            table = read_file(file, [run.column for run in group], stop - start)
            if table is None:
                return None
            if table.num_rows != stop - start:
                raise FormatError(
                    f"row group {self._number}: pages of rows {start} to {stop - 1} contain "
                    f"{table.num_rows} rows",
                    where=self._at,
                )
            out += [(run, table.column(run.column).combine_chunks()) for run in group]
        return out

    def _ranges(self, leaf: int, run: PageRun) -> list[tuple[int, int]]:
        """Return the byte ranges of the pages that are needed to decode the rows of `run`.

        return  the byte range of the dictionary page, if any; then that of the run's data pages
        """
        chunk, found = self._chunks[leaf], self._pages[leaf] or []
        rows = [page.row for page in found]
        first, last = bisect_left(rows, run.start), bisect_left(rows, run.stop)
        data = found[first].start, found[last - 1].stop
        return [(chunk.start, chunk.data), data] if chunk.start < chunk.data else [data]

    def _file(
        self,
        leaves: Sequence[int],
        ranges: dict[int, list[tuple[int, int]]],
        parts: dict[tuple[int, int], bytes],
        footer: Footer,
        rows: int,
    ) -> SmallFile | None:
        """Return a small file with pages of leaf columns; None if the values may be too large."""
        body, place = [_MAGIC], len(_MAGIC)
        dictionaries = list[tuple[ColumnChunk, int]]()
        slices = {}
        decoded, stored = 0, self._at.size()
        for leaf in leaves:
            own = [parts[one] for one in ranges[leaf]]
            dictionary = place if len(own) == 2 else None
            first = place + (len(own[0]) if len(own) == 2 else 0)
            size = sum(map(len, own))
            chunk = self._chunks[leaf]
            at = Location(MemoryStore({"": b"".join(own)}, str(self._at)), "")
            values = longest = 0
            for page in pages(at, size, chunk._replace(start=0, stored=size)):
                decoded += page.size
                if page.is_dictionary:
                    longest = page.size
                    continue
                values += page.values
                if page.is_delta and page.size * page.values > MAX_EXPANDED_BYTES:
                    return None
            if self._flat[leaf] and values != rows:
                raise FormatError(
                    f"row group {self._number}: pages of {rows} rows contain {values} values",
                    where=self._at,
                    column=chunk.column,
                )
            check_decoded(decoded, stored, self._at)
            check_values(values, stored, self._at)
            if chunk.is_bytes and longest * values > MAX_EXPANDED_BYTES:
                dictionaries.append((chunk, values))
            slices[leaf] = LeafSlice(values, dictionary, first, size)
            body += own
            place += size
        tail = footer.slice(self._number, slices, rows)
        data = b"".join([*body, tail, len(tail).to_bytes(4, "little"), _MAGIC])
        return SmallFile(Location(MemoryStore({"": data}, str(self._at)), ""), dictionaries)
