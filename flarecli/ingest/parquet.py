"""Parquet: read a column chunk at a time through a small buffer, only the columns asked for, page sums checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from flarecli.ingest.source import LocationFile, arrow_errors
from flarecli.storage import Location

__all__ = ["Parquet"]

_ROWS, _BATCH_BYTES = 8192, 16 << 20
_BUFFER = 1 << 20  # bytes of each column chunk that are read at once: a row group may be larger than memory


class Parquet:
    """One parquet file. `rows` is what its footer says."""

    def __init__(self, at: Location) -> None:
        self.at = at
        file = LocationFile(at)
        with arrow_errors(at, file, "parquet"):
            opened = self._open(file)
            metadata = opened.metadata
            self.rows: int = metadata.num_rows
            fields = [_unwrapped(field) for field in opened.schema_arrow]
        self.schema = pa.schema(fields)
        heaviest = max(
            (metadata.row_group(i).total_byte_size // max(1, metadata.row_group(i).num_rows) for i in range(min(metadata.num_row_groups, 64))),
            default=0,
        )
        self._step = max(1, min(_ROWS, _BATCH_BYTES // max(1, heaviest)))

    @staticmethod
    def _open(file: LocationFile) -> pq.ParquetFile:
        return pq.ParquetFile(pa.PythonFile(file, mode="r"), pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Give the rows in order; the sum of each page is checked where the file has sums."""
        file = LocationFile(self.at)
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        with arrow_errors(self.at, file, "parquet"):
            batches = self._open(file).iter_batches(self._step, columns=None if columns is None else list(columns), use_threads=False)
        while True:
            with arrow_errors(self.at, file, "parquet"):
                batch = next(batches, None)
                if batch is None:
                    return
                arrays = [batch.column(field.name) for field in schema]
                arrays = [array.dictionary_decode() if pa.types.is_dictionary(array.type) else array for array in arrays]
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield batch


def _unwrapped(field: pa.Field) -> pa.Field:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.field(field.name, kind)  # metadata of a foreign file says nothing about encodings
