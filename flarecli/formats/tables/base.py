"""Base class for readers of index files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from flarecli import expansion
from flarecli.errors import FormatError
from flarecli.formats.tables.decompress import Blocks
from flarecli.storage import Location

__all__ = ["Part", "check_columns"]


class Part(ABC):
    """One index file.

    at                location of the file, or the bytes of a text file
    schema            columns and their types
    rows              number of rows; None if unknown until the rows are read
    dictionaries      column -> dictionary type in the file; `schema` has the type of the values
    readable_as_text  whether every column can be read as text, exactly as stored in the file
    """

    at: Location | Blocks
    schema: pa.Schema
    rows: int | None = None
    dictionaries: Mapping[str, pa.DataType] = MappingProxyType({})
    readable_as_text = False

    @abstractmethod
    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, as batches.

        columns  columns to read, in this order; None: all
        """

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes that the checksum of the file covers."""
        return self.at.blocks()

    def with_types(self, types: Mapping[str, pa.DataType]) -> Part:
        """Return a reader of the same file that uses the given types where possible.

        types  column name -> common type across all files of the index
        """
        return self

    @property
    def location(self) -> Location | None:
        """The location of the file; None for standard input."""
        return self.at if isinstance(self.at, Location) else self.at.location

    def selected(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of the given columns, in the given order; None: all columns."""
        if columns is None:
            return self.schema
        return pa.schema([self.schema.field(name) for name in columns])


def check_columns(
    names: Sequence[str], at: object, hint: str = "Rename one of the columns in the index."
) -> None:
    """Raise FormatError if there are no columns, too many columns, or duplicate names.

    hint  hint for the error about duplicate names
    """
    if not names:
        raise FormatError("the index has no columns", where=at)
    expansion.check_columns(len(names), at)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FormatError(
                f"duplicate column {name!r}",
                where=at,
                hint=hint,
                column=name,
            )
        seen.add(name)
