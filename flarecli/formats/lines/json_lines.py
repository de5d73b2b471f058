r"""Lines of JSON taken apart, each value left as the text that stands there.

A line as `json.dumps(sample, sort_keys=True)` writes it has its quotes in known places, so a whole run of them is cut at once: where all
quotes, keys, colons and commas stand as they must, every string is closed and every number is one, the cut is what JSON says. Any other
line is parsed for itself, by a parser that knows all of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from flarecli.formats import byte_ranges as spans
from flarecli.lazy import pc
from flarecli.model import Column, Columns, IntArray

__all__ = ["Plan", "is_text", "parsed", "places", "planned", "split"]

_QUOTE, _SLASH, _COMMA, _SPACE, _OPEN, _CLOSE = b'"\\, {}'
_NUMBER_TEXT = (
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity"
)
_NUMBER = re.compile(_NUMBER_TEXT.encode())
_TEXT = re.compile(rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"')
_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=str
)  # numbers are only stepped over, whatever their length


def _flags(*runs: Iterable[int]) -> IntArray:
    out = np.zeros(256, bool)
    for run in runs:
        out[list(run)] = True
    return out


_ESCAPES = _flags(b'"\\/bfnrtu')
_HEX = _flags(b"0123456789abcdefABCDEF")


class Plan(NamedTuple):
    """How a line is laid out: of each column its name, what stands before its value, and whether that is text; what ends the line; the names."""

    columns: tuple[tuple[str, bytes, bool], ...]
    tail: bytes
    names: tuple[str, ...]

    @property
    def quotes(self) -> int:
        """Quotes in a line, without those inside of text."""
        return sum(4 if is_text else 2 for _, _, is_text in self.columns)


def planned(columns: Columns, newline: bytes) -> Plan:
    """Lay out the lines of a shard: its columns by name, by code point."""
    ordered = sorted(columns, key=lambda one: one.name)
    parts = [(one.name, json.dumps(one.name).encode() + b": ", is_text(one)) for one in ordered]
    laid = tuple(
        (name, (b", " if i else b"{") + key, text) for i, (name, key, text) in enumerate(parts)
    )
    return Plan(laid, (b"}" if laid else b"{}") + newline, tuple(name for name, _, _ in laid))


def is_text(one: Column) -> bool:
    """Whether a column's values are text, between quotes."""
    return one.encoding in ("json_str", "json_json")


# -- many lines


def places(
    data: IntArray, starts: IntArray, plan: Plan
) -> Mapping[str, tuple[IntArray, IntArray]] | None:
    """Say where each value lies in a run of lines.

    data    uint8 [bytes]; starts int64 [rows + 1], rising from 0 to the number of bytes
    return  name -> (starts, lengths), int64 [rows]; None if any line is not as `json.dumps` writes it
    """
    rows = len(starts) - 1
    if (np.diff(starts) < sum(len(before) for _, before, _ in plan.columns) + len(plan.tail)).any():
        return None  # and no room is made for names of any length in lines of none
    quotes = _quotes(data, plan.tail, rows)
    if quotes is None or len(quotes) != rows * plan.quotes:
        return None
    quotes = quotes.reshape(rows, plan.quotes)
    out, at, k = {}, starts[:-1], 0
    for i, (name, before, is_text) in enumerate(plan.columns):
        start = at + len(before)
        k += 2  # the key's own; where they are, `before` says
        if not _stands(data, at, before) or not (quotes[:, k - 1] == start - 3).all():
            return None
        if is_text:
            if not (quotes[:, k] == start).all():
                return None
            stop = quotes[:, k + 1] + 1
            k += 2
        else:
            stop = quotes[:, k] - 2 if i + 1 < len(plan.columns) else starts[1:] - len(plan.tail)
            if not _are_numbers(data, start, stop):
                return None
        out[name] = (start, stop - start)
        at = stop
    if not (at + len(plan.tail) == starts[1:]).all() or not _stands(data, at, plan.tail):
        return None
    return out


def _stands(data: IntArray, at: IntArray, text: bytes) -> bool:
    """Whether a text stands at each of some places."""
    if not len(at):
        return True
    if int(at.min()) < 0 or int(at.max()) + len(text) > len(data):
        return False
    return bool((data[at[:, None] + np.arange(len(text))] == np.frombuffer(text, np.uint8)).all())


def _are_numbers(data: IntArray, start: IntArray, stop: IntArray) -> bool:
    if not len(start):
        return True
    if not (start < stop).all() or int(start.min()) < 0 or int(stop.max()) > len(data):
        return False
    return bool(
        pc.all(
            pc.match_substring_regex(
                spans.ragged(data, start, stop - start), f"^(?:{_NUMBER_TEXT})$"
            ),
            min_count=0,
        ).as_py()
    )


def _quotes(data: IntArray, tail: bytes, rows: int) -> IntArray | None:
    """Find the quotes that open or close a text; None if a control character or an escape stands where none may."""
    if np.count_nonzero(data < 32) != rows * sum(byte < 32 for byte in tail):
        return None
    quotes, slashes = np.flatnonzero(data == _QUOTE), np.flatnonzero(data == _SLASH)
    if not len(slashes):
        return quotes
    if slashes[-1] + 1 >= len(data):
        return None
    order = np.arange(len(slashes))
    first = np.maximum.accumulate(
        np.where(np.diff(slashes, prepend=-2) != 1, order, 0)
    )  # of the run that each is in
    escapes = slashes[(order - first) % 2 == 0]
    kinds = data[escapes + 1]
    if not _ESCAPES[kinds].all():
        return None
    codes = escapes[kinds == ord("u")]
    if len(codes) and (
        codes[-1] + 6 > len(data) or not _HEX[data[codes[:, None] + np.arange(2, 6)]].all()
    ):
        return None
    return quotes[~np.isin(quotes, escapes[kinds == _QUOTE] + 1, assume_unique=True)]


# -- one line


def split(line: bytes, plan: Plan, strict: bool = False) -> list[bytes] | None:
    """Give the text of each value, in the order of the plan; None if the line is not as `json.dumps` writes it.

    strict  look into strings too, which takes as long as they are: for a control character, or an escape that is none
    """
    out, at = [], 0
    for _, before, is_text in plan.columns:
        start = at + len(before)
        if line[at:start] != before:
            return None
        if is_text:
            at = _closed(line, start)
            if not at or (strict and not _TEXT.fullmatch(line, start, at)):
                return None
        else:
            match = _NUMBER.match(line, start)
            if match is None:
                return None
            at = match.end()
        out.append(line[start:at])
    return out if line[at:] == plan.tail else None


def _closed(line: bytes, start: int) -> int:
    """Give where the text ends that starts at a place; 0 if none does, or it does not end."""
    if line[start : start + 1] != b'"':
        return 0
    stop = line.find(b'"', start + 1)
    while stop > 0:
        slash = stop - 1
        while line[slash] == _SLASH:
            slash -= 1
        if (stop - 1 - slash) % 2 == 0:
            return stop + 1
        stop = line.find(b'"', stop + 1)
    return 0


def parsed(line: bytes) -> dict[str, bytes]:
    """Give the text of each value of any JSON object, by its key; blanks may stand around it.

    raises  ValueError saying what is wrong
    """
    try:
        text = line.decode()
        return _object(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at character {error.pos}") from None


def _object(text: str) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    at = _mark(text, 0, "{")
    if text[at : at + 1] == "}":
        at = _blank(text, at + 1)
    else:
        while True:
            if text[at : at + 1] != '"':
                raise json.JSONDecodeError("a key is wanted", text, at)
            key, at = _DECODER.raw_decode(text, at)
            start = _mark(text, _blank(text, at), ":")
            _, at = _DECODER.raw_decode(text, start)
            if key in out:
                raise ValueError(f"two keys are named {key!r:.60}")
            out[key] = text[start:at].encode()
            at = _blank(text, at)
            if text[at : at + 1] != ",":
                break
            at = _blank(text, at + 1)
        at = _mark(text, at, "}")
    if at != len(text):
        raise json.JSONDecodeError("bytes follow the object", text, at)
    return out


def _blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _mark(text: str, at: int, mark: str) -> int:
    at = _blank(text, at)
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"{mark!r} is wanted", text, at)
    return _blank(text, at + 1)
