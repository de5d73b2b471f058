"""Split text files into pieces that consist of complete records: lines, CSV and JSON arrays.

Invalid UTF-8 and NUL bytes are errors.

CSV (RFC 4180): a quoted field starts and ends with a quote, and a quote inside the field is
doubled. So a byte is inside a quoted field if the number of quotes before this byte is odd. This
rule locates the ends of records and detects misplaced quotes. A parser would accept misplaced
quotes, and return wrong columns and too few rows.

JSON arrays: unescaped quotes open and close strings, brackets outside strings change the depth, and
a comma at the depth of the array ends a row. This module checks the bytes between the rows; the
parser checks the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flarecli.errors import FormatError
from flarecli.formats.tables import decompress
from flarecli.formats.tables.decompress import Blocks
from flarecli.model import BoolArray, ByteArray, IntArray
from flarecli.units import format_size

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "BOM",
    "Piece",
    "first_deep_line",
    "json_array_pieces",
    "member_names",
    "pieces",
    "records",
]

MAX_RECORD_BYTES = 64 << 20
DEPTH_BLOCK_BYTES = 1 << 20  # JSON text per step; each byte needs up to 24 bytes of memory
BOM = b"\xef\xbb\xbf"
_QUOTE, _BACKSLASH, _LF, _CR = ord('"'), ord("\\"), ord("\n"), ord("\r")
_QUOTE_HINT = 'Put the whole field in quotes, and double each quote inside it: "5"" pipe".'
_UTF8_HINT = "Save the file as UTF-8 text."
_ENCODING_HINT = "Otherwise, set its encoding, such as --csv encoding=latin-1."
_BRACKETS = np.zeros(256, np.int8)  # change of nesting depth for each byte value; 2 marks a comma
_BRACKETS[list(b"{[")], _BRACKETS[list(b"}]")], _BRACKETS[ord(",")] = 1, -1, 2
_BLANKS = b" \t\r\n"
_BLANK_LINE = re.compile(rb"(^|\n)[ \t]*(?:\n|$)")
_LINE_ENDS_TO_BLANKS = bytes.maketrans(b"\r\n", b"  ")


class Piece(NamedTuple):
    """One or more complete records of a text file.

    line   line number of the first record, counted from 1; in a JSON array, row number of the first
           record
    data   the records; each row of a JSON array is one line
    start  offset of the first record in the text; -1 in a JSON array
    """

    line: int
    data: bytes
    start: int = -1

    @property
    def is_blank(self) -> bool:
        """Whether the piece contains only newlines."""
        return not (self.data[:64].strip(b"\r\n") or self.data.strip(b"\r\n"))

    def after(self, end: int) -> Piece:
        """Return the piece without its first `end` bytes, which must be complete lines."""
        line = self.line + _count_newlines(self.data[:end])
        return Piece(line, self.data[end:], -1 if self.start < 0 else self.start + end)


# -- lines and CSV


def pieces(
    source: Blocks, delimiter: str, quote: str = '"', begin: Piece | None = None
) -> Iterator[Piece]:
    """Yield pieces of complete records in order, with only one piece in memory at a time.

    delimiter  delimiter of CSV fields; if empty, each line is a record, and quotes are ignored
    quote      character around CSV fields; if empty, fields are not quoted
    begin      the first piece to read; only its position is used. None: read the whole file, as
               is necessary for a compressed file
    raises     FormatError with the line for invalid UTF-8, a NUL, a misplaced or unclosed quote, or
               a record of more than 64 MB
    """
    # bytes that may precede or follow a quoted field
    is_boundary = np.zeros(256, bool)
    is_boundary[list(f"{delimiter}\r\n{quote}".encode())] = True
    line, first, data = (1, 0, b"") if begin is None else (begin.line, begin.start, b"")
    blocks = source.blocks()
    if first and isinstance(source, decompress.TextFile):
        blocks = source.blocks(first)
    for block, is_last in _with_last(blocks):
        data += block
        if first == 0 and data.startswith(BOM):
            data, first = data[len(BOM) :], len(BOM)
        quotes = np.zeros(0, np.int64)
        if delimiter and quote:
            quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(quote))
        if is_last:
            end = len(data)
        elif delimiter:
            end = _end_of_records(data, quotes)
        else:
            end = data.rfind(b"\n") + 1
        if not end:
            if len(data) > MAX_RECORD_BYTES:
                hint = "Check for an unclosed quote." if delimiter else "Write one row per line."
                size = format_size(MAX_RECORD_BYTES)
                raise FormatError(
                    f"line {line}: a record is longer than {size}", where=source, hint=hint
                )
            continue
        piece, data = Piece(line, data[:end], first), data[end:]
        _check_text(piece, source, is_csv=bool(delimiter))
        _check_quotes(piece, quotes[: np.searchsorted(quotes, end)], is_boundary, source)
        yield piece
        line, first = line + _count_newlines(piece.data), first + end


def _with_last(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each block, and whether it is the last block. The last block may be empty."""
    block = next(blocks, None)
    while block is not None:
        is_full = len(block) >= decompress.BLOCK_BYTES
        after = None if is_full else next(blocks, None)
        yield block, not is_full and after is None
        # after a full last block, an empty block marks the end
        block = next(blocks, b"") if is_full else after


def records(data: bytes, quote: str = '"') -> Iterator[tuple[int, int, int]]:
    """Yield the number of preceding lines, the start offset and the end offset of each CSV record.

    Blank lines are not records.
    """
    sign = quote.encode()
    end, first, start, inside = 0, 0, 0, False
    for number, line in enumerate(data.splitlines(keepends=True)):
        begin, end = end, end + len(line)
        if not inside:
            if not line.strip(b"\r\n"):
                continue
            first, start = number, begin
        inside ^= bool(sign and line.count(sign) % 2)
        if not inside:
            yield first, start, end


def _end_of_records(data: bytes, quotes: IntArray) -> int:
    """Return the end offset of the last complete record; 0 if no record is complete.

    A record ends at a newline after an even number of quotes.
    """
    # a CR at the end of the data may be the first half of a CR LF
    last = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1))
    if np.searchsorted(quotes, last) % 2 == 0:
        return last + 1
    raw = np.frombuffer(data, np.uint8)[:last]
    ends = np.flatnonzero((raw == _LF) | (raw == _CR))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _check_text(piece: Piece, source: Blocks, *, is_csv: bool) -> None:
    """Raise FormatError if a piece is not UTF-8 or contains a NUL."""
    try:
        if not piece.data.isascii():
            piece.data.decode()
    except UnicodeDecodeError as error:
        message = f"byte {piece.start + error.start} is not UTF-8"
        hint = f"{_UTF8_HINT} {_ENCODING_HINT}" if is_csv else _UTF8_HINT
        raise _text_error(piece, error.start, message, hint, source) from None
    nul = piece.data.find(b"\0")
    if nul >= 0:
        raise _text_error(piece, nul, f"byte {piece.start + nul} is NUL", _UTF8_HINT, source)


def _check_quotes(piece: Piece, quotes: IntArray, is_boundary: BoolArray, source: Blocks) -> None:
    if not len(quotes):
        return
    raw = np.frombuffer(piece.data, np.uint8)
    opens, closes = quotes[::2], quotes[1::2]
    # a quote at the start or end of a piece is next to a newline, so it needs no check
    before, after = opens[opens > 0], closes[closes < len(raw) - 1]
    stray = np.concatenate(
        [before[~is_boundary[raw[before - 1]]], after[~is_boundary[raw[after + 1]]]]
    )
    if len(stray):
        raise _text_error(piece, int(stray.min()), "quote inside a field", _QUOTE_HINT, source)
    if len(quotes) % 2:
        is_doubled = (opens > 0) & (raw[opens - 1] == raw[opens])  # such a quote is part of a value
        position = int(opens[~is_doubled][-1])
        raise _text_error(piece, position, "unclosed quote", _QUOTE_HINT, source)


def _text_error(
    piece: Piece, position: int, message: str, hint: str, source: Blocks
) -> FormatError:
    line = piece.line + _count_newlines(piece.data[:position])
    return FormatError(f"line {line}: {message}", where=source, hint=hint)


def _count_newlines(data: bytes) -> int:
    """Return the number of newlines: LF, CR LF, or CR."""
    count = data.count(b"\n")
    return count if b"\r" not in data else count + data.count(b"\r") - data.count(b"\r\n")


# -- JSON


def json_array_pieces(source: Blocks) -> Iterator[Piece]:
    """Yield a JSON array in pieces of a few megabytes, with one row per line.

    raises  FormatError for an unterminated array, bytes after its end, or a row of more than 64 MB
    """
    row, has_begun, brackets = 0, False, _Brackets()
    blocks_of_row, size = list[bytes](), 0  # blocks and size of an incomplete row
    blocks, slash = source.blocks(), b""
    for read in blocks:
        block = slash + read if has_begun else read.removeprefix(BOM).lstrip(_BLANKS)
        if not has_begun:
            has_begun, block = bool(block), block[1:]
        # a final backslash may escape the first byte of the next block, so move it to that block
        slash = b"\\" * ((len(block) - len(block.rstrip(b"\\"))) % 2)
        block = block[: len(block) - len(slash)]
        commas, end = brackets.rows(block)
        if end < 0 and not len(commas):
            blocks_of_row, size = [*blocks_of_row, block], size + len(block)
            if size > MAX_RECORD_BYTES:
                message = f"a row is longer than {format_size(MAX_RECORD_BYTES)}"
                raise FormatError(message, where=source, row=row)
            continue
        cut = end if end >= 0 else int(commas[-1])
        data = b"".join([*blocks_of_row, block[:cut]])
        piece = _row_lines(source, row, data, commas[commas < cut] + size, end >= 0)
        if piece is not None:
            yield piece
        if end >= 0:
            rest = block[end + 1 :] + slash
            if rest.strip(_BLANKS) or any(more.strip(_BLANKS) for more in blocks):
                raise FormatError("bytes follow the end of the array", where=source)
            return
        row, blocks_of_row = row + len(commas), [block[cut + 1 :]]
        size = len(blocks_of_row[0])
    raise FormatError(
        "the array is not terminated",
        where=source,
        hint="The file was cut short; download it again.",
    )


def _row_lines(
    source: Blocks, row: int, data: bytes, commas: IntArray, is_last: bool
) -> Piece | None:
    """Return a piece in which newlines replace the commas between rows; None for an empty array."""
    lines = np.frombuffer(data.translate(_LINE_ENDS_TO_BLANKS), np.uint8).copy()
    lines[commas] = _LF
    text = lines.tobytes()
    if not text.strip(b" \t") and is_last and row == 0:
        return None

    def error_at(position: int, message: str, hint: str = "") -> FormatError:
        number = row + text.count(b"\n", 0, position)
        return FormatError(message, where=source, row=number, hint=hint)

    if missing := _BLANK_LINE.search(text):
        raise error_at(missing.end(1), "an item of the array is empty")
    nul = text.find(b"\0")
    if nul >= 0:
        raise error_at(nul, "contains a NUL", _UTF8_HINT)
    try:
        if not text.isascii():
            text.decode()
    except UnicodeDecodeError as error:
        message = f"byte 0x{text[error.start]:02x} is not UTF-8"
        raise error_at(error.start, message, _UTF8_HINT) from None
    return Piece(row, text)


class _Brackets:
    """Finder of brackets outside strings in successive blocks.

    A block must not end inside an escape sequence.
    """

    def __init__(self) -> None:
        self._is_string, self._depth = False, 0

    def read(self, raw: ByteArray) -> tuple[IntArray, npt.NDArray[np.int8], IntArray]:
        """Find the brackets and commas outside strings.

        return  three arrays: the positions; the change of depth at each position, or 2 for a comma;
                the depth after each position
        """
        quotes = _find_quotes(raw)
        marks = np.flatnonzero(_BRACKETS[raw])
        marks = marks[(np.searchsorted(quotes, marks) + self._is_string) % 2 == 0]
        changes = _BRACKETS[raw[marks]]
        depth = self._depth + np.cumsum(np.where(changes == 2, 0, changes))
        self._is_string = bool((len(quotes) + self._is_string) % 2)
        self._depth = int(depth[-1]) if len(depth) else self._depth
        return marks, changes, depth

    def rows(self, block: bytes) -> tuple[IntArray, int]:
        """Return the positions of the commas between rows, and the position of the final bracket.

        The position is -1 if the block does not contain the final bracket.
        """
        marks, changes, depth = self.read(np.frombuffer(block, np.uint8))
        ends = marks[depth < 0]
        commas = marks[(changes == 2) & (depth == 0)]
        if not len(ends):
            return commas, -1
        end = int(ends[0])
        return commas[commas < end], end


def member_names(data: bytes) -> set[bytes]:
    """Return the names of all members.

    The result may contain other strings: a string is also taken for a name if a space, tab or CR
    follows it, because these characters may precede the colon.
    """
    raw = np.frombuffer(data, np.uint8)
    quotes = _find_quotes(raw)
    ends = quotes[1::2]
    begins = quotes[::2][: len(ends)]
    after = raw[np.minimum(ends + 1, len(raw) - 1)]
    is_name = np.isin(after, np.frombuffer(b": \t\r", np.uint8))
    pairs = zip(begins[is_name].tolist(), ends[is_name].tolist(), strict=True)
    return {data[begin + 1 : end] for begin, end in pairs}


def first_deep_line(data: bytes, max_depth: int) -> int:
    """Return the index of the first line with brackets nested deeper than `max_depth`, or -1.

    This check precedes parsing, because parsers use stack space for each level.
    """
    raw = np.frombuffer(data, np.uint8)
    opens = (raw | 0x20) == ord("{")  # `[` and `{` differ only in this bit
    if np.count_nonzero(opens) <= max_depth:
        return -1
    ends = np.append(np.flatnonzero(raw == _LF), len(raw))
    begins = np.append(0, ends[:-1] + 1)
    counts = np.add.reduceat(np.append(opens, False).view(np.uint8), begins, dtype=np.int64)
    for line in np.flatnonzero(counts > max_depth):
        if _max_depth(data[begins[line] : ends[line]]) > max_depth:
            return int(line)
    return -1


def _max_depth(line: bytes) -> int:
    brackets, deepest, start = _Brackets(), 0, 0
    while start < len(line):
        block = line[start : start + DEPTH_BLOCK_BYTES]
        while block.endswith(b"\\") and start + len(block) < len(line):
            block = line[start : start + 2 * len(block)]
        _, _, depth = brackets.read(np.frombuffer(block, np.uint8))
        deepest, start = max(deepest, int(depth.max(initial=0))), start + len(block)
    return deepest


def _find_quotes(raw: ByteArray) -> IntArray:
    """Return the positions of unescaped quotes: quotes after an even number of backslashes."""
    quotes = np.flatnonzero(raw == _QUOTE)
    slashes = np.flatnonzero(raw == _BACKSLASH)
    if not len(slashes) or not len(quotes):
        return quotes
    numbers = np.arange(len(slashes))
    begins = np.concatenate([[True], np.diff(slashes) != 1])
    # for each backslash: the length of the run of backslashes that ends with it
    run = numbers - np.maximum.accumulate(np.where(begins, numbers, 0)) + 1
    last = np.searchsorted(slashes, quotes) - 1  # index of the backslash before each quote, or -1
    follows = (last >= 0) & (slashes[np.maximum(last, 0)] == quotes - 1)
    is_escaped = follows & (run[np.maximum(last, 0)] % 2 == 1)
    return np.asarray(quotes[~is_escaped])
