"""Registry of table readers, by file suffix or by the value of `--input`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from flarecli import compress
from flarecli.errors import UsageError
from flarecli.formats.registry import NOT_TABLES
from flarecli.formats.tables.base import Part
from flarecli.formats.tables.csv import Delimited
from flarecli.formats.tables.decompress import (
    COMPRESSIONS,
    Blocks,
    TextFile,
    split_compression,
)
from flarecli.formats.tables.dialect import (
    DEFAULT,
    DELIMITERS,
    Dialect,
    decoded,
    first_bytes,
    first_line,
)
from flarecli.formats.tables.ipc import Ipc
from flarecli.formats.tables.json import Json
from flarecli.formats.tables.parquet import Parquet
from flarecli.storage import Location

__all__ = [
    "COMPRESSIONS",
    "TEXTS",
    "is_delimited",
    "is_table",
    "open_kind",
    "open_part",
    "open_text",
    "text_file",
]

_LIST = ".txt"
_TABLES: dict[str, Callable[[Location], Part]] = {
    ".parquet": Parquet,
    ".arrow": Ipc,
    ".feather": Ipc,
    ".arrows": Ipc,
}
# suffix -> default delimiter; the dialect may override it
_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".psv": "|"}
_JSON = (".json", ".jsonl", ".ndjson")
TEXTS = (*_DELIMITERS, *_JSON)


def is_table(name: str) -> bool:
    """Return whether a file name is the name of a table.

    name  file name in lower case, without its folder
    """
    plain, compression = split_compression(name)
    return not NOT_TABLES.fullmatch(name) and (
        plain.endswith(TEXTS) or (not compression and name.endswith(tuple(_TABLES)))
    )


def is_delimited(name: str) -> bool:
    """Return whether a file name is the name of a CSV or TSV file."""
    plain, _ = split_compression(name.lower())
    return plain.endswith(tuple(_DELIMITERS))


def open_part(at: Location, text: Collection[str], dialect: Dialect = DEFAULT) -> Part:
    """Open one table without reading its rows; its suffix determines the reader.

    text     columns of a CSV or TSV file that are always read as text
    dialect  dialect of a CSV or TSV file; unset fields are detected
    raises   UsageError for an unknown suffix
    """
    name = at.name.lower()
    for suffix, open_table in _TABLES.items():
        if name.endswith(suffix):
            return open_table(at)
    plain, compression = split_compression(name)
    file = TextFile(at, compression)
    if name.endswith(_LIST):
        _, head = decoded(file, first_bytes(file), dialect.encoding)
        delimiter = "\t" if b"\t" in first_line(head) else DELIMITERS[0]
        return Delimited(file, delimiter, text, dialect)
    return open_text(file, plain, text, dialect)


def open_text(file: Blocks, name: str, text: Collection[str], dialect: Dialect = DEFAULT) -> Part:
    """Open one text table; see `open_part`.

    name  file name in lower case, without compression suffix
    """
    if name.endswith(_JSON):
        return Json(file)
    for suffix, delimiter in _DELIMITERS.items():
        if name.endswith(suffix):
            return Delimited(file, delimiter, text, dialect)
    raise UsageError(
        "unknown table suffix",
        where=file,
        hint=f"Use a file with one of the suffixes {', '.join((*_TABLES, *TEXTS, _LIST))}, "
        "or set the kind of the file with --input; for a list of addresses, use --input lines.",
    )


def open_kind(
    kind: str,
    at: Location,
    text: Collection[str],
    dialect: Dialect = DEFAULT,
    blocks: Blocks | None = None,
) -> Part:
    """Open one table of a given kind without reading its rows.

    kind    arrow, parquet, jsonl, csv or tsv
    blocks  bytes of a text table; None: the file at the location `at` is read, and decompressed if
            necessary
    """
    suffix = f".{kind}"
    if suffix in _TABLES:
        return _TABLES[suffix](at)
    return open_text(text_file(at) if blocks is None else blocks, suffix, text, dialect)


def text_file(at: Location) -> TextFile:
    """Return a text file. Its suffix or its first bytes determine its compression."""
    _, compression = split_compression(at.name.lower())
    return TextFile(at, compression or compress.detect(at.read(0, min(at.size(), 4))))
