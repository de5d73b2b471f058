"""Reading: an address resolves to a Playlist, and a Playlist opens as a Dataset.

`resolve` is imported at once; datasets, runs and loaders are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flarecli.lazy import named
from flarecli.read.resolve import (
    expand,
    place_of,
    places_of,
    read_list,
    refuse_repeats,
    resolve,
    select_streams,
)

if TYPE_CHECKING:
    from flarecli.read import decoders
    from flarecli.read.batch import BatchMaker, BatchResult, BatchTask, batch_rows, batch_tasks
    from flarecli.read.dataset import Dataset, open
    from flarecli.read.epoch import Run, check_cursor, check_rows, parse_state
    from flarecli.read.fingerprint import listing_checksum
    from flarecli.read.loader import Loader
    from flarecli.read.mixture import Mix, mix
    from flarecli.read.permutation import positions
    from flarecli.read.protocols import Closable, Rows
    from flarecli.read.shard_prefetch import start_prefetch
    from flarecli.read.shards import Series, keep_freed
    from flarecli.read.table import parse_rows

__all__ = [
    "Closable",
    "Dataset",
    "Loader",
    "BatchResult",
    "Mix",
    "BatchTask",
    "Rows",
    "Run",
    "Series",
    "BatchMaker",
    "batch_rows",
    "check_cursor",
    "check_rows",
    "expand",
    "keep_freed",
    "listing_checksum",
    "mix",
    "open",
    "parse_rows",
    "parse_state",
    "batch_tasks",
    "place_of",
    "places_of",
    "positions",
    "decoders",
    "refuse_repeats",
    "read_list",
    "resolve",
    "select_streams",
    "start_prefetch",
]

_FILES = {
    "Closable": "protocols",
    "Dataset": "dataset",
    "Loader": "loader",
    "BatchResult": "batch",
    "Mix": "mixture",
    "BatchTask": "batch",
    "Rows": "protocols",
    "Run": "epoch",
    "Series": "shards",
    "BatchMaker": "batch",
    "batch_rows": "batch",
    "check_cursor": "epoch",
    "check_rows": "epoch",
    "listing_checksum": "fingerprint",
    "mix": "mixture",
    "keep_freed": "shards",
    "open": "dataset",
    "parse_rows": "table",
    "parse_state": "epoch",
    "batch_tasks": "batch",
    "positions": "permutation",
    "decoders": "decoders",
    "start_prefetch": "shard_prefetch",
}


def __getattr__(name: str) -> Any:
    found = globals()[name] = named(__name__, _FILES, name)
    return found
