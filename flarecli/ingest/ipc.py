"""Arrow IPC: a file (`.arrow`, `.feather`) or a stream of record batches, each as large as whoever wrote it made it.

Every batch is checked whole before it is used: offsets out of a file may point anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from flarecli.errors import FormatError
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
                        where=f"{self.at}[{row}]",
                    ) from None
            step = max(1, min(_ROWS, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                yield pa.RecordBatch.from_arrays(
                    [converted(part.column(field.name), field.type) for field in schema],
                    schema=schema,
                )
            row += batch.num_rows

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
