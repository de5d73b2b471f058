"""Registry of table readers by file extension."""

from __future__ import annotations

from collections.abc import Callable, Collection

from flarecli.errors import UsageError
from flarecli.formats.tables.base import Part
from flarecli.formats.tables.csv import Delimited
from flarecli.formats.tables.decompress import TextFile, split_compression
from flarecli.formats.tables.dialect import DEFAULT, Dialect
from flarecli.formats.tables.ipc import Ipc
from flarecli.formats.tables.json import Json
from flarecli.formats.tables.parquet import Parquet
from flarecli.storage import Location

__all__ = ["is_table", "open_part"]

_LIST = ".txt"
_TABLES: dict[str, Callable[[Location], Part]] = {
    ".parquet": Parquet,
    ".arrow": Ipc,
    ".feather": Ipc,
    ".arrows": Ipc,
}
# suffix -> default CSV delimiter, which the dialect may override
_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".psv": "|"}
_JSON = (".json", ".jsonl", ".ndjson")
_TEXTS = (*_DELIMITERS, *_JSON)


def is_table(name: str) -> bool:
    """Return whether a file name in lower case has the suffix of a table."""
    plain, compression = split_compression(name)
    return plain.endswith(_TEXTS) or (not compression and name.endswith(tuple(_TABLES)))


def open_part(at: Location, text: Collection[str], dialect: Dialect = DEFAULT) -> Part:
    """Open one table without reading its rows.

    text     columns of a CSV or TSV file that are always read as text
    dialect  dialect of a CSV or TSV file; unset fields are detected
    raises   UsageError for an unknown suffix
    """
    name = at.name.lower()
    for suffix, open_table in _TABLES.items():
        if name.endswith(suffix):
            return open_table(at)
    if name.endswith(_LIST):
        return Delimited(TextFile(at), "\t", text, dialect)
    plain, compression = split_compression(name)
    if plain.endswith(_JSON):
        return Json(TextFile(at, compression))
    for suffix, delimiter in _DELIMITERS.items():
        if plain.endswith(suffix):
            return Delimited(TextFile(at, compression), delimiter, text, dialect)
    raise UsageError(
        "unknown index suffix",
        where=at,
        hint=f"Use a file with one of the suffixes {', '.join((*_TABLES, *_TEXTS, _LIST))}.",
    )
