"""Reading: an address resolves to a Playlist, a Playlist opens as a Dataset of rows, in any order.

What finds and names datasets is loaded at once; rows, runs and loaders are when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flarecli.lazy import named
from flarecli.read.repeats import place_of, places_of, refuse_repeats
from flarecli.read.resolve import expand, read_list, resolve, select_streams

if TYPE_CHECKING:
    from flarecli.read import presets
    from flarecli.read.batching import Made, Part, Work, parts_of
    from flarecli.read.dataset import Dataset
    from flarecli.read.entrance import open
    from flarecli.read.fetching import begun
    from flarecli.read.fingerprint import listing_checksum
    from flarecli.read.loader import Loader
    from flarecli.read.mixing import Mix, mix
    from flarecli.read.order import positions
    from flarecli.read.passing import Passed, passed, taken
    from flarecli.read.rows import Closable, Rows, check_rows
    from flarecli.read.run import Run, check_place, parse_state
    from flarecli.read.selection import parse_rows
    from flarecli.read.series import Series

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
    "presets",
    "refuse_repeats",
    "read_list",
    "resolve",
    "select_streams",
    "taken",
]

_FILES = {
    "Closable": "rows",
    "Dataset": "dataset",
    "Loader": "loader",
    "Made": "batching",
    "Mix": "mixing",
    "Part": "batching",
    "Passed": "passing",
    "Rows": "rows",
    "Run": "run",
    "Series": "series",
    "Work": "batching",
    "begun": "fetching",
    "check_place": "run",
    "check_rows": "rows",
    "listing_checksum": "fingerprint",
    "mix": "mixing",
    "open": "entrance",
    "parse_rows": "selection",
    "parse_state": "run",
    "parts_of": "batching",
    "passed": "passing",
    "positions": "order",
    "presets": "presets",
    "taken": "passing",
}


def __getattr__(name: str) -> Any:
    found = globals()[name] = named(__name__, _FILES, name)
    return found
