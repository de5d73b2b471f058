"""A JSON array of objects as lines of one object each, cut by its brackets: nothing is parsed here.

Quotes that no odd run of backslashes stands before open and close strings; brackets outside strings count the depth; a
comma at the array's own depth ends a row. What stands between the rows is checked, what is inside them the parser checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from flarecli.errors import FormatError
from flarecli.ingest.streams import Blocks
from flarecli.ingest.text import Piece
from flarecli.units import format_size

__all__ = ["elements", "too_deep"]

_RECORD = 64 << 20  # bytes; a row is no larger than this
_SIGNS = np.zeros(256, np.int8)  # brackets and what they do to the depth; 2 marks a comma
_SIGNS[list(b"{[")], _SIGNS[list(b"}]")], _SIGNS[ord(",")] = 1, -1, 2
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BLANKS = b" \t\r\n"
_NEWLINE = b"\n"
_EMPTY = re.compile(rb"(^|\n)[ \t]*(?:\n|$)")
_LINES = bytes.maketrans(b"\r\n", b"  ")


def elements(source: Blocks) -> Iterator[Piece]:
    """Give the rows of an array, one a line, some megabytes at a time; `line` is the number of the first row.

    raises  FormatError for an array that does not end, for what stands behind it, or a row of more than 64 MB
    """
    row, data, begun = 0, b"", False
    blocks = source.blocks()
    for block in blocks:
        data += block if begun or data else block.removeprefix(b"\xef\xbb\xbf")
        if not begun:
            data = data.lstrip(_BLANKS)
            begun, data = bool(data), data[1:]
        commas, end = _ends(data)
        cut = end if end >= 0 else int(commas[-1]) if len(commas) else 0
        if cut:
            rows = _lines(source, row, data[:cut], commas[commas < cut], end >= 0)
            if rows is not None:
                yield rows
        if end >= 0:
            if data[end + 1 :].strip(_BLANKS) or any(more.strip(_BLANKS) for more in blocks):
                raise FormatError("something stands behind the array", where=source)
            return
        if len(commas):
            row, data = row + len(commas), data[cut + 1 :]
        elif len(data) > _RECORD:
            raise FormatError(f"a row is longer than {format_size(_RECORD)}", where=f"{source}[{row}]")
    raise FormatError("the array does not end", where=source, hint="The file was cut short; fetch it again.")


def _lines(source: Blocks, row: int, data: bytes, commas: Any, is_last: bool) -> Piece | None:
    """Give rows as lines, the commas between them as line ends; nothing for an array that is empty."""
    lines = np.frombuffer(data.translate(_LINES), np.uint8).copy()
    lines[commas] = ord("\n")
    text = lines.tobytes()
    if not text.strip(b" \t") and is_last and row == 0:
        return None
    missing = _EMPTY.search(text)
    if missing:
        raise FormatError("nothing stands between two commas", where=f"{source}[{row + text.count(_NEWLINE, 0, missing.end(1))}]")
    nul = text.find(b"\0")
    if nul >= 0:
        raise FormatError("a NUL", where=f"{source}[{row + text.count(_NEWLINE, 0, nul)}]", hint="Save it as UTF-8 text.")
    try:
        if not text.isascii():
            text.decode()
    except UnicodeDecodeError as error:
        where = f"{source}[{row + text.count(_NEWLINE, 0, error.start)}]"
        raise FormatError(f"byte 0x{text[error.start]:02x} is not UTF-8", where=where, hint="Save it as UTF-8 text.") from None
    return Piece(row, text)


def _ends(data: bytes) -> tuple[Any, int]:
    """Give where the commas between rows stand, and where the array ends; -1 if it does not end here."""
    raw = np.frombuffer(data, np.uint8)
    quotes = _quotes(raw)
    marks = np.flatnonzero(_SIGNS[raw])
    marks = marks[np.searchsorted(quotes, marks) % 2 == 0]
    signs = _SIGNS[raw[marks]]
    depth = np.cumsum(np.where(signs == 2, 0, signs))
    ends = marks[depth < 0]
    end = int(ends[0]) if len(ends) else -1
    commas = marks[(signs == 2) & (depth == 0)]
    return (commas[commas < end] if end >= 0 else commas), end


def too_deep(data: bytes, most: int) -> int:
    """Give the number of the first line whose brackets nest deeper than `most`, -1 if there is none. Parsers take stack for each."""
    raw = np.frombuffer(data, np.uint8)
    opens = np.flatnonzero((raw | 0x20) == ord("{"))  # `[` and `{` differ in that bit
    if len(opens) <= most:
        return -1
    ends = np.append(np.flatnonzero(raw == ord("\n")), len(raw))
    before = np.searchsorted(opens, ends)
    for line in np.flatnonzero(np.diff(before, prepend=0) > most):
        one = raw[ends[line - 1] + 1 if line else 0 : ends[line]]
        marks = np.flatnonzero(_SIGNS[one])
        signs = _SIGNS[one[marks[np.searchsorted(_quotes(one), marks) % 2 == 0]]]
        if len(signs) and np.cumsum(np.where(signs == 2, 0, signs)).max() > most:
            return int(line)
    return -1


def _quotes(raw: Any) -> Any:
    """Give where the quotes stand that open or close a string: an even number of backslashes before them."""
    quotes = np.flatnonzero(raw == _QUOTE)
    slashes = np.flatnonzero(raw == _BACKSLASH)
    if not len(slashes) or not len(quotes):
        return quotes
    begins = np.concatenate([[True], np.diff(slashes) != 1])
    run = np.arange(len(slashes)) - np.maximum.accumulate(np.where(begins, np.arange(len(slashes)), 0)) + 1
    at = np.searchsorted(slashes, quotes) - 1
    before = (at >= 0) & (slashes[np.maximum(at, 0)] == quotes - 1)
    return quotes[~(before & (run[np.maximum(at, 0)] % 2 == 1))]
