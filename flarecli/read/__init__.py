"""Reading: an address resolves to a Playlist, a Playlist opens as a Dataset of rows, in any order."""

from __future__ import annotations

from flarecli.read import presets
from flarecli.read.ahead import Ahead
from flarecli.read.batching import Made, Part, Work
from flarecli.read.dataset import Dataset, open
from flarecli.read.fetching import begun
from flarecli.read.loader import Loader
from flarecli.read.mixing import Mix, mix
from flarecli.read.order import positions
from flarecli.read.passing import Passed, passed, taken
from flarecli.read.resolve import expand, resolve, select_streams
from flarecli.read.rows import Rows
from flarecli.read.run import Run, check_place
from flarecli.read.selection import parse_rows
from flarecli.read.series import Series

__all__ = [
    "Ahead",
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
    "expand",
    "mix",
    "open",
    "parse_rows",
    "passed",
    "positions",
    "presets",
    "resolve",
    "select_streams",
    "taken",
]
