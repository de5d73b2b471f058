"""refs.bag: which records of each column a row takes, in datasets by granular 0.21 and before.

Record i is one MessagePack array with an element for each column, in the order of spec.json:

    a column           uint                 the number of its record
    a list, `TYPE[]`   [uint, uint] or []   the number of its first record, and how many there are

Numbers take as few bytes as they can: 0x00-0x7f; 0xcc, 0xcd, 0xce or 0xcf and 1, 2, 4 or 8 bytes, big-endian. A writer
only ever appends, so the numbers of a column rise from row to row and no record is taken twice; one that no row takes
is what an append that failed has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from flarecli.errors import FormatError
from flarecli.model import IntArray

__all__ = ["Taken", "numbers", "numbers_of_row", "packed"]

Taken: TypeAlias = tuple[
    IntArray, IntArray
]  # int64 [rows]: the first record that each row takes, and how many

_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_WIDTH = np.full(256, -1, np.int64)
_WIDTH[:128] = 0
for _token, _bytes in _WIDTHS.items():
    _WIDTH[_token] = _bytes
_STEP = 1 << 14  # rows packed at once: their bytes stay in the cache


def numbers_of_row(data: bytes, lists: Sequence[bool]) -> list[tuple[int, int]]:
    """Read one row: (first record, count) of each column. Raises ValueError if it is not what the columns need."""
    head, out = _head(len(lists)), []
    if not data.startswith(head):
        raise ValueError
    at = len(head)
    try:
        for is_list in lists:
            count = 1
            if not is_list:
                first, at = (data[at], at + 1) if data[at] < 0x80 else _number(data, at)
            elif data[at] == 0x90:
                first, count, at = 0, 0, at + 1
            elif data[at] == 0x92:
                first, at = _number(data, at + 1)
                count, at = _number(data, at)
            else:
                raise ValueError
            out.append((first, count))
    except IndexError:
        raise ValueError from None
    if at != len(data):
        raise ValueError
    return out


def _number(data: bytes, at: int) -> tuple[int, int]:
    token = data[at]
    if token < 0x80:
        return token, at + 1
    width = _WIDTHS.get(token)
    if width is None:
        raise ValueError
    number = int.from_bytes(data[at + 1 : at + 1 + width], "big")
    if number >> 63:  # what an int64 does not hold is no number of a batch either
        raise ValueError
    return number, at + 1 + width  # past the end: the caller's sum is wrong then


@lru_cache(maxsize=256)
def _head(columns: int) -> bytes:
    if columns < 16:
        return bytes([0x90 | columns])
    return (
        b"\xdc" + columns.to_bytes(2, "big")
        if columns < 1 << 16
        else b"\xdd" + columns.to_bytes(4, "big")
    )


def numbers(
    data: IntArray, starts: IntArray, lists: Sequence[bool], where: object, row: int
) -> list[Taken]:
    """Read many rows at once.

    data    uint8 [bytes]; starts int64 [rows + 1], where each row begins in it, and the end
    lists   for each column, whether it is one of lists
    row     the number of the first of them, for messages
    return  for each column (first record, count), int64 [rows]; first is 0 where count is
    raises  FormatError naming the first row that is not what the columns need
    """
    ends, head = starts[1:], np.frombuffer(_head(len(lists)), np.uint8)
    data = np.concatenate(
        (data, np.zeros(16 + len(head), np.uint8))
    )  # a row that is cut short reads on into these
    bad = (data[starts[:-1, None] + np.arange(len(head))] != head).any(axis=1)
    at = starts[:-1] + len(head)
    out = []
    for is_list in lists:
        if not is_list:
            first, at, wrong = _many(data, at, ends)
            count = np.ones(len(ends), np.int64)
        else:
            token = data[np.minimum(at, ends)]
            full = token == 0x92
            one, behind, worse = _many(data, at + 1, ends)
            many, last, worst = _many(data, behind, ends)
            wrong = np.where(full, worse | worst, token != 0x90)
            first, count = np.where(full, one, 0), np.where(full, many, 0)
            at = np.where(full, last, at + 1)
        bad |= wrong
        out.append((first, count))
    bad |= at != ends
    if bad.any():
        raise FormatError(
            "its record numbers are not what the columns need",
            where=where,
            row=row + int(np.argmax(bad)),
        )
    return out


def _many(data: IntArray, at: IntArray, ends: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Read a number at each place: values, places behind them, and which are none; a row never reads past its end by more than 9 bytes."""
    at = np.minimum(at, ends)
    token = data[at]
    width = _WIDTH[token]
    values = token.astype(np.int64)
    for one in _WIDTHS.values():
        rows = np.flatnonzero(width == one)
        if len(rows):
            values[rows] = (
                data[at[rows, None] + np.arange(1, 1 + one)].view(f">u{one}")[:, 0].astype(np.int64)
            )
    wrong = (width < 0) | (values < 0) | (at + 1 + width > ends)
    return values, at + 1 + np.maximum(width, 0), wrong


def packed(taken: Sequence[Taken], lists: Sequence[bool]) -> tuple[list[memoryview], IntArray]:
    """Write rows: their bytes, and the end of each, int64 [rows]."""
    rows = len(taken[0][0])
    parts, ends, base = [], [np.zeros(0, np.int64)], 0
    for start in range(0, rows, _STEP):
        stop = min(rows, start + _STEP)
        cells, used = _cells(
            [(first[start:stop], count[start:stop]) for first, count in taken], lists, stop - start
        )
        parts.append(memoryview(cells[used]))  # row after row, what is not used left out
        ends.append(base + np.cumsum(used.sum(axis=1)))
        base = int(ends[-1][-1])
    return parts, np.concatenate(ends)


def _cells(taken: Sequence[Taken], lists: Sequence[bool], rows: int) -> tuple[IntArray, IntArray]:
    """Lay numbers out with room for the longest: uint8 [rows, bytes], and which of the bytes are used."""
    head = np.frombuffer(_head(len(lists)), np.uint8)
    cells, used = [np.broadcast_to(head, (rows, len(head)))], [np.ones((rows, len(head)), bool)]
    for (first, count), is_list in zip(taken, lists, strict=True):
        number, mask = _packed_numbers(first)
        if is_list:
            full = count > 0
            cells.append(np.where(full, 0x92, 0x90).astype(np.uint8)[:, None])
            used.append(np.ones((rows, 1), bool))
            counts, count_mask = _packed_numbers(count)
            cells += [number, counts]
            used += [mask & full[:, None], count_mask & full[:, None]]
        else:
            cells.append(number)
            used.append(mask)
    return np.concatenate(cells, axis=1), np.concatenate(used, axis=1)


def _packed_numbers(values: IntArray) -> tuple[IntArray, IntArray]:
    """Write numbers into 9 bytes each: uint8 [rows, 9], and which of the bytes are used."""
    big = np.ascontiguousarray(values, ">u8").view(np.uint8).reshape(-1, 8)
    cells = np.zeros((len(values), 9), np.uint8)
    cells[:, 0] = values & 0x7F
    width = np.zeros(len(values), np.int64)
    for (token, one), least in zip(
        _WIDTHS.items(), (1 << 7, 1 << 8, 1 << 16, 1 << 32), strict=True
    ):
        rows = values >= least
        if rows.any():
            cells[rows, 0] = token
            cells[rows, 1 : 1 + one] = big[rows, 8 - one :]
            width[rows] = one
    return cells, np.arange(9) <= width[:, None]
