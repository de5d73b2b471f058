"""Arrow IPC: a file (`.arrow`, `.feather`) or a stream of record batches, each as large as whoever wrote it made it.

Every batch is checked whole before it is used: offsets out of a file may point anywhere.
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
from flarecli.ingest.types import converted, plain
from flarecli.storage import Location

__all__ = ["Ipc"]

_FILE, _OLD = b"ARROW1", b"FEA1"
_ROWS, _BATCH_BYTES = 8192, 16 << 20


class Ipc:
    """One Arrow file or stream. A file says at once how many batches it has, and rows are counted by reading."""

    def __init__(self, at: Location) -> None:
        self.at = at
        head = at.read(0, min(8, at.size()))
        if head.startswith(_OLD):
            raise FormatError(
                "Feather of version 1, which is not read",
                where=at,
                hint="Write it again with a newer pyarrow.",
            )
        if not head:
            raise FormatError("an empty file", where=at)
        self._is_file = head.startswith(_FILE)
        file = LocationFile(at)
        with arrow_errors(at, file, "Arrow IPC"):
            schema = self._opened(file, None).schema
            names = schema.names  # raises for one that is not UTF-8
        check_columns(names, at)
        self.schema = pa.schema([pa.field(field.name, plain(field.type)) for field in schema])
        self.rows: int | None = None

    def blocks(self) -> Iterator[bytes]:
        """Give its bytes."""
        return self.at.blocks()

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Give the rows in order, only the columns asked for. Raises FormatError for bytes that are not what they say."""
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        self._check_messages()
        file = LocationFile(self.at)
        with arrow_errors(self.at, file, "Arrow IPC"):
            batches = self._raw(self._opened(file, names))
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
                        f"a batch that cannot be: {str(error).splitlines()[0][:200]}",
                        where=self.at,
                        row=row,
                    ) from None
            for start, stop in _cuts(batch):
                part = batch.slice(start, stop - start)
                yield pa.RecordBatch.from_arrays(
                    [converted(part.column(field.name), field.type) for field in schema],
                    schema=schema,
                )
            row += batch.num_rows

    def _check_messages(self) -> None:
        """Raise FormatError if the messages say that they decode to more than the file may."""
        size, stored, rows = 0, self.at.size(), 0
        for message in messages(self.at.read, stored):
            size += message.size
            rows += 0 if message.is_dictionary else message.rows
            check_decoded(size, stored, self.at)
            check_rows(rows, len(self.schema), stored, self.at)

    def _opened(self, file: LocationFile, names: Sequence[str] | None) -> Any:
        source = native(
            file
        )  # of a disk held open: what takes the file's name meanwhile is another one
        options = pa.ipc.IpcReadOptions(use_threads=False)
        if names is not None:
            all_names = self.schema.names
            options.included_fields = sorted(all_names.index(name) for name in names)
        return (
            pa.ipc.open_file(source, options=options)
            if self._is_file
            else pa.ipc.open_stream(source, options=options)
        )

    def _raw(self, opened: Any) -> Iterator[pa.RecordBatch]:
        if not self._is_file:
            return iter(opened)
        return (opened.get_batch(i) for i in range(opened.num_record_batches))


def _cuts(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Cut a batch into runs of rows that decode to a bounded size each; a row larger than that is alone."""
    ends = np.cumsum(sum((_sizes(column) for column in batch.columns), np.ones(len(batch))))
    start = 0
    while start < len(batch):
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + _BATCH_BYTES, "right"))
        stop = min(max(stop, start + 1), start + _ROWS)
        yield start, stop
        start = stop


def _sizes(array: pa.Array) -> Any:
    """Return about how many bytes each value takes once it is decoded: float64 [rows].

    Values of dictionaries, views and run ends may be the same bytes again and again. Where they lie inside other types, each value
    is taken for as large as the array.
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
    """Tell whether values of a type may share the bytes of others."""
    if kinds.is_list_view(kind) or kinds.is_large_list_view(kind):
        return True
    if kinds.is_nested(kind):
        return any(_is_shared(kind.field(i).type) for i in range(kind.num_fields))
    return bool(kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind)) or kind in (
        pa.string_view(),
        pa.binary_view(),
    )
