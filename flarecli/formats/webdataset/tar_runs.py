"""Runs of plain headers in a mapped tar, many at once: what small members cost is their headers, and Python takes 2 µs for each.

A header is plain if it is a file's in ustar, with octal digits for size and sum, no prefix and a right sum. A run is headers of which
each stands where the one before says; it ends at the first that is not plain, and what follows is for `tar.members` to read or refuse.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flarecli.model import IntArray

__all__ = ["SLAB", "Run", "plain_run"]

SLAB = 1 << 20  # bytes looked through at once: they stay in the cache
_MAGIC = int.from_bytes(b"ustar\x0000", "little")
_WEIGHTS = 8 ** np.arange(10, -1, -1)
_ODD = np.uint64(0x00FF00FF00FF00FF)


class Run(NamedTuple):
    """Members one behind another: names uint8 [n, 100] as they stand in the headers; starts, sizes int64 [n]; the byte after the last."""

    names: IntArray
    starts: IntArray
    sizes: IntArray
    end: int


def plain_run(view: memoryview, pos: int) -> Run | None:
    """Find the run of plain headers that begins at byte `pos` of a whole file, no longer than a slab; None if there is none.

    Each member is inside the file.
    """
    count = (min(len(view), pos + SLAB) - pos) // 512
    if count < 2:
        return None
    blocks = np.frombuffer(view, np.uint8, count * 512, pos).reshape(count, 512)
    words = np.ndarray((count,), "<u8", view, pos + 257, (512,))
    at = np.flatnonzero(words == _MAGIC)
    if not len(at) or at[0]:
        return None
    digits = blocks[at, 124:136]
    sizes = (digits[:, :11] - 48).astype(
        np.int64
    ) @ _WEIGHTS  # of other bytes than digits: nonsense, and not plain below
    after = at + 1 + (sizes + 511) // 512
    chained = np.flatnonzero(after[:-1] != at[1:])
    at = at[: int(chained[0]) + 1 if len(chained) else None]
    heads = blocks[at]
    digits, sizes, after = digits[: len(at)], sizes[: len(at)], after[: len(at)]
    plain = _is_plain(heads, digits) & (pos + at * 512 + 512 + sizes <= len(view))
    if not plain.all():
        at = at[: int(plain.argmin())]
    if not len(at):
        return None
    return Run(
        heads[: len(at), :100],
        pos + at * 512 + 512,
        sizes[: len(at)],
        pos + int(after[len(at) - 1]) * 512,
    )


def _is_plain(heads: IntArray, digits: IntArray) -> IntArray:
    given = heads[:, 148:156]
    words = heads.view("<u8")
    lanes = ((words & _ODD) + ((words >> np.uint64(8)) & _ODD)).sum(
        1
    )  # four sums of 16 bits, none above 2 * 64 * 255
    totals = sum(
        (lanes >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)
    ).astype(np.int64)
    totals += 8 * 32 - given.sum(1, dtype=np.int64)
    wanted = (given[:, :6] - 48).astype(np.int64) @ _WEIGHTS[-6:]
    return (
        (totals == wanted)
        & _are_octal(given[:, :6])
        & (given[:, 6] == 0)
        & _are_octal(digits[:, :11])
        & (digits[:, 11] == 0)
        & (heads[:, 156] == ord("0"))
        & (heads[:, 345] == 0)
        & (heads[:, 0] != 0)
    )


def _are_octal(digits: IntArray) -> IntArray:
    return ((digits - 48) < 8).all(1)  # uint8: what is below 48 becomes large
