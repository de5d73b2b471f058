"""The commands as plain functions, which return results and print nothing.

The module of a command, and the heavy libraries that it imports, are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flarecli.commands.cat_command import cat
    from flarecli.commands.column_stats import stats_table
    from flarecli.commands.drop_command import Changed, compact, drop
    from flarecli.commands.history_command import Pruned, VersionInfo, log, prune
    from flarecli.commands.inspect_command import Inspection, StreamInfo, inspect
    from flarecli.commands.packing.command import Packed, append, pack
    from flarecli.commands.playlist_command import check_playlist, merge_index, playlist, reindex
    from flarecli.commands.playlist_diff import PlaylistDiff, diff_playlists
    from flarecli.commands.unpacking.command import Unpacked, unpack
    from flarecli.commands.verifying.command import Verification, verify

__all__ = [
    "Changed",
    "Inspection",
    "Packed",
    "PlaylistDiff",
    "Pruned",
    "StreamInfo",
    "Unpacked",
    "Verification",
    "VersionInfo",
    "append",
    "cat",
    "check_playlist",
    "compact",
    "diff_playlists",
    "drop",
    "inspect",
    "log",
    "merge_index",
    "pack",
    "playlist",
    "prune",
    "reindex",
    "stats_table",
    "unpack",
    "verify",
]

# No module here may have the same name as a public function: importing the module would replace the
# function.
_MODULES = {
    "Changed": "drop_command",
    "Pruned": "history_command",
    "VersionInfo": "history_command",
    "compact": "drop_command",
    "drop": "drop_command",
    "log": "history_command",
    "prune": "history_command",
    "Inspection": "inspect_command",
    "Packed": "packing.command",
    "PlaylistDiff": "playlist_diff",
    "StreamInfo": "inspect_command",
    "Unpacked": "unpacking.command",
    "Verification": "verifying.command",
    "append": "packing.command",
    "cat": "cat_command",
    "check_playlist": "playlist_command",
    "diff_playlists": "playlist_diff",
    "inspect": "inspect_command",
    "merge_index": "playlist_command",
    "pack": "packing.command",
    "playlist": "playlist_command",
    "reindex": "playlist_command",
    "stats_table": "column_stats",
    "unpack": "unpacking.command",
    "verify": "verifying.command",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
