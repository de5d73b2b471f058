"""Standard input (`-`): addresses or rows, copied on demand to a temporary file.

The temporary file can be read again, for example for a checksum. Input that starts with `{` or `[`
is JSON. All other input is a list of addresses that are separated by newlines or NULs. Each address
becomes a row with the name and the contents of the object.
"""

from __future__ import annotations

import itertools
import os
import select
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa

from flarecli.errors import FormatError, ReachError
from flarecli.formats.tables import decompress
from flarecli.formats.tables.base import Part
from flarecli.formats.tables.decompress import Blocks
from flarecli.names import escape
from flarecli.redact import redact

__all__ = ["Addresses", "DATA", "NAME", "Spool", "standard_input"]

NAME, DATA = "name", "data"
_ROWS = 8192
MAX_ADDRESS_BYTES = 1 << 16


def standard_input() -> IO[bytes]:
    """Return standard input as a byte stream. Raises ReachError if it is closed."""
    if sys.stdin is None:
        raise ReachError("standard input is closed", where="-")
    return sys.stdin.buffer


class Spool:
    """A stream that is copied to an unnamed temporary file and can be read several times."""

    location = None

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._file = tempfile.TemporaryFile(prefix="flare-")  # noqa: SIM115 - closed with this object
        self._size, self._is_complete = 0, False

    def __str__(self) -> str:
        return "-"

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes from the beginning; copy more of the stream if needed.

        Raises ReachError if reading fails or the disk is full.
        """
        start = 0
        while start < self._size or self._copy_block():
            size = min(decompress.BLOCK_BYTES, self._size - start)
            data = os.pread(self._file.fileno(), size, start)
            start += len(data)
            yield data

    def _copy_block(self) -> bool:
        """Copy the next block of the stream; return False at its end."""
        if self._is_complete:
            return False
        try:
            data = self._stream.read(decompress.BLOCK_BYTES)
            while data is None:  # a non-blocking pipe without data
                select.select([self._stream], [], [])
                data = self._stream.read(decompress.BLOCK_BYTES)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ReachError(f"cannot read: {reason}", where=self) from None
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ReachError(
                f"cannot write to a temporary file: {reason}",
                where=self,
                hint="Set TMPDIR to a folder with more space.",
            ) from None
        self._size += len(data)
        self._is_complete = not data
        return bool(data)


class Addresses(Part):
    """Addresses that are separated by newlines or NULs.

    Each address is a row: `name` contains the address without secrets, and `data` the full address.
    """

    schema = pa.schema([(NAME, pa.string()), (DATA, pa.string())])

    def __init__(self, at: Blocks, null_separated: bool) -> None:
        self.at, self._separator = at, b"\0" if null_separated else b"\n"

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the addresses in order. Raises FormatError with the line for an invalid address."""
        schema, addresses = self.selected(columns), self._addresses()
        while rows := list(itertools.islice(addresses, _ROWS)):
            values = {NAME: [redact(address) for address in rows], DATA: rows}
            arrays = [pa.array(values[name], pa.string()) for name in schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _addresses(self) -> Iterator[str]:
        rest, number = b"", 0
        for block in self.at.blocks():
            *lines, rest = (rest + block).split(self._separator)
            if len(rest) > MAX_ADDRESS_BYTES:
                line = number + len(lines) + 1
                raise FormatError(
                    f"line {line}: address is longer than {MAX_ADDRESS_BYTES} bytes",
                    where=self.at,
                )
            for data in lines:
                number += 1
                if address := self._decode(data, number):
                    yield address
        if address := self._decode(rest, number + 1):
            yield address

    def _decode(self, data: bytes, number: int) -> str:
        """Return the address in a line; empty for a blank line."""
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
        return text
