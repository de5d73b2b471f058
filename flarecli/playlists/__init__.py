"""Playlists: YAML files that list the chunks of one or more streams.

    NAME:
        headers: {format: mds, columns: {…}, rows: [...], bytes: [...], xxh3_128: [...], …}
        content: [URL, …]
    # flare xxh3_128 HEX

Lists in the headers are parallel to `content`. The last line is the checksum of all bytes before
it. Playlists are untrusted input. Any reader of Flare playlists can read the playlists that flare writes.
"""

from __future__ import annotations

from flarecli.playlists.read import faults, parse, places, read, stored
from flarecli.playlists.schema import SCHEMA
from flarecli.playlists.write import text, write

__all__ = ["PLAYLIST", "SCHEMA", "faults", "parse", "places", "read", "stored", "text", "write"]

PLAYLIST = "playlist.yaml"
