"""Checksum of source files, computed while their rows are read; compared when a pack is resumed.

The journal of a pack stores, for each state, how many bytes of the files were read, and their
checksum: always a prefix of all files, concatenated. Bytes that are read in order are processed at
once; a few megabytes of later bytes are kept; missing bytes are read when they are needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from flarecli.hashes import DEFAULT, Sums
from flarecli.storage import Location

__all__ = ["Running"]

MAX_WAITING_BYTES = 4 << 20  # kept until the bytes before them are read
BLOCK_BYTES = 1 << 18  # per read; small enough to stay in the CPU's cache
MAX_GAP_BYTES = 1 << 14  # missing bytes that are read at once, such as a footer between two files


class Running:
    """The xxh3_128 of the bytes of some files, up to the byte read so far.

    files   in order
    told    checksum of their sizes and footers, to compare before any row is read
    """

    def __init__(self, files: Sequence[Location], told: str) -> None:
        self.told = told
        self._files = files
        self._firsts = [0, *accumulate(file.size() for file in files)]
        self._sums = Sums([DEFAULT])
        self._read = 0  # end of the bytes that were read, processed or not
        self._waiting: dict[int, bytes] = {}  # position -> bytes
        self._held = 0

    def heard(self, number: int, start: int, data: bytes | memoryview) -> None:
        """Process bytes that were read from a file, by its number, at `start`."""
        first = self._firsts[number] + start
        if (
            first == self._sums.size
            and not self._waiting
            and first + len(data) <= self._firsts[number + 1]
        ):  # the usual case
            self._read = max(self._read, first + len(data))
            self._sums.update(data)
            return
        # bytes that were appended since are not part of the next file
        end = min(first + len(data), self._firsts[number + 1])
        data = data[: max(0, end - first)]
        if not data:
            return
        self._read = max(self._read, end)
        if end <= self._sums.size:
            return
        if first - self._sums.size <= MAX_GAP_BYTES and not self._waiting:
            self._fill(first)
        if first <= self._sums.size:
            self._add(first, data)
        else:
            known = self._waiting.get(first, b"")
            if len(known) < len(data):
                self._waiting[first] = bytes(data)
                self._held += len(data) - len(known)
        self._catch_up()
        while self._held > MAX_WAITING_BYTES:
            self._fill(min(self._waiting))
            self._catch_up()

    def _add(self, first: int, data: bytes | memoryview) -> None:
        self._sums.update(memoryview(data)[self._sums.size - first :])

    def _catch_up(self) -> None:
        """Process waiting bytes that continue the checksum."""
        while self._waiting and (first := min(self._waiting)) <= self._sums.size:
            data = self._waiting.pop(first)
            self._held -= len(data)
            if first + len(data) > self._sums.size:
                self._add(first, data)

    def _fill(self, stop: int) -> None:
        """Read missing bytes before `stop`."""
        while self._sums.size < stop:
            number = bisect_right(self._firsts, self._sums.size) - 1
            start = self._sums.size - self._firsts[number]
            end = min(stop, self._firsts[number + 1]) - self._firsts[number]
            self._sums.update(self._files[number].read(start, min(start + BLOCK_BYTES, end)))

    def noted(self) -> list[Any]:
        """Return the number of bytes read so far and their checksum."""
        while self._sums.size < self._read:
            self._fill(min(self._waiting, default=self._read))
            self._catch_up()
        return [self._sums.size, self._sums.hex()[DEFAULT]]

    def agrees(self, noted: Any) -> bool:
        """Return whether the files start with a noted state.

        Reads them up to there; must be called first.
        """
        if not (
            isinstance(noted, list)
            and len(noted) == 2
            and isinstance(noted[0], int)
            and 0 <= noted[0] <= self._firsts[-1]
        ):
            return False
        self._read = max(self._read, noted[0])
        return self.noted() == noted

    def whole(self) -> str:
        """Return the checksum of all bytes; reads the missing ones."""
        self._read = self._firsts[-1]
        return str(self.noted()[1])
