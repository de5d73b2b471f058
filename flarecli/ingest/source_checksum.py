"""The sum of files taken while they are read, so that each byte is read once: what a resumed pack holds against its source.

A journal notes with what it counts on how many bytes that may have come from, and their sum: always a beginning of the files, one
behind the other. Bytes that come in order are summed while they are in the cache; those that come early wait, a few megabytes of
them; what never comes is read when it is wanted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from flarecli.hashes import DEFAULT, Sums
from flarecli.storage import Location

__all__ = ["Running"]

_WAITING = 4 << 20  # bytes that wait for those before them
_BLOCK = 1 << 18  # bytes read at once: they stay in the cache
_GAP = (
    1 << 14
)  # bytes that are read at once where they are missing, such as a footer between two files


class Running:
    """The xxh3_128 of the bytes of some files, as far as they were read.

    files    in order
    told     what says beforehand whether they are the same: a sum over their sizes and what tells of their rows
    """

    def __init__(self, files: Sequence[Location], told: str) -> None:
        self.told = told
        self._files = files
        self._firsts = [0, *accumulate(file.size() for file in files)]
        self._sums = Sums([DEFAULT])
        self._read = 0  # the end of what was read of them, or will be as soon as it is summed
        self._waiting: dict[int, bytes] = {}  # by where it begins
        self._held = 0

    def heard(self, number: int, start: int, data: bytes | memoryview) -> None:
        """Take in bytes of a file, by its number, that were read from `start` on."""
        first = self._firsts[number] + start
        if (
            first == self._sums.size
            and not self._waiting
            and first + len(data) <= self._firsts[number + 1]
        ):  # as nearly all do
            self._read = max(self._read, first + len(data))
            self._sums.update(data)
            return
        end = min(
            first + len(data), self._firsts[number + 1]
        )  # a file that grew meanwhile is none of the one behind it
        data = data[: max(0, end - first)]
        if not data:
            return
        self._read = max(self._read, end)
        if end <= self._sums.size:
            return
        if first - self._sums.size <= _GAP and not self._waiting:
            self._fill(first)
        if first <= self._sums.size:
            self._add(first, data)
        else:
            had = self._waiting.get(first, b"")
            if len(had) < len(data):
                self._waiting[first] = bytes(data)
                self._held += len(data) - len(had)
        self._catch_up()
        while self._held > _WAITING:
            self._fill(min(self._waiting))
            self._catch_up()

    def _add(self, first: int, data: bytes | memoryview) -> None:
        self._sums.update(memoryview(data)[self._sums.size - first :])

    def _catch_up(self) -> None:
        """Sum what waited, as far as it goes on where the sum is."""
        while self._waiting and (first := min(self._waiting)) <= self._sums.size:
            data = self._waiting.pop(first)
            self._held -= len(data)
            if first + len(data) > self._sums.size:
                self._add(first, data)

    def _fill(self, stop: int) -> None:
        """Read what is missing before `stop`."""
        while self._sums.size < stop:
            number = bisect_right(self._firsts, self._sums.size) - 1
            start = self._sums.size - self._firsts[number]
            end = min(stop, self._firsts[number + 1]) - self._firsts[number]
            self._sums.update(self._files[number].read(start, min(start + _BLOCK, end)))

    def noted(self) -> list[Any]:
        """Give how many bytes all that was read so far came from, and their sum."""
        while self._sums.size < self._read:
            self._fill(min(self._waiting, default=self._read))
            self._catch_up()
        return [self._sums.size, self._sums.hex()[DEFAULT]]

    def agrees(self, noted: Any) -> bool:
        """Say whether the files begin with what was noted; reads them up to there, so ask it before anything else."""
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
        """Give the sum of all bytes; reads what was not read yet."""
        self._read = self._firsts[-1]
        return str(self.noted()[1])
