"""The formats. Each is a module with the same verbs in the same order; nothing above asks which one it has.

A format moves batches and bytes: it touches no path, clock or screen, and no Python values. To add one, write a
module, or an object, that satisfies `Format`, and name it in `_MODULES`, and in `_MARKS` what its files are known by.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol, cast

from flarecli.arrow import pa
from flarecli.errors import UsageError
from flarecli.guesses import choose
from flarecli.model import (
    Chunk,
    Column,
    Columns,
    File,
    Finding,
    IntArray,
    Row,
    Settings,
    Shard,
    Stream,
)
from flarecli.storage import Location

__all__ = [
    "BESIDE",
    "FAMILY",
    "FORWARD",
    "Format",
    "HOLDS_NULL",
    "INDEX",
    "INSIDE",
    "KEY_COLUMN",
    "LISTED",
    "OWN_SUMS",
    "SPECS",
    "find",
    "names",
    "sniffed",
]

INDEX = "index.json"  # what the MDS family lists its shards in
FAMILY = ("mds", "json", "csv", "tsv", "xsv")
SPECS = (
    "spec.json",
    "000000/spec.json",
)  # what tells a Granular folder: a dataset, or its first shard
BESIDE = (
    "json",
    "csv",
    "tsv",
    "xsv",
    "granular",
    "granular-refs",
)  # a shard of these is more than one file
INSIDE = {
    "granular": "shards",
    "granular-refs": "shards",
}  # the original takes every name beside its shards for one: they lie alone in there
HOLDS_NULL = ("webdataset",)  # a sample may lack a member
KEY_COLUMN = {"webdataset": "__key__"}  # what a format calls the column that names its samples
OWN_SUMS = {
    "ffrecord": "crc32"
}  # a sum of every record in the shard itself, whatever a listing says
FORWARD = (
    "mds",
    "json",
    "csv",
    "tsv",
    "xsv",
    "ffrecord",
)  # a shard is checked from front to back, a bounded run of rows at a time
LISTED = (
    "ffrecord",
    "webdataset",
)  # a folder of these shards has no index: it is listed, in the order of the names
_MODULES = {  # name -> module, or module:object
    "mds": "flarecli.formats.mds",
    "json": "flarecli.formats.json_shards",
    "csv": "flarecli.formats.xsv:CSV",
    "tsv": "flarecli.formats.xsv:TSV",
    "xsv": "flarecli.formats.xsv:XSV",
    "ffrecord": "flarecli.formats.ffrecord",
    "granular": "flarecli.formats.granular",
    "granular-refs": "flarecli.formats.granular_refs",
    "webdataset": "flarecli.formats.webdataset",
    "files": "flarecli.formats.files",
}
_MARKS = {  # what the name of each shard has in it: the others are not loaded to ask
    "mds": (".mds",),
    "json": (".json",),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "xsv": (".xsv",),
    "ffrecord": (".ffr",),
    "granular": (".bag",),
    "webdataset": (".tar", ".tgz", ".tbz2"),
}
_MEANT = {
    "tar": "webdataset",
    "wds": "webdataset",
    "ffr": "ffrecord",
    "bag": "granular",
    "streaming": "mds",
    "jsonl": "json",
}  # by others


class Format(Protocol):
    """The verbs of a format.

    open_dataset  read an index: what is listed, nothing opened
    open_shard    read a header, footer or companion only; counts are checked before anything is allocated; `columns` is what
                  a listing says: it counts where the format says nothing itself, and must agree where it does
    read_rows     encoded bytes of rows, in the order asked; `ranges` (start, stop) of list columns, each one read
    find_columns  where the same lie in memory, by columns (`spans.Lying`); only formats that read them faster so have it
    at_hand       whether it copies rows out of memory and waits for nothing; only those that can tell have it
    read_batch    rows start..stop as typed columns; with `views`, text and bytes may be views over the mapped shard
    row_sizes     bytes that an empty shard weighs, and that each row of a batch adds; int64 [rows]
    arrange       columns in the order that the format keeps them, each with an encoding that it holds, or refused
    write_shard   write all rows as the shard at a position of the dataset's folder; names of files are relative to that
    write_index   write the index as the original library does; gives the files written
    verify_shard  check structure, then, if asked, every value
    """

    NAME: str
    SUFFIXES: tuple[str, ...]

    def sniff(self, name: str, head: bytes) -> bool: ...
    def open_dataset(self, at: Location) -> Stream: ...
    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard: ...
    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[Row]: ...
    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch: ...
    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]: ...
    def arrange(self, columns: Iterable[Column]) -> Columns: ...
    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk: ...
    def write_index(
        self, at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings
    ) -> dict[str, File]: ...
    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]: ...


def names() -> tuple[str, ...]:
    """Name the formats there are."""
    return tuple(_MODULES)


@cache
def find(name: str) -> Format:
    """Give the module of a format. Raises UsageError for a name that is none."""
    if name not in _MODULES:
        raise UsageError(f"unknown format {name!r}", hint=choose(name, _MODULES, meant=_MEANT))
    path, _, thing = _MODULES[name].partition(":")
    module = importlib.import_module(path)
    return cast(Format, getattr(module, thing) if thing else module)


def sniffed(name: str) -> str | None:
    """Tell the format of a single shard by its file's name; None if no format claims it."""
    return next(
        (
            one
            for one in _MODULES
            if any(mark in name for mark in _MARKS.get(one, ())) and find(one).sniff(name, b"")
        ),
        None,
    )
