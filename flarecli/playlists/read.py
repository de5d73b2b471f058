"""Read and validate untrusted playlists from YAML events.

Tags, aliases and additional documents are errors. Depth and size are limited. The values `no`,
`012` and `1:30` are text. Reading stops at the first fault; validation reports all faults.

The YAML library is slow on long lists. Therefore, flare replaces each long list by a random
placeholder, parses the list itself, and passes the shorter text to the library. A list is replaced
only if it has one of these forms:

    - a                        one item per line
    a, b, c,                   several items per line, separated by commas
    name: {bytes: 1, …}        a mapping with one entry per line

Unquoted items must consist of characters without a special meaning in YAML. The library must find
each placeholder as an item of a list or as a key of a mapping. If it finds a placeholder elsewhere,
for example inside a block of text, the library parses the original text instead.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from flarecli.encodings import column
from flarecli.errors import FormatError, IntegrityError, Place, ReachError
from flarecli.hashes import digest, known
from flarecli.lazy import np
from flarecli.model import Columns, File, IntArray, Playlist, Stream
from flarecli.names import bare
from flarecli.playlists.schema import (
    COUNTS,
    EXTENSIONS,
    Map,
    Steps,
    place_of,
    split_stream,
    stream_faults,
)
from flarecli.storage import Location

__all__ = [
    "FLOAT",
    "checksum_fault",
    "faults",
    "parse",
    "parse_intact",
    "places",
    "read",
    "stored",
]

MAX_BYTES = 1 << 30  # ten times the size of a playlist with a million chunks
MAX_DEPTH = 16
_MAX_READS = 8  # maximum number of attempts to read a playlist that other processes replace
_CHECKSUM_LINE = re.compile(rb"# flare xxh3_128 ([0-9a-f]{32})\n\Z")
_CHECKSUM_START = b"# flare "  # start of the last line, whose other bytes may be damaged
_MAX_LAST_LINE_BYTES = 4096
# Integers of more than 39 digits remain text, because a float would lose digits.
_INT = re.compile(r"-?(?:0|[1-9]\d{0,38})", re.ASCII)
FLOAT = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_Lifted: TypeAlias = dict[str, "list[Any] | Map"]  # see `lift`
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_HASHES = frozenset(known())
MIN_LIST_CHARACTERS = 512  # the YAML library parses shorter lists
_PLAIN = r"[A-Za-z0-9_./][A-Za-z0-9_./:%?=&+@~-]*+(?<!:)"
_ITEM = rf'(?:"[ !#-\[\]-~]*+"|{_PLAIN})'
# Python before 3.11.5 has a bug: if the last repetition of a possessive group fails, matching
# continues at the position of the failure, instead of at the end of the previous repetition. The
# pattern after a possessive group must therefore not match at the position of the failure.
_LINE = rf"{_ITEM}(?>(?:, {_ITEM})*),\n"
_FACT = r'[a-z][a-z0-9_]*: (?:0|[1-9][0-9]{0,17}|"[0-9A-Za-z]*")'
_ENTRY = rf"[A-Za-z_./][A-Za-z0-9_./-]{{0,199}}: {{{_FACT}(?:, {_FACT})*}}\n"
_RUN = re.compile(
    rf"^( *)(?:- {_ITEM}\n(?:\1- {_ITEM}\n)++|{_LINE}(?:\1{_LINE})++|{_ENTRY}(?:\1{_ENTRY})++)",
    re.MULTILINE,
)
_COUNTS = re.compile(r"(?: *+(?:0|[1-9][0-9]{0,17}+)[,\n]++)*+")
_TEXTS, _TEXT = re.compile(r'(?: *"[^"]*+"[,\n]*+)*+'), re.compile(r'"([^"]*+)"')
_ANY = re.compile(r'"([^"]*+)"|([^",\s]++)')

# -- places


def _mark(node: Any) -> int:
    """Return the start of a YAML event or node as `line << 32 | column`, both counted from 1."""
    return int(node.start_mark.line + 1) << 32 | int(node.start_mark.column + 1)


def _mark_in(text: str | bytes, position: int) -> int:
    """Return an offset in a text as `line << 32 | column`, both counted from 1."""
    newline: Any = "\n" if isinstance(text, str) else b"\n"
    line_start = text.rfind(newline, 0, position) + 1
    return (text.count(newline, 0, position) + 1) << 32 | position - line_start + 1


def _fault(at: Location, mark: int, message: str) -> FormatError:
    """Return a FormatError for a fault in a playlist; `mark` is `line << 32 | column`."""
    return FormatError(message, where=Place(at, line=mark >> 32, character=mark & 0xFFFFFFFF))


# -- reading


def read(at: Location) -> Playlist:
    """Read and parse a playlist. Raises FormatError with the line of the first fault."""
    return parse(stored(at), at)


def stored(at: Location) -> bytes:
    """Read the bytes of a playlist.

    Another process may replace the playlist between the requests that read it. The playlist is then
    read again, which is safe because none of its bytes have been used.

    raises  FormatError for a file larger than MAX_BYTES; IntegrityError if every read failed
            because the playlist was replaced
    """
    for _ in range(_MAX_READS - 1):
        with contextlib.suppress(IntegrityError):
            return _stored(at)
        # A copy of the store has no pins, so the next read may return a newer version of the file.
        at = replace(at, store=copy.copy(at.store))
    return _stored(at)


def _stored(at: Location) -> bytes:
    try:
        # `read_whole` opens the file once, because another process may replace the playlist.
        return at.read_whole(MAX_BYTES)
    except ReachError:
        size = at.size()
        if size > MAX_BYTES:
            raise FormatError(
                f"file is {size} bytes; the maximum is {MAX_BYTES}", where=at
            ) from None
        raise


def parse(data: bytes, at: Location) -> Playlist:
    """Parse the bytes of a playlist.

    at      location of the playlist, the base of relative URLs
    raises  FormatError with the line and column of the first fault
    """
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        raise _fault(at, _mark_in(data, error.start), f"not UTF-8 at byte {error.start}") from None
    match = _CHECKSUM_LINE.search(data, max(0, len(data) - 100))
    protected = match is not None and digest(memoryview(data)[: match.start()]) == match[1].decode()
    tail = data[-_MAX_LAST_LINE_BYTES:].rstrip()  # not `data`, because a playlist may be large
    has_checksum = tail.rpartition(b"\n")[2].startswith(_CHECKSUM_START)
    del data, match  # release memory, because a playlist may be large
    root = read_document(decoded, at)
    del decoded
    if not isinstance(root, Map):
        raise _fault(at, 1 << 32 | 1, "expected a mapping of streams")
    return Playlist(
        tuple(_stream(name, value, at, root.marks[name]) for name, value in root.items()),
        at,
        protected,
        has_checksum,
    )


def checksum_fault(playlist: Playlist) -> str:
    """Return why the last line of a playlist is not a valid checksum of the lines above it.

    return  empty if the checksum is valid, or if the playlist contains no checksums at all
    """
    if playlist.protected:
        return ""
    if playlist.has_checksum:
        return "the last line is not the checksum of the lines above"
    has_hashes = any(
        stream.hashes or any(file.hashes for file in stream.files.values())
        for stream in playlist.streams
    )
    if has_hashes:
        return "contains checksums, but its last line is not a checksum of the lines above"
    return ""


def parse_intact(data: bytes, at: Location) -> Playlist:
    """Parse the bytes of a playlist, and check the checksum in its last line.

    raises  FormatError for an invalid playlist; IntegrityError for a wrong checksum
    """
    playlist = parse(data, at)
    fault = checksum_fault(playlist)
    if fault:
        raise IntegrityError(fault, where=at)
    return playlist


def read_document(decoded: str, at: Location) -> Any:
    """Parse YAML; long lists are parsed separately. Raises the same errors as `read_yaml`."""
    short, lifted = lift(decoded)
    if lifted:
        try:
            value = read_yaml(short, at, lifted)
            if not lifted:
                return value
        except FormatError:  # the complete text is parsed below, to report the correct line
            pass
    return read_yaml(decoded, at, {})


def read_yaml(
    decoded: str, at: Location, lifted: _Lifted, found: list[FormatError] | None = None
) -> Any:
    """Parse YAML in which placeholders replace long lists.

    lifted  placeholder -> the replaced list or mapping; placeholders that the parser finds are
            removed from `lifted`
    found   receives faults such as tags and aliases; None: the first fault is raised
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
                    raise _fault(at, _mark(event), "expected one YAML document, found a second")
                value = _value(next(events), events, _Context(at, lifted, found))
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, character = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        message = f"not valid YAML: {error.problem}"
        raise _fault(at, line << 32 | character, message) from None
    except yaml.YAMLError as error:
        position = getattr(error, "position", 0)
        if loader is not yaml.SafeLoader:  # `position` is in bytes, because libyaml set it
            position = len(decoded.encode()[:position].decode(errors="ignore"))
        message = f"not valid YAML: {str(error).splitlines()[0][:200]}"
        raise _fault(at, _mark_in(decoded, position), message) from None


class _Context(NamedTuple):
    """The arguments of the parser that are the same for all nodes of a document."""

    at: Location
    lifted: _Lifted
    found: list[FormatError] | None

    def add_fault(self, event: Any, message: str) -> None:
        """Collect a fault, or raise it if faults are not collected."""
        error = _fault(self.at, _mark(event), message)
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
        return _plain(event.value) if event.implicit[0] else event.value
    if depth >= MAX_DEPTH:
        raise _fault(context.at, _mark(event), f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            lifted = (
                context.lifted.get(event.value) if isinstance(event, yaml.ScalarEvent) else None
            )
            if isinstance(lifted, list):
                items += context.lifted.pop(event.value)
            else:
                items.append(_value(event, events, context, depth + 1))
        return items
    out, is_block = Map(), not event.flow_style
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _value(event, events, context, depth + 1)
        value = _value(next(events), events, context, depth + 1)
        entries = context.lifted.get(key) if isinstance(key, str) else None
        if isinstance(entries, Map) and is_block and value == {} and out.keys().isdisjoint(entries):
            del context.lifted[key]
            # The entries are on consecutive lines, so each mark is one line after the previous one.
            out.update(entries)
            out.marks.update(zip(entries, itertools.count(_mark(event), 1 << 32), strict=False))
        elif not isinstance(key, str):
            context.add_fault(event, f"the name {key!r:.60} is not text; put it in quotes")
        elif key in out:
            context.add_fault(
                event, f"the name {key!r:.60} was used in line {out.marks[key] >> 32}"
            )
        else:
            out.marks[key], out[key] = _mark(event), value
    return out


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text) and len(text) < 40 and math.isfinite(float(text)):
        return float(text)
    return text


def _stream(name: str, value: Any, at: Location, mark: int) -> Stream:
    for steps, message in stream_faults(name, value):
        raise _fault(at, place_of(value, steps) or mark, message)
    headers, urls = split_stream(value)
    hashes = {key: headers[key] for key in sorted(_HASHES) if key in headers}
    parsed = {"format", "columns", EXTENSIONS, "files", "parts", *COUNTS, *hashes}
    files, parts = headers.get("files") or {}, headers.get("parts") or ()
    return Stream(
        name,
        at.folder,
        headers.get("format"),
        [bare(url) for url in urls] if any(url.startswith("./") for url in urls) else urls,
        _columns(headers.get("columns"), headers.get(EXTENSIONS) or {}),
        rows=_counts(headers.get("rows")),
        sizes=_counts(headers.get("bytes")),
        hashes=hashes,
        raw_sizes=_counts(headers.get("raw_bytes")),
        headers={key: value for key, value in headers.items() if key not in parsed},
        files={file.name: file for file in map(_file, files, files.values())},
        parts=[tuple(_file(key, file) for key, file in part.items()) for part in parts],
    )


def _columns(columns: Map | None, extensions: Mapping[str, str]) -> Columns | None:
    if columns is None:
        return None
    return tuple(
        column(name, encoding, extensions.get(name, "")) for name, encoding in columns.items()
    )


def _counts(values: Any) -> IntArray | None:
    if values is None:
        return None
    return np.array([-1 if value is None else value for value in values], np.int64)


def _file(name: str, value: Map) -> File:
    return File(
        bare(name),
        value.get("bytes"),
        {key: digest for key, digest in value.items() if key in _HASHES},
        value.get("raw_bytes"),
    )


# -- validation


def faults(data: bytes, at: Location) -> list[FormatError]:
    """Return all faults in a playlist, sorted by line.

    If the playlist has a YAML syntax error, return only this error and the YAML faults before it.
    """
    try:
        parse(data, at)
        return []
    except FormatError as error:
        first = error
    found = list[FormatError]()
    try:
        root = read_yaml(data.decode(), at, {}, found)
    except UnicodeDecodeError:
        return [first]
    except FormatError as error:
        return [*found, error]
    paths, messages = list[Steps](), list[str]()
    for name, value in root.items() if isinstance(root, dict) else ():
        for steps, message in stream_faults(name, value):
            paths.append((name, *steps))
            messages.append(message)
    # `found` contains the YAML faults, such as aliases and duplicate names. `places` does not
    # support playlists with such faults.
    if found:
        marks = [place_of(root, path) for path in paths]
    else:
        marks = places(data, paths)
    found += [_fault(at, mark, message) for mark, message in zip(marks, messages, strict=True)]
    return sorted(found, key=lambda error: (error.line or 0, error.character or 0)) or [first]


def places(data: bytes, paths: Sequence[Steps]) -> list[int]:
    """Return the position of the node at each path in a playlist, as `line << 32 | column`.

    paths  for each node, the keys of mappings and the positions in lists from the root to the node
    """
    import yaml

    if not paths:
        return []
    root: Any = yaml.compose(data.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    marks, members = list[int](), dict[int, dict[str, Any]]()
    for path in paths:
        node, marked = root, root
        for step in path:
            if isinstance(step, int):
                node = marked = node.value[step]
            else:
                if id(node) not in members:
                    members[id(node)] = {key.value: (key, value) for key, value in node.value}
                marked, node = members[id(node)][step]
        marks.append(_mark(marked))
    return marks


# -- long lists


def lift(text: str) -> tuple[str, _Lifted]:
    """Replace long lists in the text of a playlist with placeholders.

    return  the text with placeholders and an unchanged number of lines; and a dict from each
            placeholder to the list or mapping that the placeholder replaces
    """
    lifted: _Lifted = {}
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
            lifted[placeholder] = _parse_block(text[start:stop], f"{indent}- ")
            replacement = f"{indent}- {placeholder}"
        elif text[text.index("\n", start) - 1] == "}":
            entries = _parse_entries(text[start:stop])
            if entries is None:
                continue
            lifted[placeholder] = entries
            replacement = f"{indent}{placeholder}: {{}}"
        else:
            body = text[start:stop]
            lifted[placeholder] = _parse_flow(body)
            replacement = f"{indent}{placeholder},"
        lines = text.count("\n", start, stop)
        pieces += (text[done:start], replacement, "\n" * lines)
        done = stop
    return "".join((*pieces, text[done:])), lifted


def _parse_block(body: str, head: str) -> list[Any]:
    items = body[len(head) : -1].split(f"\n{head}")
    if items[0].isdigit():  # PyYAML writes a list of integers as one line per integer
        counts = _parse_counts(",".join([*items, ""]))
        if counts is not None:
            return counts
    return [item[1:-1] if item[0] == '"' else _plain(item) for item in items]


def _parse_flow(body: str) -> list[Any]:
    counts = _parse_counts(body) if '"' not in body else None
    if counts is not None:
        return counts
    if _TEXTS.fullmatch(body):
        return _TEXT.findall(body)
    return [_plain(plain) if plain else quoted for quoted, plain in _ANY.findall(body)]


def _parse_entries(body: str) -> Map | None:
    """Parse a mapping with one entry per line.

    Return None if a name is a duplicate or a YAML word such as `true`. The parser of the complete
    text then reports the fault with its line.
    """
    out = Map()
    for line in body.splitlines():
        name, _, facts = line.partition(": ")
        pairs = facts[1:-1].split(", ")
        entry = Map()
        for pair in pairs:
            key, _, value = pair.partition(": ")
            entry[key] = value[1:-1] if value[0] == '"' else int(value)
        if len(entry) < len(pairs) or not _WORDS.keys().isdisjoint(entry):
            return None
        out[name.lstrip(" ")] = entry
    if len(out) < body.count("\n") or not _WORDS.keys().isdisjoint(out):
        return None
    return out


def _parse_counts(body: str) -> list[Any] | None:
    """Parse counts that are separated by commas. Return None if any item is not a count."""
    if not _COUNTS.fullmatch(body):
        return None
    return list(map(int, body.rstrip(", \n").split(",")))
