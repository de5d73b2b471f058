"""Granular's `int`: a little-endian integer in two's complement, in as few bytes as it takes, and at least one.

The original cannot write 128, 32768, anything else that needs a byte for its sign, or what is below 0; its reader takes any
width up to 16 bytes (none is 0), so such a value gets the byte that it needs (128: `80 00`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flarecli.encodings.names import BINARY
from flarecli.errors import ValueFitError
from flarecli.model import IntArray

__all__ = ["LONGEST", "parse", "text", "widths"]

LONGEST = 16  # bytes that a reader takes
_LIMITS = np.array(
    [(1 << 8 * k - 1) - 1 for k in range(1, 8)], np.int64
)  # the largest value of 1 to 7 bytes


def widths(values: IntArray) -> IntArray:
    """Say how many bytes each value takes: int64 [n] of int64 [n]."""
    return np.searchsorted(_LIMITS, values ^ (values >> 63)).astype(np.int64) + 1


def text(array: pa.Array) -> pa.Array:
    """Give the stored bytes, large_binary [n], of an int64 array without nulls."""
    values = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    sizes = widths(values)
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    kept = np.arange(8) < sizes[:, None]
    data = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)[kept]
    return pa.Array.from_buffers(
        BINARY, len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )


def parse(raw: pa.Array) -> pa.Array:
    """Give int64 [n] of stored bytes, large_binary [n]; null where that is null.

    raises  ValueFitError naming the first row of more than 16 bytes, or of a value that int64 cannot hold
    """
    offsets = (
        np.frombuffer(raw.buffers()[1], np.int64, len(raw) + 1, raw.offset * 8)
        if len(raw)
        else np.zeros(1, np.int64)
    )
    data = np.frombuffer(raw.buffers()[2] or b"\0", np.uint8) if len(raw) else np.zeros(1, np.uint8)
    if not len(data):
        data = np.zeros(1, np.uint8)
    sizes = offsets[1:] - offsets[:-1]
    bits = np.zeros(len(raw), np.uint64)
    longest = int(sizes.max(initial=0))
    for k in range(min(longest, 8)):
        byte = data[np.minimum(offsets[:-1] + k, len(data) - 1)].astype(np.uint64)
        bits |= np.where(sizes > k, byte << np.uint64(8 * k), np.uint64(0))
    unused = (64 - 8 * np.clip(sizes, 1, 8)).astype(np.int64)
    values = (bits << unused.astype(np.uint64)).view(np.int64) >> unused
    wrong = sizes > LONGEST
    for k in range(8, min(longest, LONGEST)):
        sign = data[np.minimum(offsets[:-1] + k, len(data) - 1)]
        wrong |= (sizes > k) & (sign != np.where(values < 0, 255, 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        seen = (
            f"an integer of {sizes[row]} bytes is longer than {LONGEST}"
            if sizes[row] > LONGEST
            else "an integer does not fit int64"
        )
        raise ValueFitError(seen, row=row)
    return pa.array(
        values, mask=raw.is_null().to_numpy(zero_copy_only=False) if raw.null_count else None
    )
