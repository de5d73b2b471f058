"""Arrow files, and text tables (CSV, TSV, JSON lines and JSON arrays), as shards."""

from __future__ import annotations

from typing import Any

from flarecli.errors import FormatError, UsageError
from flarecli.formats.tables.base import Part
from flarecli.formats.tables.decompress import split_compression
from flarecli.formats.tables.dialect import Dialect
from flarecli.formats.tables.format import TableFormat
from flarecli.formats.tables.ipc import Ipc
from flarecli.formats.tables.registry import (
    COMPRESSIONS,
    TEXTS,
    is_delimited,
    is_table,
    open_kind,
    open_text,
)
from flarecli.model import Chunk, Stream
from flarecli.names import is_url

__all__ = ["ArrowFormat", "TextTable"]

# headers of a stream: the settings of --csv, and the value of --input
DIALECT, INPUT = "csv", "input"


class ArrowFormat(TableFormat):
    """Arrow IPC files and streams. They have no checksums."""

    name = "arrow"
    suffixes = (".arrow", ".feather", ".arrows")
    writable = False

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether the name has a suffix of Arrow files, or the file starts with `ARROW1`."""
        return super().sniff(name, head) or head.startswith(b"ARROW1")

    def open_part(self, chunk: Chunk) -> Part:
        """Read the schema of a file."""
        return Ipc(chunk.at)


class TextTable(TableFormat):
    """CSV and TSV files, JSON lines and JSON arrays. They have no index and no checksums.

    If the number of rows is not listed, the file is read once when it is opened.
    """

    name = "table"
    suffixes = tuple(f"{kind}{end}" for kind in TEXTS for end in ("", *COMPRESSIONS))
    writable = False

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether the name has a suffix of text tables, and is no index of a dataset."""
        last = name.rpartition("/")[2].lower()
        return is_table(last) and last.endswith(self.suffixes)

    def has_delimited_text(self, stream: Stream) -> bool:
        """Return whether a stream has a CSV or TSV file."""
        kind = stream.headers.get(INPUT)
        if kind in ("jsonl", "csv", "tsv"):
            return bool(kind != "jsonl")
        return any(
            is_delimited(url.partition("?")[0] if is_url(url) else url) for url in stream.urls
        )

    def open_part(self, chunk: Chunk) -> Part:
        """Read the first rows of a file, which determine the types of its columns."""
        kind = chunk.headers.get(INPUT)
        if kind in ("jsonl", "csv", "tsv"):
            return open_kind(kind, chunk.at, (), _dialect(chunk))
        name = chunk.files[0].name if chunk.files else chunk.at.name
        plain, _ = split_compression(name.lower())
        # `verify` passes the decompressed bytes without a name
        _, compression = split_compression(chunk.at.name.lower())
        return open_text(chunk.at, plain, compression, (), _dialect(chunk))


def _dialect(chunk: Chunk) -> Dialect:
    """Return the dialect that the stream of a chunk lists."""
    settings: Any = chunk.headers.get(DIALECT, [])
    if not isinstance(settings, list) or not all(isinstance(one, str) for one in settings):
        raise FormatError(f"header {DIALECT!r}: expected a list of KEY=VALUE", where=chunk.at)
    try:
        return Dialect.parse(settings)
    except UsageError as error:
        raise FormatError(f"header {DIALECT!r}: {error.message}", where=chunk.at) from None
