"""Parse long lists in a playlist without the YAML library, which is slow for many items.

Before the library parses the text, each long list that has an unambiguous syntax is replaced by a random placeholder.
Such a list has either one item `- a` per line, or lines of items separated by commas. The items consist of characters
without a meaning in YAML. If a placeholder is not an item of a list after parsing (for example, if it is in a block of
text), the reader must parse the complete text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

__all__ = ["lift"]

MIN_LIST_CHARACTERS = 4096  # the YAML library parses shorter lists
_PLAIN = r"[A-Za-z0-9_./][A-Za-z0-9_./:%?=&+@~-]*+(?<!:)"
_ITEM = rf'(?:"[ !#-\[\]-~]*+"|{_PLAIN})'
# Because of a bug in Python before 3.11.5, matching continues after a possessive group at the position at which the
# last attempt of the group failed. The pattern after the group must therefore not match at that position.
_LINE = rf"{_ITEM}(?>(?:, {_ITEM})*),\n"
_RUN = re.compile(rf"^( *)(?:- {_ITEM}\n(?:\1- {_ITEM}\n)++|{_LINE}(?:\1{_LINE})++)", re.MULTILINE)
_COUNTS = re.compile(r"(?: *+(?:0|[1-9][0-9]{0,17}+)[,\n]++)*+")
_TEXTS, _TEXT = re.compile(r'(?: *"[^"]*+"[,\n]*+)*+'), re.compile(r'"([^"]*+)"')
_ANY = re.compile(r'"([^"]*+)"|([^",\s]++)')


def lift(text: str, scalar: Callable[[str], Any]) -> tuple[str, dict[str, list[Any]]]:
    """Replace long lists in the text of a playlist with placeholders.

    scalar  function that parses an unquoted item
    return  the text with the same number of lines, and a mapping of placeholder to list items
    """
    lifted: dict[str, list[Any]] = {}
    pieces: list[str] = []
    done, prefix = 0, f"lifted{os.urandom(16).hex()}x"
    for match in _RUN.finditer(text):
        start, indent = match.start(), match[1]
        stop = text.rfind("\n", start, match.end()) + 1  # end of the last complete line
        if stop - start < MIN_LIST_CHARACTERS:
            continue
        placeholder = f"{prefix}{len(lifted)}"
        if text[match.end(1)] == "-":
            # The last item may continue on the next line.
            stop = text.rindex("\n", start, stop - 1) + 1
            lifted[placeholder] = _parse_block(text[start:stop], f"{indent}- ", scalar)
            replacement = f"{indent}- {placeholder}"
        else:
            body = text[start:stop]
            lifted[placeholder] = _parse_flow(body, scalar)
            replacement = f"{indent}{placeholder},"
        lines = text.count("\n", start, stop)
        pieces += (text[done:start], replacement, "\n" * lines)
        done = stop
    return "".join((*pieces, text[done:])), lifted


def _parse_block(body: str, head: str, scalar: Callable[[str], Any]) -> list[Any]:
    if body.startswith(f'{head}"') and body.count('"') == 2 * body.count("\n"):
        return body[len(head) + 1 : -2].split(f'"\n{head}"')
    items = body[len(head) : -1].split(f"\n{head}")
    if items[0].isdigit() and (counts := _parse_counts(",".join([*items, ""]))) is not None:
        return counts
    return [item[1:-1] if item[0] == '"' else scalar(item) for item in items]


def _parse_flow(body: str, scalar: Callable[[str], Any]) -> list[Any]:
    counts = _parse_counts(body) if '"' not in body else None
    if counts is not None:
        return counts
    if _TEXTS.fullmatch(body):
        return _TEXT.findall(body)
    return [scalar(plain) if plain else quoted for quoted, plain in _ANY.findall(body)]


def _parse_counts(body: str) -> list[Any] | None:
    """Parse counts separated by commas; return None if any item is not a count."""
    if not _COUNTS.fullmatch(body):
        return None
    return list(map(int, body.rstrip(", \n").split(",")))
