"""Streams: standard input (`-`) and FIFOs that the user names, such as `<(…)` in a shell.

A stream is copied on demand to an unnamed temporary file, from which it can be read again, for
example to compute a checksum. A compressed stream (gzip, bzip2, zstd) is decompressed first. The
content determines the kind of a stream. The kinds are checked in this order:

    parquet  starts with PAR1
    arrow    Arrow IPC file, or stream of messages in the encapsulated layout
    tar      ustar or v7 header, or an empty archive
    lines    the first line, and at least half of the first 10 lines, are URLs or existing paths
    jsonl    starts with `{` or `[`
    csv      the first line contains a delimiter: comma, semicolon, tab or `|`
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import IO, NoReturn, Self

import pyarrow as pa

from flarecli import compress, media
from flarecli.errors import FormatError, ReachError, UsageError
from flarecli.formats import LIST_INPUT
from flarecli.formats.tables import decompress
from flarecli.formats.tables.base import Part
from flarecli.formats.tables.decompress import Blocks, decompressed
from flarecli.formats.tables.dialect import (
    DEFAULT,
    DELIMITERS,
    Dialect,
    decoded,
    first_bytes,
    first_line,
    without_quoted,
)
from flarecli.formats.tables.text_records import BOM
from flarecli.names import escape, is_url, local_path
from flarecli.redact import redact
from flarecli.storage import STDIN, Location, descriptors, is_stdin, is_stream
from flarecli.storage.local import LocalStore, temporary_file_error

__all__ = [
    "Addresses",
    "DATA",
    "NAME",
    "Spool",
    "open_streams",
    "sniff",
    "standard_input",
]

NAME, DATA = "name", "data"
_ROWS = 8192
MAX_ADDRESS_BYTES = 1 << 16
_FILE = "stdin"  # name of the only file in a `_SpoolStore`
_FIRST_LINES = 10
_EMPTY_TAR_BYTES = 10240  # maximum size of an empty tar: two blocks of zeros, padded to a record
_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_XZ = b"\xfd7zXZ\0"
_EXPECTED = (
    "an Arrow stream, parquet, JSON lines, CSV or TSV with a header, a tar, "
    "or a list of URLs or existing paths"
)


def standard_input() -> IO[bytes]:
    """Return standard input as a byte stream.

    raises  ReachError if standard input is closed; UsageError if it is a terminal
    """
    if sys.stdin is None:
        raise ReachError("standard input is closed", where=STDIN)
    stream = sys.stdin.buffer
    if stream.isatty():
        raise UsageError(
            "standard input is a terminal; expected data from a pipe or a file",
            where=STDIN,
            hint="Pipe data into flare, such as `cat rows.csv | flare pack - out`, or specify a file.",
        )
    return stream


def open_streams(
    addresses: Sequence[str], stdin: IO[bytes] | None = None, is_opaque: bool = False
) -> list[str | Spool]:
    """Open and decompress each stream (`-` or a FIFO); return all other addresses unchanged.

    addresses  addresses that the user typed; a FIFO that a wildcard matches is not a stream
    stdin      stream to read for `-`; None: standard input
    is_opaque  True to return the bytes without decompression
    raises     UsageError if a stream is named twice; FormatError for an empty stream; the errors of
               `standard_input`; ReachError if a FIFO cannot be read
    """
    opened: list[str | Spool] = []
    names = set[str]()
    for address in addresses:
        if not is_stream(address):
            opened.append(address)
            continue
        shown = STDIN if is_stdin(address) else address
        if shown in names:
            raise UsageError(
                "a stream can be read only once", where=shown, hint="Pass the stream only once."
            )
        names.add(shown)
        opened.append(_open_stream(shown, stdin, is_opaque))
    return opened


def _open_stream(address: str, stdin: IO[bytes] | None, is_opaque: bool) -> Spool:
    if address == STDIN:
        stream = standard_input() if stdin is None else stdin
    else:
        try:
            stream = open(local_path(address), "rb")  # noqa: SIM115 - closed by `_read_blocks`
        except OSError as error:
            raise _read_error(error, address) from None
    blocks = _read_blocks(stream, address)
    first = next(blocks, b"")
    blocks = itertools.chain([first], blocks)
    if (compression := compress.detect(first)) and not is_opaque:
        blocks = decompressed(blocks, compression, address)
    spool = Spool(blocks, address)
    if not is_opaque and not any(block.strip() for block in itertools.islice(spool.blocks(), 2)):
        raise FormatError(
            "standard input is empty" if address == STDIN else "the stream is empty",
            where=spool,
            hint="Check the command that writes to the pipe.",
        )
    return spool


def _read_blocks(stream: IO[bytes], where: str) -> Iterator[bytes]:
    """Yield the bytes of a stream in blocks, and close the stream at its end if it is a FIFO.

    The first block has up to 4 MiB, and each other block has up to 1 MiB.
    """
    size = decompress.BLOCK_BYTES
    with contextlib.nullcontext() if where == STDIN else contextlib.closing(stream):
        while True:
            try:
                data = stream.read(size)
                while data is None:  # the pipe is non-blocking, and has no data yet
                    select.select([stream], [], [])
                    data = stream.read(size)
            except OSError as error:
                raise _read_error(error, where) from None
            if not data:
                return
            yield data
            size = decompress.BLOCK_BYTES // 4  # parsing smaller blocks uses less memory


def _read_error(error: OSError, where: str) -> ReachError:
    return ReachError(f"cannot read: {(error.strerror or str(error)).lower()}", where=where)


class Spool:
    """A stream that is copied to an unnamed temporary file and can be read several times.

    location  location of the temporary file. Before the file is read through this location, all
              remaining bytes of the stream are copied to the file.
    """

    def __init__(self, blocks: Iterator[bytes], shown: str = STDIN) -> None:
        self._stream, self._shown = blocks, shown
        self._file = _temporary_file()
        weakref.finalize(self, self._file.close)
        self._size, self._is_complete, self._is_drained = 0, False, False
        self.location = Location(_SpoolStore(self, shown), _FILE)

    def __str__(self) -> str:
        return self._shown

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes from the beginning of the stream.

        Bytes that are not yet in the temporary file are copied to it before they are returned.

        Raises ReachError if reading fails, if the disk is full, or if `drain` was called.
        """
        start, step = 0, decompress.BLOCK_BYTES
        while start < self._size or self._copy_block():
            size, step = min(step, self._size - start), decompress.BLOCK_BYTES // 4
            data = descriptors.pread(self._file.fileno(), size, start)
            start += len(data)
            yield data

    def drain(self) -> Iterator[bytes]:
        """Yield all bytes from the beginning of the stream.

        Bytes that are not yet in the temporary file are not copied to it, so they cannot be read
        again.
        """
        self._is_drained = True
        for start in range(0, self._size, decompress.BLOCK_BYTES):
            size = min(decompress.BLOCK_BYTES, self._size - start)
            yield descriptors.pread(self._file.fileno(), size, start)
        yield from self._stream

    def copied(self) -> int:
        """Copy the remaining bytes of the stream; return the descriptor of the temporary file."""
        while self._copy_block():
            pass
        return self._file.fileno()

    def _copy_block(self) -> bool:
        """Copy the next block of the stream; return False at its end."""
        if self._is_complete:
            return False
        if self._is_drained:
            raise ReachError("the stream was already read, and can be read only once", where=self)
        data = next(self._stream, b"")
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise temporary_file_error(error, f"the stream {self}") from None
        self._size += len(data)
        self._is_complete = not data
        return bool(data)


def _temporary_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(prefix="flare-")
    except OSError as error:
        raise temporary_file_error(error, "a stream") from None


class _SpoolStore(LocalStore):
    """A store whose only file is the copy of a stream. Messages name the stream, not the file."""

    def __init__(self, spool: Spool, shown: str) -> None:
        super().__init__("", shown, maps=False)
        self._spool = spool

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a stream cannot be sent to another process",
            where=self.shown,
            hint="Save the stream to a file.",
        )

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def show(self, path: str) -> str:
        return self.shown

    def unmapped(self) -> Self:
        return self

    @contextlib.contextmanager
    def opened(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        if path != _FILE:
            with super().opened(path) as fd:  # raises MissingError: the store has no other file
                yield fd
            return
        fd = self._spool.copied()
        # reset the position, because a reader that opens /dev/fd/N may share this position
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd


# -- kinds of streams


def sniff(spool: Blocks, dialect: Dialect = DEFAULT, null_separated: bool = False) -> str:
    """Return the kind of a stream: arrow, parquet, tar, lines, jsonl or csv.

    dialect         dialect that the user set for CSV; if it is set, every stream that is not arrow,
                    parquet, tar, lines or jsonl is CSV
    null_separated  whether the stream is a list of addresses, each of which ends with a NUL
    raises          FormatError if the kind is unknown
    """
    if null_separated:
        return LIST_INPUT
    head = first_bytes(spool)
    kind = _sniff_binary(head)
    if kind is not None:
        return kind
    _, head = decoded(spool, head, dialect.encoding)
    head = head.removeprefix(BOM)
    if _is_list(head):
        return LIST_INPUT
    if head.lstrip()[:1] in (b"{", b"["):
        return "jsonl"
    if dialect != DEFAULT:
        return "csv"
    found = "xz" if head.startswith(_XZ) else media.sniff(head)
    line = first_line(head)
    is_text = found is None and not _CONTROL.search(line)
    if found is None and b"\0" in line and not _CONTROL.search(line.replace(b"\0", b"")):
        raise FormatError(
            f"unknown kind of stream; expected {_EXPECTED}",
            where=spool,
            hint="Use -0 for a list of addresses that end with NUL.",
        )
    if is_text and any(one.encode() in without_quoted(line, '"') for one in DELIMITERS):
        return "csv"
    raise _unknown_kind(spool, found, is_text)


def _unknown_kind(spool: Blocks, found: str | None, is_text: bool) -> FormatError:
    if found == "xz":
        message, hint = "the stream is compressed with xz", "Decompress the stream with `xz -dc`."
    elif is_text:
        message = f"unknown kind of stream; expected {_EXPECTED}"
        hint = (
            "Set the kind of the stream with --input, such as csv for a table with one column, "
            "or lines for a list of addresses."
        )
    else:
        begin = f"the stream contains {found}" if found else "unknown kind of stream"
        message = f"{begin}; expected {_EXPECTED}"
        hint = "Set the kind of the stream with --input; use --input files to read the stream as one row."
    return FormatError(message, where=spool, hint=hint)


def _sniff_binary(head: bytes) -> str | None:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"FEA1")):
        return "arrow"
    if head.startswith(b"\xff\xff\xff\xff"):  # each Arrow message starts with this marker
        return "arrow"
    return "tar" if _is_tar(head) else None


def _is_tar(head: bytes) -> bool:
    block = head[:512]
    if len(block) < 512:
        return False
    if not block.strip(b"\0"):
        return len(head) <= _EMPTY_TAR_BYTES and not head.strip(b"\0")
    if block[257:262] == b"ustar":
        return True
    checksum = block[148:156].strip(b" \0")  # v7 has only a checksum, and no magic number
    if not re.fullmatch(rb"[0-7]{1,7}", checksum):
        return False
    return sum(block) - sum(block[148:156]) + 8 * ord(" ") == int(checksum, 8)


def _is_list(head: bytes) -> bool:
    """Return True if line 1 and at least half of the first _FIRST_LINES lines are addresses."""
    lines = [line.strip(b" \t\r") for line in head.split(b"\n")]
    if len(lines) > 1 and lines[-1]:
        lines.pop()  # the last line may be incomplete
    lines = [line for line in lines if line][:_FIRST_LINES]
    if lines and b"\0" in lines[0]:
        # the addresses end with NULs, although -0 is not set
        lines = [one for one in lines[0].split(b"\0") if one][:_FIRST_LINES]
    found = [_is_address(line) for line in lines]
    return bool(found) and found[0] and 2 * sum(found) >= len(found)


def _is_address(line: bytes) -> bool:
    if len(line) > MAX_ADDRESS_BYTES or b"\0" in line:
        return False
    if os.path.lexists(line):
        return True
    text = line.decode("utf-8", "replace")
    return is_url(text) and not re.search(r"[\s|]", text)


class Addresses(Part):
    """A list of addresses that are separated by newlines or NULs.

    Each address is a row. Column `name` contains the address without secrets, and column `data`
    contains the complete address.
    """

    schema = pa.schema([(NAME, pa.string()), (DATA, pa.string())])

    def __init__(self, source: Blocks, null_separated: bool = False) -> None:
        self.at, self._separator = source, b"\0" if null_separated else b"\n"
        if not null_separated:
            self.at, _ = decoded(source, first_bytes(source))

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
        if self._separator != b"\0":
            data = data.removeprefix(BOM) if number == 1 else data
            data = data.strip(b" \t\r")
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
