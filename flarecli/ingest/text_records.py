"""The bytes of a text index as pieces of whole records, checked: UTF-8, no NUL, and in CSV quotes as RFC 4180 has them.

A quote opens a field at its start and closes it at its end; inside it is doubled. So the quotes before any byte,
odd or even, say whether that byte is inside a quoted field: that finds where records end, and each quote that is
out of place. A parser that takes such a quote as it comes shifts columns and swallows rows without a word.
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

_RECORD = 64 << 20  # bytes; a record is no larger than this
_QUOTE, _LF, _CR, BOM = ord('"'), ord("\n"), ord("\r"), b"\xef\xbb\xbf"
_STRAY = 'Put the whole field in quotes, and double each quote inside it: "5"" pipe".'


class Piece(NamedTuple):
    """Whole records, and the line that the first of them is in; lines count from 1."""

    line: int
    data: bytes

    @property
    def is_blank(self) -> bool:
        """Whether it holds line ends only."""
        return not (self.data[:64].strip(b"\r\n") or self.data.strip(b"\r\n"))

    def behind(self, end: int) -> Piece:
        """Give the piece without its first bytes, which end a line."""
        return Piece(self.line + _breaks(self.data[:end]), self.data[end:])


def pieces(source: Blocks, delimiter: str) -> Iterator[Piece]:
    """Read a file as pieces of whole records, in order, one piece in memory at a time.

    delimiter  between fields of CSV; empty: each line is a record, and quotes mean nothing
    raises     FormatError with the line for what is not UTF-8, a NUL, a stray quote, one that is never closed,
               or a record of more than 64 MB
    """
    beside = np.zeros(256, bool)  # what a quote that opens or closes a field may stand next to
    beside[list(f'{delimiter}\r\n"'.encode())] = True
    line, first, data = 1, 0, b""
    for block, is_last in _marked(source.blocks()):
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
            if len(data) > _RECORD:
                hint = (
                    "Look for a quote that is never closed."
                    if delimiter
                    else "Write one row a line."
                )
                raise FormatError(
                    f"line {line}: a record is longer than {format_size(_RECORD)}",
                    where=source,
                    hint=hint,
                )
            continue
        piece, data = Piece(line, data[:end]), data[end:]
        _check_text(piece, first, source)
        _check_quotes(piece, quotes[: np.searchsorted(quotes, end)], beside, source)
        yield piece
        line, first = line + _breaks(piece.data), first + end


def _marked(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Give the blocks, and which of them is the last; nothing is read ahead behind a full one."""
    block = next(blocks, None)
    while block is not None:
        is_full = len(block) >= decompress.BLOCK
        after = None if is_full else next(blocks, None)
        yield block, not is_full and after is None
        block = after if after is not None else next(blocks, b"") if is_full else None


def records(data: bytes) -> Iterator[tuple[int, int]]:
    """Give for each record how many lines stand before it, and where it ends. Lines with nothing in them are no records."""
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
    """Give where the last whole record ends: behind the last line end with an even number of quotes before it."""
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
        raise _refusal(
            piece,
            error.start,
            f"byte {first + error.start} is not UTF-8",
            "Save it as UTF-8 text.",
            source,
        ) from None
    nul = piece.data.find(b"\0")
    if nul >= 0:
        raise _refusal(piece, nul, f"byte {first + nul} is NUL", "Save it as UTF-8 text.", source)


def _check_quotes(piece: Piece, quotes: Any, beside: Any, source: Blocks) -> None:
    if not len(quotes):
        return
    raw = np.frombuffer(piece.data, np.uint8)
    opens, closes = quotes[::2], quotes[1::2]
    before, after = (
        opens[opens > 0],
        closes[closes < len(raw) - 1],
    )  # at its ends a piece stands next to line ends
    stray = np.concatenate([before[~beside[raw[before - 1]]], after[~beside[raw[after + 1]]]])
    if len(stray):
        raise _refusal(piece, int(stray.min()), "a quote inside a field", _STRAY, source)
    if len(quotes) % 2:
        doubled = (opens > 0) & (
            raw[opens - 1] == _QUOTE
        )  # closes and opens again: one quote of the value
        raise _refusal(
            piece, int(opens[~doubled][-1]), "a quote is opened and never closed", _STRAY, source
        )


def _refusal(piece: Piece, place: int, what: str, hint: str, source: Blocks) -> FormatError:
    return FormatError(
        f"line {piece.line + _breaks(piece.data[:place])}: {what}", where=source, hint=hint
    )


def _breaks(data: bytes) -> int:
    """Count the ends of lines: LF, CR LF, or CR."""
    breaks = data.count(b"\n")
    return breaks if b"\r" not in data else breaks + data.count(b"\r") - data.count(b"\r\n")
