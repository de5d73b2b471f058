"""Playlist schema: functions that yield the path and the message of each fault in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from flarecli import encodings
from flarecli.errors import UsageError
from flarecli.expansion import MAX_COLUMNS
from flarecli.hashes import known
from flarecli.names import is_extension

__all__ = [
    "COUNTS",
    "EXTENSIONS",
    "SCHEMA",
    "Map",
    "Steps",
    "Fault",
    "split_stream",
    "place_of",
    "stream_faults",
]

# Header: column -> Arrow type. The types and their order are those of the packed table.
SCHEMA = "schema"
EXTENSIONS = "extensions"  # header: column -> file extension; see `Column.extension`
SUPPORTED = 1  # highest version of the playlist format that flare reads (header `requires`)
COUNTS = ("rows", "bytes", "raw_bytes")  # headers with one count for each item of `content`
_HASHES = frozenset(known())


class Map(dict[str, Any]):
    """A mapping that also stores the position of each key in the playlist, for error messages.

    marks  key -> position as one number, `line << 32 | column`, to save memory
    """

    __slots__ = ("marks",)

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}


Steps: TypeAlias = tuple["str | int", ...]
Fault: TypeAlias = tuple[Steps, str]  # path of mapping keys and list positions, and message


def stream_faults(name: str, value: Any) -> Iterator[Fault]:
    """Yield all faults in a stream, with paths relative to the stream."""
    if not isinstance(value, Map):
        yield (), f"stream {name!r:.60} is not a mapping of headers and content"
        return
    for key in value:
        if key not in ("headers", "content"):
            yield (
                (key,),
                f"stream {name!r:.60} has {key!r:.60}; only headers and content are allowed",
            )
    if not isinstance(value.get("headers"), Map | None):
        yield ("headers",), f"the headers of {name!r:.60} are not a mapping"
    if not isinstance(value.get("content"), list | None):
        yield ("content",), f"the content of {name!r:.60} is not a list"
    headers, urls = split_stream(value)
    yield from _address_faults(name, urls)
    for steps, message in _header_faults(headers, len(urls)):
        yield ("headers", *steps), message


def split_stream(value: Any) -> tuple[Map, list[Any]]:
    """Return the headers and the content of a stream.

    If the headers are missing or invalid, return an empty mapping instead. If the content is
    missing or invalid, return an empty list instead.
    """
    value = value if isinstance(value, Map) else Map()
    headers, content = value.get("headers"), value.get("content")
    return (
        headers if isinstance(headers, Map) else Map(),
        content if isinstance(content, list) else [],
    )


def all_of(kind: type, values: list[Any]) -> bool:
    """Return whether the type of each value is exactly `kind`. This is fast for long lists."""
    return set(map(type, values)) <= {kind}


def _address_faults(name: str, urls: list[Any]) -> Iterator[Fault]:
    """Yield a fault for each item of `content` that is not an address."""
    if all_of(str, urls) and "" not in urls:
        return
    for i, url in enumerate(urls):
        if not isinstance(url, str) or not url:
            yield (
                ("content", i),
                f"content[{i}] of {name!r:.60} is {url!r:.60}; expected an address",
            )


def place_of(node: Any, steps: Steps) -> int:
    """Return the position of a node in a mapping, as `line << 32 | column`.

    If the node has no key, return the position of the closest parent that has a key.
    """
    mark = 0
    for step in steps:
        mark = node.marks.get(str(step), mark) if isinstance(node, Map) else mark
        node = node[step]
    return mark


def _header_faults(headers: Map, count: int) -> Iterator[Fault]:
    """Yield all faults in a stream's headers.

    count  number of items in the stream's content
    """
    for key in COUNTS:
        yield from _list_faults(headers, key, count, "not a count", _are_counts, _is_count)
    for key in sorted(_HASHES):
        yield from _list_faults(
            headers,
            key,
            count,
            "not text; put it in quotes",
            lambda values: all_of(str, values),
            lambda value: isinstance(value, str),
        )
    required = headers.get("requires")
    if required is not None and (type(required) is not int or required > SUPPORTED):
        yield (
            ("requires",),
            f"requires version {required!r:.60} of the playlist format, which this flare does not "
            f"support (up to {SUPPORTED}); install a newer flare",
        )
    form = headers.get("format")
    if form is not None and not isinstance(form, str):
        yield ("format",), f"format {form!r:.60} is not text"
    yield from _column_faults(headers)
    yield from _schema_faults(headers)
    yield from _extension_faults(headers)
    yield from _file_faults(headers, count)


def _list_faults(
    headers: Map,
    key: str,
    count: int,
    fault: str,
    are_valid: Callable[[list[Any]], bool],
    is_valid: Callable[[Any], bool],
) -> Iterator[Fault]:
    """Yield the faults in a header that must be a list with one value for each item of the content.

    count      number of items in the content
    fault      message for an invalid value
    are_valid  fast check of all values
    is_valid   check of one value, called only if the fast check fails
    """
    values = headers.get(key)
    if values is None and (key in COUNTS or key not in headers):
        return
    yield from _length_faults(key, values, count)
    if isinstance(values, list) and not are_valid(values):
        for i, value in enumerate(values):
            if not is_valid(value):
                yield (key, i), f"{key}[{i}] is {value!r:.60}, {fault}"


def _length_faults(key: str, values: Any, count: int) -> Iterator[Fault]:
    if not isinstance(values, list):
        yield (key,), f"{key} is not a list; content has {count}"
    elif len(values) != count:
        yield (key,), f"{key} has {len(values)} values, content has {count}"


def _are_counts(values: list[Any]) -> bool:
    return all_of(int, values) and min(values, default=0) >= 0 and max(values, default=0) < 1 << 62


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 62)


def _column_faults(headers: Map) -> Iterator[Fault]:
    columns = headers.get("columns")
    if columns is None:
        return
    if not isinstance(columns, Map):
        yield ("columns",), "columns is not a mapping of name to encoding"
        return
    if len(columns) > MAX_COLUMNS:
        yield ("columns",), f"{len(columns)} columns; the maximum is {MAX_COLUMNS}"
        return
    for name, encoding in columns.items():
        try:
            encodings.column(name, encoding if isinstance(encoding, str) else repr(encoding))
        except UsageError as error:
            yield ("columns", name), f"column {name!r:.60}: {error.message}"


def _schema_faults(headers: Map) -> Iterator[Fault]:
    """Yield the faults in the header SCHEMA, which lists the Arrow types of columns."""
    schema, columns = headers.get(SCHEMA), headers.get("columns")
    if schema is None:
        return
    if not isinstance(schema, Map):
        yield (SCHEMA,), f"{SCHEMA} is not a mapping of columns to types"
        return
    if not isinstance(columns, Map) or schema.keys() != columns.keys():
        yield (SCHEMA,), f"{SCHEMA} does not have the same columns as `columns`"
        return
    for name, header in schema.items():
        try:
            encodings.parse_type(header)
        except UsageError as error:
            yield (SCHEMA, name), f"column {name!r:.60}: {error.message}"


def _extension_faults(headers: Map) -> Iterator[Fault]:
    """Yield the faults in the header EXTENSIONS, which lists the file extensions of columns."""
    extensions, columns = headers.get(EXTENSIONS), headers.get("columns")
    if extensions is None:
        return
    if not isinstance(extensions, Map) or not isinstance(columns, Map):
        yield (EXTENSIONS,), f"{EXTENSIONS} is not a mapping of columns to file extensions"
        return
    for name, extension in extensions.items():
        if name not in columns:
            yield (EXTENSIONS, name), f"{EXTENSIONS} has the unknown column {name!r:.60}"
        elif not isinstance(extension, str) or not (
            is_extension(extension) or (extension[:1] == "{" and extension[1:-1] in columns)
        ):
            yield (EXTENSIONS, name), f"column {name!r:.60}: invalid extension {extension!r:.60}"


def _file_faults(headers: Map, count: int) -> Iterator[Fault]:
    """Yield the faults in the headers `files` and `parts`."""
    files, parts = headers.get("files"), headers.get("parts")
    if files is not None:
        yield from _size_faults(("files",), files, "files")
    if parts is None:
        return
    yield from _length_faults("parts", parts, count)
    for i, companions in enumerate(parts if isinstance(parts, list) else ()):
        yield from _size_faults(("parts", i), companions, f"parts[{i}]")


def _size_faults(path: Steps, files: Any, shown: str) -> Iterator[Fault]:
    """Yield the faults in the mapping at `path`, from file names to file sizes and checksums."""
    if not isinstance(files, Map):
        yield path, f"{shown} is not a mapping of name to size and checksums"
        return
    for name, value in files.items():
        if not isinstance(value, Map) or not (
            _is_count(value.get("bytes")) and _is_count(value.get("raw_bytes"))
        ):
            yield (
                (*path, name),
                f"the file {name!r:.60} is invalid; expected sizes in bytes and checksums",
            )
        elif not all(isinstance(item, str) for key, item in value.items() if key in _HASHES):
            yield (
                (*path, name),
                f"a checksum of the file {name!r:.60} is not text; put it in quotes",
            )
