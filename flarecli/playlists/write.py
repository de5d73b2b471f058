"""Write playlists. The same playlist always results in the same bytes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from flarecli.hashes import DEFAULT, Sums
from flarecli.model import File, Playlist, Stream
from flarecli.playlists.read import FLOAT
from flarecli.playlists.schema import COUNTS, EXTENSIONS, SCHEMA
from flarecli.storage import Location, Written

__all__ = ["text", "write"]

LINES_PER_PIECE = 4096
MAX_PLAIN_KEY = 1000  # maximum length in characters; YAML allows 1,024 before the colon
# Other YAML readers parse text such as `.5` as a number, and `...` ends a YAML document.
_PLAIN = re.compile(r"(?!\.[\d_])(?!\.+\Z)[A-Za-z_./][A-Za-z0-9_./-]{0,126}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{8,}")  # a checksum, which other YAML readers may parse as a number
_AMBIGUOUS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", ".nan", ".inf"}


def text(playlist: Playlist) -> bytes:
    """Return the YAML text of a playlist, with its checksum at the end."""
    return b"".join(_pieces(playlist))


def write(at: Location, playlist: Playlist) -> Written:
    """Write a playlist atomically; the text is generated in pieces while it is written."""
    return at.write(_pieces(playlist))


def _pieces(playlist: Playlist) -> Iterator[bytes]:
    sums, lines = Sums([DEFAULT]), _lines(playlist)
    while batch := list(itertools.islice(lines, LINES_PER_PIECE)):
        piece = ("\n".join(batch) + "\n").encode()
        sums.update(piece)
        yield piece
    yield f"# flare {DEFAULT} {sums.hex()[DEFAULT]}\n".encode()


def _lines(playlist: Playlist) -> Iterator[str]:
    if not playlist.streams:
        yield "{}"
    for stream in playlist.streams:
        yield _key(stream.name, "\n") + "\n  headers:"
        headers, parts = _headers(stream), any(stream.parts)
        if headers or not (stream.files or parts):
            yield from _block(headers, 2)
        yield from _file_lines(stream.files)
        if parts:
            files = [{file.name: _file(file) for file in part} for part in stream.parts]
            yield from _block({"parts": files}, 2)
        yield "  content:" + ("" if len(stream.urls) else " []")
        yield from (f"    - {_text(url)}" for url in stream.urls)


def _headers(stream: Stream) -> dict[str, Any]:
    """Return the headers of a stream except `files` and `parts`, which are written last."""
    headers: dict[str, Any] = {}
    if stream.format is not None:
        headers["format"] = stream.format
    if stream.columns is not None:
        headers["columns"] = {column.name: column.encoding for column in stream.columns}
        extensions = {column.name: column.extension for column in stream.columns}
        if any(extensions.values()):
            headers[EXTENSIONS] = {name: one for name, one in extensions.items() if one}
    for key, counts in zip(COUNTS, (stream.rows, stream.sizes, stream.raw_sizes), strict=True):
        if counts is not None:
            headers[key] = [None if count < 0 else count for count in counts.tolist()]
    headers |= {name: list(values) for name, values in stream.hashes.items()}
    return headers | dict(stream.headers)


def _file_lines(files: Mapping[str, File]) -> Iterator[str]:
    """Yield the header `files`, one line per file: its name, size and checksums."""
    if files:
        yield "    files:"
    for file in files.values():
        key = _key(file.name, "\n      ")
        yield f"      {key} {_flow(_file(file))}"


def _file(file: File) -> dict[str, Any]:
    raw = {} if file.raw_size is None else {"raw_bytes": file.raw_size}
    return {"bytes": file.size, **raw, **file.hashes}


def _block(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield the lines of a YAML mapping.

    A nested mapping that contains mappings or lists is written in block style. Other values are
    written in flow style.
    """
    if not value:
        yield "  " * depth + "{}"
    for key, item in value.items():
        pad = "  " * depth
        head = pad + _key(key, f"\n{pad}")
        separator = f"\n{pad}  "
        if key == SCHEMA:
            yield head
            yield from (
                f"{pad}  {_key(name, separator)} {_flow(kind)}" for name, kind in item.items()
            )
        elif isinstance(item, Mapping) and any(
            isinstance(nested, (Mapping, list)) for nested in item.values()
        ):
            yield head
            yield from _block(item, depth + 1)
        elif isinstance(item, list) and (len(item) > 8 or (item and isinstance(item[0], Mapping))):
            per_line = 4 if isinstance(item[0], str) else 1 if isinstance(item[0], Mapping) else 16
            lines = [
                ", ".join(map(_flow, item[i : i + per_line])) for i in range(0, len(item), per_line)
            ]
            pad += "  "
            yield f"{head} [\n{pad}" + f",\n{pad}".join(lines) + "]"
        else:
            yield f"{head} {_flow(item)}"


def _flow(value: Any) -> str:
    # Strings and integers are checked first, because long lists usually contain only these types.
    if isinstance(value, str):
        return f'"{value}"' if _HEX.fullmatch(value) else _text(value)
    if isinstance(value, int):
        return str(value).lower()  # a bool is an int: True is written as `true`
    if isinstance(value, Mapping):
        items = [f"{_key(key, ' ')} {_flow(item)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, float):
        return repr(value) if FLOAT.fullmatch(repr(value)) else _quoted(repr(value))
    raise TypeError(f"cannot write {type(value).__name__} to a playlist")


def _key(name: str, separator: str) -> str:
    """Return a name as a YAML key with a colon. YAML requires the form `? key` for a long key.

    separator  whitespace before the colon of a long key
    """
    text = _text(name)
    return f"{text}:" if len(text) <= MAX_PLAIN_KEY else f"? {text}{separator}:"


def _text(value: str) -> str:
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _AMBIGUOUS
    return value if is_plain else _quoted(value)


def _quoted(value: str) -> str:
    """Return a double-quoted scalar; characters that YAML does not allow are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():  # fast path, which avoids a loop over the characters
        return text
    return "".join(c if c.isprintable() else _escaped(ord(c)) for c in text)


def _escaped(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
