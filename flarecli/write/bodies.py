"""Bytes that come one after another become a column of Arrow.

They are copied once, into memory of Arrow's allocator, which neither clears what it gives nor hands it back to the system between two
columns: either would cost as much as all else that is done with a small object.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

__all__ = ["Bodies"]

_SMALL = 16  # a column that fills less than this part of its room is copied out of it: who keeps it keeps no more than its bytes


class Bodies:
    """The column under way; `most` is what it has room for, about: more costs a copy."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._room = memoryview(b"")
        self._begin()

    def _begin(self) -> None:
        self._at, self._ends = 0, [0]
        self._rest: list[bytes] = []  # what there was no room for
        self._used = 0  # bytes of the room

    def add(self, bodies: Sequence[bytes]) -> None:
        """Take the bytes of some rows."""
        at, room, ends = self._at, self._room or self._roomy(), self._ends
        for body in bodies:
            begin, at = at, at + len(body)
            if at <= self._most:
                room[begin:at] = body
                self._used = at
            else:
                self._rest.append(body)
            ends.append(at)
        self._at = at

    def peek(self, row: int) -> bytes | memoryview:
        """Return the bytes of a row of the column under way, by its position."""
        in_room = len(self._ends) - 1 - len(self._rest)
        if row >= in_room:
            return self._rest[row - in_room]
        return self._room[self._ends[row] : self._ends[row + 1]]

    @property
    def rows(self) -> int:
        """Rows of the column under way."""
        return len(self._ends) - 1

    def _roomy(self) -> memoryview:
        self._room = memoryview(pa.allocate_buffer(self._most)).cast("B")
        return self._room

    def take(self) -> pa.Array:
        """Give the column of large_binary, and begin another."""
        used = self._room[: self._used]
        if self._rest:
            data = pa.py_buffer(b"".join((used, *self._rest)))
        elif self._used < self._most // _SMALL:
            data = pa.py_buffer(bytes(used))
        else:
            data, self._room = pa.py_buffer(used), memoryview(b"")
        found = pa.Array.from_buffers(
            pa.large_binary(),
            len(self._ends) - 1,
            [None, pa.py_buffer(np.array(self._ends, np.int64)), data],
        )
        self._begin()
        return found
