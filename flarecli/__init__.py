"""flare: pack, unpack, inspect, verify, list and stream sharded datasets.

    import flarecli as flare

    flare.pack("index.parquet", "out", fetch=["data_url:image"], key="data_id")
    data = flare.open("out")
    data[7]["image"]

A module is imported when one of its names is first used, so importing the package is fast.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli import errors
    from flarecli.commands import (
        append,
        cat,
        compact,
        drop,
        inspect,
        log,
        merge_index,
        pack,
        playlist,
        prune,
        reindex,
        unpack,
        verify,
    )
    from flarecli.encodings import encoding
    from flarecli.model import Column, Cursor, Finding
    from flarecli.read import Dataset, Loader, Mix, mix, open
    from flarecli.read import decoders as presets
    from flarecli.write import Writer

__version__ = "0.1.0"

_FILES = {  # name -> module, as in `lazy.named`
    "Column": "model",
    "Cursor": "model",
    "Dataset": "read",
    "Finding": "model",
    "Loader": "read",
    "Mix": "read",
    "Writer": "write",
    "append": "commands",
    "cat": "commands",
    "compact": "commands",
    "drop": "commands",
    "encoding": "encodings",
    "errors": "errors",
    "inspect": "commands",
    "log": "commands",
    "merge_index": "commands",
    "mix": "read",
    "open": "read",
    "pack": "commands",
    "playlist": "commands",
    "presets": "read:decoders",
    "prune": "commands",
    "reindex": "commands",
    "unpack": "commands",
    "verify": "commands",
}

__all__ = [
    "Column",
    "Cursor",
    "Dataset",
    "Finding",
    "Loader",
    "Mix",
    "Writer",
    "__version__",
    "append",
    "cat",
    "close",
    "compact",
    "drop",
    "encoding",
    "errors",
    "inspect",
    "log",
    "merge_index",
    "mix",
    "open",
    "pack",
    "playlist",
    "presets",
    "prune",
    "reindex",
    "unpack",
    "verify",
]


def close() -> None:
    """Close the connections, threads and files that datasets of this process share.

    Call this function only while no dataset is being read or written. Datasets remain usable, and
    reopen these resources on the next use.
    """
    from flarecli.lifetimes import close_all

    close_all()


def __getattr__(name: str) -> object:
    from flarecli.lazy import named

    found = globals()[name] = named(__name__, _FILES, name)
    return found


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
