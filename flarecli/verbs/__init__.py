"""The six commands as plain functions: they return results and print nothing.

A verb's module, and the heavy libraries under it, are loaded when the verb is first asked for.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flarecli.verbs.cat import cat
    from flarecli.verbs.differences import PlaylistDiff, diff_playlists
    from flarecli.verbs.indexes import merge_index, reindex
    from flarecli.verbs.inspect import Inspection, StreamInfo, inspect
    from flarecli.verbs.pack import Packed, pack
    from flarecli.verbs.playlist import check_playlist, playlist
    from flarecli.verbs.unpack import Unpacked, unpack
    from flarecli.verbs.verify import Verification, verify

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

_MODULES = {
    "Inspection": "inspect",
    "Packed": "pack",
    "PlaylistDiff": "differences",
    "StreamInfo": "inspect",
    "Unpacked": "unpack",
    "Verification": "verify",
    "check_playlist": "playlist",
    "diff_playlists": "differences",
    "merge_index": "indexes",
    "reindex": "indexes",
}


class _Verbs(ModuleType):
    """A package whose verbs keep their names: importing the module `verify` must not hide the function `verify`."""

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, name)}"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(
            name,
            getattr(value, name) if isinstance(value, ModuleType) and name in __all__ else value,
        )


sys.modules[__name__].__class__ = _Verbs
