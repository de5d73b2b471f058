"""Playlists read without trust: events, never documents.

No tag, no alias, no second document, no depth or size without a bound, and `no`, `012` and `1:30` stay the texts they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from flarecli.encodings import column
from flarecli.errors import FormatError, UsageError
from flarecli.hashes import digest, known
from flarecli.model import Columns, File, IntArray, Playlist, Stream
from flarecli.playlists.lifting import lift
from flarecli.storage import Location

__all__ = ["COUNTS", "FLOAT", "faults", "parse", "read"]

_SIZE_LIMIT = 1 << 30  # bytes; a million chunks take a tenth
_DEPTH_LIMIT = 16
_SUM_LINE = re.compile(rb"# flare xxh3_128 ([0-9a-f]{32})\n\Z")
_INT = re.compile(r"-?(?:0|[1-9]\d{0,18})", re.ASCII)
FLOAT = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
COUNTS = ("rows", "bytes", "raw_bytes")  # lists of counts, parallel to content


class _Map(dict[str, Any]):
    """A mapping that knows the line of each of its keys, for messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def read(at: Location) -> Playlist:
    """Read the playlist at an address. Raises FormatError with the line if it is not one."""
    size = at.size()
    if size > _SIZE_LIMIT:
        raise FormatError(f"{size} bytes, {_SIZE_LIMIT} is the most that is read", where=at)
    return parse(at.read(0, size), at)


def parse(data: bytes, at: Location) -> Playlist:
    """Read a playlist from its bytes; `at` is its own address, from which relative URLs start.

    raises  FormatError with line and column of the first fault
    """
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", where=at) from None
    match = _SUM_LINE.search(data, max(0, len(data) - 100))
    protected = bool(match) and digest(memoryview(data)[: match.start()]) == match[1].decode()  # type: ignore[index, union-attr]
    del data, match  # there may be a hundred megabytes of it
    root = _document(decoded, at)
    del decoded
    if not isinstance(root, _Map):
        raise FormatError("no mapping of streams in it", where=at)
    return Playlist(tuple(_stream(name, value, at, root.lines[name]) for name, value in root.items()), at, protected)


def _fault(at: Location, line: int, message: str) -> FormatError:
    return FormatError(message, where=f"{at}:{line}")


def _document(decoded: str, at: Location) -> Any:
    short, lifted = lift(decoded, _plain)
    if lifted:
        try:
            value = _read(short, at, lifted)
            if not lifted:
                return value
        except FormatError:  # what is wrong, and where, is told from the whole
            pass
    return _read(decoded, at, {})


def _read(decoded: str, at: Location, lifted: dict[str, list[Any]]) -> Any:
    """Read YAML; the items of long lists are taken from `lifted`, whose words stand for them."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events: Iterator[Any] = yaml.parse(decoded, Loader=loader)
    try:
        value, documents = None, 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    start: Any = event.start_mark
                    raise _fault(at, start.line + 1, "a second document")
                value = _value(next(events), events, at, 0, lifted)
        return value
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark
        where = f"{at}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(at)
        raise FormatError(f"not valid YAML: {error.problem}", where=where) from None
    except yaml.YAMLError as error:
        raise FormatError(f"not valid YAML: {str(error).splitlines()[0][:200]}", where=at) from None


def _value(event: Any, events: Iterator[Any], at: Location, depth: int, lifted: dict[str, list[Any]]) -> Any:
    import yaml

    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        raise _fault(at, line, f"an alias or anchor ({event.anchor}), which playlists do not take")
    if event.tag:
        raise _fault(at, line, f"a tag ({event.tag:.60}), which playlists do not take")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event.value, event.implicit[0])
    if depth >= _DEPTH_LIMIT:
        raise _fault(at, line, f"nested deeper than {_DEPTH_LIMIT}")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            run = lifted.pop(event.value, None) if lifted and isinstance(event, yaml.ScalarEvent) else None
            if run is None:
                items.append(_value(event, events, at, depth + 1, lifted))
            else:
                items += run
        return items
    out = _Map()
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        line = event.start_mark.line + 1
        key = _value(event, events, at, depth + 1, lifted)
        if not isinstance(key, str):
            raise _fault(at, line, f"the name {key!r:.60} is not text; put it in quotes")
        if key in out:
            raise _fault(at, line, f"the name {key!r:.60} was used in line {out.lines[key]}")
        out.lines[key] = line
        out[key] = _value(next(events), events, at, depth + 1, lifted)
    return out


def _scalar(text: str, plain: bool) -> Any:
    return _plain(text) if plain else text


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if FLOAT.fullmatch(text) and len(text) < 40 else text


def faults(data: bytes, at: Location) -> list[FormatError]:
    """Find all that is wrong with a playlist, where `parse` raises the first: the YAML's fault, or one for each part of each stream."""
    out: list[FormatError] = []
    try:
        parse(data, at)
        return out
    except FormatError as error:
        first = error
    try:
        root = _document(data.decode(), at)
    except (FormatError, UnicodeDecodeError):
        return [first]
    for name, value in root.items() if isinstance(root, _Map) else ():
        try:
            headers, urls = _halves(name, value, at, root.lines[name])
        except FormatError as error:
            out.append(error)
            continue
        out += _not_addresses(name, urls, at, value)
        for check in _checks(headers, len(urls), at):
            try:
                check()
            except FormatError as error:
                out.append(error)
    return out or [first]


def _checks(headers: _Map, wanted: int, at: Location) -> list[Callable[[], object]]:
    counts = [partial(_counts, headers, key, wanted, at) for key in COUNTS]
    sums = [partial(_texts, headers, key, wanted, at) for key in known() if key in headers]
    rest: list[Callable[[], object]] = [
        partial(_format, headers, at),
        partial(_columns, headers, at),
        partial(_files, headers, at),
        partial(_parts, headers, wanted, at),
    ]
    return [*counts, *sums, *rest]


def _halves(name: str, value: Any, at: Location, line: int) -> tuple[_Map, list[Any]]:
    """Take a stream apart into its headers and its content."""
    if not isinstance(value, _Map):
        raise _fault(at, line, f"stream {name!r:.60} is not a mapping of headers and content")
    for key in value:
        if key not in ("headers", "content"):
            raise _fault(at, value.lines[key], f"stream {name!r:.60} has {key!r:.60}, only headers and content are known")
    headers, content = value.get("headers"), value.get("content")
    if headers is None:
        headers = _Map()
    if not isinstance(headers, _Map):
        raise _fault(at, value.lines["headers"], f"the headers of {name!r:.60} are not a mapping")
    if not isinstance(content, list) and content is not None:
        raise _fault(at, value.lines["content"], f"the content of {name!r:.60} is not a list")
    return headers, content or []


def _all_of(kind: type, values: list[Any]) -> bool:
    """Say whether every value is of one type and no other, however many there are."""
    return set(map(type, values)) <= {kind}


def _not_addresses(name: str, urls: list[Any], at: Location, value: _Map) -> Iterator[FormatError]:
    if _all_of(str, urls) and "" not in urls:
        return
    for i, url in enumerate(urls):
        if not isinstance(url, str) or not url:
            yield _fault(at, value.lines["content"], f"content[{i}] of {name!r:.60} is {url!r:.60}, not an address")


def _stream(name: str, value: Any, at: Location, line: int) -> Stream:
    headers, urls = _halves(name, value, at, line)
    for error in _not_addresses(name, urls, at, value):
        raise error
    counts = {key: _counts(headers, key, len(urls), at) for key in COUNTS}
    hashes = {key: _texts(headers, key, len(urls), at) for key in known() if key in headers}
    taken = {"format", "columns", "files", "parts", *COUNTS, *hashes}
    return Stream(
        name,
        at.folder,
        _format(headers, at),
        urls,
        _columns(headers, at),
        counts["rows"],
        counts["bytes"],
        hashes,
        counts["raw_bytes"],
        {},
        {key: one for key, one in headers.items() if key not in taken},
        _files(headers, at),
        _parts(headers, len(urls), at),
    )


def _format(headers: _Map, at: Location) -> str | None:
    form = headers.get("format")
    if form is not None and not isinstance(form, str):
        raise _fault(at, headers.lines["format"], f"format {form!r:.60} is not text")
    return form


def _counts(headers: _Map, key: str, wanted: int, at: Location) -> IntArray:
    values = headers.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != wanted:
        got = f"{len(values)} values" if isinstance(values, list) else "no list"
        raise _fault(at, headers.lines[key], f"{key} has {got}, content has {wanted}")
    if _all_of(int, values) and min(values, default=0) >= 0 and max(values, default=0) < 1 << 62:
        return np.array(values, np.int64)
    for i, value in enumerate(values):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62):
            raise _fault(at, headers.lines[key], f"{key}[{i}] is {value!r:.60}, not a count")
    return np.array([-1 if value is None else value for value in values], np.int64)


def _texts(headers: _Map, key: str, wanted: int, at: Location) -> list[str]:
    values = headers[key]
    if not isinstance(values, list) or len(values) != wanted:
        got = f"{len(values)} values" if isinstance(values, list) else "no list"
        raise _fault(at, headers.lines[key], f"{key} has {got}, content has {wanted}")
    for i, value in enumerate([] if _all_of(str, values) else values):
        if not isinstance(value, str):
            raise _fault(at, headers.lines[key], f"{key}[{i}] is {value!r:.60}, not text; put it in quotes")
    return values


def _columns(headers: _Map, at: Location) -> Columns | None:
    columns = headers.get("columns")
    if columns is None:
        return None
    if not isinstance(columns, _Map):
        raise _fault(at, headers.lines["columns"], "columns is not a mapping of name to encoding")
    out = []
    for name, encoding in columns.items():
        try:
            out.append(column(name, encoding if isinstance(encoding, str) else repr(encoding)))
        except UsageError as error:
            raise _fault(at, columns.lines[name], f"column {name!r:.60}: {error.message}") from None
    return tuple(out)


def _files(headers: _Map, at: Location) -> dict[str, File]:
    files = headers.get("files")
    if files is None:
        return {}
    if not isinstance(files, _Map):
        raise _fault(at, headers.lines["files"], "files is not a mapping of name to size and sums")
    return {name: _file(name, value, files.lines[name], at) for name, value in files.items()}


def _parts(headers: _Map, wanted: int, at: Location) -> list[tuple[File, ...]]:
    """Read the companions of each chunk; empty where there is no such header."""
    parts = headers.get("parts")
    if parts is None:
        return []
    line = headers.lines["parts"]
    if not isinstance(parts, list) or len(parts) != wanted:
        got = f"{len(parts)} values" if isinstance(parts, list) else "no list"
        raise _fault(at, line, f"parts has {got}, content has {wanted}")
    for i, one in enumerate(parts):
        if not isinstance(one, _Map):
            raise _fault(at, line, f"parts[{i}] is not a mapping of name to size and sums")
    return [tuple(_file(name, value, one.lines[name], at) for name, value in one.items()) for one in parts]


def _file(name: str, value: Any, line: int, at: Location) -> File:
    size, raw = (value.get(key) if isinstance(value, _Map) else -1 for key in ("bytes", "raw_bytes"))
    for count in (size, raw):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 1 << 62):
            raise _fault(at, line, f"the file {name!r:.60} has no size in bytes")
    sums = {key: one for key, one in value.items() if key in known()}
    if not all(isinstance(one, str) for one in sums.values()):
        raise _fault(at, line, f"a sum of the file {name!r:.60} is not text; put it in quotes")
    return File(name, size, sums, raw)
