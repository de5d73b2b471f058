"""What is wrong with the form of a playlist: each fault as where it is and what, for whoever raises the first or lists them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from flarecli.encodings import column
from flarecli.errors import UsageError
from flarecli.expansion import MAX_COLUMNS
from flarecli.hashes import known

__all__ = [
    "COUNTS",
    "Map",
    "Steps",
    "Wrong",
    "all_of",
    "halves",
    "not_addresses",
    "place_of",
    "wrong_halves",
    "wrong_headers",
]

COUNTS = ("rows", "bytes", "raw_bytes")  # lists of counts, parallel to content
_SUMS = frozenset(known())


class Map(dict[str, Any]):
    """A mapping that knows where each of its keys stands, for messages: line and column in one number, of which there may be millions."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[str, int] = {}


Steps: TypeAlias = tuple["str | int", ...]
Wrong: TypeAlias = tuple[Steps, str]  # where in the headers, as names and positions, and what


def wrong_halves(name: str, value: Any) -> Iterator[Wrong]:
    """Say what keeps a stream from being headers and content."""
    if not isinstance(value, Map):
        yield (), f"stream {name!r:.60} is not a mapping of headers and content"
        return
    for key in value:
        if key not in ("headers", "content"):
            yield (key,), f"stream {name!r:.60} has {key!r:.60}, only headers and content are known"
    if not isinstance(value.get("headers"), Map | None):
        yield ("headers",), f"the headers of {name!r:.60} are not a mapping"
    if not isinstance(value.get("content"), list | None):
        yield ("content",), f"the content of {name!r:.60} is not a list"


def halves(value: Any) -> tuple[Map, list[Any]]:
    """Take a stream apart into its headers and its content, empty where they are missing or wrong."""
    headers, content = (
        (value.get("headers"), value.get("content")) if isinstance(value, Map) else (None, None)
    )
    return headers if isinstance(headers, Map) else Map(), content if isinstance(
        content, list
    ) else []


def all_of(kind: type, values: list[Any]) -> bool:
    """Say whether every value is of one type and no other, however many there are."""
    return set(map(type, values)) <= {kind}


def not_addresses(name: str, urls: list[Any]) -> Iterator[Wrong]:
    """Say which items of a content are no addresses."""
    if all_of(str, urls) and "" not in urls:
        return
    for i, url in enumerate(urls):
        if not isinstance(url, str) or not url:
            yield ("content", i), f"content[{i}] of {name!r:.60} is {url!r:.60}, not an address"


def place_of(node: Any, steps: Steps) -> int:
    """Give the mark of what lies at some steps below a mapping: of its own key, or of the nearest around it that has one."""
    mark = 0
    for step in steps:
        mark = node.marks.get(str(step), mark) if isinstance(node, Map) else mark
        node = node[step]
    return mark


def wrong_headers(headers: Map, wanted: int) -> Iterator[Wrong]:
    """Say what is wrong with a stream's headers: all of it, where it is and what.

    wanted  items of its content
    """
    for key in COUNTS:
        yield from _wrong_list(headers, key, wanted, "not a count", _are_counts, _is_count)
    for key in sorted(_SUMS):
        yield from _wrong_list(
            headers, key, wanted, "not text; put it in quotes", _are_texts, _is_text
        )
    form = headers.get("format")
    if form is not None and not isinstance(form, str):
        yield ("format",), f"format {form!r:.60} is not text"
    yield from _wrong_columns(headers)
    yield from _wrong_files(headers, wanted)


def _wrong_list(
    headers: Map,
    key: str,
    wanted: int,
    what: str,
    are_right: Callable[[list[Any]], bool],
    is_right: Callable[[Any], bool],
) -> Iterator[Wrong]:
    """Look at a list that runs parallel to the content: quickly as a whole, then at each item."""
    values = headers.get(key)
    if values is None and (key in COUNTS or key not in headers):
        return
    if not isinstance(values, list) or len(values) != wanted:
        got = f"{len(values)} values" if isinstance(values, list) else "no list"
        yield (key,), f"{key} has {got}, content has {wanted}"
    if isinstance(values, list) and not are_right(values):
        for i, value in enumerate(values):
            if not is_right(value):
                yield (key, i), f"{key}[{i}] is {value!r:.60}, {what}"


def _are_texts(values: list[Any]) -> bool:
    return all_of(str, values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_counts(values: list[Any]) -> bool:
    return all_of(int, values) and min(values, default=0) >= 0 and max(values, default=0) < 1 << 62


def _is_count(value: Any) -> bool:
    return value is None or (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    )


def _wrong_columns(headers: Map) -> Iterator[Wrong]:
    columns = headers.get("columns")
    if columns is None:
        return
    if not isinstance(columns, Map):
        yield ("columns",), "columns is not a mapping of name to encoding"
        return
    if len(columns) > MAX_COLUMNS:
        yield ("columns",), f"{len(columns)} columns; at most {MAX_COLUMNS} are read"
        return
    for name, encoding in columns.items():
        try:
            column(name, encoding if isinstance(encoding, str) else repr(encoding))
        except UsageError as error:
            yield ("columns", name), f"column {name!r:.60}: {error.message}"


def _wrong_files(headers: Map, wanted: int) -> Iterator[Wrong]:
    """Look at what is said of files that belong to no chunk, and of the companions of each chunk."""
    files, parts = headers.get("files"), headers.get("parts")
    if isinstance(files, Map):
        yield from ((("files", *steps), message) for steps, message in _wrong_sizes(files))
    elif files is not None:
        yield ("files",), "files is not a mapping of name to size and sums"
    if parts is not None and (not isinstance(parts, list) or len(parts) != wanted):
        got = f"{len(parts)} values" if isinstance(parts, list) else "no list"
        yield ("parts",), f"parts has {got}, content has {wanted}"
    for i, one in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(one, Map):
            yield from ((("parts", i, *steps), message) for steps, message in _wrong_sizes(one))
        else:
            yield ("parts", i), f"parts[{i}] is not a mapping of name to size and sums"


def _wrong_sizes(files: Map) -> Iterator[Wrong]:
    for name, value in files.items():
        if not isinstance(value, Map) or not (
            _is_count(value.get("bytes")) and _is_count(value.get("raw_bytes"))
        ):
            yield (name,), f"the file {name!r:.60} has no size in bytes"
        elif not all(isinstance(one, str) for key, one in value.items() if key in _SUMS):
            yield (name,), f"a sum of the file {name!r:.60} is not text; put it in quotes"
