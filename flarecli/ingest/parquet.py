"""Parquet: row group by row group through a small buffer, only the columns asked for, page sums checked.

Memory holds one batch and a megabyte of each column, however large the file, its row groups or its values are.
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
    Heard,
    HeardFile,
    LocationFile,
    arrow_errors,
    check_columns,
    native,
)
from flarecli.ingest.types import converted, plain
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = ["Parquet"]

_MAGIC, _SEALED = b"PAR1", b"PARE"
_HEAD = 64  # bytes that hold the beginning of the first page
_UNSUMMED = re.compile(
    rb"PAR1(?:\x15[\x80-\xff]*[\0-\x7f]){3}[^\x15]"
)  # its header: kind, two sizes, and then no CRC-32
_ROWS, _BATCH_BYTES = (
    8192,
    15 << 17,
)  # of a batch; Arrow doubles what it decodes into: just below a power of two least is copied on the way
_FAR, _NEAR = (
    1 << 20,
    1 << 16,
)  # bytes read at once, at least: far away each read is a request, here what is larger is copied once less
_WORST_BYTES = 64 << 20  # of a batch whose every row has the longest value of a dictionary
_WALKED_BYTES = 8 << 20  # of a file far away whose page headers are read
_PROBE = 64  # rows; what a dictionary holds once may stand in every row, and only decoding tells


class Parquet:
    """One parquet file.

    rows      what its footer says
    coarse    columns of int96 timestamps, which are read to the microsecond: nanoseconds of 64 bits end in the year 2262, and Arrow wraps
    has_sums  whether its pages have CRC-32 sums, told by the first: pages without cannot show that a bit of them flipped
    """

    def __init__(self, at: Location) -> None:
        self.at = at
        file = LocationFile(at)
        head = _checked_head(at, file.size)
        with _parquet_errors(at, file):
            opened = _open(file)
            self.rows: int = opened.metadata.num_rows
            self.has_sums = not self.rows or _UNSUMMED.match(head) is None
            schema = self._footer = opened.schema_arrow
            kinds = (opened.schema.column(i) for i in range(len(opened.schema)))
            self.coarse = tuple(
                dict.fromkeys(
                    one.path.partition(".")[0] for one in kinds if one.physical_type == "INT96"
                )
            )
            again = _schema_again(opened)
            differing = (
                []
                if again is None
                else [
                    pair
                    for pair in zip(_told(schema), _told(again), strict=False)
                    if pair[0] != pair[1]
                ]
            )
        check_columns(schema.names, at)
        if differing:
            one, other = differing[0]
            hint = "A bit of its footer flipped, or a tool changed one place of two; write it anew."
            raise FormatError(f"its footer says both {one} and {other}", where=at, hint=hint)
        self.schema = pa.schema(
            [pa.field(field.name, plain(field.type)) for field in schema]
        )  # its metadata says nothing about encodings

    def blocks(self) -> Iterator[bytes]:
        """Give its bytes."""
        return self.at.blocks()

    @property
    def is_near(self) -> bool:
        """Whether it lies on a disk."""
        return isinstance(self.at.store, LocalStore)

    def tail(self) -> bytes:
        """Give the bytes of its footer, which say where all else lies and what it is."""
        size = self.at.size()
        length = int.from_bytes(self.at.read(max(0, size - 8), max(0, size - 4)), "little")
        return self.at.read(max(0, size - 8 - length), size)

    def footer(self) -> pq.FileMetaData:
        """Give the footer: row groups, and what they say of their columns."""
        file = LocationFile(self.at)
        with _parquet_errors(self.at, file):
            return _open(file).metadata

    def batches(
        self, columns: Sequence[str] | None, groups: range | None = None, heard: Heard | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Give the rows in order, or those of some row groups; the sum of each page is checked where the file has sums.

        Text is as the file has it: parquet does not promise UTF-8, so whoever uses a value checks it.

        heard   takes all bytes that rows are read from, of a file on a disk
        raises  FormatError for bytes that are not what the footer says
        """
        store = self.at.store
        with (
            store.opened(self.at.path)
            if heard is not None and isinstance(store, LocalStore)
            else nullcontext(-1) as fd
        ):
            yield from self._batches(
                LocationFile(self.at) if fd < 0 else HeardFile(self.at, fd), columns, groups, heard
            )

    def _batches(
        self,
        file: LocationFile,
        columns: Sequence[str] | None,
        groups: range | None,
        heard: Heard | None,
    ) -> Iterator[pa.RecordBatch]:
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        with _parquet_errors(self.at, file):
            opened = _open(file)
        if not opened.schema_arrow.equals(self._footer) or (
            groups is not None and opened.metadata.num_row_groups < groups.stop
        ):
            raise FormatError(
                "its footer is no longer what it was",
                where=self.at,
                hint="Run the command again when nothing writes there.",
            )
        with _parquet_errors(self.at, file):
            groups = range(opened.metadata.num_row_groups) if groups is None else groups
            if isinstance(file, HeardFile):
                file.heard = heard  # rows alone: the footer lies behind all of them
            wanted = (
                self.rows
                if len(groups) == opened.metadata.num_row_groups
                else sum(opened.metadata.row_group(i).num_rows for i in groups)
            )
            check_rows(wanted, len(names), file.size, self.at)
            batches = self._read(opened, names, groups)
        row = 0
        while True:
            with _parquet_errors(self.at, file):
                batch = next(batches, None)
                if batch is None:
                    break
                if not batch.schema.equals(schema, check_metadata=True):
                    batch = pa.RecordBatch.from_arrays(
                        [converted(batch.column(field.name), field.type) for field in schema],
                        schema=schema,
                    )
            row += batch.num_rows
            yield batch
        if row != wanted:
            raise FormatError(f"holds {row} rows, its footer says {wanted}", where=self.at)

    def _read(
        self, opened: pq.ParquetFile, names: Sequence[str], groups: range
    ) -> Iterator[pa.RecordBatch]:
        """Read row groups, in batches of as many rows as surely fit; row groups that take as many are read together."""
        runs: list[tuple[int, list[int]]] = []
        fit = [(number, self._rows_that_fit(opened, names, number)) for number in groups]
        most = _rows_at_once(opened, names, groups, min((rows for _, rows in fit), default=_ROWS))
        for number, rows in fit:
            rows = min(most, rows)
            if runs and runs[-1][0] == rows:
                runs[-1][1].append(number)
            else:
                runs.append((rows, [number]))
        for rows, run in runs:
            yield from opened.iter_batches(rows, row_groups=run, columns=names, use_threads=False)

    def _rows_that_fit(self, opened: pq.ParquetFile, names: Sequence[str], number: int) -> int:
        """Return how many rows of a row group surely decode to a bounded size, whatever its first rows are.

        Its page headers say what they decode to, but one value of a dictionary may stand in every row, and with DELTA_BYTE_ARRAY
        one page may repeat its first value. Of a large file far away the footer is believed: it would be a request for each page.

        raises  IntegrityError if the pages decode to more than the file may
        """
        size, rows, wanted = 0, _ROWS, set(names)
        stored = self.at.size()
        chunks = self._chunks if self.is_near or stored <= _WALKED_BYTES else []
        if number >= len(chunks):
            check_decoded(opened.metadata.row_group(number).total_byte_size, stored, self.at)
            return rows
        for chunk in chunks[number]:
            if chunk.column not in wanted:
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
                if page.is_delta and page.size * min(rows, page.values) > _WORST_BYTES:
                    rows = max(1, _WORST_BYTES // page.size)
            if chunk.is_bytes and dictionary * rows > _WORST_BYTES:
                longest = self._longest_entry(number, chunk.column)
                rows = max(1, min(rows, _WORST_BYTES // max(1, longest)))
        return rows

    @cached_property
    def _chunks(self) -> list[list[ColumnChunk]]:
        return column_chunks(self.at)

    def _longest_entry(self, number: int, name: str) -> int:
        """Return the size of the longest value that may stand in every row of a column, read from its dictionary."""
        if pa.types.is_nested(self._footer.field(name).type):
            return _WORST_BYTES  # not told apart: one row at a time
        opened = _open(LocationFile(self.at), [name])
        first = next(
            opened.iter_batches(1, row_groups=[number], columns=[name], use_threads=False), None
        )
        column = None if first is None else first.column(0)
        if column is None or not pa.types.is_dictionary(column.type):
            return 0
        lengths = pc.max(pc.binary_length(column.dictionary.cast(pa.large_binary()))).as_py()
        return int(lengths or 0)


def _checked_head(at: Location, size: int) -> bytes:
    """Look at both ends of a file, and give its first bytes."""
    head = at.read(0, min(size, len(_MAGIC) + _HEAD))
    end = at.read(size - 4, size) if size >= 12 else b""
    if _SEALED in (head[:4], end):
        raise _encrypted(at)
    if size < 12 or not head.startswith(_MAGIC):
        raise FormatError("not parquet: it does not begin with PAR1", where=at)
    if end != _MAGIC:
        raise FormatError(
            "not whole parquet: it does not end with PAR1",
            where=at,
            hint="The file was cut short; fetch it again.",
        )
    return head


def _encrypted(at: Location) -> FormatError:
    return FormatError("the parquet file is encrypted", where=at, hint="Decrypt it first.")


@contextmanager
def _parquet_errors(at: Location, file: LocationFile) -> Iterator[None]:
    """Turn what Arrow says of bad bytes into a FormatError of one line; where only some columns are encrypted, that shows here."""
    with arrow_errors(at, file, "parquet"):
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            is_arrows = not isinstance(error, FlareError) and file.error is None
            if is_arrows and "decrypt" in str(error).lower():
                raise _encrypted(at) from None
            raise


def _open(file: LocationFile, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    source = native(file)
    buffer = _NEAR if isinstance(source, pa.OSFile) or isinstance(file, HeardFile) else _FAR
    return pq.ParquetFile(
        source,
        pre_buffer=False,
        read_dictionary=list(dictionaries),
        buffer_size=buffer,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",
    )


def _rows_at_once(opened: pq.ParquetFile, names: Sequence[str], numbers: range, fit: int) -> int:
    """Give how many rows make a batch: 8,192, or fewer that fill 1.9 MB."""
    groups = [opened.metadata.row_group(i) for i in numbers]
    widest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    first = next(
        opened.iter_batches(
            min(_PROBE, fit), row_groups=list(numbers), columns=list(names), use_threads=False
        ),
        None,
    )
    if first is not None and first.num_rows:
        widest = max(
            widest,
            sum(converted(column, plain(column.type)).nbytes for column in first.columns)
            // first.num_rows,
        )
    return int(max(1, min(_ROWS, _BATCH_BYTES // max(1, widest))))


def _schema_again(opened: pq.ParquetFile) -> pa.Schema | None:
    """Give Arrow's own schema in the footer, if it is there: no sum covers a footer, but it says twice what columns are."""
    text = (opened.metadata.metadata or {}).get(b"ARROW:schema")
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _told(schema: pa.Schema) -> list[str]:
    """Say what both must say: names, and which of them are text."""
    return [f"{'text' if _is_text(field.type) else 'column'} {field.name!r}" for field in schema]


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
