"""Playlists read without trust: events, never documents.

No tag, no alias, no second document, no depth or size without a bound, and `no`, `012` and `1:30` stay the texts they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from flarecli.encodings import column
from flarecli.errors import FormatError, Place
from flarecli.hashes import digest, known
from flarecli.lazy import np
from flarecli.model import Columns, File, IntArray, Playlist, Stream
from flarecli.names import bare
from flarecli.playlists.fast_lists import lift
from flarecli.playlists.schema import (
    COUNTS,
    Map,
    halves,
    not_addresses,
    place_of,
    wrong_halves,
    wrong_headers,
)
from flarecli.storage import Location

__all__ = ["FLOAT", "fault", "parse", "read", "read_document", "read_yaml", "stored"]

_SIZE_LIMIT = 1 << 30  # bytes; a million chunks take a tenth
_DEPTH_LIMIT = 16
_SUM_LINE = re.compile(rb"# flare xxh3_128 ([0-9a-f]{32})\n\Z")
_INT = re.compile(
    r"-?(?:0|[1-9]\d{0,38})", re.ASCII
)  # as long as a number may be: a float would be another one
FLOAT = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_SUMS = frozenset(known())


def _mark(event: Any) -> int:
    """Give line and column of where something begins, both from 1."""
    return int(event.start_mark.line + 1) << 32 | int(event.start_mark.column + 1)


def _mark_in(text: str | bytes, position: int) -> int:
    """Give line and column of a position in a text."""
    new: Any = "\n" if isinstance(text, str) else b"\n"
    return (text.count(new, 0, position) + 1) << 32 | position - text.rfind(new, 0, position)


def read(at: Location) -> Playlist:
    """Read the playlist at an address. Raises FormatError with the line if it is not one."""
    return parse(stored(at), at)


def stored(at: Location) -> bytes:
    """Read the bytes of the playlist at an address. Raises FormatError if they are more than any has."""
    size = at.size()
    if size > _SIZE_LIMIT:
        raise FormatError(f"{size} bytes, {_SIZE_LIMIT} is the most that is read", where=at)
    return at.read(0, size)


def parse(data: bytes, at: Location) -> Playlist:
    """Read a playlist from its bytes; `at` is its own address, from which relative URLs start.

    raises  FormatError with line and column of the first fault
    """
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        raise fault(at, _mark_in(data, error.start), f"not UTF-8 at byte {error.start}") from None
    match = _SUM_LINE.search(data, max(0, len(data) - 100))
    protected = bool(match) and digest(memoryview(data)[: match.start()]) == match[1].decode()  # type: ignore[index, union-attr]
    del data, match  # there may be a hundred megabytes of it
    root = read_document(decoded, at)
    del decoded
    if not isinstance(root, Map):
        raise fault(at, 1 << 32 | 1, "no mapping of streams in it")
    return Playlist(
        tuple(_stream(name, value, at, root.marks[name]) for name, value in root.items()),
        at,
        protected,
    )


def place_at(at: Location, mark: int) -> Place:
    """Return the line and the character of a mark in a playlist."""
    return Place(at, line=mark >> 32, character=mark & 0xFFFFFFFF)


def fault(at: Location, mark: int, message: str) -> FormatError:
    """Return the error for a mark in a playlist."""
    return FormatError(message, where=place_at(at, mark))


def read_document(decoded: str, at: Location) -> Any:
    """Read YAML, long lists of plain items without the YAML library. Raises FormatError as `read_yaml` does."""
    short, lifted = lift(decoded, _plain)
    if lifted:
        try:
            value = read_yaml(short, at, lifted)
            if not lifted:
                return value
        except FormatError:  # what is wrong, and where, is told from the whole
            pass
    return read_yaml(decoded, at, {})


def read_yaml(
    decoded: str, at: Location, lifted: dict[str, list[Any]], found: list[FormatError] | None = None
) -> Any:
    """Read YAML; the items of long lists are taken from `lifted`, whose words stand for them.

    found   takes the faults that one can read on behind; without it the first is raised
    raises  FormatError for what is no YAML, or nested too deeply
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events: Iterator[Any] = yaml.parse(decoded, Loader=loader)
    try:
        value, documents = None, 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise fault(at, _mark(event), "a second document")
                value = _value(next(events), events, _Reading(at, lifted, found))
        return value
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark
        line, character = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise FormatError(
            f"not valid YAML: {error.problem}", where=Place(at, line=line, character=character)
        ) from None
    except yaml.YAMLError as error:
        position = getattr(error, "position", 0)
        if loader is not yaml.SafeLoader:  # libyaml counts bytes
            position = len(decoded.encode()[:position].decode(errors="ignore"))
        mark = _mark_in(decoded, position)
        raise fault(at, mark, f"not valid YAML: {str(error).splitlines()[0][:200]}") from None


class _Reading(NamedTuple):
    """What stays the same while one document is read."""

    at: Location
    lifted: dict[str, list[Any]]
    found: list[FormatError] | None

    def refuse(self, event: Any, message: str) -> None:
        """Note a fault, or raise it where nobody collects them."""
        error = fault(self.at, _mark(event), message)
        if self.found is None:
            raise error
        self.found.append(error)


def _value(event: Any, events: Iterator[Any], of: _Reading, depth: int = 0) -> Any:
    import yaml

    if isinstance(event, yaml.AliasEvent) or event.anchor:
        of.refuse(event, f"an alias or anchor ({event.anchor}), which playlists do not take")
        if isinstance(event, yaml.AliasEvent):
            return None
    if event.tag:
        of.refuse(event, f"a tag ({event.tag:.60}), which playlists do not take")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event.value, event.implicit[0])
    if depth >= _DEPTH_LIMIT:
        raise fault(of.at, _mark(event), f"nested deeper than {_DEPTH_LIMIT}")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            run = (
                of.lifted.pop(event.value, None)
                if of.lifted and isinstance(event, yaml.ScalarEvent)
                else None
            )
            if run is None:
                items.append(_value(event, events, of, depth + 1))
            else:
                items += run
        return items
    out = Map()
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key, value = (
            _value(event, events, of, depth + 1),
            _value(next(events), events, of, depth + 1),
        )
        if not isinstance(key, str):
            of.refuse(event, f"the name {key!r:.60} is not text; put it in quotes")
        elif key in out:
            of.refuse(event, f"the name {key!r:.60} was used in line {out.marks[key] >> 32}")
        else:
            out.marks[key], out[key] = _mark(event), value
    return out


def _scalar(text: str, plain: bool) -> Any:
    return _plain(text) if plain else text


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return (
        float(text)
        if FLOAT.fullmatch(text) and len(text) < 40 and math.isfinite(float(text))
        else text
    )


def _stream(name: str, value: Any, at: Location, mark: int) -> Stream:
    for steps, message in wrong_halves(name, value):
        raise fault(at, place_of(value, steps) or mark, message)
    headers, urls = halves(value)
    for steps, message in not_addresses(name, urls):
        raise fault(at, place_of(value, steps), message)
    for steps, message in wrong_headers(headers, len(urls)):
        raise fault(at, place_of(headers, steps), message)
    hashes = {key: headers[key] for key in sorted(_SUMS) if key in headers}
    taken = {"format", "columns", "files", "parts", *COUNTS, *hashes}
    counts = {key: _counts(headers.get(key)) for key in COUNTS}
    return Stream(
        name,
        at.folder,
        headers.get("format"),
        [bare(url) for url in urls] if any(url.startswith("./") for url in urls) else urls,
        _columns(headers.get("columns")),
        counts["rows"],
        counts["bytes"],
        hashes,
        counts["raw_bytes"],
        {},
        {key: one for key, one in headers.items() if key not in taken},
        {bare(key): _file(key, one) for key, one in (headers.get("files") or {}).items()},
        [
            tuple(_file(key, one) for key, one in part.items())
            for part in headers.get("parts") or ()
        ],
    )


def _counts(values: Any) -> IntArray | None:
    return (
        None
        if values is None
        else np.array([-1 if value is None else value for value in values], np.int64)
    )


def _columns(columns: Map | None) -> Columns | None:
    return (
        None
        if columns is None
        else tuple(column(name, encoding) for name, encoding in columns.items())
    )


def _file(name: str, value: Map) -> File:
    return File(
        bare(name),
        value.get("bytes"),
        {key: one for key, one in value.items() if key in _SUMS},
        value.get("raw_bytes"),
    )
