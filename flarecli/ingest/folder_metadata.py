"""Metadata files of a folder: tables whose rows describe files, as in Hugging Face's `imagefolder`.

    train/metadata.csv    file_name,caption
                          a.jpg,a house           row of the file `train/a.jpg`

A metadata file is a `metadata.csv`, `metadata.jsonl` or `metadata.parquet` with a column
`file_name`. The file names are relative to the folder of the metadata file. The names are untrusted
data, so a name that refers to a file outside this folder is rejected. All metadata rows are in
memory while the folder is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from flarecli.encodings import is_text
from flarecli.errors import FormatError
from flarecli.expansion import check_decoded
from flarecli.formats.tables.base import Part, check_columns
from flarecli.formats.tables.registry import open_part
from flarecli.formats.tables.schema_merge import align, merge
from flarecli.names import bare, escape, name_fault
from flarecli.storage import Location
from flarecli.units import format_size

__all__ = ["Metadata", "is_metadata"]

FILE_NAME = "file_name"
_NAMES = _SUFFIXES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
MAX_FILES = 10_000  # maximum number of metadata files in a folder
MAX_BYTES = 1 << 30  # maximum decoded size of all metadata


class Problem(NamedTuple):
    """A metadata row that cannot be joined with a file.

    place  metadata file and row, such as `metadata.csv[7]`
    kind   kind of the error
    """

    place: str
    kind: str
    message: str


def is_metadata(name: str) -> bool:
    """Return whether a file may be a metadata file, according to its name."""
    return name.endswith(_SUFFIXES) and name.rpartition("/")[2] in _NAMES


class Metadata:
    """The rows of all metadata files in a folder.

    names   metadata files that have a column of file names
    schema  all columns except the column of file names
    raises  FormatError for two metadata files in one folder, for columns without a common type, and
            for too many metadata files; any error that opening a table raises
    """

    def __init__(self, at: Location, names: Sequence[str]) -> None:
        if len(names) > MAX_FILES:
            raise FormatError(
                f"{len(names)} metadata files; the maximum is {MAX_FILES}",
                where=at,
                hint="Join the metadata with the file names in one table, and pack the table.",
            )
        opened = [(name, open_part(at / name, (FILE_NAME,))) for name in sorted(names)]
        found = [(name, part) for name, part in opened if FILE_NAME in part.schema.names]
        self._at, self.names = at, tuple(name for name, _ in found)
        folders: dict[str, str] = {}
        for name, part in found:
            check_columns(part.schema.names, part.at)
            kind = part.schema.field(FILE_NAME).type
            if not is_text(kind) and not pa.types.is_null(kind):
                raise FormatError(f"column {FILE_NAME!r} is {kind}, not text", where=part.at)
            other = folders.setdefault(name.rpartition("/")[0], name)
            if other != name:
                raise FormatError(
                    f"{other} and {name} describe the same folder",
                    where=at,
                    hint="Delete one of the files.",
                )
        self._parts: tuple[Part, ...] = ()
        schema = pa.schema([])
        if found:
            schema, self._parts = merge([part for _, part in found], allow_missing=True)
        self.schema = pa.schema([one for one in schema if one.name != FILE_NAME])

    def __bool__(self) -> bool:
        return bool(self.names)

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the files, for the checksum of the folder."""
        for part in self._parts:
            yield from part.blocks()

    def rows(self) -> Rows:
        """Read all rows.

        raises  FormatError if the rows are too large; any error that reading a table raises
        """
        schema = pa.schema([pa.field(FILE_NAME, pa.string()), *self.schema])
        rows, batches, size = Rows(), list[pa.RecordBatch](), 0
        for name, part in zip(self.names, self._parts, strict=True):
            first, part_size = 0, 0
            for batch in part.batches(part.schema.names):
                size, part_size = size + batch.nbytes, part_size + batch.nbytes
                check_decoded(part_size, (self._at / name).size(), part.at)
                if size > MAX_BYTES:
                    raise FormatError(
                        f"metadata is larger than {format_size(MAX_BYTES)}",
                        where=part.at,
                        hint="Join the metadata with the file names in one table, and pack the table.",
                    )
                aligned = align(batch, schema, part, first)
                rows.add(name, first, aligned.column(FILE_NAME).to_pylist())
                batches.append(aligned.select(self.schema.names))
                first += batch.num_rows
        rows.table = pa.Table.from_batches(batches, self.schema).combine_chunks()
        return rows


class Rows:
    """The rows of metadata files.

    table     all columns except the column of file names
    problems  rows that cannot be joined with a file
    """

    def __init__(self) -> None:
        self.table = pa.table({})
        self.problems: list[Problem] = []
        self._count = 0
        self._rows: dict[str, int] = {}  # file -> row in `table`
        # for each batch: (its first row in `table`, metadata file, its first row in this file)
        self._places: list[tuple[int, str, int]] = []

    def add(self, metadata: str, first: int, names: Sequence[str | None]) -> None:
        """Add the file names in rows `first`, `first` + 1, … of a metadata file."""
        folder, slash, _ = metadata.rpartition("/")
        self._places.append((self._count, metadata, first))
        for i, name in enumerate(names):
            row, at = self._count + i, f"{metadata}[{first + i}]"
            if not name:
                reason = "null" if name is None else "empty"
                self.problems.append(Problem(at, "metadata", f"{FILE_NAME} is {reason}"))
                continue
            file = bare(name)
            shown = escape(name)
            if fault := name_fault(file):
                self.problems.append(Problem(at, "unsafe", f"{FILE_NAME} {shown!r:.80} {fault}"))
                continue
            other = self._rows.setdefault(f"{folder}{slash}{file}", row)
            if other != row:
                message = f"{FILE_NAME} {shown!r:.80} is also in {self.place(other)}"
                self.problems.append(Problem(at, "metadata", message))
        self._count += len(names)

    def place(self, row: int) -> str:
        """Return the metadata file and the row in this file, such as `metadata.csv[7]`."""
        number = bisect_right(self._places, row, key=lambda place: place[0]) - 1
        first, metadata, at = self._places[number]
        return f"{metadata}[{at + row - first}]"

    def take(self, files: Sequence[str]) -> list[int]:
        """Return the rows that describe these files. Each row is returned only once."""
        return [row for file in files if (row := self._rows.pop(file, -1)) >= 0]

    def unused(self) -> Iterator[Problem]:
        """Yield the rows that `take` has not returned, because they describe no data file."""
        for file, row in self._rows.items():
            yield Problem(self.place(row), "metadata", f"no data file {escape(file)!r:.80}")
