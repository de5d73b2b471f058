"""refs.bag: the record numbers of each row, in datasets of granular 0.21 and older.

Record i is a MessagePack array with an element per column, in the order of spec.json:

    a column           uint                 record number
    a list, `TYPE[]`   [uint, uint] or []   number of the first record, and record count

Numbers have the shortest encoding: one byte 0x00-0x7f; or 0xcc, 0xcd, 0xce or 0xcf, followed by 1,
2, 4 or 8 bytes, big-endian. Writers only append, so the numbers of a column increase from row to
row, and no record is used twice. A failed append may leave records that no row uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from flarecli.errors import FormatError
from flarecli.model import BoolArray, ByteArray, IntArray

__all__ = ["RecordRuns", "numbers", "numbers_of_row", "packed"]

RecordRuns: TypeAlias = tuple[
    IntArray, IntArray
]  # int64 [rows] each: number of the first record of each row, and record count of each row

_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_WIDTH = np.full(256, -1, np.int64)
_WIDTH[:128] = 0
for _token, _bytes in _WIDTHS.items():
    _WIDTH[_token] = _bytes
_STEP_ROWS = 1 << 14  # rows packed at once; small enough for the CPU cache


def numbers_of_row(data: bytes, lists: Sequence[bool]) -> list[tuple[int, int]]:
    """Parse a record of refs.bag; return (first record number, record count) for each column.

    raises  ValueError if the record is invalid
    """
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
    if number >> 63:  # int64 cannot store the number
        raise ValueError
    return number, at + 1 + width  # the caller checks that the data contains the complete number


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
    data: ByteArray, starts: IntArray, lists: Sequence[bool], where: object, row: int
) -> list[RecordRuns]:
    """Parse many records of refs.bag.

    data    the records, one after another: uint8 [bytes]
    starts  start of each record in `data`, and the end of the last record: int64 [rows + 1]
    lists   for each column, True if the column is a list
    row     row number of the first record, for error messages
    return  (first record numbers, record counts) for each column, int64 [rows] each. The first
            record number of an empty list is 0
    raises  FormatError with the first invalid row
    """
    ends, head = starts[1:], np.frombuffer(_head(len(lists)), np.uint8)
    data = np.concatenate(
        (data, np.zeros(16 + len(head), np.uint8))
    )  # zeros, because parsing an incomplete record reads past the end of the data
    bad = (data[starts[:-1, None] + np.arange(len(head))] != head).any(axis=1)
    at = starts[:-1] + len(head)
    out = []
    for is_list in lists:
        if not is_list:
            first, at, wrong = _parse_numbers(data, at, ends)
            count = np.ones(len(ends), np.int64)
        else:
            token = data[np.minimum(at, ends)]
            full = token == 0x92
            one, behind, worse = _parse_numbers(data, at + 1, ends)
            counts, last, worst = _parse_numbers(data, behind, ends)
            wrong = np.where(full, worse | worst, token != 0x90)
            first, count = np.where(full, one, 0), np.where(full, counts, 0)
            at = np.where(full, last, at + 1)
        bad |= wrong
        out.append((first, count))
    bad |= at != ends
    if bad.any():
        raise FormatError(
            "record numbers in refs.bag do not match the columns",
            where=where,
            row=row + int(np.argmax(bad)),
        )
    return out


def _parse_numbers(
    data: ByteArray, at: IntArray, ends: IntArray
) -> tuple[IntArray, IntArray, BoolArray]:
    """Parse a number at each offset; return values, next offsets, and a mask of invalid numbers.

    At most 9 bytes are read past the end of a row.
    """
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


def packed(runs: Sequence[RecordRuns], lists: Sequence[bool]) -> tuple[list[memoryview], IntArray]:
    """Return the bytes of the records in refs.bag, and the end of each record: int64 [rows].

    runs   (first record numbers, record counts) for each column, int64 [rows] each
    lists  for each column, True if the column is a list
    """
    rows = len(runs[0][0])
    parts, ends, base = [], [np.zeros(0, np.int64)], 0
    for start in range(0, rows, _STEP_ROWS):
        stop = min(rows, start + _STEP_ROWS)
        cells, used = _cells(
            [(first[start:stop], count[start:stop]) for first, count in runs], lists, stop - start
        )
        parts.append(cells[used].data)  # rows in order, without the unused bytes
        ends.append(base + np.cumsum(used.sum(axis=1)))
        base = int(ends[-1][-1])
    return parts, np.concatenate(ends)


def _cells(
    runs: Sequence[RecordRuns], lists: Sequence[bool], rows: int
) -> tuple[ByteArray, BoolArray]:
    """Encode rows with a fixed width; return uint8 [rows, width], and a mask of the used bytes."""
    head = np.frombuffer(_head(len(lists)), np.uint8)
    cells, used = [np.broadcast_to(head, (rows, len(head)))], [np.ones((rows, len(head)), bool)]
    for (first, count), is_list in zip(runs, lists, strict=True):
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


def _packed_numbers(values: IntArray) -> tuple[ByteArray, BoolArray]:
    """Encode numbers into 9 bytes each; return uint8 [rows, 9], and a mask of the used bytes."""
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
