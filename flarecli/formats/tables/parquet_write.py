"""Writer of Parquet files: pages with CRC-32s, a page index, and row groups of bounded size.

Pages are small, so that a reader can read a few rows without reading a whole row group. The bytes
of a file depend only on the rows, the schema, the compression and the version of pyarrow.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flarecli import compress, encodings
from flarecli.bisect import failing_values
from flarecli.errors import UsageError, ValueFitError
from flarecli.formats.tables.base import value_sizes

__all__ = ["check_timestamps", "checked_codec", "parquet_parts", "taken"]

GROUP_ROWS, GROUP_BYTES = 1 << 16, 16 << 20  # maximum size of a row group, in Arrow's memory
PAGE_BYTES = 1 << 17  # approximate size of a page before compression
_BATCH_ROWS = 1024  # rows after which Arrow checks the size of a page
_CODECS = {"br": "brotli", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}


def checked_codec(compression: str | None) -> tuple[str, int | None]:
    """Return the name that Parquet uses for a compression, and its level; Snappy if none is set.

    raises  UsageError for a compression that Parquet does not support
    """
    if compression is None:
        return "snappy", None
    kind, level = compress.parse(compression)
    if kind not in _CODECS:
        raise UsageError(
            f"Parquet cannot be compressed with {kind}",
            hint=f"Choose one of {', '.join(_CODECS)}, or omit --compress.",
        )
    return _CODECS[kind], None if kind == "snappy" else level


def parquet_parts(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file, one row group after another.

    raises  UsageError for a type that Parquet cannot store
    """
    codec, level = checked_codec(compression)
    # byte values, such as images, rarely repeat, so a dictionary would only copy them
    small = [field.name for field in schema if not encodings.is_binary(field.type)]
    groups = _groups(batches)
    group = next(groups, None)
    sink = io.BytesIO()
    try:
        with pq.ParquetWriter(
            sink,
            schema,
            compression=codec,
            compression_level=level,
            use_dictionary=small,
            data_page_size=PAGE_BYTES,
            write_batch_size=_BATCH_ROWS if group is None else _rows_per_check(group),
            write_page_index=True,
            write_page_checksum=True,
            version="2.6",
        ) as writer:
            while group is not None:
                writer.write_table(group, row_group_size=max(1, group.num_rows))
                yield taken(sink)
                group = next(groups, None)
    except pa.ArrowNotImplementedError as error:
        raise UsageError(
            f"Parquet cannot store a column: {str(error).splitlines()[0][:200]}",
            hint="Use -c to select other columns.",
        ) from None
    yield sink.getvalue()


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows as row groups. The sizes of batches do not affect the row groups."""
    parts, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        start = 0
        ends = np.cumsum(value_sizes(batch))
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + GROUP_BYTES - size, "right"))
            stop = min(max(stop, start), start + GROUP_ROWS - rows, batch.num_rows)
            if stop == start and not rows:
                stop = start + 1  # a single row may be larger than GROUP_BYTES
            if stop > start:
                parts.append(batch.slice(start, stop - start))
                rows, size = rows + stop - start, size + int(ends[stop - 1]) - before
                start = stop
            if start < batch.num_rows:
                yield pa.Table.from_batches(parts).combine_chunks()
                parts, rows, size = [], 0, 0
    if parts:
        yield pa.Table.from_batches(parts).combine_chunks()


def _rows_per_check(table: pa.Table) -> int:
    """Return the number of rows after which Arrow should check the size of a page.

    With large values, such as images, Arrow's default would create pages of many megabytes.
    """
    rows = max(1, table.num_rows)
    largest = max((column.nbytes // rows for column in table.columns), default=0)
    return int(max(1, min(_BATCH_ROWS, PAGE_BYTES // max(1, largest))))


def check_timestamps(batch: pa.RecordBatch) -> None:
    """Raise ValueFitError for the first row with a timestamp that is out of Parquet's range.

    Parquet has no timestamps in seconds; Arrow writes milliseconds.
    """
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        stored = _in_milliseconds(array.type)
        if stored.equals(array.type):
            continue
        to_milliseconds = partial(pa.Array.cast, target_type=stored)
        for row, _ in failing_values(array, to_milliseconds, pa.ArrowInvalid):
            raise ValueFitError(
                f"column {name!r}: a value of {array.type} is out of range; Parquet stores "
                "milliseconds",
                row=row,
                column=name,
            )


def _in_milliseconds(kind: pa.DataType) -> pa.DataType:
    """Return the type with milliseconds instead of seconds as the unit of timestamps."""
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return encodings.with_children(kind, _in_milliseconds)


def taken(sink: io.BytesIO) -> bytes:
    """Return the data in a buffer, and empty the buffer."""
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
