"""Standard input (`-`): addresses or rows. It is read on demand into a temporary file.

The file allows a second pass, and a checksum. `{` or `[` as the first character starts JSON; other
input is addresses, one per line, or each followed by a NUL. Each address is a row: its name and the
contents it refers to.
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
MAX_ADDRESS_BYTES = 1 << 16
_SCHEMA = pa.schema([(NAME, pa.string()), (DATA, pa.string())])


def standard_input() -> IO[bytes]:
    """Return standard input as bytes. Raises ReachError if it is closed."""
    if sys.stdin is None:
        raise ReachError("standard input is closed", where="-")
    return sys.stdin.buffer


class Spool:
    """A stream that is copied to an unnamed temporary file, so that it can be read several times."""

    def __init__(self, stream: IO[bytes], shown: str = "-") -> None:
        self._stream, self._shown = stream, shown
        self._file = tempfile.TemporaryFile(prefix="flare-")  # noqa: SIM115 - closed with this object
        self._size, self._is_whole = 0, False

    def __str__(self) -> str:
        return self._shown

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes from the beginning; reads more of the stream when needed.

        raises  ReachError if reading fails, or the disk is full
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
            while (data := self._stream.read(decompress.BLOCK)) is None:  # a non-blocking pipe
                select.select([self._stream], [], [])
        except OSError as error:
            raise ReachError(
                f"cannot read: {(error.strerror or str(error)).lower()}", where=self._shown
            ) from None
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            message, hint = (
                f"cannot write to a temporary file: {(error.strerror or str(error)).lower()}",
                "Set TMPDIR to a folder with more space.",
            )
            raise ReachError(message, where=self._shown, hint=hint) from None
        self._size += len(data)
        self._is_whole = not data
        return bool(data)


class Addresses:
    """Addresses, one per line or each followed by a NUL; each is a row with its name and itself."""

    rows: int | None = None
    schema = _SCHEMA

    def __init__(self, at: Blocks, null_separated: bool) -> None:
        self.at, self._separator = at, b"\0" if null_separated else b"\n"

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of standard input."""
        return self.at.blocks()

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the addresses in order.

        Raises FormatError with the line for invalid or too long text.
        """
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
            if len(rest) > MAX_ADDRESS_BYTES:
                raise FormatError(
                    f"line {number + len(whole) + 1}: address is longer than {MAX_ADDRESS_BYTES} bytes",
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
            hint = "Use -0 for addresses that are separated by NUL."
            raise FormatError(
                f"line {number}: {escape(text)[:60]!r} contains a NUL", where=self.at, hint=hint
            )
        if text:
            yield text


def _batch(addresses: list[str], schema: pa.Schema) -> pa.RecordBatch:
    columns = {NAME: [redact(address) for address in addresses], DATA: addresses}
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], pa.string()) for name in schema.names], schema=schema
    )
