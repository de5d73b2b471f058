"""Bytes that come one after another become a column of Arrow, in memory that was used before.

Memory that the system has to find and clear costs as much as all else that is done with a small object; so what a column lay in is
taken again once nobody looks at it any more. Who keeps his columns keeps their memory, and the next ones get another.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["Bodies"]

_KEPT = 3  # pieces of memory: one is filled, one is looked at, one may be on its way


class Bodies:
    """The column under way; `most` is what it has room for, about: more costs a copy."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lumps: list[bytearray] = []
        self._begin()

    def _begin(self) -> None:
        self._at, self._ends = 0, [0]
        self._rest: list[bytes] = []  # what there was no room for
        self._used = 0  # bytes of the memory
        for lump in self._lumps:
            try:
                lump.append(lump.pop())  # refused while anything looks at it
            except BufferError:
                continue
            self._view = memoryview(lump)
            return
        lump = bytearray(self._most)
        if len(self._lumps) < _KEPT:
            self._lumps.append(lump)
        self._view = memoryview(lump)

    def add(self, body: bytes) -> None:
        """Take one row's bytes."""
        end = self._at + len(body)
        if end <= self._most:
            self._view[self._at : end] = body
            self._used = end
        else:
            self._rest.append(body)
        self._at = end
        self._ends.append(end)

    def take(self) -> pa.Array:
        """Give the column of large_binary, and begin another."""
        used = self._view[: self._used]
        data, ends = pa.py_buffer(b"".join((used, *self._rest)) if self._rest else used), pa.py_buffer(np.array(self._ends, np.int64))
        found = pa.Array.from_buffers(pa.large_binary(), len(self._ends) - 1, [None, ends, data])
        self._begin()
        return found
