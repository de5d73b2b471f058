"""Rows of an MDS shard as columns: what `read_rows` gives, turned, with no dict for each row.

Lengths and columns of one size are gathered by numpy, all rows at once; only what is of variable size is cut row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flarecli.formats import byte_ranges as spans
from flarecli.formats.mds.rows import Ready, prepared
from flarecli.model import IntArray, Shard
from flarecli.storage import needs_read_ahead, read_ahead

__all__ = ["find_columns"]

_MANY = (
    1 << 12
)  # bytes of lengths that are gathered for a row before it is known to have so many: a hostile config may name any


class _Laid(NamedTuple):
    """How the rows of a shard lie in memory.

    ready   what reading them one by one takes
    view    the whole shard
    starts  uint32 [rows + 1]: where each row begins, as the shard has it
    words   bytes of lengths in front of each row; `lengths` are as many bytes from each byte of the shard on, as voids
    steps   each column in its order: the name (None: it is not wanted), its bytes and as many from each byte of the shard on, or None and
            the place of its length
    """

    ready: Ready
    view: memoryview
    starts: IntArray
    words: int
    lengths: IntArray
    steps: tuple[tuple[str | None, int | None, Any], ...]


def find_columns(
    shard: Shard, rows: Sequence[int] | IntArray, columns: Sequence[str] | None = None
) -> spans.Lying | None:
    """Find the stored bytes of each column, row by row in the order asked; what is of one size is copied, and all of a compressed shard.

    return  None where they do not lie in memory, or the lengths of a row do not add up: reading the rows says of which
    """
    laid = _laid(shard, columns)
    if laid is None:
        return None
    ready, view, starts, words, every, steps = laid
    own = np.asarray(rows, np.int64)
    if len(own) > 1 and needs_read_ahead(view):
        read_ahead(view, zip(starts[own].tolist(), starts[own + 1].tolist(), strict=True))
    at, ends = starts[own].astype(np.int64), starts[own + 1]
    if words > _MANY and (at + words > ends).any():
        return None
    try:
        lengths = every[at].view("<u4").reshape(len(own), words // 4) if words else every
    except IndexError:
        return None
    at += words
    places: list[tuple[str, Any, IntArray, IntArray]] = []
    for name, size, where in steps:
        stop = at + (lengths[:, where] if size is None else size)
        if name is not None:
            places.append((name, where if size else None, at, stop))
        at = stop
    if np.count_nonzero(at != ends):
        return None
    lying = spans.Lying(
        ready.source,
        {name: (at, stop) if every is None else every[at] for name, every, at, stop in places},
    )
    return (
        lying.apart() if spans.suffix(shard.chunk) else lying
    )  # a decompressed shard is held elsewhere, and not for ever


def _laid(shard: Shard, columns: Sequence[str] | None) -> _Laid | None:
    """Say how rows lie; None where they do not lie in memory, or none can. Kept with the shard, as what reading them one by one takes is."""
    of = None if columns is None else tuple(columns)
    key = (0, of)
    laid: _Laid | None = shard.memo.get(key)
    if laid is not None:
        return laid
    ready = prepared(shard, columns)
    view = ready.view
    if view is None or sum(
        4 if column.size is None else column.size for column in shard.columns
    ) > len(view):
        return None
    wanted, steps, words = set(ready.names), list[tuple[str | None, int | None, Any]](), 0
    for column in shard.columns:
        is_wanted = column.name in wanted
        where = (
            words
            if column.size is None
            else _every(view, column.size)
            if is_wanted and column.size
            else None
        )
        steps.append((column.name if is_wanted else None, column.size, where))
        words += column.size is None
    laid = _Laid(
        ready,
        view,
        shard.layout["starts"],
        4 * words,
        _every(view, 4 * words),
        tuple(steps),
    )
    if shard.memo.get(of) is ready:
        shard.memo[key] = laid
    return laid


def _every(view: memoryview, size: int) -> IntArray:
    """Give `size` bytes from each byte on, as voids; numpy copies those that it is asked for."""
    return np.ndarray((len(view) - size + 1,), f"V{size}", view, 0, (1,))
