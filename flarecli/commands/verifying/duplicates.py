"""Find rows with equal bytes: 16 bytes per row are kept and sorted."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import xxhash

from flarecli import formats
from flarecli.errors import format_place
from flarecli.lazy import np
from flarecli.model import Finding, Row, Shard

__all__ = ["contents", "duplicates"]

_ROWS = 64  # rows in memory at once
_HINT = "Pack again without one of the two."


def contents(form: formats.Format, shard: Shard) -> bytes:
    """Return the xxh3_128 of the stored bytes of each row of a shard: 16 bytes per row."""
    names = [column.name for column in shard.columns]
    out = bytearray()
    for start in range(0, shard.rows, _ROWS):
        for row in form.read_rows(shard, range(start, min(start + _ROWS, shard.rows)), names):
            out += _sum(row)
    return bytes(out)


def _sum(row: Row) -> bytes:
    """Hash a row; the length before each value makes the input unambiguous."""
    one = xxhash.xxh3_128()
    for value in row.values():
        parts = value if isinstance(value, list) else [] if value is None else [value]
        one.update(struct.pack("<q", len(parts) if isinstance(value, list) else -1 - len(parts)))
        for part in parts:
            one.update(struct.pack("<q", len(part)))
            one.update(part)
    return one.digest()


def duplicates(shards: Sequence[tuple[str, bytes]]) -> Iterator[Finding]:
    """Yield a finding for each row equal to an earlier row.

    `shards`: address, and 16 bytes per row.
    """
    sums = np.frombuffer(b"".join(data for _, data in shards), "<u8").reshape(-1, 2)
    ends = np.cumsum([len(data) // 16 for _, data in shards])
    order = np.lexsort((sums[:, 1], sums[:, 0]))  # stable: keeps the order of equal rows
    is_same = np.zeros(len(order), bool)
    is_same[1:] = (sums[order[1:]] == sums[order[:-1]]).all(axis=1)
    firsts = order[np.maximum.accumulate(np.where(is_same, 0, np.arange(len(order))))]
    again, first = order[is_same], firsts[is_same]
    for i in np.argsort(again):
        address, row = _place(shards, ends, int(again[i]))
        message = f"holds the same as {format_place(*_place(shards, ends, int(first[i])))}"
        yield Finding(address, "duplicate", message, _HINT, row=row)


def _place(shards: Sequence[tuple[str, bytes]], ends: np.ndarray, row: int) -> tuple[str, int]:
    k = int(np.searchsorted(ends, row, "right"))
    return shards[k][0], row - (int(ends[k - 1]) if k else 0)
