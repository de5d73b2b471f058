"""Parquet: reads one row group after the other, only the columns asked for, and verifies page
checksums.

Memory is bounded by one batch and a megabyte of each column, for files, row groups and values of
any size.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flarecli.errors import FlareError, FormatError
from flarecli.expansion import check_decoded, check_rows, check_values
from flarecli.ingest.footers import ColumnChunk, column_chunks
from flarecli.ingest.pages import pages
from flarecli.ingest.source import (
    LocationFile,
    ObservedFile,
    OnRead,
    arrow_errors,
    check_columns,
    native,
)
from flarecli.ingest.types import convert, plain
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = ["Parquet"]

_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
HEAD_BYTES = 64  # includes the start of the first page
# header of the first page: type, two sizes, but no CRC-32
_WITHOUT_CRC = re.compile(rb"PAR1(?:\x15[\x80-\xff]*[\0-\x7f]){3}[^\x15]")
# Arrow's buffers grow by doubling, so batches are slightly smaller than a power of two.
_ROWS, _BATCH_BYTES = 8192, 15 << 17
REMOTE_BUFFER, LOCAL_BUFFER = 1 << 20, 1 << 16  # bytes per read; a remote read is a request
MAX_EXPANDED_BYTES = 64 << 20  # of a batch if every row has the longest value of a dictionary
MAX_REMOTE_PAGES = 8 << 20  # size of remote files whose page headers are read
PROBE_ROWS = 64  # decoded to estimate the size of rows, which dictionaries hide


class Parquet:
    """One parquet file.

    rows      from the footer
    coarse    columns of int96 timestamps. They are read with microsecond precision, because Arrow
              overflows nanoseconds after the year 2262
    has_sums  whether its first page has a CRC-32; without CRC-32, damage may not be detected
    """

    def __init__(self, at: Location) -> None:
        self.at = at
        file = LocationFile(at)
        head = _checked_head(at, file.size)
        with _parquet_errors(at, file):
            reader = _open(file)
            self.rows: int = reader.metadata.num_rows
            self.has_sums = not self.rows or _WITHOUT_CRC.match(head) is None
            schema = self._footer = reader.schema_arrow
            kinds = (reader.schema.column(i) for i in range(len(reader.schema)))
            self.coarse = tuple(
                dict.fromkeys(
                    column.path.partition(".")[0]
                    for column in kinds
                    if column.physical_type == "INT96"
                )
            )
            arrow_schema = _arrow_schema(reader)
            differing = (
                []
                if arrow_schema is None
                else [
                    pair
                    for pair in zip(_described(schema), _described(arrow_schema), strict=False)
                    if pair[0] != pair[1]
                ]
            )
        check_columns(schema.names, at)
        if differing:
            stored, expected = differing[0]
            hint = "The footer is damaged, or a tool changed one of its two schemas; write the file again."
            raise FormatError(
                f"the schemas in the footer differ: {stored}, {expected}", where=at, hint=hint
            )
        # without metadata, which does not name encodings
        self.schema = pa.schema([pa.field(field.name, plain(field.type)) for field in schema])

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file."""
        return self.at.blocks()

    @property
    def is_local(self) -> bool:
        """Whether the file is on a local disk."""
        return isinstance(self.at.store, LocalStore)

    def tail(self) -> bytes:
        """Return the bytes of the footer."""
        size = self.at.size()
        length = int.from_bytes(self.at.read(max(0, size - 8), max(0, size - 4)), "little")
        return self.at.read(max(0, size - 8 - length), size)

    def footer(self) -> pq.FileMetaData:
        """Return the parsed footer: row groups and column statistics."""
        file = LocationFile(self.at)
        with _parquet_errors(self.at, file):
            return _open(file).metadata

    def batches(
        self,
        columns: Sequence[str] | None,
        groups: range | None = None,
        on_read: OnRead | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, or those of some row groups; page checksums are verified.

        Text is not validated: parquet does not guarantee UTF-8, so users of a value must check it.

        on_read  called with all bytes of rows that are read from a local file
        raises   FormatError for data that does not match the footer
        """
        store = self.at.store
        with (
            store.opened(self.at.path)
            if on_read is not None and isinstance(store, LocalStore)
            else nullcontext(-1) as fd
        ):
            yield from self._batches(
                LocationFile(self.at) if fd < 0 else ObservedFile(self.at, fd),
                columns,
                groups,
                on_read,
            )

    def _batches(
        self,
        file: LocationFile,
        columns: Sequence[str] | None,
        groups: range | None,
        on_read: OnRead | None,
    ) -> Iterator[pa.RecordBatch]:
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        with _parquet_errors(self.at, file):
            reader = _open(file)
        if not reader.schema_arrow.equals(self._footer) or (
            groups is not None and reader.metadata.num_row_groups < groups.stop
        ):
            raise FormatError(
                "the footer changed while the file was read",
                where=self.at,
                hint="Run the command again when no other process writes the file.",
            )
        with _parquet_errors(self.at, file):
            groups = range(reader.metadata.num_row_groups) if groups is None else groups
            if isinstance(file, ObservedFile):
                file.on_read = on_read  # not before, because the footer is not part of the rows
            expected_rows = (
                self.rows
                if len(groups) == reader.metadata.num_row_groups
                else sum(reader.metadata.row_group(i).num_rows for i in groups)
            )
            check_rows(expected_rows, len(names), file.size, self.at)
            batches = self._read(reader, names, groups)
        row = 0
        while True:
            with _parquet_errors(self.at, file):
                batch = next(batches, None)
                if batch is None:
                    break
                if not batch.schema.equals(schema, check_metadata=True):
                    batch = pa.RecordBatch.from_arrays(
                        [convert(batch.column(field.name), field.type) for field in schema],
                        schema=schema,
                    )
            row += batch.num_rows
            yield batch
        if row != expected_rows:
            raise FormatError(
                f"contains {row} rows; the footer lists {expected_rows}", where=self.at
            )

    def _read(
        self, reader: pq.ParquetFile, names: Sequence[str], groups: range
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of as many rows as fit; consecutive row groups with equal batch sizes are
        joined.
        """
        runs: list[tuple[int, list[int]]] = []
        fit = [(number, self._rows_that_fit(reader, names, number)) for number in groups]
        most = _rows_at_once(reader, names, groups, min((rows for _, rows in fit), default=_ROWS))
        for number, rows in fit:
            rows = min(most, rows)
            if runs and runs[-1][0] == rows:
                runs[-1][1].append(number)
            else:
                runs.append((rows, [number]))
        for rows, run in runs:
            yield from reader.iter_batches(rows, row_groups=run, columns=names, use_threads=False)

    def _rows_that_fit(self, reader: pq.ParquetFile, names: Sequence[str], number: int) -> int:
        """Return how many rows of a row group are sure to decode to a bounded size.

        Page headers declare decoded sizes, but a value of a dictionary may be in every row, and
        with DELTA_BYTE_ARRAY a page may repeat its first value. For large remote files, the footer
        is trusted, because each page would be a request.

        raises  IntegrityError if the pages decode to more than the size of the file allows
        """
        size, rows, selected = 0, _ROWS, set(names)
        stored = self.at.size()
        chunks = self._chunks if self.is_local or stored <= MAX_REMOTE_PAGES else []
        if number >= len(chunks):
            check_decoded(reader.metadata.row_group(number).total_byte_size, stored, self.at)
            return rows
        for chunk in chunks[number]:
            if chunk.column not in selected:
                continue
            dictionary = values = 0
            for page in pages(self.at, stored, chunk):
                size += page.size
                check_decoded(size, stored, self.at)
                if page.is_dictionary:
                    dictionary = max(dictionary, page.size)
                    continue
                values += page.values
                check_values(values, stored, self.at)
                if page.is_delta and page.size * min(rows, page.values) > MAX_EXPANDED_BYTES:
                    rows = max(1, MAX_EXPANDED_BYTES // page.size)
            if chunk.is_bytes and dictionary * rows > MAX_EXPANDED_BYTES:
                longest = self._longest_entry(number, chunk.column)
                rows = max(1, min(rows, MAX_EXPANDED_BYTES // max(1, longest)))
        return rows

    @cached_property
    def _chunks(self) -> list[list[ColumnChunk]]:
        return column_chunks(self.at)

    def _longest_entry(self, number: int, name: str) -> int:
        """Return the size of the longest value in the dictionary of a column."""
        if pa.types.is_nested(self._footer.field(name).type):
            return MAX_EXPANDED_BYTES  # unknown, so one row at a time
        reader = _open(LocationFile(self.at), [name])
        first = next(
            reader.iter_batches(1, row_groups=[number], columns=[name], use_threads=False), None
        )
        column = None if first is None else first.column(0)
        if column is None or not pa.types.is_dictionary(column.type):
            return 0
        lengths = pc.max(pc.binary_length(column.dictionary.cast(pa.large_binary()))).as_py()
        return int(lengths or 0)


def _checked_head(at: Location, size: int) -> bytes:
    """Check the start and the end of a file, and return its first bytes."""
    head = at.read(0, min(size, len(_MAGIC) + HEAD_BYTES))
    end = at.read(size - 4, size) if size >= 12 else b""
    if _ENCRYPTED_MAGIC in (head[:4], end):
        raise _encrypted(at)
    if size < 12 or not head.startswith(_MAGIC):
        raise FormatError("not a parquet file: it does not start with PAR1", where=at)
    if end != _MAGIC:
        raise FormatError(
            "truncated parquet file: it does not end with PAR1",
            where=at,
            hint="The file was cut short; fetch it again.",
        )
    return head


def _encrypted(at: Location) -> FormatError:
    return FormatError("the parquet file is encrypted", where=at, hint="Decrypt it first.")


@contextmanager
def _parquet_errors(at: Location, file: LocationFile) -> Iterator[None]:
    """Convert Arrow's errors to FormatError; this also detects files with some encrypted columns."""
    with arrow_errors(at, file, "parquet"):
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            is_arrow_error = not isinstance(error, FlareError) and file.error is None
            if is_arrow_error and "decrypt" in str(error).lower():
                raise _encrypted(at) from None
            raise


def _open(file: LocationFile, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    source = native(file)
    buffer = (
        LOCAL_BUFFER
        if isinstance(source, pa.OSFile) or isinstance(file, ObservedFile)
        else REMOTE_BUFFER
    )
    return pq.ParquetFile(
        source,
        pre_buffer=False,
        read_dictionary=list(dictionaries),
        buffer_size=buffer,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",
    )


def _rows_at_once(reader: pq.ParquetFile, names: Sequence[str], numbers: range, fit: int) -> int:
    """Return how many rows make a batch: 8,192, or fewer that take 1.9 MB."""
    groups = [reader.metadata.row_group(i) for i in numbers]
    widest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    first = next(
        reader.iter_batches(
            min(PROBE_ROWS, fit), row_groups=list(numbers), columns=list(names), use_threads=False
        ),
        None,
    )
    if first is not None and first.num_rows:
        widest = max(
            widest,
            sum(convert(column, plain(column.type)).nbytes for column in first.columns)
            // first.num_rows,
        )
    return int(max(1, min(_ROWS, _BATCH_BYTES // max(1, widest))))


def _arrow_schema(reader: pq.ParquetFile) -> pa.Schema | None:
    """Return Arrow's own schema in the footer, if present, to compare: footers have no checksum."""
    text = (reader.metadata.metadata or {}).get(b"ARROW:schema")
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _described(schema: pa.Schema) -> list[str]:
    """Return what both schemas must have in common: names, and which columns are text."""
    return [f"{'text' if _is_text(field.type) else 'column'} {field.name!r}" for field in schema]


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
