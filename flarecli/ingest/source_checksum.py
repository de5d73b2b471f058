"""Checksum of the source bytes that were read so far, to detect a changed source on resume.

For each shard, the journal of a pack stores how many bytes of the concatenated source files were
read, and the checksum of these bytes. To compute the checksum, the bytes are read again, usually
from the page cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from flarecli.hashes import DEFAULT, Sums
from flarecli.storage import Location

__all__ = ["SourceChecksum"]

BLOCK_BYTES = 1 << 20  # maximum number of bytes per read


class SourceChecksum:
    """The xxh3_128 of concatenated files, up to the last byte that was read for rows.

    files   the files in order
    header  checksum of the file sizes and footers, which is compared before any row is read
    """

    def __init__(self, files: Sequence[Location], header: str) -> None:
        self.header = header
        self._files = files
        self._starts = [0, *accumulate(file.size() for file in files)]
        self._sums = Sums([DEFAULT])
        self._end = 0  # end offset of the bytes that were read for rows

    def advance(self, number: int, end: int) -> None:
        """Record that rows were read up to byte `end` of the file with this number."""
        self._end = max(self._end, min(self._starts[number] + end, self._starts[number + 1]))

    def state(self) -> list[Any]:
        """Return the number of bytes up to the last row that was read, and their checksum."""
        while (position := self._sums.size) < self._end:
            number = bisect_right(self._starts, position) - 1
            start = position - self._starts[number]
            stop = min(self._end, self._starts[number + 1]) - self._starts[number]
            self._sums.update(self._files[number].read(start, min(start + BLOCK_BYTES, stop)))
        return [self._sums.size, self._sums.hex()[DEFAULT]]

    def matches(self, state: Any) -> bool:
        """Return whether the files match a stored state. A malformed state does not match.

        Call this method before any other method. It reads all bytes that the state covers.
        """
        if not isinstance(state, list) or len(state) != 2 or not isinstance(state[0], int):
            return False
        if not 0 <= state[0] <= self._starts[-1]:
            return False
        self._end = max(self._end, state[0])
        return self.state() == state

    def total(self) -> str:
        """Return the checksum of all bytes in all files."""
        self._end = self._starts[-1]
        return str(self.state()[1])
