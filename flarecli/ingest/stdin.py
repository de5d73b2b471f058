"""`-`: what comes in at standard input, addresses or rows. It is read when it is wanted, and kept in a temporary file,
so that it can be read again: for its sum, or for a second pass.

The first byte that is no blank tells: `{` and `[` begin JSON, anything else is addresses, one a line, or with a NUL
behind each. An address is a row: its name, and what lies there.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa

from flarecli.errors import FormatError, ReachError
from flarecli.ingest import decompress
from flarecli.ingest.decompress import Blocks
from flarecli.names import escape
from flarecli.redact import redact

__all__ = ["Addresses", "DATA", "NAME", "Spool", "standard_input"]

NAME, DATA = "name", "data"
_ROWS = 8192
_LONGEST = 1 << 16  # bytes of an address
_SCHEMA = pa.schema([(NAME, pa.string()), (DATA, pa.string())])


def standard_input() -> IO[bytes]:
    """Give standard input as bytes. Raises ReachError where it is closed."""
    if sys.stdin is None:
        raise ReachError("standard input is closed", where="-")
    return sys.stdin.buffer


class Spool:
    """A stream that can be read once, as bytes that can be read again: what came is in a temporary file of no name."""

    def __init__(self, stream: IO[bytes], shown: str = "-") -> None:
        self._stream, self._shown = stream, shown
        self._file = tempfile.TemporaryFile(prefix="flare-")  # noqa: SIM115 - it lives as long as this does
        self._size, self._is_whole = 0, False

    def __str__(self) -> str:
        return self._shown

    def blocks(self) -> Iterator[bytes]:
        """Give what came in order, from its beginning; the stream is read on where that is not enough.

        raises  ReachError if the stream breaks, or the disk is full
        """
        start = 0
        while start < self._size or self._read_on():
            data = os.pread(self._file.fileno(), min(decompress.BLOCK, self._size - start), start)
            start += len(data)
            yield data

    def _read_on(self) -> bool:
        if self._is_whole:
            return False
        try:
            while (
                data := self._stream.read(decompress.BLOCK)
            ) is None:  # of a pipe that somebody made one that does not wait
                select.select([self._stream], [], [])
        except OSError as error:
            raise ReachError(
                f"cannot be read: {(error.strerror or str(error)).lower()}", where=self._shown
            ) from None
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            message, hint = (
                f"cannot be kept: {(error.strerror or str(error)).lower()}",
                "Name a folder with more room by TMPDIR.",
            )
            raise ReachError(message, where=self._shown, hint=hint) from None
        self._size += len(data)
        self._is_whole = not data
        return bool(data)


class Addresses:
    """Addresses, one a line or with a NUL behind each; each is a row of its name and what it names."""

    rows: int | None = None
    schema = _SCHEMA

    def __init__(self, at: Blocks, null_separated: bool) -> None:
        self.at, self._separator = at, b"\0" if null_separated else b"\n"

    def blocks(self) -> Iterator[bytes]:
        """Give the bytes that the addresses came as."""
        return self.at.blocks()

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Give the addresses in order. Raises FormatError naming the line for what is no text, or too long."""
        schema = (
            self.schema
            if columns is None
            else pa.schema([self.schema.field(name) for name in columns])
        )
        held: list[str] = []
        for address in self._addresses():
            held.append(address)
            if len(held) == _ROWS:
                yield _batch(held, schema)
                held = []
        if held:
            yield _batch(held, schema)

    def _addresses(self) -> Iterator[str]:
        rest, number = b"", 0
        for block in self.at.blocks():
            *whole, rest = (rest + block).split(self._separator)
            if len(rest) > _LONGEST:
                raise FormatError(
                    f"line {number + len(whole) + 1}: an address of more than {_LONGEST} bytes",
                    where=self.at,
                )
            for data in whole:
                number += 1
                yield from self._address(data, number)
        yield from self._address(rest, number + 1)

    def _address(self, data: bytes, number: int) -> Iterator[str]:
        data = data if self._separator == b"\0" else data.strip(b" \t\r")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"line {number}: byte 0x{data[error.start]:02x} is not UTF-8", where=self.at
            ) from None
        if "\0" in text:
            hint = "Give -0 for addresses with a NUL behind each."
            raise FormatError(
                f"line {number}: {escape(text)[:60]!r} holds a NUL", where=self.at, hint=hint
            )
        if text:
            yield text


def _batch(addresses: list[str], schema: pa.Schema) -> pa.RecordBatch:
    columns = {NAME: [redact(one) for one in addresses], DATA: addresses}
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], pa.string()) for name in schema.names], schema=schema
    )
