r"""JSON shards of MosaicML Streaming: a line of JSON per sample, and a `.meta` file.

`lines.base` describes the `.meta` file. A line is `json.dumps(sample, sort_keys=True)`, followed by
the `newline` string of the shard, which is any JSON whitespace or empty. The value of a column is
the JSON text in the line; the JSON text of a string includes the quotes and escapes. The encoding
of the column is `json_str`, `json_json`, `json_int` or `json_float`.

In lines that `json.dumps` writes, the order of quotes and keys is known, so numpy can split many
lines at once. The result is used if all quotes, keys, colons and commas are at the expected
offsets, every string is closed, and every number is valid. A JSON parser reads all other lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flarecli import compress
from flarecli.errors import FormatError, UsageError, ValueFitError
from flarecli.formats import byte_ranges
from flarecli.formats.base import BINARY, FLOATS, INTEGERS, LISTED_PICTURES, Substitutes
from flarecli.formats.lines import base as lines
from flarecli.formats.lines.base import LineFormat, LineWriter
from flarecli.formats.mds import config as mds_config
from flarecli.lazy import pa, pc
from flarecli.model import (
    ByteArray,
    Column,
    Columns,
    IntArray,
    Row,
    Settings,
    Shard,
)

__all__ = ["JSONShards", "Plan", "is_text", "parsed", "places", "planned", "split"]

_WHITESPACE = frozenset(" \t\n\r")


class JSONShards(LineFormat):
    """JSON shards: one JSON object per line."""

    name = "json"
    suffixes = tuple(f".json{end}" for end in ("", *(f".{name}" for name in compress.SUFFIXES)))
    options = frozenset({"newline"})
    readers = "MosaicML readers"
    substitutes: ClassVar[Substitutes] = {
        **dict.fromkeys((*BINARY, *LISTED_PICTURES, "bytes[]")),
        **dict.fromkeys(("str", "str_decimal"), "json_str"),
        **dict.fromkeys(("str_int", "varint", *INTEGERS), "json_int"),
        **dict.fromkeys(("str_float", "msgpack_float", *FLOATS), "json_float"),
        **dict.fromkeys(("json", "ndarray", "array", "msgpack", "tree"), "json_json"),
        "ndarray[]": "json_json",
        "*[]": "json_json",
    }

    def parse_layout(
        self, columns: Columns, config: Mapping[str, Any], where: object
    ) -> Mapping[str, Any]:
        """Return the newline string of a shard, and an empty header."""
        newline = mds_config.text_of(config, "newline", where, empty=True)
        return {"header": b"", "newline": newline}

    def line_writer(self, columns: Columns, settings: Settings) -> LineWriter:
        """Return the writer for JSON lines.

        raises  UsageError for a newline that is not JSON whitespace
        """
        if not _WHITESPACE.issuperset(settings.newline):
            raise UsageError(
                f"invalid newline: expected JSON whitespace, got {settings.newline!r:.60}",
                hint="Choose a --newline such as '\\n' or '\\r\\n'.",
            )
        plan = planned(columns, settings.newline)
        return LineWriter(
            b"",
            plan.fixed_bytes,
            lambda piece: _check(columns, piece, plan),
            lambda piece: _parts(columns, piece, plan),
        )

    def locate(self, shard: Shard, data: ByteArray, starts: IntArray) -> lines.Places | None:
        """Locate each value in lines that `json.dumps` wrote; see `places`."""
        return places(data, starts, _plan(shard))

    def split_line(self, shard: Shard, row: int, line: bytes) -> Row:
        """Return the JSON text of each value in a line."""
        plan = _plan(shard)
        parts = split(line, plan)
        if parts is not None:
            return dict(zip(plan.names, parts, strict=True))
        try:
            values = parsed(line)
        except ValueError as error:
            raise FormatError(str(error), where=shard.chunk.at, row=row) from None
        expected = set(plan.names)
        if values.keys() != expected:
            name = min(values.keys() ^ expected)
            raise FormatError(
                f"column {name!r:.60} is {'missing' if name in expected else 'unknown'}",
                where=shard.chunk.at,
                row=row,
                column=name,
            )
        return {**values}

    def check_lines(self, shard: Shard, start: int, stop: int, values: bool) -> None:
        """Check that every line is an object with the shard's columns.

        values  also check every value
        raises  FormatError with the row of an invalid line; ValueFitError with the row of an
                invalid value
        """
        batch = self.read_batch(shard, start, stop)
        if not values:
            return
        for one in shard.columns:
            pattern = r'^"' if is_text(one) else r"^[-0-9tfnNI]"
            invalid = pc.invert(pc.match_substring_regex(batch.column(one.name), pattern))
            if pc.any(invalid, min_count=0).as_py():
                row = start + int(pc.index(invalid, True).as_py())
                raise ValueFitError(
                    f"column {one.name!r:.60}: not a valid {one.encoding} value",
                    where=shard.chunk.at,
                    row=row,
                    column=one.name,
                )


def _plan(shard: Shard) -> Plan:
    plan: Plan | None = shard.memo.get("plan")
    if plan is None:
        plan = shard.memo["plan"] = planned(shard.columns, shard.layout["newline"])
    return plan


def _check(columns: Columns, batch: pa.RecordBatch, plan: Plan) -> None:
    """Raise ValueFitError for the first row with a null, or with a value of the wrong JSON type."""
    fields = lines.stored_columns(columns, batch)
    kinds = {name: is_text for name, _, is_text in plan.columns}
    unusual: set[int] = set()
    for name, array in fields.items():
        pattern = _TEXT_PATTERN if kinds[name] else _NUMBER_PATTERN
        matches = pc.match_substring_regex(array, f"^(?:{pattern})$")
        if not pc.all(matches, min_count=0).as_py():
            unusual.update(pc.indices_nonzero(pc.invert(matches)).to_pylist())
    for row in sorted(unusual):  # the patterns do not match all valid JSON values
        for name, array in fields.items():
            data = array[row].as_py()
            try:
                is_valid = (
                    parsed(b'{"": ' + data + b"}")[""] == data
                    and data.startswith(b'"') == kinds[name]
                )
            except ValueError:
                is_valid = False
            if not is_valid or data[:1] in b"{[":
                expected = "string" if kinds[name] else "number"
                raise ValueFitError(
                    f"column {name!r}: expected a JSON {expected}, got {data[:60]!r}",
                    row=row,
                    column=name,
                )


def _parts(columns: Columns, batch: pa.RecordBatch, plan: Plan) -> list[Any]:
    """Return the columns of a batch and the constant bytes around them; see `LineWriter.parts`."""
    fields = lines.stored_columns(columns, batch)
    return [
        *(part for name, before, _ in plan.columns for part in (before.encode(), fields[name])),
        plan.tail.encode(),
    ]


# -- splitting lines

_QUOTE, _SLASH = b'"\\'
_NUMBER_PATTERN = (
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity"
)
_TEXT_PATTERN = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_WHITESPACE_RUN = re.compile(r"[ \t\n\r]*")
# Numbers are not converted, because only the positions at which the numbers end are used.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


_ESCAPES = np.isin(np.arange(256), list(b'"\\/bfnrtu'))
_HEX = np.isin(np.arange(256), list(b"0123456789abcdefABCDEF"))


class Plan(NamedTuple):
    """The layout of a JSON line.

    columns  for each column: name; text before the value; True if the value is a string
    tail     text after the last value
    names    column names
    """

    columns: tuple[tuple[str, str, bool], ...]
    tail: str
    names: tuple[str, ...]

    @property
    def quotes(self) -> int:
        """Number of unescaped quotes in a line."""
        return sum(4 if is_text else 2 for _, _, is_text in self.columns)

    @property
    def fixed_bytes(self) -> int:
        """Number of bytes in a line besides the values."""
        return len(self.tail.encode()) + sum(len(before) for _, before, _ in self.columns)


def planned(columns: Columns, newline: str) -> Plan:
    """Return the layout of a shard's lines.

    Columns are sorted by the code points of their names.
    """
    ordered = sorted(columns, key=lambda one: one.name)
    laid = tuple(
        (one.name, f"{', ' if i else '{'}{json.dumps(one.name)}: ", is_text(one))
        for i, one in enumerate(ordered)
    )
    return Plan(laid, ("}" if laid else "{}") + newline, tuple(one.name for one in ordered))


def is_text(one: Column) -> bool:
    """Return whether a column's values are JSON strings."""
    return one.encoding in ("json_str", "json_json")


# -- many lines


def places(
    data: ByteArray, starts: IntArray, plan: Plan
) -> Mapping[str, tuple[IntArray, IntArray]] | None:
    """Locate each value in consecutive lines.

    data    bytes of the lines: uint8 [bytes]
    starts  start of each line in `data`, and the end of the last line: int64 [rows + 1]
    return  column name -> (starts, lengths) of the values, int64 [rows] each; None if a line
            differs from the output of `json.dumps`
    """
    rows = len(starts) - 1
    if (np.diff(starts) < plan.fixed_bytes).any():
        # A config may declare very long names, so the line sizes are checked before arrays are
        # allocated.
        return None
    tail = plan.tail.encode()
    quotes = _quotes(data, tail, rows)
    if quotes is None or len(quotes) != rows * plan.quotes:
        return None
    quotes = quotes.reshape(rows, plan.quotes)
    out, at, k = {}, starts[:-1], 0
    numbers: list[tuple[IntArray, IntArray]] = []
    for i, (name, before, is_text) in enumerate(plan.columns):
        start = at + len(before)
        k += 2  # two quotes enclose the key
        if not _has_text_at(data, at, before.encode()) or not (quotes[:, k - 1] == start - 3).all():
            return None
        if is_text:
            if not (quotes[:, k] == start).all():
                return None
            stop = quotes[:, k + 1] + 1
            k += 2
        else:
            stop = quotes[:, k] - 2 if i + 1 < len(plan.columns) else starts[1:] - len(tail)
            numbers.append((start, stop))
        out[name] = (start, stop - start)
        at = stop
    if not (at + len(tail) == starts[1:]).all() or not _has_text_at(data, at, tail):
        return None
    if numbers:
        # order the ranges by row, because `ragged` requires ranges that are sorted by start
        begins, ends = (np.stack(one, axis=1).reshape(-1) for one in zip(*numbers, strict=True))
        if not _are_numbers(data, begins, ends):
            return None
    return out


def _has_text_at(data: ByteArray, at: IntArray, text: bytes) -> bool:
    """Return whether `data` contains `text` at every offset in `at`."""
    if not len(at):
        return True
    if int(at.min()) < 0 or int(at.max()) + len(text) > len(data):
        return False
    return bool((data[at[:, None] + np.arange(len(text))] == np.frombuffer(text, np.uint8)).all())


def _are_numbers(data: ByteArray, start: IntArray, stop: IntArray) -> bool:
    if not len(start):
        return True
    if not (start < stop).all() or int(start.min()) < 0 or int(stop.max()) > len(data):
        return False
    return bool(
        pc.all(
            pc.match_substring_regex(
                byte_ranges.ragged(data, start, stop - start), f"^(?:{_NUMBER_PATTERN})$"
            ),
            min_count=0,
        ).as_py()
    )


def _quotes(data: ByteArray, tail: bytes, rows: int) -> IntArray | None:
    """Return the offsets of unescaped quotes; None for invalid characters or escapes."""
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
    )  # start of each run of backslashes
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


def split(line: bytes, plan: Plan) -> list[bytes] | None:
    """Return the JSON text of each value in a line, in the order of `plan.columns`.

    The result is None if the line is invalid, or differs from the output of `json.dumps`.
    """
    out, at = [], 0
    try:
        text = line.decode()
        for _, before, _ in plan.columns:
            if not text.startswith(before, at):
                return None
            start = at + len(before)
            _, at = _DECODER.raw_decode(text, start)
            out.append(text[start:at].encode())
    except (ValueError, RecursionError):
        return None
    return out if text[at:] == plan.tail else None


def parsed(line: bytes) -> dict[str, bytes]:
    """Return the JSON text of each value in a JSON object: key -> text.

    Whitespace around the object is allowed.

    raises  ValueError for invalid JSON, or JSON that is not an object
    """
    try:
        text = line.decode()
        return _object(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at character {error.pos}") from None


def _object(text: str) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    at = _expect(text, 0, "{")
    if text[at : at + 1] == "}":
        at = _skip_whitespace(text, at + 1)
    else:
        while True:
            if text[at : at + 1] != '"':
                raise json.JSONDecodeError("expected a key", text, at)
            key, at = _DECODER.raw_decode(text, at)
            start = _expect(text, _skip_whitespace(text, at), ":")
            _, at = _DECODER.raw_decode(text, start)
            if key in out:
                raise ValueError(f"duplicate key {key!r:.60}")
            out[key] = text[start:at].encode()
            at = _skip_whitespace(text, at)
            if text[at : at + 1] != ",":
                break
            at = _skip_whitespace(text, at + 1)
        at = _expect(text, at, "}")
    if at != len(text):
        raise json.JSONDecodeError("unexpected data after the object", text, at)
    return out


def _skip_whitespace(text: str, at: int) -> int:
    match = _WHITESPACE_RUN.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, mark: str) -> int:
    at = _skip_whitespace(text, at)
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"expected {mark!r}", text, at)
    return _skip_whitespace(text, at + 1)
