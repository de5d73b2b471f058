"""Which files are indexes, by their names, and how each kind is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from flarecli.errors import UsageError
from flarecli.ingest.csv import Delimited
from flarecli.ingest.decompress import Blocks, Text, bare
from flarecli.ingest.ipc import Ipc
from flarecli.ingest.json import Json
from flarecli.ingest.lists import LIST
from flarecli.ingest.parquet import Parquet
from flarecli.storage import Location

__all__ = ["Part", "STDIN", "is_index", "opened"]

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
_DATASET = re.compile(
    r"(?:index|spec)\.json|shard\.\d{5,}\.(?:json|csv|tsv)(?:\.\w+)?"
)  # what a dataset calls its own files


class Part(Protocol):
    """One index file: its columns, its rows if they are known, and the batches of the columns asked for."""

    @property
    def at(self) -> object: ...  # where it lies, for messages
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def rows(self) -> int | None: ...
    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]: ...
    def blocks(self) -> Iterator[bytes]: ...  # the bytes that its sum is over


def is_index(address: str) -> bool:
    """Say by its name whether an address is an index rather than a dataset: a table, a list of tables, or `-`; a local folder is none."""
    if address == STDIN:
        return True
    if os.path.isdir(address):
        return False
    name = address.partition("?")[0].rpartition("/")[2].lower()
    plain, compression = bare(name)
    if _DATASET.fullmatch(name):
        return False
    return plain.endswith(tuple(_TEXTS)) or (not compression and name.endswith((*_TABLES, LIST)))


def opened(at: Location, text: Collection[str]) -> Part:
    """Open one table; its columns are known then, its rows are not read yet.

    text    columns of a CSV or TSV that are text whatever they look like
    raises  UsageError for a kind of file that is not read
    """
    name = at.name.lower()
    for suffix, open_table in _TABLES.items():
        if name.endswith(suffix):
            return open_table(at)
    plain, compression = bare(name)
    for suffix, open_text in _TEXTS.items():
        if plain.endswith(suffix):
            return open_text(Text(at, compression), text)
    raise UsageError(
        "not an index that is read",
        where=at,
        hint=f"Name one of {', '.join((*_TABLES, *_TEXTS, LIST))}.",
    )
