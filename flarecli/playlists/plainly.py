"""Playlists as flare writes them, read without the YAML library: loading that takes longer than reading a small one.

Known is only what means the same to every reader of YAML: mappings in blocks, lists of one item a line, and flow style, of quoted
texts without escapes and words of letters and digits. Anything else, and whatever is wrong, is left to YAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from flarecli.playlists.wrong import Map

__all__ = ["plain_map"]

_DEEP = 4  # levels in blocks, and in flow style
_TEXT = r'"([ !#-\[\]-~]*)"|([A-Za-z0-9_/][A-Za-z0-9_./-]*)'
_TOKEN = re.compile(rf"{_TEXT}|([\[{{])")
_KEY = re.compile(rf"(?:{_TEXT}):(?= |\Z)")
_COMMENT = re.compile(r"#[ -~]*\Z")
_KEY_LIMIT = 1000  # characters; YAML takes no longer ones

_Scalar: TypeAlias = Callable[[str], Any]


class _Unknown(Exception):
    """Something that is left to YAML."""


def plain_map(text: str, scalar: _Scalar) -> Map | None:
    """Read a mapping in blocks; its marks are not filled in.

    scalar  gives what a plain word means
    return  None where anything is not as flare writes it
    """
    lines = [line for line in text.split("\n") if line and not _COMMENT.match(line)]
    try:
        found, end = _block(lines, 0, 0, scalar)
    except (_Unknown, IndexError):
        return None
    return found if end == len(lines) and lines and text.endswith("\n") else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(lines: list[str], i: int, indent: int, scalar: _Scalar) -> tuple[Map, int]:
    """Read the mapping whose keys stand `indent` spaces in, from line i; give the line behind it too."""
    out = Map()
    while i < len(lines) and (deep := _indent(lines[i])) >= indent:
        match = _KEY.match(lines[i], indent)
        if (
            deep > indent
            or match is None
            or match.end() - indent > _KEY_LIMIT
            or indent > 2 * _DEEP
        ):
            raise _Unknown
        key, rest = _name(match, scalar), lines[i][match.end() + 1 :]
        if key in out:
            raise _Unknown
        i += 1
        if rest:
            while rest.endswith(("[", ",")):  # goes on in the next line
                if _indent(lines[i]) <= indent or rest.count('"') % 2:
                    raise _Unknown
                rest += " " * (rest[-1] == ",") + lines[i].lstrip(" ")
                i += 1
            out[key] = _whole(rest, scalar)
        elif (below := _indent(lines[i])) <= indent:
            raise _Unknown
        elif lines[i].startswith("- ", below):
            out[key], i = _items(lines, i, below, scalar)
        else:
            out[key], i = _block(lines, i, below, scalar)
    return out, i


def _items(lines: list[str], i: int, indent: int, scalar: _Scalar) -> tuple[list[Any], int]:
    """Read a list of one item a line."""
    out = []
    while i < len(lines) and (deep := _indent(lines[i])) >= indent:
        if deep > indent or not lines[i].startswith("- ", indent):
            raise _Unknown
        out.append(_whole(lines[i][indent + 2 :], scalar))
        i += 1
    return out, i


def _name(match: re.Match[str], scalar: _Scalar) -> str:
    quoted, plain = match[1], match[2]
    found = quoted if quoted is not None else scalar(plain)
    if not isinstance(found, str):
        raise _Unknown
    return found


def _whole(text: str, scalar: _Scalar) -> Any:
    value, end = _flow(text, 0, scalar, 0)
    if end != len(text):
        raise _Unknown
    return value


def _flow(text: str, at: int, scalar: _Scalar, depth: int) -> tuple[Any, int]:
    """Read the value that begins at a place in flow style; give the place behind it too."""
    match = _TOKEN.match(text, at)
    if match is None or depth > _DEEP:
        raise _Unknown
    quoted, plain, sign = match.groups()
    at = match.end()
    if plain is not None:
        return scalar(plain), at
    if quoted is not None:
        return quoted, at
    out: Any = [] if sign == "[" else Map()
    closing = "]" if sign == "[" else "}"
    if text.startswith(closing, at):
        return out, at + 1
    while True:
        if sign == "[":
            value, at = _flow(text, at, scalar, depth + 1)
            out.append(value)
        else:
            at = _pair(text, at, out, scalar, depth)
        if text.startswith(closing, at):
            return out, at + 1
        if not text.startswith(", ", at):
            raise _Unknown
        at += 2


def _pair(text: str, at: int, out: Map, scalar: _Scalar, depth: int) -> int:
    match = _KEY.match(text, at)
    if match is None or match.end() - at > _KEY_LIMIT or (key := _name(match, scalar)) in out:
        raise _Unknown
    out[key], at = _flow(text, match.end() + 1, scalar, depth + 1)
    return at
