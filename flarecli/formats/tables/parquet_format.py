"""Parquet files as shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from flarecli import encodings
from flarecli.errors import ValueFitError
from flarecli.formats import shard_files
from flarecli.formats.base import EACH, Span, Substitutes
from flarecli.formats.tables import typed_field
from flarecli.formats.tables.base import Part
from flarecli.formats.tables.format import TableFormat
from flarecli.formats.tables.parquet import Parquet
from flarecli.formats.tables.parquet_write import (
    check_timestamps,
    checked_codec,
    parquet_parts,
    row_bytes,
)
from flarecli.hashes import DEFAULT
from flarecli.model import Chunk, Column, Columns, File, IntArray, Settings, Shard
from flarecli.storage import Location
from flarecli.units import format_size

__all__ = ["ParquetFormat"]

MAX_ROW_BYTES = 1 << 30  # a page is at most 2 GiB, and contains complete rows


class ParquetFormat(TableFormat):
    """Parquet files: columns in row groups and pages; a page may have a CRC-32."""

    name = "parquet"
    suffixes = (".parquet",)
    substitutes: ClassVar[Substitutes] = {
        **dict.fromkeys(("int64", "varint", "str_int", "json_int"), "int"),
        **dict.fromkeys(("msgpack_float", "str_float", "json_float"), "float64"),
        "json_str": "str",
        "json_json": "json",
        "bytes[]": EACH,
        "ndarray[]": EACH,
        "*[]": EACH,
    }

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether the name ends with `.parquet`, or the file starts with `PAR1`."""
        return super().sniff(name, head) or head.startswith(b"PAR1")

    def open_part(self, chunk: Chunk) -> Part:
        """Read the footer of a file."""
        return Parquet(chunk.at)

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the byte range of the row group that contains a row, or of one of its columns."""
        part = self._rows(shard).part
        span = part.span(row, column) if isinstance(part, Parquet) else None
        return None if span is None else (shard.chunk.at, *span)

    def unprotected(self, shard: Shard) -> str:
        """Return a note if the pages of the file have no checksums."""
        part = self._rows(shard).part
        has_sums = isinstance(part, Parquet) and part.has_sums
        return "" if has_sums else "pages have no checksums; only their structure was checked"

    # -- writing

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return the columns with their stored encodings, in the given order.

        raises  UsageError if there are no columns, or for duplicate names
        """
        out = tuple(map(self.stored_column, columns))
        shard_files.check_names(out, "a Parquet file needs at least one column")
        return out

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return 0, and the size of each row in memory: int64 [rows].

        raises  ValueFitError with the first row that is larger than a page may be, or that contains
                a timestamp that Parquet cannot store
        """
        checked_codec(settings.compression)
        check_timestamps(batch)
        sizes = row_bytes(batch)
        if (sizes > MAX_ROW_BYTES).any():
            row = int(np.argmax(sizes > MAX_ROW_BYTES))
            raise ValueFitError(
                f"row is {format_size(int(sizes[row]))}; the maximum for Parquet is "
                f"{format_size(MAX_ROW_BYTES)}",
                row=row,
            )
        return 0, sizes

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as `00000.parquet`, with checksums of pages and a page index.

        The columns of the batches may have other types than those of their encodings.
        """
        name = f"{number:05d}.parquet"
        types = [encodings.field(one).type for one in columns]
        if batches:
            types = [batches[0].schema.field(one.name).type for one in columns]
        schema = pa.schema(
            [typed_field(one, kind) for one, kind in zip(columns, types, strict=True)]
        )
        typed = (
            pa.RecordBatch.from_arrays([batch.column(one.name) for one in columns], schema=schema)
            for batch in batches
        )
        written = (at / name).write(
            parquet_parts(schema, typed, settings.compression), {DEFAULT, *settings.hashes}
        )
        file = File(name, written.size, written.hashes)
        rows = sum(batch.num_rows for batch in batches)
        return Chunk(at / name, rows, (file,), self.name)
