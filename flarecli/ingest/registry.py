"""The kinds of index files, by file extension, and how each kind is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from flarecli.errors import UsageError
from flarecli.ingest.csv import Delimited
from flarecli.ingest.decompress import Blocks, Text, split_compression
from flarecli.ingest.ipc import Ipc
from flarecli.ingest.json import Json
from flarecli.ingest.lists import LIST
from flarecli.ingest.parquet import Parquet
from flarecli.storage import Location

__all__ = ["Part", "STDIN", "is_index", "open_part"]

STDIN = "-"
_TABLES: dict[str, Callable[[Location], Part]] = {
    ".parquet": Parquet,
    ".arrow": Ipc,
    ".feather": Ipc,
    ".arrows": Ipc,
}
_TEXTS: dict[str, Callable[[Blocks, Collection[str]], Part]] = {
    ".csv": lambda source, text: Delimited(source, ",", text),
    ".tsv": lambda source, text: Delimited(source, "\t", text),
    ".json": lambda source, text: Json(source),
    ".jsonl": lambda source, text: Json(source),
    ".ndjson": lambda source, text: Json(source),
}
# names of files in datasets
_DATASET = re.compile(r"(?:index|spec)\.json|shard\.\d{5,}\.(?:json|csv|tsv)(?:\.\w+)?")


class Part(Protocol):
    """One index file: its columns, the number of rows if known, and its batches."""

    @property
    def at(self) -> object: ...  # the address, for messages
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def rows(self) -> int | None: ...
    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]: ...
    def blocks(self) -> Iterator[bytes]: ...  # the bytes that its checksum covers


def is_index(address: str) -> bool:
    """Return whether the name of an address is that of an index: a table, a list of tables, or `-`."""
    if address == STDIN:
        return True
    if os.path.isdir(address):
        return False
    name = address.partition("?")[0].rpartition("/")[2].lower()
    plain, compression = split_compression(name)
    if _DATASET.fullmatch(name):
        return False
    return plain.endswith(tuple(_TEXTS)) or (not compression and name.endswith((*_TABLES, LIST)))


def open_part(at: Location, text: Collection[str]) -> Part:
    """Open one table: its columns are known, its rows are not read yet.

    text    columns of a CSV or TSV that are always text
    raises  UsageError for an unknown kind of file
    """
    name = at.name.lower()
    for suffix, open_table in _TABLES.items():
        if name.endswith(suffix):
            return open_table(at)
    plain, compression = split_compression(name)
    for suffix, open_text in _TEXTS.items():
        if plain.endswith(suffix):
            return open_text(Text(at, compression), text)
    raise UsageError(
        "unknown kind of index",
        where=at,
        hint=f"Use one of {', '.join((*_TABLES, *_TEXTS, LIST))}.",
    )
