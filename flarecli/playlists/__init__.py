"""Playlists: YAML that names streams of chunks, read without trust and written so that any Flare reader works.

    NAME:
        headers: {format: mds, columns: {…}, rows: [...], bytes: [...], xxh3_128: [...], parts: [...], files: {…}, …}
        content: [URL, …]
    # flare xxh3_128 HEX

Lists in the headers run parallel to `content`. The last line is the sum of all bytes above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flarecli.later import named
from flarecli.playlists.reading import parse, read, stored

if TYPE_CHECKING:
    from flarecli.playlists.checking import faults, places
    from flarecli.playlists.writing import text, write

__all__ = ["PLAYLIST", "faults", "parse", "places", "read", "stored", "text", "write"]

PLAYLIST = "playlist.yaml"
_FILES = {
    "faults": "checking",
    "places": "checking",
    "text": "writing",
    "write": "writing",
}  # nobody who reads needs those


def __getattr__(name: str) -> Any:
    found = globals()[name] = named(__name__, _FILES, name)
    return found
