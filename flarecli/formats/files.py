"""Plain files as a dataset. Each file is a shard with one row and two columns:

    name    str    path relative to the folder, with `/`
    data    bytes  unchanged contents of the file

The dataset has no index. A folder is listed once, and its files are sorted by the bytes of their
names. A playlist can list the files instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np

from flarecli.encodings import column, lookup
from flarecli.errors import IntegrityError, UsageError, ValueFitError
from flarecli.formats import byte_ranges
from flarecli.formats.base import Format, LargeValue
from flarecli.lazy import pa
from flarecli.model import Chunk, Column, Columns, Finding, Row, Shard, Stream
from flarecli.storage import Entry, Location

__all__ = ["PlainFiles"]

COLUMNS: Columns = (column("name", "str"), column("data", "bytes"))
_SCRATCH = ".flare/"


class PlainFiles(Format):
    """Files of any type: the fallback for a folder that no other format reads."""

    name = "files"
    is_plain = True
    writable = False
    default_key = "name"

    def sniff(self, name: str, head: bytes) -> bool:
        """Return False, because this format is only a fallback."""
        return False

    def open_dataset(self, at: Location) -> Stream:
        """List the files in a folder. Links and special files are listed, but cannot be read."""
        return self.of_listing(at, list(at.list()))

    def of_listing(self, at: Location, entries: Sequence[Entry]) -> Stream:
        files = [entry for entry in entries if not entry.name.startswith(_SCRATCH)]
        sizes = np.array([entry.size for entry in files], np.int64)
        return Stream(
            "data",
            at,
            self.name,
            [entry.name for entry in files],
            COLUMNS,
            np.ones(len(files), np.int64),
            sizes,
        )

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Return a shard with one row, without opening the file."""
        return Shard(chunk, COLUMNS, 1, {})

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[Row]:
        """Return the selected columns. The file is read only if the column `data` is selected."""
        names = ("name", "data") if columns is None else columns
        values: Row = {name: _name(shard) if name == "name" else _data(shard) for name in names}
        return [dict(values) for _ in rows]

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Return the row as typed columns. Raises ValueFitError for a name that is not UTF-8."""
        chosen = byte_ranges.selected_columns(shard, columns)
        arrays = []
        for one in chosen:
            value = _text(shard) if one.name == "name" else _data(shard)
            arrays.append(pa.array([value], lookup(one.encoding).arrow)[: stop - start])
        return byte_ranges.record_batch(chosen, arrays, stop - start)

    def large_values(self, shard: Shard, max_bytes: int) -> list[LargeValue]:
        """Return the size of the value `data` if the file is larger than `max_bytes`.

        Otherwise, the list is empty. The file is not read.
        """
        listed = shard.chunk.files[0].size if shard.chunk.files else None
        size = shard.chunk.at.size() if listed is None else listed
        return [LargeValue(0, "data", size)] if size > max_bytes else []

    def arrange(self, columns: Iterable[Column]) -> NoReturn:
        """Raise UsageError, because `pack` cannot write this format."""
        raise UsageError(
            "the format `files` is read-only",
            hint="Run `flare unpack` to write files, or choose another --format.",
        )

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Yield no findings, because a plain file has no structure to check."""
        return iter(())


def _name(shard: Shard) -> bytes:
    files = shard.chunk.files
    return (files[0].name if files else shard.chunk.at.name).encode("utf-8", "surrogateescape")


def _text(shard: Shard) -> str:
    try:
        return _name(shard).decode()
    except UnicodeDecodeError:
        raise ValueFitError("file name is not UTF-8", where=shard.chunk.at) from None


def _data(shard: Shard) -> bytes:
    at, listed = shard.chunk.at, shard.chunk.files[0].size if shard.chunk.files else None
    data = at.read(0, None)
    if listed is not None and listed != len(data):
        raise IntegrityError(
            f"file is {len(data)} bytes; the listed size is {listed}",
            where=at,
            hint="The file was changed after its size was listed; "
            "if the size is from a playlist, write the playlist again.",
        )
    return data
