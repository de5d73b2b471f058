"""Long lists of plain items, taken out of a playlist's text before the YAML library sees it: it makes an event of each, in microseconds.

Only what can be read in no other way is taken: items `- a`, one a line, or lines of items with commas between, of characters that
mean nothing to YAML. A word of its own, which no one can guess, stands where they stood. Whoever reads the rest must find each
word as an item of a list; if one is elsewhere, in a block of text, say, nothing was a list, and the whole is read as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

__all__ = ["lift"]

_WORTH = 4096  # characters that are worth it
_PLAIN = r"[A-Za-z0-9_./][A-Za-z0-9_./:%?=&+@~-]*+(?<!:)"
_ITEM = rf'(?:"[ !#-\[\]-~]*+"|{_PLAIN})'
# Python before 3.11.5 leaves a group that is repeated possessively where its last try failed: what follows one must not fit there
_LINE = rf"{_ITEM}(?>(?:, {_ITEM})*),\n"
_RUN = re.compile(rf"^( *)(?:- {_ITEM}\n(?:\1- {_ITEM}\n)++|{_LINE}(?:\1{_LINE})++)", re.MULTILINE)
_COUNTS = re.compile(r"(?: *+(?:0|[1-9][0-9]{0,17}+)[,\n]++)*+")
_TEXTS, _TEXT = re.compile(r'(?: *"[^"]*+"[,\n]*+)*+'), re.compile(r'"([^"]*+)"')
_ANY = re.compile(r'"([^"]*+)"|([^",\s]++)')


def lift(text: str, scalar: Callable[[str], Any]) -> tuple[str, dict[str, list[Any]]]:
    """Take the long lists out.

    scalar  gives what a plain item means
    return  the text with as many lines as before, and word -> the items that it stands for
    """
    lifted: dict[str, list[Any]] = {}
    pieces: list[str] = []
    done, secret = 0, f"lifted{os.urandom(16).hex()}x"
    for match in _RUN.finditer(text):
        start, stop, indent = (
            match.start(),
            text.rfind("\n", match.start(), match.end()) + 1,
            match[1],
        )  # whole lines, whatever was tried behind
        if stop - start < _WORTH:
            continue
        word = f"{secret}{len(lifted)}"
        if text[match.end(1)] == "-":
            stop = text.rindex("\n", start, stop - 1) + 1  # the last may go on in the next line
            lifted[word] = _block(text[start:stop], f"{indent}- ", scalar)
            stand_in = f"{indent}- {word}"
        else:
            body = text[start:stop]
            lifted[word] = _flow(body, scalar)
            stand_in = f"{indent}{word},"
        lines = text.count("\n", start, stop)
        pieces += (text[done:start], stand_in, "\n" * lines)
        done = stop
    return "".join((*pieces, text[done:])), lifted


def _block(body: str, head: str, scalar: Callable[[str], Any]) -> list[Any]:
    if body.startswith(f'{head}"') and body.count('"') == 2 * body.count("\n"):
        return body[len(head) + 1 : -2].split(f'"\n{head}"')
    items = body[len(head) : -1].split(f"\n{head}")
    if items[0].isdigit() and (counts := _counts(",".join([*items, ""]))) is not None:
        return counts
    return [item[1:-1] if item[0] == '"' else scalar(item) for item in items]


def _flow(body: str, scalar: Callable[[str], Any]) -> list[Any]:
    counts = _counts(body) if '"' not in body else None
    if counts is not None:
        return counts
    if _TEXTS.fullmatch(body):
        return _TEXT.findall(body)
    return [scalar(plain) if plain else quoted for quoted, plain in _ANY.findall(body)]


def _counts(body: str) -> list[Any] | None:
    """Read numbers with commas between; None unless every one is written as a count is."""
    if not _COUNTS.fullmatch(body):
        return None
    return list(map(int, body.rstrip(", \n").split(",")))
