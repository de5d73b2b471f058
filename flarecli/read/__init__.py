"""Reading: resolve an address to a Playlist, and open a Playlist as a Dataset.

`resolve` is imported at once; datasets, runs and loaders are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flarecli.lazy import named
from flarecli.read.resolve import (
    expand,
    parts_hint,
    place_of,
    places_of,
    read_list,
    refuse_repeats,
    resolve,
    select_streams,
)

if TYPE_CHECKING:
    from flarecli.read import decoders
    from flarecli.read.batch import (
        BatchMaker,
        BatchResult,
        BatchTask,
        Rows,
        batch_rows,
        batch_tasks,
    )
    from flarecli.read.dataset import Dataset, open
    from flarecli.read.epoch import check_cursor, check_rows, parse_state
    from flarecli.read.epoch_order import positions
    from flarecli.read.loader import Loader
    from flarecli.read.mixture import Mix, mix
    from flarecli.read.shard_prefetch import Prefetch
    from flarecli.read.shards import Series
    from flarecli.read.table import parse_rows

__all__ = [
    "BatchMaker",
    "BatchResult",
    "BatchTask",
    "Dataset",
    "Loader",
    "Mix",
    "Prefetch",
    "Rows",
    "Series",
    "batch_rows",
    "batch_tasks",
    "check_cursor",
    "check_rows",
    "decoders",
    "expand",
    "mix",
    "open",
    "parse_rows",
    "parse_state",
    "parts_hint",
    "place_of",
    "places_of",
    "positions",
    "read_list",
    "refuse_repeats",
    "resolve",
    "select_streams",
]

_FILES = {
    "BatchMaker": "batch",
    "BatchResult": "batch",
    "BatchTask": "batch",
    "Dataset": "dataset",
    "Loader": "loader",
    "Mix": "mixture",
    "Prefetch": "shard_prefetch",
    "Rows": "batch",
    "Series": "shards",
    "batch_rows": "batch",
    "batch_tasks": "batch",
    "check_cursor": "epoch",
    "check_rows": "epoch",
    "decoders": "decoders",
    "mix": "mixture",
    "open": "dataset",
    "parse_rows": "table",
    "parse_state": "epoch",
    "positions": "epoch_order",
}


def __getattr__(name: str) -> Any:
    found = globals()[name] = named(__name__, _FILES, name)
    return found
