"""The formats. Each is a module with the same verbs in the same order; nothing above asks which one it has.

A format moves batches and bytes: it touches no path, clock or screen, and no Python values. To add one, write a
module that satisfies `Format` and name it in `_MODULES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

import pyarrow as pa

from flarecli.errors import UsageError
from flarecli.model import Chunk, Column, Columns, Finding, IntArray, Row, Settings, Shard, Stream
from flarecli.storage import Location

__all__ = ["Format", "INDEX", "find", "names", "sniffed"]

INDEX = "index.json"  # what the MDS family lists its shards in
_MODULES = {"mds": "flarecli.formats.mds", "files": "flarecli.formats.files"}


class Format(Protocol):
    """The verbs of a format.

    open_dataset  read an index: what is listed, nothing opened
    open_shard    read a header, footer or companion only; counts are checked before anything is allocated
    read_rows     encoded bytes of rows, in the order asked
    read_batch    rows start..stop as typed columns
    row_sizes     bytes that an empty shard weighs, and that each row of a batch adds; int64 [rows]
    arrange       columns in the order that the format keeps them, refused if it cannot hold them
    shard_name    the name of the shard at a position
    write_shard   write all rows as one shard
    write_index   write the index as the original library does; gives the files written
    verify_shard  check structure, then, if asked, every value
    """

    NAME: str
    SUFFIXES: tuple[str, ...]

    def sniff(self, name: str, head: bytes) -> bool: ...
    def open_dataset(self, at: Location) -> Stream: ...
    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard: ...
    def read_rows(self, shard: Shard, rows: Sequence[int], columns: Sequence[str] | None = None) -> list[Row]: ...
    def read_batch(self, shard: Shard, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.RecordBatch: ...
    def row_sizes(self, columns: Columns, batch: pa.RecordBatch, settings: Settings) -> tuple[int, IntArray]: ...
    def arrange(self, columns: Iterable[Column]) -> Columns: ...
    def shard_name(self, number: int) -> str: ...
    def write_shard(self, at: Location, columns: Columns, batches: Sequence[pa.RecordBatch], settings: Settings) -> Chunk: ...
    def write_index(self, at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings) -> dict[str, Any]: ...
    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]: ...


def names() -> tuple[str, ...]:
    """Name the formats there are."""
    return tuple(_MODULES)


def find(name: str) -> Format:
    """Give the module of a format. Raises UsageError for a name that is none."""
    if name not in _MODULES:
        raise UsageError(f"unknown format {name!r}", hint=f"Choose one of {', '.join(_MODULES)}.")
    return cast(Format, importlib.import_module(_MODULES[name]))


def sniffed(name: str) -> str | None:
    """Tell the format of a single shard by its file's name; None if no format claims it."""
    return next((one for one in _MODULES if find(one).SUFFIXES and find(one).sniff(name, b"")), None)
