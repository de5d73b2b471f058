"""Arrow IPC: files (`.arrow`, `.feather`) and streams of record batches of any size.

Every batch is fully validated before use, because offsets in a file may be invalid. Messages are
checked before they are decoded, because Arrow allocates the size that the first eight bytes of a
compressed buffer declare. The number of rows is checked too, because a column of nulls can declare
any number of rows without bytes in the file.

A file consists of `ARROW1`, two padding bytes, messages, and a footer with an entry of 24 bytes for
each message. An entry starts with the offset of the message (8 bytes). A stream consists of
messages and an end mark of four zero bytes. The layout of a message is:

    0xFFFFFFFF (missing before Arrow 0.15), int32 size of the metadata, metadata, padding to 8, body

The metadata is a FlatBuffer (source: arrow/format/Message.fbs). A FlatBuffer table starts with the
distance back to its vtable. These field numbers are used:

    Footer           2 dictionaries, 3 record batches
    Message          1 type of the header, 2 header, 3 int64 size of the body
    DictionaryBatch  1 record batch
    RecordBatch      0 int64 rows, 2 buffers (int64 offset, int64 length), 3 compression
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flarecli.errors import FormatError
from flarecli.expansion import check_decoded, check_rows
from flarecli.formats.byte_ranges import runs
from flarecli.formats.shard_files import DAMAGED
from flarecli.formats.tables.arrow_files import LocationFile, arrow_errors, open_native
from flarecli.formats.tables.base import Part, value_sizes
from flarecli.formats.tables.schema_merge import convert
from flarecli.storage import Location

__all__ = ["Ipc", "messages"]

_MAGIC, _FEATHER_1 = b"ARROW1", b"FEA1"
_CONTINUATION = b"\xff\xff\xff\xff"
_DICTIONARY, _BATCH = 2, 3  # message types
_MAX_METADATA_BYTES = 1 << 26
_INVALID = (struct.error, IndexError, OverflowError)  # raised while an invalid message is parsed
_ROWS, _BATCH_BYTES = 8192, 16 << 20


class Ipc(Part):
    """Reader of an Arrow file or stream. The number of rows is unknown until the file is read."""

    at: Location

    def __init__(self, at: Location) -> None:
        self.at = at
        head = at.read(0, min(8, at.size()))
        if head.startswith(_FEATHER_1):
            raise FormatError(
                "Feather version 1 is not supported",
                where=at,
                hint="Convert the file to Arrow IPC, which is Feather version 2.",
            )
        if not head:
            raise FormatError("file is empty", where=at)
        self._is_file = head.startswith(_MAGIC)
        self.group_name = "record batch" if self._is_file else ""
        file = LocationFile(at)
        with arrow_errors(at, file, "Arrow IPC"):
            schema = self._open(file, None).schema
            _ = schema.names  # raises an error if a name is not UTF-8
        self.set_schema(schema)

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, with the given columns. Raises FormatError for invalid data."""
        return self._batches(self.selected(columns), 0, 0)

    def count(self) -> int:
        """Return the number of rows, without reading the bodies of messages.

        raises  FormatError for a truncated or invalid file
        """
        starts, is_complete = self._messages
        found = len(starts) - 1
        if self._is_file:
            file = LocationFile(self.at)
            with arrow_errors(self.at, file, "Arrow IPC"):
                listed = self._open(file, None).num_record_batches
            if found != listed:
                raise FormatError(
                    f"found {found} of {listed} record batches", where=self.at, hint=DAMAGED
                )
        elif not is_complete:
            raise FormatError(
                f"file ends at byte {self.at.size()}, inside a message",
                where=self.at,
                hint=DAMAGED,
            )
        return starts[-1]

    @property
    def group_starts(self) -> list[int]:
        """The first row of each record batch, followed by the number of rows.

        The result is [0] for a stream, because a stream can only be read from its beginning.
        """
        return self._messages[0] if self._is_file else [0]

    def facts(self) -> dict[str, int | str]:
        """Return the number of record batches."""
        return {"record batches": len(self._messages[0]) - 1}

    def batches_from(
        self, start: int, columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches, beginning with the record batch whose first row is `start`."""
        number = bisect_left(self._messages[0], start) if start else 0
        for batch in self._batches(self.selected(columns), number, start):
            yield start, batch
            start += batch.num_rows

    @cached_property
    def _messages(self) -> tuple[list[int], bool]:
        """(starts, is_complete), read from the messages of the file.

        starts       first row of each record batch; the last item is the total number of rows
        is_complete  whether all messages are valid and complete
        raises       FormatError if the messages declare more data than a file of this size can
                     contain
        """
        size, stored, rows, starts = 0, self.at.size(), 0, [0]
        try:
            for message in messages(self.at.read, stored):
                size += message.size
                check_decoded(size, stored, self.at)
                if not message.is_dictionary:
                    rows += message.rows
                    check_rows(rows, len(self.schema), stored, self.at)
                    starts.append(rows)
        except _INVALID:  # Arrow reports the error when it reads the batches
            return starts, False
        return starts, True

    def _batches(self, schema: pa.Schema, number: int, row: int) -> Iterator[pa.RecordBatch]:
        """Yield batches, beginning with record batch `number`, whose first row is `row`."""
        _ = self._messages  # checks the sizes that the messages declare
        file = LocationFile(self.at)
        with arrow_errors(self.at, file, "Arrow IPC"):
            reader = self._open(file, schema.names)
            if self._is_file:
                batches = map(reader.get_batch, range(number, reader.num_record_batches))
            else:
                batches = iter(reader)
        while True:
            with arrow_errors(self.at, file, "Arrow IPC"):
                batch = next(batches, None)
                if batch is None:
                    return
                try:
                    batch.validate(full=True)
                except pa.ArrowInvalid as error:
                    reason = str(error).splitlines()[0][:200]
                    raise FormatError(f"invalid batch: {reason}", where=self.at, row=row) from None
            ends = np.cumsum(value_sizes(batch) + 1)
            for start, stop in runs(np.insert(ends, 0, 0), _ROWS, _BATCH_BYTES):
                part = batch.slice(start, stop - start)
                arrays = [convert(part.column(field.name), field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            row += batch.num_rows

    def _open(self, file: LocationFile, names: Sequence[str] | None) -> Any:
        source = open_native(file)  # keep the file open, because its path may be replaced
        options = pa.ipc.IpcReadOptions(use_threads=False)
        if names is not None and set(names) != set(self.schema.names):
            # If all columns are read, `included_fields` stays unset, because it would only make
            # Arrow use a different memory pool.
            all_names = self.schema.names
            options.included_fields = sorted(all_names.index(name) for name in names)
        open_source = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
        return open_source(source, options=options)


# -- messages


class Message(NamedTuple):
    """Number of rows in a record batch or dictionary, and decompressed size of its buffers."""

    rows: int
    size: int
    is_dictionary: bool


def messages(read: Callable[[int, int], bytes], size: int) -> Iterator[Message]:
    """Yield the messages of a file or stream of `size` bytes, without reading their bodies.

    read    function that returns the bytes from start to stop
    raises  one of `_INVALID` for invalid data, or for a stream that ends inside a message
    """
    if read(0, min(size, 8)) == _MAGIC + bytes(2):
        for start in _message_starts(read, size):
            message, _ = _read_message(read, start, size)
            if message is not None:
                yield message
        return
    start = 0
    while start + 8 <= size:
        message, length = _read_message(read, start, size)
        if not length:
            return
        if message is not None:
            yield message
        start += length
    if start != size:
        raise IndexError


def _message_starts(read: Callable[[int, int], bytes], size: int) -> list[int]:
    """Return the offsets of dictionaries and batches that the footer of a file lists."""
    length = int.from_bytes(read(size - 10, size - 6), "little")
    if not 0 < length <= min(_MAX_METADATA_BYTES, size - 10):
        raise IndexError
    data = read(size - 10 - length, size - 10)
    root, starts = _u32(data, 0), []
    for number in (2, 3):
        if _field(data, root, number):
            blocks = _target(data, root, number)
            starts += [_i64(data, blocks + 4 + 24 * i) for i in range(_u32(data, blocks))]
    return starts


def _read_message(
    read: Callable[[int, int], bytes], start: int, size: int
) -> tuple[Message | None, int]:
    """Read the message at an offset; return the message and its length in bytes.

    The message is None if it is not a batch or a dictionary. The length of the end mark is 0.
    """
    if not 0 <= start <= size - 8:
        raise IndexError
    head = read(start, start + 8)
    is_long = head[:4] == _CONTINUATION
    length = int.from_bytes(head[4:] if is_long else head[:4], "little", signed=True)
    begin = start + (8 if is_long else 4)
    if length == 0:
        return None, 0
    if not 0 < length <= min(_MAX_METADATA_BYTES, size - begin):
        raise IndexError
    message, body = _parse_message(read(begin, begin + length), read, begin + length, size)
    return message, begin + length + body - start


def _parse_message(
    data: bytes, read: Callable[[int, int], bytes], start: int, size: int
) -> tuple[Message | None, int]:
    """Parse the metadata of a message; return the message and the size of its body.

    start  file offset of the message body
    """
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
    if rows < 0:
        raise IndexError
    is_compressed = bool(_field(data, table, 3))
    total = 0
    if _field(data, table, 2):
        buffers = _target(data, table, 2)
        for i in range(_u32(data, buffers)):
            offset, length = struct.unpack_from("<qq", data, buffers + 4 + 16 * i)
            decompressed = 0
            if is_compressed and length >= 8 and 0 <= offset <= size - start - 8:
                decompressed = _i64(read(start + offset, start + offset + 8), 0)
            total += max(length, decompressed, 0)
    return Message(rows, total, kind == _DICTIONARY), body


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _i64(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<q", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the offset of a field in a table, or 0 if the field is missing."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise IndexError
    if 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + offset if offset else 0


def _target(data: bytes, table: int, number: int) -> int:
    """Return the offset of the table or vector that a field refers to."""
    at = _field(data, table, number)
    if not at:
        raise IndexError
    return at + _u32(data, at)
