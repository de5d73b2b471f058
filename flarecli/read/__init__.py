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
    from flarecli.read.batch import Made, Part, Work, parts_of
    from flarecli.read.dataset import Dataset
    from flarecli.read.epoch import Run, check_place, parse_state
    from flarecli.read.fingerprint import listing_checksum
    from flarecli.read.loader import Loader
    from flarecli.read.mixture import Mix, mix
    from flarecli.read.open_dataset import open
    from flarecli.read.permutation import positions
    from flarecli.read.protocols import Closable, Rows, check_rows
    from flarecli.read.selection import parse_rows
    from flarecli.read.shard_ahead import begun
    from flarecli.read.shards import Series
    from flarecli.read.shared_ring import Passed, passed, taken

__all__ = [
    "Closable",
    "Dataset",
    "Loader",
    "Made",
    "Mix",
    "Part",
    "Passed",
    "Rows",
    "Run",
    "Series",
    "Work",
    "begun",
    "check_place",
    "check_rows",
    "expand",
    "listing_checksum",
    "mix",
    "open",
    "parse_rows",
    "parse_state",
    "parts_of",
    "passed",
    "place_of",
    "places_of",
    "positions",
    "decoders",
    "refuse_repeats",
    "read_list",
    "resolve",
    "select_streams",
    "taken",
]

_FILES = {
    "Closable": "protocols",
    "Dataset": "dataset",
    "Loader": "loader",
    "Made": "batch",
    "Mix": "mixture",
    "Part": "batch",
    "Passed": "shared_ring",
    "Rows": "protocols",
    "Run": "epoch",
    "Series": "shards",
    "Work": "batch",
    "begun": "shard_ahead",
    "check_place": "epoch",
    "check_rows": "protocols",
    "listing_checksum": "fingerprint",
    "mix": "mixture",
    "open": "open_dataset",
    "parse_rows": "selection",
    "parse_state": "epoch",
    "parts_of": "batch",
    "passed": "shared_ring",
    "positions": "permutation",
    "decoders": "decoders",
    "taken": "shared_ring",
}


def __getattr__(name: str) -> Any:
    found = globals()[name] = named(__name__, _FILES, name)
    return found
