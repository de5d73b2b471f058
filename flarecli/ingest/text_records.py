"""Splits a text index into pieces of whole records; checks UTF-8, NUL, and quotes of CSV by RFC
4180.

A quote opens a field at its start and closes it at its end; inside it is doubled. So a byte is
inside a quoted field if the number of quotes before it is odd. This finds the ends of records, and
misplaced quotes, for which a parser would silently shift columns and drop rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flarecli.errors import FormatError
from flarecli.ingest import decompress
from flarecli.ingest.decompress import Blocks
from flarecli.units import format_size

__all__ = ["BOM", "Piece", "pieces", "records"]

MAX_RECORD_BYTES = 64 << 20
_QUOTE, _LF, _CR, BOM = ord('"'), ord("\n"), ord("\r"), b"\xef\xbb\xbf"
_STRAY_HINT = 'Put the whole field in quotes, and double each quote inside it: "5"" pipe".'


class Piece(NamedTuple):
    """Whole records, and the line number of the first; lines count from 1."""

    line: int
    data: bytes

    @property
    def is_blank(self) -> bool:
        """Whether it contains only newlines."""
        return not (self.data[:64].strip(b"\r\n") or self.data.strip(b"\r\n"))

    def after(self, end: int) -> Piece:
        """Return the piece without its first `end` bytes, which end with a line."""
        return Piece(self.line + _breaks(self.data[:end]), self.data[end:])


def pieces(source: Blocks, delimiter: str) -> Iterator[Piece]:
    """Read a file as pieces of whole records, in order; one piece is in memory at a time.

    delimiter  of the fields in CSV; if empty, each line is a record, and quotes have no meaning
    raises     FormatError with the line for invalid UTF-8, a NUL, a misplaced or unclosed quote, or
               a record of more than 64 MB
    """
    is_boundary = np.zeros(
        256, bool
    )  # bytes that may be next to a quote at the start or end of a field
    is_boundary[list(f'{delimiter}\r\n"'.encode())] = True
    line, first, data = 1, 0, b""
    for block, is_last in _with_last(source.blocks()):
        data += block
        if first == 0 and data.startswith(BOM):
            data, first = data[len(BOM) :], len(BOM)
        quotes = (
            np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE)
            if delimiter
            else np.zeros(0, np.int64)
        )
        end = (
            len(data)
            if is_last
            else _end_of_records(data, quotes)
            if delimiter
            else data.rfind(b"\n") + 1
        )
        if not end:
            if len(data) > MAX_RECORD_BYTES:
                hint = "Look for an unclosed quote." if delimiter else "Write one row per line."
                raise FormatError(
                    f"line {line}: a record is longer than {format_size(MAX_RECORD_BYTES)}",
                    where=source,
                    hint=hint,
                )
            continue
        piece, data = Piece(line, data[:end]), data[end:]
        _check_text(piece, first, source)
        _check_quotes(piece, quotes[: np.searchsorted(quotes, end)], is_boundary, source)
        yield piece
        line, first = line + _breaks(piece.data), first + end


def _with_last(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield the blocks, and whether each is the last; does not read ahead of a full block."""
    block = next(blocks, None)
    while block is not None:
        is_full = len(block) >= decompress.BLOCK
        after = None if is_full else next(blocks, None)
        yield block, not is_full and after is None
        block = after if after is not None else next(blocks, b"") if is_full else None


def records(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield for each record the number of lines before it, and its end.

    Blank lines are not records.
    """
    end, first, inside = 0, 0, False
    for number, line in enumerate(data.splitlines(keepends=True)):
        end += len(line)
        if not inside:
            if not line.strip(b"\r\n"):
                continue
            first = number
        inside ^= bool(line.count(b'"') % 2)
        if not inside:
            yield first, end


def _end_of_records(data: bytes, quotes: Any) -> int:
    """Return the end of the last whole record: a newline after an even number of quotes."""
    # a CR at the very end may be half of a CR LF
    last = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1))
    if np.searchsorted(quotes, last) % 2 == 0:
        return last + 1
    raw = np.frombuffer(data, np.uint8)[:last]
    ends = np.flatnonzero((raw == _LF) | (raw == _CR))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _check_text(piece: Piece, first: int, source: Blocks) -> None:
    try:
        if not piece.data.isascii():
            piece.data.decode()
    except UnicodeDecodeError as error:
        raise _text_error(
            piece,
            error.start,
            f"byte {first + error.start} is not UTF-8",
            "Save it as UTF-8 text.",
            source,
        ) from None
    nul = piece.data.find(b"\0")
    if nul >= 0:
        raise _text_error(
            piece, nul, f"byte {first + nul} is NUL", "Save it as UTF-8 text.", source
        )


def _check_quotes(piece: Piece, quotes: Any, is_boundary: Any, source: Blocks) -> None:
    if not len(quotes):
        return
    raw = np.frombuffer(piece.data, np.uint8)
    opens, closes = quotes[::2], quotes[1::2]
    # a piece is preceded and followed by newlines
    before, after = opens[opens > 0], closes[closes < len(raw) - 1]
    stray = np.concatenate(
        [before[~is_boundary[raw[before - 1]]], after[~is_boundary[raw[after + 1]]]]
    )
    if len(stray):
        raise _text_error(piece, int(stray.min()), "quote inside a field", _STRAY_HINT, source)
    if len(quotes) % 2:
        doubled = (opens > 0) & (raw[opens - 1] == _QUOTE)  # one quote of the value
        raise _text_error(piece, int(opens[~doubled][-1]), "unclosed quote", _STRAY_HINT, source)


def _text_error(piece: Piece, place: int, what: str, hint: str, source: Blocks) -> FormatError:
    return FormatError(
        f"line {piece.line + _breaks(piece.data[:place])}: {what}", where=source, hint=hint
    )


def _breaks(data: bytes) -> int:
    """Return the number of newlines: LF, CR LF, or CR."""
    breaks = data.count(b"\n")
    return breaks if b"\r" not in data else breaks + data.count(b"\r") - data.count(b"\r\n")
