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
from flarecli.ingest.decompress import Blocks
from flarecli.ingest.text_records import Piece
from flarecli.units import format_size

__all__ = ["elements", "member_names", "too_deep"]

_RECORD = 64 << 20  # bytes; a row is no larger than this
_AT_ONCE = (
    1 << 20
)  # bytes whose brackets are looked at together: what is known of each takes 24 bytes
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
    row, begun, brackets = 0, False, _Brackets()
    held, size = list[bytes](), 0  # of a row that has begun
    blocks, slash = source.blocks(), b""
    for read in blocks:
        block = slash + read if begun else read.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANKS)
        if not begun:
            begun, block = bool(block), block[1:]
        slash = b"\\" * (
            (len(block) - len(block.rstrip(b"\\"))) % 2
        )  # what it escapes is in the next block
        block = block[: len(block) - len(slash)]
        commas, end = brackets.rows(block)
        if end < 0 and not len(commas):
            held, size = [*held, block], size + len(block)
            if size > _RECORD:
                raise FormatError(
                    f"a row is longer than {format_size(_RECORD)}", where=source, row=row
                )
            continue
        cut = end if end >= 0 else int(commas[-1])
        rows = _lines(
            source, row, b"".join([*held, block[:cut]]), commas[commas < cut] + size, end >= 0
        )
        if rows is not None:
            yield rows
        if end >= 0:
            if (block[end + 1 :] + slash).strip(_BLANKS) or any(
                more.strip(_BLANKS) for more in blocks
            ):
                raise FormatError("something stands behind the array", where=source)
            return
        row, held = row + len(commas), [block[cut + 1 :]]
        size = len(held[0])
    raise FormatError(
        "the array does not end", where=source, hint="The file was cut short; fetch it again."
    )


def _lines(source: Blocks, row: int, data: bytes, commas: Any, is_last: bool) -> Piece | None:
    """Give rows as lines, the commas between them as line ends; nothing for an array that is empty."""
    lines = np.frombuffer(data.translate(_LINES), np.uint8).copy()
    lines[commas] = ord("\n")
    text = lines.tobytes()
    if not text.strip(b" \t") and is_last and row == 0:
        return None
    missing = _EMPTY.search(text)
    if missing:
        raise FormatError(
            "nothing stands between two commas",
            where=source,
            row=row + text.count(_NEWLINE, 0, missing.end(1)),
        )
    nul = text.find(b"\0")
    if nul >= 0:
        raise FormatError(
            "a NUL",
            where=source,
            row=row + text.count(_NEWLINE, 0, nul),
            hint="Save it as UTF-8 text.",
        )
    try:
        if not text.isascii():
            text.decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"byte 0x{text[error.start]:02x} is not UTF-8",
            where=source,
            row=row + text.count(_NEWLINE, 0, error.start),
            hint="Save it as UTF-8 text.",
        ) from None
    return Piece(row, text)


class _Brackets:
    """Follows strings and brackets through a text that comes in blocks, none of which ends inside an escape."""

    def __init__(self) -> None:
        self._is_string, self._depth = False, 0

    def read(self, raw: Any) -> tuple[Any, Any, Any]:
        """Give where the brackets and commas outside strings stand, what they do to the depth (2: a comma), and the depth behind each."""
        quotes = _quotes(raw)
        marks = np.flatnonzero(_SIGNS[raw])
        marks = marks[(np.searchsorted(quotes, marks) + self._is_string) % 2 == 0]
        signs = _SIGNS[raw[marks]]
        depth = self._depth + np.cumsum(np.where(signs == 2, 0, signs))
        self._is_string = bool((len(quotes) + self._is_string) % 2)
        self._depth = int(depth[-1]) if len(depth) else self._depth
        return marks, signs, depth

    def rows(self, block: bytes) -> tuple[Any, int]:
        """Give where the commas between rows stand, and where the array ends; -1 if it does not end here."""
        marks, signs, depth = self.read(np.frombuffer(block, np.uint8))
        ends = marks[depth < 0]
        end = int(ends[0]) if len(ends) else -1
        commas = marks[(signs == 2) & (depth == 0)]
        return (commas[commas < end] if end >= 0 else commas), end


def member_names(data: bytes) -> set[bytes]:
    """Return the strings that a colon or a blank follows: the names of all members, and a few values."""
    raw = np.frombuffer(data, np.uint8)
    quotes = _quotes(raw)
    ends = quotes[1::2]
    begins = quotes[::2][: len(ends)]
    after = raw[np.minimum(ends + 1, len(raw) - 1)]
    is_name = np.isin(after, np.frombuffer(b": \t\r", np.uint8))
    pairs = zip(begins[is_name].tolist(), ends[is_name].tolist(), strict=True)
    return {data[begin + 1 : end] for begin, end in pairs}


def too_deep(data: bytes, most: int) -> int:
    """Give the number of the first line whose brackets nest deeper than `most`, -1 if there is none. Parsers take stack for each."""
    raw = np.frombuffer(data, np.uint8)
    opens = (raw | 0x20) == ord("{")  # `[` and `{` differ in that bit
    if np.count_nonzero(opens) <= most:
        return -1
    ends = np.append(np.flatnonzero(raw == ord("\n")), len(raw))
    begins = np.append(0, ends[:-1] + 1)
    counts = np.add.reduceat(np.append(opens, False).view(np.uint8), begins, dtype=np.int64)
    for line in np.flatnonzero(counts > most):
        if _deepest(data[begins[line] : ends[line]]) > most:
            return int(line)
    return -1


def _deepest(line: bytes) -> int:
    brackets, deepest, at = _Brackets(), 0, 0
    while at < len(line):
        block = line[at : at + _AT_ONCE]
        while block.endswith(b"\\") and at + len(block) < len(line):
            block = line[at : at + 2 * len(block)]
        _, _, depth = brackets.read(np.frombuffer(block, np.uint8))
        deepest, at = max(deepest, int(depth.max(initial=0))), at + len(block)
    return deepest


def _quotes(raw: Any) -> Any:
    """Give where the quotes stand that open or close a string: an even number of backslashes before them."""
    quotes = np.flatnonzero(raw == _QUOTE)
    slashes = np.flatnonzero(raw == _BACKSLASH)
    if not len(slashes) or not len(quotes):
        return quotes
    begins = np.concatenate([[True], np.diff(slashes) != 1])
    run = (
        np.arange(len(slashes))
        - np.maximum.accumulate(np.where(begins, np.arange(len(slashes)), 0))
        + 1
    )
    at = np.searchsorted(slashes, quotes) - 1
    before = (at >= 0) & (slashes[np.maximum(at, 0)] == quotes - 1)
    return quotes[~(before & (run[np.maximum(at, 0)] % 2 == 1))]
