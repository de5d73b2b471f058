"""Decoded sizes that the messages of an Arrow IPC file or stream declare, read before decoding.

Arrow allocates the size in the first eight bytes of a compressed buffer, and a column of nulls
takes no bytes at all. A file is `ARROW1`, two bytes of padding, messages, and a footer that lists
their positions: 24 bytes for each, of which the first 8 are the offset. A stream is messages, and
an end mark of four zeros:

    0xFFFFFFFF (missing before 0.15), int32 size of the metadata, metadata, padding to 8, body

The metadata is a FlatBuffer (source: arrow/format/Message.fbs); a table starts with the distance
back to its vtable:

    Footer           2 dictionaries, 3 record batches
    Message          1 type of the header, 2 header, 3 int64 size of the body
    DictionaryBatch  1 record batch
    RecordBatch      0 int64 rows, 2 buffers (int64 offset, int64 length), 3 compression
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["Message", "messages"]

_MAGIC = b"ARROW1\0\0"
_CONTINUATION = b"\xff\xff\xff\xff"
_DICTIONARY, _BATCH = 2, 3
_MAX_METADATA = 1 << 26


class Message(NamedTuple):
    """A record batch: its rows, and the decompressed size of its buffers; or a dictionary and its
    values.
    """

    rows: int
    size: int
    is_dictionary: bool


def messages(read: Callable[[int, int], bytes], size: int) -> Iterator[Message]:
    """Yield the messages of a file or stream of `size` bytes; `read` returns the bytes from start
    to stop.

    Stops at invalid data: Arrow, which validates everything, reports it.
    """
    try:
        if read(0, min(size, len(_MAGIC))) == _MAGIC:
            for start in _message_starts(read, size):
                found, _ = _read_message(read, start, size)
                if found is not None:
                    yield found
            return
        start = 0
        while start + 8 <= size:
            found, length = _read_message(read, start, size)
            if not length:
                return
            if found is not None:
                yield found
            start += length
    except (struct.error, IndexError, OverflowError):
        return


def _message_starts(read: Callable[[int, int], bytes], size: int) -> list[int]:
    """Return the offsets of dictionaries and batches in the footer of a file."""
    length = int.from_bytes(read(size - 10, size - 6), "little")
    if not 0 < length <= min(_MAX_METADATA, size - 10):
        raise IndexError
    data = read(size - 10 - length, size - 10)
    root, found = _u32(data, 0), []
    for number in (2, 3):
        if _field(data, root, number):
            blocks = _target(data, root, number)
            for i in range(_u32(data, blocks)):
                found.append(_i64(data, blocks + 4 + 24 * i))
    return found


def _read_message(
    read: Callable[[int, int], bytes], start: int, size: int
) -> tuple[Message | None, int]:
    """Read the message at an offset; return it and its length.

    The message is None if it has another type; the length is 0 for the end mark.
    """
    if not 0 <= start <= size - 8:
        raise IndexError
    head = read(start, start + 8)
    is_long = head[:4] == _CONTINUATION
    length = int.from_bytes(head[4:] if is_long else head[:4], "little", signed=True)
    begin = start + (8 if is_long else 4)
    if length == 0:
        return None, 0
    if not 0 < length <= min(_MAX_METADATA, size - begin):
        raise IndexError
    found, body = _message(read(begin, begin + length), read, begin + length, size)
    return found, begin + length + body - start


def _message(
    data: bytes, read: Callable[[int, int], bytes], start: int, size: int
) -> tuple[Message | None, int]:
    root = _u32(data, 0)
    kind = data[_field(data, root, 1)] if _field(data, root, 1) else 0
    body = _i64(data, _field(data, root, 3)) if _field(data, root, 3) else 0
    if body < 0:
        raise IndexError
    if kind not in (_DICTIONARY, _BATCH):
        return None, body
    table = _target(data, root, 2)
    if kind == _DICTIONARY:
        table = _target(data, table, 1)
    rows = _i64(data, _field(data, table, 0)) if _field(data, table, 0) else 0
    is_packed = bool(_field(data, table, 3))
    total = 0
    if _field(data, table, 2):
        buffers = _target(data, table, 2)
        for i in range(_u32(data, buffers)):
            offset, length = struct.unpack_from("<qq", data, buffers + 4 + 16 * i)
            unpacked = -1
            if is_packed and length >= 8 and 0 <= offset <= size - start - 8:
                unpacked = _i64(read(start + offset, start + offset + 8), 0)
            total += max(length, unpacked, 0)
    if rows < 0:
        raise IndexError
    return Message(rows, total, kind == _DICTIONARY), body


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _i64(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<q", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if it is missing."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise IndexError
    if 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + offset if offset else 0


def _target(data: bytes, table: int, number: int) -> int:
    """Return the position of the table or vector that a field refers to."""
    at = _field(data, table, number)
    if not at:
        raise IndexError
    return at + _u32(data, at)
