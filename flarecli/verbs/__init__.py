"""The six commands as plain functions: they return results and print nothing.

A command's module, and the heavy libraries below it, are loaded when the command is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flarecli.verbs.cat_command import cat
    from flarecli.verbs.differences import PlaylistDiff, diff_playlists
    from flarecli.verbs.indexes import merge_index, reindex
    from flarecli.verbs.inspect_command import Inspection, StreamInfo, inspect
    from flarecli.verbs.pack_command import Packed, pack
    from flarecli.verbs.playlist_command import check_playlist, playlist
    from flarecli.verbs.unpack_command import Unpacked, unpack
    from flarecli.verbs.verify_command import Verification, verify

__all__ = [
    "Inspection",
    "Packed",
    "PlaylistDiff",
    "StreamInfo",
    "Unpacked",
    "Verification",
    "cat",
    "check_playlist",
    "diff_playlists",
    "inspect",
    "merge_index",
    "pack",
    "playlist",
    "reindex",
    "unpack",
    "verify",
]

# No module has the name of a function: importing it would replace the function.
_MODULES = {
    "Inspection": "inspect_command",
    "Packed": "pack_command",
    "PlaylistDiff": "differences",
    "StreamInfo": "inspect_command",
    "Unpacked": "unpack_command",
    "Verification": "verify_command",
    "cat": "cat_command",
    "check_playlist": "playlist_command",
    "diff_playlists": "differences",
    "inspect": "inspect_command",
    "merge_index": "indexes",
    "pack": "pack_command",
    "playlist": "playlist_command",
    "reindex": "indexes",
    "unpack": "unpack_command",
    "verify": "verify_command",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
