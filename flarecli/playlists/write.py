"""Playlists as text: the same playlist gives the same bytes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from flarecli.hashes import DEFAULT, Sums
from flarecli.model import File, Playlist, Stream
from flarecli.playlists.read import FLOAT
from flarecli.playlists.schema import COUNTS
from flarecli.storage import Location, Written

__all__ = ["text", "write"]

_PIECE = 4096  # lines made at once
_KEY_LIMIT = 1000  # characters; YAML takes 1,024 before the colon
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*", re.ASCII)
_NUMBER = re.compile(
    r"\.[\d_]", re.ASCII
)  # what is plain begins with no digit, but other readers take `.5` for a number
_AMBIGUOUS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", ".nan", ".inf"}


def text(playlist: Playlist) -> bytes:
    """Give the YAML of a playlist, ending with its sum: the same playlist gives the same bytes."""
    return b"".join(_pieces(playlist))


def write(at: Location, playlist: Playlist) -> Written:
    """Write a playlist, whole or not at all; its text is made as it is written."""
    return at.write(_pieces(playlist))


def _pieces(playlist: Playlist) -> Iterator[bytes]:
    sums, lines = Sums([DEFAULT]), _lines(playlist)
    while some := list(itertools.islice(lines, _PIECE)):
        piece = ("\n".join(some) + "\n").encode()
        sums.update(piece)
        yield piece
    yield f"# flare {DEFAULT} {sums.hex()[DEFAULT]}\n".encode()


def _lines(playlist: Playlist) -> Iterator[str]:
    if not playlist.streams:
        yield "{}"
    for stream in playlist.streams:
        yield _key(stream.name, "\n") + "\n  headers:"
        yield from _block(_headers(stream), 2)
        yield "  content:" + ("" if len(stream.urls) else " []")
        yield from (f"    - {_text(url)}" for url in stream.urls)


def _headers(stream: Stream) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if stream.format is not None:
        headers["format"] = stream.format
    if stream.columns is not None:
        headers["columns"] = {one.name: one.encoding for one in stream.columns}
    for key, counts in zip(COUNTS, (stream.rows, stream.sizes, stream.raw_sizes), strict=True):
        if counts is not None:
            headers[key] = [None if count < 0 else count for count in counts.tolist()]
    headers |= {name: list(values) for name, values in stream.hashes.items()}
    headers |= stream.headers
    if stream.files:
        headers["files"] = _Files(stream.files)
    if any(stream.parts):
        headers["parts"] = [{file.name: _file(file) for file in one} for one in stream.parts]
    return headers


class _Files(Mapping[str, Any]):
    """What a playlist says of files, said one at a time: there may be millions."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> dict[str, Any]:
        return _file(self._files[name])

    def __iter__(self) -> Iterator[str]:
        return (file.name for file in self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def items(self) -> Any:
        """Give names and what is said of each, as an iterator."""
        return ((file.name, _file(file)) for file in self._files.values())

    def values(self) -> Any:
        """Give what is said of each, as an iterator."""
        return (_file(file) for file in self._files.values())


def _file(file: File) -> dict[str, Any]:
    raw = {} if file.raw_size is None else {"raw_bytes": file.raw_size}
    return {"bytes": file.size, **raw, **file.hashes}


def _block(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Give a mapping as lines: mappings of mappings in blocks, the rest in flow style."""
    if not value:
        yield "  " * depth + "{}"
    for key, one in value.items():
        pad = "  " * depth
        head = pad + _key(key, f"\n{pad}")
        if isinstance(one, Mapping) and any(
            isinstance(item, (Mapping, list)) for item in one.values()
        ):
            yield head
            yield from _block(one, depth + 1)
        elif isinstance(one, list) and (len(one) > 8 or (one and isinstance(one[0], Mapping))):
            step = 4 if isinstance(one[0], str) else 1 if isinstance(one[0], Mapping) else 16
            lines = [", ".join(map(_flow, one[i : i + step])) for i in range(0, len(one), step)]
            pad += "  "
            yield f"{head} [\n{pad}" + f",\n{pad}".join(lines) + "]"
        else:
            yield f"{head} {_flow(one)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key, ' ')} {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if FLOAT.fullmatch(repr(value)) else _quoted(repr(value))
    return _text(str(value)) if not _is_hex(value) else f'"{value}"'


def _is_hex(value: str) -> bool:
    return len(value) >= 8 and all(c in "0123456789abcdef" for c in value)


def _key(name: str, between: str) -> str:
    """Give a name as a key with its colon; YAML takes a long one only with a mark before it, and with something `between` it and the colon."""
    text = _text(name)
    return f"{text}:" if len(text) <= _KEY_LIMIT else f"? {text}{between}:"


def _text(value: str) -> str:
    plain = (
        _PLAIN.fullmatch(value)
        and value.lower() not in _AMBIGUOUS
        and not _NUMBER.match(value)
        and value.strip(".")
        and len(value) < 128
    )
    return value if plain else _quoted(value)


def _quoted(value: str) -> str:
    """Give a double-quoted scalar; what YAML does not take raw is escaped as it reads it."""
    return "".join(
        c if c.isprintable() else _escaped(ord(c)) for c in json.dumps(value, ensure_ascii=False)
    )


def _escaped(code: int) -> str:
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )
