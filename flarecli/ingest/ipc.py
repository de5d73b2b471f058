"""Arrow IPC: files (`.arrow`, `.feather`) and streams of record batches of any size.

Every batch is fully validated before use, because offsets in a file may be invalid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from flarecli.errors import FormatError
from flarecli.expansion import check_decoded, check_rows
from flarecli.ingest.ipc_messages import messages
from flarecli.ingest.source import LocationFile, arrow_errors, check_columns, native
from flarecli.ingest.types import convert, plain
from flarecli.storage import Location

__all__ = ["Ipc"]

_FILE, _OLD = b"ARROW1", b"FEA1"
_ROWS, _BATCH_BYTES = 8192, 16 << 20


class Ipc:
    """One Arrow file or stream. The number of rows is unknown until it is read."""

    def __init__(self, at: Location) -> None:
        self.at = at
        head = at.read(0, min(8, at.size()))
        if head.startswith(_OLD):
            raise FormatError(
                "Feather version 1 is not supported",
                where=at,
                hint="Convert it with a newer pyarrow.",
            )
        if not head:
            raise FormatError("file is empty", where=at)
        self._is_file = head.startswith(_FILE)
        file = LocationFile(at)
        with arrow_errors(at, file, "Arrow IPC"):
            schema = self._open(file, None).schema
            names = schema.names  # raises if a name is not UTF-8
        check_columns(names, at)
        self.schema = pa.schema([pa.field(field.name, plain(field.type)) for field in schema])
        self.rows: int | None = None

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file."""
        return self.at.blocks()

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, with the given columns. Raises FormatError for invalid data."""
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        self._check_messages()
        file = LocationFile(self.at)
        with arrow_errors(self.at, file, "Arrow IPC"):
            batches = self._raw_batches(self._open(file, names))
        row = 0
        while True:
            with arrow_errors(self.at, file, "Arrow IPC"):
                batch = next(batches, None)
                if batch is None:
                    return
                try:
                    batch.validate(full=True)
                except pa.ArrowInvalid as error:
                    raise FormatError(
                        f"invalid batch: {str(error).splitlines()[0][:200]}",
                        where=self.at,
                        row=row,
                    ) from None
            for start, stop in _split_rows(batch):
                part = batch.slice(start, stop - start)
                yield pa.RecordBatch.from_arrays(
                    [convert(part.column(field.name), field.type) for field in schema],
                    schema=schema,
                )
            row += batch.num_rows

    def _check_messages(self) -> None:
        """Raise FormatError if the messages declare more data than the size of the file allows."""
        size, stored, rows = 0, self.at.size(), 0
        for message in messages(self.at.read, stored):
            size += message.size
            rows += 0 if message.is_dictionary else message.rows
            check_decoded(size, stored, self.at)
            check_rows(rows, len(self.schema), stored, self.at)

    def _open(self, file: LocationFile, names: Sequence[str] | None) -> Any:
        source = native(file)  # local files are held open, because they may be replaced
        options = pa.ipc.IpcReadOptions(use_threads=False)
        if names is not None:
            all_names = self.schema.names
            options.included_fields = sorted(all_names.index(name) for name in names)
        return (
            pa.ipc.open_file(source, options=options)
            if self._is_file
            else pa.ipc.open_stream(source, options=options)
        )

    def _raw_batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        if not self._is_file:
            return iter(reader)
        return (reader.get_batch(i) for i in range(reader.num_record_batches))


def _split_rows(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Split a batch into ranges of rows of bounded size after decoding; a larger row is alone."""
    ends = np.cumsum(sum((_sizes(column) for column in batch.columns), np.ones(len(batch))))
    start = 0
    while start < len(batch):
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + _BATCH_BYTES, "right"))
        stop = min(max(stop, start + 1), start + _ROWS)
        yield start, stop
        start = stop


def _sizes(array: pa.Array) -> Any:
    """Return the approximate decoded size of each value in bytes: float64 [rows].

    Values of dictionaries, views and run ends may share bytes. If these are nested in other types,
    the size of each value is that of the whole array.
    """
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    kind = array.type
    if kinds.is_dictionary(kind):
        sizes = _sizes(array.dictionary)
        at = array.indices.fill_null(0).to_numpy()
        return sizes[at] if len(sizes) else np.zeros(len(array))
    if kinds.is_run_end_encoded(kind):
        values, ends = array.values, array.run_ends.to_numpy()
        at = np.searchsorted(ends, array.offset + np.arange(len(array)), "right")
        return _sizes(values)[np.minimum(at, len(values) - 1)]
    if kind in (pa.string_view(), pa.binary_view()):
        views = np.frombuffer(array.buffers()[1], "<i4").reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0].astype(np.float64)
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    if kinds.is_nested(kind):
        whole = float(array.get_total_buffer_size())
        return np.full(len(array), whole if _is_shared(kind) else whole / max(1, len(array)))
    if kinds.is_binary(kind) or kinds.is_string(kind) or _is_large(kind):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy().astype(np.float64)
    return np.full(len(array), array.nbytes / max(1, len(array)))


def _is_large(kind: pa.DataType) -> bool:
    return bool(kinds.is_large_binary(kind) or kinds.is_large_string(kind))


def _is_shared(kind: pa.DataType) -> bool:
    """Return whether values of a type may share bytes."""
    if kinds.is_list_view(kind) or kinds.is_large_list_view(kind):
        return True
    if kinds.is_nested(kind):
        return any(_is_shared(kind.field(i).type) for i in range(kind.num_fields))
    return bool(kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind)) or kind in (
        pa.string_view(),
        pa.binary_view(),
    )
