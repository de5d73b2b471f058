"""Playlists: YAML that names streams of chunks, read without trust and written so that any Flare reader works.

    NAME:
        headers: {format: mds, columns: {…}, rows: [...], bytes: [...], xxh3_128: [...], parts: [...], files: {…}, …}
        content: [URL, …]
    # flare xxh3_128 HEX

Lists in the headers run parallel to `content`. The last line is the sum of all bytes above it.
"""

from __future__ import annotations

from flarecli.playlists.read import parse, read, stored
from flarecli.playlists.validate import faults, places
from flarecli.playlists.write import text, write

__all__ = ["PLAYLIST", "faults", "parse", "places", "read", "stored", "text", "write"]

PLAYLIST = "playlist.yaml"
