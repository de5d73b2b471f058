"""Playlists: YAML files that list the chunks of one or more streams.

    NAME:
        headers: {format: mds, columns: {…}, rows: [...], bytes: [...], xxh3_128: [...], …}
        content: [URL, …]
    # flare xxh3_128 HEX

A list in the headers has one item for each URL in `content`, in the same order. The last line
contains the checksum of all preceding bytes. Playlists are untrusted input. Other readers of the
Flare playlist format can read the playlists that flare writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flarecli.model import Playlist
from flarecli.playlists.read import (
    checksum_fault,
    faults,
    parse,
    parse_intact,
    places,
    read,
    stored,
)
from flarecli.playlists.schema import SCHEMA
from flarecli.playlists.write import text, write

__all__ = [
    "MAX_PIN_LENGTH",
    "MAX_VERSION",
    "PLAYLIST",
    "SAME_ROWS",
    "SCHEMA",
    "VERSION",
    "checksum_fault",
    "faults",
    "has_change",
    "parse",
    "parse_intact",
    "pin_of",
    "places",
    "read",
    "same_rows",
    "stored",
    "text",
    "version_name",
    "version_number",
    "version_of",
    "write",
]

PLAYLIST = "playlist.yaml"
# Header with the version number, and with a description of the change that created the version,
# such as its command and row counts. Only the first stream of a changed dataset has this header.
VERSION = "version"
MAX_VERSION = 10**12
# Key that only compactions add to the header VERSION. The value is a list with one mapping for each
# earlier version that has the same rows in the same order: stream name -> listing checksum.
SAME_ROWS = "same_rows"
MAX_PIN_LENGTH = 100
_PIN = re.compile(
    rf"playlist\.([A-Za-z0-9_-][A-Za-z0-9._-]{{0,{MAX_PIN_LENGTH - 1}}})\.yaml", re.ASCII
)
_NUMBERED = re.compile(r"playlist\.(\d{6}|[1-9]\d{6,12})\.yaml", re.ASCII)


def version_name(number: int) -> str:
    """Return the file name of a numbered playlist: `playlist.000001.yaml`."""
    return f"playlist.{number:06d}.yaml"


def version_number(name: str) -> int | None:
    """Return the number in the file name of a numbered playlist; None for any other name."""
    match = _NUMBERED.fullmatch(name)
    number = int(match[1]) if match else 0
    return number if 0 < number <= MAX_VERSION else None


def pin_of(name: str) -> str | None:
    """Return NAME for a file name `playlist.NAME.yaml`; None for any other file name.

    NAME is the name of a pin (a named copy of a playlist), or the number of a numbered playlist.
    """
    match = _PIN.fullmatch(name)
    return match[1] if match else None


def version_of(playlist: Playlist) -> int | None:
    """Return the version number in a playlist or, if it contains none, in its file name."""
    number = _change(playlist).get("number")
    if type(number) is int and 0 < number <= MAX_VERSION:
        return number
    return None if playlist.at is None else version_number(playlist.at.name)


def has_change(playlist: Playlist) -> bool:
    """Return whether a playlist was created by a change of its dataset."""
    return bool(_change(playlist))


def _change(playlist: Playlist) -> Mapping[str, Any]:
    """Return the header VERSION of a playlist; empty if the playlist has no such header."""
    header = playlist.streams[0].headers.get(VERSION) if playlist.streams else None
    return header if isinstance(header, Mapping) else {}


def same_rows(playlist: Playlist) -> list[Mapping[str, str]]:
    """Return the listing checksums of each earlier version with the same rows, oldest first.

    return  mappings from the name of a stream to its listing checksum; empty unless the version was
            created by a compaction
    """
    found = _change(playlist).get(SAME_ROWS)
    return [
        one
        for one in (found if isinstance(found, list) else [])
        if isinstance(one, Mapping) and all(isinstance(text, str) for text in one.values())
    ]
