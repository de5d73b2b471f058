"""Reading of untrusted playlists, from YAML events.

Tags, aliases and further documents are errors; depth and size are limited; `no`, `012` and `1:30`
are text.
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
    address_faults,
    header_faults,
    place_of,
    split_stream,
    stream_faults,
)
from flarecli.storage import Location

__all__ = ["FLOAT", "fault", "parse", "read", "read_document", "read_yaml", "stored"]

MAX_BYTES = 1 << 30  # ten times a playlist of a million chunks
MAX_DEPTH = 16
_CHECKSUM_LINE = re.compile(rb"# flare xxh3_128 ([0-9a-f]{32})\n\Z")
# longer integers are text, because floats are too inexact
_INT = re.compile(r"-?(?:0|[1-9]\d{0,38})", re.ASCII)
FLOAT = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_HASHES = frozenset(known())


def _mark(event: Any) -> int:
    """Return line and column of the start of an event in one number; both count from 1."""
    return int(event.start_mark.line + 1) << 32 | int(event.start_mark.column + 1)


def _mark_in(text: str | bytes, position: int) -> int:
    """Return line and column of a position in a text in one number."""
    new: Any = "\n" if isinstance(text, str) else b"\n"
    return (text.count(new, 0, position) + 1) << 32 | position - text.rfind(new, 0, position)


def read(at: Location) -> Playlist:
    """Read the playlist at an address. Raises FormatError with the line if it is not valid."""
    return parse(stored(at), at)


def stored(at: Location) -> bytes:
    """Read the bytes of the playlist at an address.

    Raises FormatError if it is larger than MAX_BYTES.
    """
    size = at.size()
    if size > MAX_BYTES:
        raise FormatError(f"file is {size} bytes; the maximum is {MAX_BYTES}", where=at)
    return at.read(0, size)


def parse(data: bytes, at: Location) -> Playlist:
    """Parse the bytes of a playlist; `at` is its address, the base of relative URLs.

    raises  FormatError with line and column of the first fault
    """
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        raise fault(at, _mark_in(data, error.start), f"not UTF-8 at byte {error.start}") from None
    match = _CHECKSUM_LINE.search(data, max(0, len(data) - 100))
    protected = match is not None and digest(memoryview(data)[: match.start()]) == match[1].decode()
    del data, match  # may be large
    root = read_document(decoded, at)
    del decoded
    if not isinstance(root, Map):
        raise fault(at, 1 << 32 | 1, "expected a mapping of streams")
    return Playlist(
        tuple(_stream(name, value, at, root.marks[name]) for name, value in root.items()),
        at,
        protected,
    )


def place_at(at: Location, mark: int) -> Place:
    """Return the place of a mark in a playlist."""
    return Place(at, line=mark >> 32, character=mark & 0xFFFFFFFF)


def fault(at: Location, mark: int, message: str) -> FormatError:
    """Return a FormatError for a mark in a playlist."""
    return FormatError(message, where=place_at(at, mark))


def read_document(decoded: str, at: Location) -> Any:
    """Parse YAML; long lists are parsed without the YAML library. Raises FormatError like
    `read_yaml`.
    """
    short, lifted = lift(decoded, _plain)
    if lifted:
        try:
            value = read_yaml(short, at, lifted)
            if not lifted:
                return value
        except FormatError:  # the whole text is parsed below, for the right place
            pass
    return read_yaml(decoded, at, {})


def read_yaml(
    decoded: str, at: Location, lifted: dict[str, list[Any]], found: list[FormatError] | None = None
) -> Any:
    """Parse YAML whose long lists were removed; their placeholders are replaced by the items in
    `lifted`.

    found   collects faults after which parsing can continue; if None, the first is raised
    raises  FormatError for invalid YAML or deep nesting
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
                    raise fault(at, _mark(event), "expected one YAML document, found a second")
                value = _value(next(events), events, _Context(at, lifted, found))
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


class _Context(NamedTuple):
    """Constants of one document."""

    at: Location
    lifted: dict[str, list[Any]]
    found: list[FormatError] | None

    def add_fault(self, event: Any, message: str) -> None:
        """Collect a fault, or raise it if faults are not collected."""
        error = fault(self.at, _mark(event), message)
        if self.found is None:
            raise error
        self.found.append(error)


def _value(event: Any, events: Iterator[Any], context: _Context, depth: int = 0) -> Any:
    import yaml

    if isinstance(event, yaml.AliasEvent) or event.anchor:
        context.add_fault(event, f"playlists cannot contain an alias or anchor ({event.anchor})")
        if isinstance(event, yaml.AliasEvent):
            return None
    if event.tag:
        context.add_fault(event, f"playlists cannot contain a tag ({event.tag:.60})")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event.value, event.implicit[0])
    if depth >= MAX_DEPTH:
        raise fault(context.at, _mark(event), f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            run = (
                context.lifted.pop(event.value, None)
                if context.lifted and isinstance(event, yaml.ScalarEvent)
                else None
            )
            if run is None:
                items.append(_value(event, events, context, depth + 1))
            else:
                items += run
        return items
    out = Map()
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key, value = (
            _value(event, events, context, depth + 1),
            _value(next(events), events, context, depth + 1),
        )
        if not isinstance(key, str):
            context.add_fault(event, f"the name {key!r:.60} is not text; put it in quotes")
        elif key in out:
            context.add_fault(
                event, f"the name {key!r:.60} was used in line {out.marks[key] >> 32}"
            )
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
    for steps, message in stream_faults(name, value):
        raise fault(at, place_of(value, steps) or mark, message)
    headers, urls = split_stream(value)
    for steps, message in address_faults(name, urls):
        raise fault(at, place_of(value, steps), message)
    for steps, message in header_faults(headers, len(urls)):
        raise fault(at, place_of(headers, steps), message)
    hashes = {key: headers[key] for key in sorted(_HASHES) if key in headers}
    parsed = {"format", "columns", "files", "parts", *COUNTS, *hashes}
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
        {key: value for key, value in headers.items() if key not in parsed},
        {bare(key): _file(key, file) for key, file in (headers.get("files") or {}).items()},
        [
            tuple(_file(key, file) for key, file in part.items())
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
        {key: digest for key, digest in value.items() if key in _HASHES},
        value.get("raw_bytes"),
    )
