"""Splits a JSON array of objects into lines of one object each by its brackets, without parsing.

Unescaped quotes open and close strings; brackets outside strings count the depth; a comma at the
array's own depth ends a row. Bytes between the rows are checked here, and the rows by the parser.
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

__all__ = ["split_array", "member_names", "first_deep_line"]

MAX_RECORD_BYTES = 64 << 20
STEP_BYTES = 1 << 20  # processed at once, with up to 24 bytes of memory for each
_SIGNS = np.zeros(256, np.int8)  # change of depth by each bracket; 2 marks a comma
_SIGNS[list(b"{[")], _SIGNS[list(b"}]")], _SIGNS[ord(",")] = 1, -1, 2
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BLANKS = b" \t\r\n"
_NEWLINE = b"\n"
_EMPTY = re.compile(rb"(^|\n)[ \t]*(?:\n|$)")
_LINES = bytes.maketrans(b"\r\n", b"  ")


def split_array(source: Blocks) -> Iterator[Piece]:
    """Yield the rows of an array, one per line, in pieces of some megabytes; `line` is the first
    row.

    raises  FormatError for an array without end, bytes after it, or a row of more than 64 MB
    """
    row, begun, brackets = 0, False, _Brackets()
    held, size = list[bytes](), 0  # of an incomplete row
    blocks, slash = source.blocks(), b""
    for read in blocks:
        block = slash + read if begun else read.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANKS)
        if not begun:
            begun, block = bool(block), block[1:]
        # a backslash that escapes the first byte of the next block
        slash = b"\\" * ((len(block) - len(block.rstrip(b"\\"))) % 2)
        block = block[: len(block) - len(slash)]
        commas, end = brackets.rows(block)
        if end < 0 and not len(commas):
            held, size = [*held, block], size + len(block)
            if size > MAX_RECORD_BYTES:
                raise FormatError(
                    f"a row is longer than {format_size(MAX_RECORD_BYTES)}", where=source, row=row
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
                raise FormatError("bytes follow the end of the array", where=source)
            return
        row, held = row + len(commas), [block[cut + 1 :]]
        size = len(held[0])
    raise FormatError(
        "the array does not end", where=source, hint="The file was cut short; fetch it again."
    )


def _lines(source: Blocks, row: int, data: bytes, commas: Any, is_last: bool) -> Piece | None:
    """Return rows as lines, with newlines instead of the commas between them; None for an empty
    array.
    """
    lines = np.frombuffer(data.translate(_LINES), np.uint8).copy()
    lines[commas] = ord("\n")
    text = lines.tobytes()
    if not text.strip(b" \t") and is_last and row == 0:
        return None
    missing = _EMPTY.search(text)
    if missing:
        raise FormatError(
            "an item of the array is empty",
            where=source,
            row=row + text.count(_NEWLINE, 0, missing.end(1)),
        )
    nul = text.find(b"\0")
    if nul >= 0:
        raise FormatError(
            "contains a NUL",
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
    """Tracks strings and brackets in text that is passed in blocks; no block ends inside an escape."""

    def __init__(self) -> None:
        self._is_string, self._depth = False, 0

    def read(self, raw: Any) -> tuple[Any, Any, Any]:
        """Return the brackets and commas outside strings: position, change of depth (2: comma),
        depth after.
        """
        quotes = _quotes(raw)
        marks = np.flatnonzero(_SIGNS[raw])
        marks = marks[(np.searchsorted(quotes, marks) + self._is_string) % 2 == 0]
        signs = _SIGNS[raw[marks]]
        depth = self._depth + np.cumsum(np.where(signs == 2, 0, signs))
        self._is_string = bool((len(quotes) + self._is_string) % 2)
        self._depth = int(depth[-1]) if len(depth) else self._depth
        return marks, signs, depth

    def rows(self, block: bytes) -> tuple[Any, int]:
        """Return the positions of the commas between rows, and the end of the array; -1 if it is
        not here.
        """
        marks, signs, depth = self.read(np.frombuffer(block, np.uint8))
        ends = marks[depth < 0]
        end = int(ends[0]) if len(ends) else -1
        commas = marks[(signs == 2) & (depth == 0)]
        return (commas[commas < end] if end >= 0 else commas), end


def member_names(data: bytes) -> set[bytes]:
    """Return the strings that precede a colon or a blank: the names of all members, and a few
    values.
    """
    raw = np.frombuffer(data, np.uint8)
    quotes = _quotes(raw)
    ends = quotes[1::2]
    begins = quotes[::2][: len(ends)]
    after = raw[np.minimum(ends + 1, len(raw) - 1)]
    is_name = np.isin(after, np.frombuffer(b": \t\r", np.uint8))
    pairs = zip(begins[is_name].tolist(), ends[is_name].tolist(), strict=True)
    return {data[begin + 1 : end] for begin, end in pairs}


def first_deep_line(data: bytes, max_depth: int) -> int:
    """Return the first line whose brackets nest deeper than `max_depth`, or -1.

    Parsers use stack for each.
    """
    raw = np.frombuffer(data, np.uint8)
    opens = (raw | 0x20) == ord("{")  # `[` and `{` differ in that bit
    if np.count_nonzero(opens) <= max_depth:
        return -1
    ends = np.append(np.flatnonzero(raw == ord("\n")), len(raw))
    begins = np.append(0, ends[:-1] + 1)
    counts = np.add.reduceat(np.append(opens, False).view(np.uint8), begins, dtype=np.int64)
    for line in np.flatnonzero(counts > max_depth):
        if _deepest(data[begins[line] : ends[line]]) > max_depth:
            return int(line)
    return -1


def _deepest(line: bytes) -> int:
    brackets, deepest, at = _Brackets(), 0, 0
    while at < len(line):
        block = line[at : at + STEP_BYTES]
        while block.endswith(b"\\") and at + len(block) < len(line):
            block = line[at : at + 2 * len(block)]
        _, _, depth = brackets.read(np.frombuffer(block, np.uint8))
        deepest, at = max(deepest, int(depth.max(initial=0))), at + len(block)
    return deepest


def _quotes(raw: Any) -> Any:
    """Return the positions of unescaped quotes."""
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
