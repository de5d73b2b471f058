"""One or several index files as one table of rows, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from flarecli.errors import FormatError, UsageError
from flarecli.hashes import DEFAULT, Sums
from flarecli.ingest.delimited import Delimited
from flarecli.ingest.parquet import Parquet
from flarecli.names import redact
from flarecli.storage import Guard, Location, locate

__all__ = ["Index", "is_index", "open_index"]

_READ = (".parquet", ".csv", ".tsv")
_SAME = "Pack them one by one, or read what differs as text: --encode COL=str."


class Part(Protocol):
    """One index file: its columns, its rows if they are known, and the batches of the columns asked for."""

    @property
    def at(self) -> Location: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def rows(self) -> int | None: ...
    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class Index:
    """Rows that list samples.

    address  as the user typed it, without secrets
    at       the folder of the first file: relative links start there
    rows     None where only reading tells
    """

    address: str
    at: Location
    schema: pa.Schema
    rows: int | None
    parts: tuple[Part, ...]

    @property
    def is_local(self) -> bool:
        """Whether the files lie on this machine: then their rows may name what lies beside them."""
        return self.at.is_local

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Give the rows in order, file after file, only the columns asked for, 8,192 at most in a batch.

        raises  UsageError for a column that is not there; FormatError naming file and place for bytes that are not
                the format, or if there is no row at all
        """
        for name in columns or ():
            if name not in self.schema.names:
                raise UsageError(f"no column {name!r}", where=self.address, hint=f"Choose from {', '.join(self.schema.names)}.")
        rows = 0
        for part in self.parts:
            for batch in part.batches(columns):
                rows += batch.num_rows
                yield batch
        if not rows:
            raise FormatError("the index has no rows", where=self.address)

    def sum(self) -> str:
        """Give the xxh3_128 over the bytes of all files, in order; reads each once."""
        sums = Sums([DEFAULT])
        for part in self.parts:
            for block in part.at.blocks():
                sums.update(block)
        return sums.hex()[DEFAULT]


def is_index(address: str) -> bool:
    """Say by its name whether an address is an index rather than a dataset."""
    return address.partition("?")[0].lower().endswith(_READ)


def open_index(address: str | Sequence[str], *, guard: Guard | None = None, text: Collection[str] = ()) -> Index:
    """Open an index; its columns are known then, its rows are not read yet.

    address  `.parquet`, `.csv` or `.tsv`, local or HTTP(S); several are one behind the other, with the same columns
    text     columns of a CSV or TSV that are text whatever they look like: keys, links
    raises   MissingError if nothing is there; FormatError if it cannot be read, has no rows, or two columns of one name;
             UsageError for a kind of file that is not read
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses:
        raise UsageError("no index is named")
    parts = tuple(_opened(one, guard, text) for one in addresses)
    first = parts[0]
    for part in parts[1:]:
        if part.schema != first.schema:
            raise FormatError(f"its columns are not those of {first.at}: {_difference(first.schema, part.schema)}", where=part.at, hint=_SAME)
    rows = [part.rows for part in parts]
    total = None if None in rows else sum(count or 0 for count in rows)
    if total == 0:
        raise FormatError("the index has no rows", where=first.at)
    return Index(" ".join(redact(one) for one in addresses), first.at.folder, first.schema, total, parts)


def _opened(address: str, guard: Guard | None, text: Collection[str]) -> Part:
    at = locate(address, guard)
    name = at.name.lower()
    if name.endswith(".parquet"):
        part: Part = Parquet(at)
    elif name.endswith((".csv", ".tsv")):
        part = Delimited(at, "," if name.endswith(".csv") else "\t", text)
    else:
        raise UsageError("not an index that is read", where=at, hint=f"Name one of {', '.join(_READ)}.")
    return part


def _difference(one: pa.Schema, two: pa.Schema) -> str:
    for field in one:
        at = two.get_field_index(field.name)
        if at < 0:
            return f"{field.name!r} is missing"
        if two.field(at).type != field.type:
            return f"{field.name!r} is {two.field(at).type}, not {field.type}"
    return f"{next(name for name in two.names if name not in one.names)!r} is new" if len(two) != len(one) else "another order"
