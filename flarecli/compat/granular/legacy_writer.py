"""Writer of datasets with lists in the format of granular 0.21 and earlier.

Their tables follow the records, so a dataset is written when all of its rows are known.
"""

from __future__ import annotations

import itertools
import json
import mmap
import tempfile
from collections.abc import Mapping
from typing import IO

import pyarrow as pa

from flarecli import formats
from flarecli.errors import UsageError
from flarecli.formats.granular.spec import shard_folder
from flarecli.model import Columns, Settings
from flarecli.storage import Location

__all__ = ["LegacyWriter"]

SPEC = "spec.json"


class LegacyWriter:
    """Keep rows in an unnamed file until a dataset, or a shard of one, is complete; then write it.

    at          the folder of the dataset
    columns     of `bytes` and `bytes[]`
    words       their types for spec.json
    shard_rows  rows per shard; None: the folder is one dataset
    start, step  of the numbers of the shards
    spool       the folder for the unnamed file; None: the one for temporary files
    rows        number of appended rows
    raises      UsageError if there is a dataset already: it cannot be extended
    """

    def __init__(
        self,
        at: Location,
        columns: Columns,
        words: Mapping[str, str],
        shard_rows: int | None,
        start: int,
        step: int,
        spool: str | None,
    ) -> None:
        self._format = formats.find("granular-refs")
        self.columns = self._format.arrange(columns)
        self._at, self._words, self._shard_rows, self._spool = at, dict(words), shard_rows, spool
        self._numbers = itertools.count(start, step)
        for spec in (SPEC, f"{shard_folder(start)}/{SPEC}"):
            if (at / spec).exists():
                raise UsageError(
                    "cannot append to a dataset with lists",
                    where=at / spec,
                    hint="Choose another folder.",
                )
        self.rows = self._pending = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def begin(self) -> None:
        """Do nothing: nothing is written before all rows are known."""

    def append(self, batch: pa.RecordBatch) -> None:
        """Append rows and write complete shards."""
        done = 0
        while done < batch.num_rows:
            part = batch.slice(
                done, None if self._shard_rows is None else self._shard_rows - self._pending
            )
            self._spool_rows(part)
            done += part.num_rows
            if self._pending == self._shard_rows:
                self._write()
        self.rows += batch.num_rows

    def close(self) -> None:
        """Write the pending rows. A dataset may be empty; a shard may not."""
        if self._pending or (self._shard_rows is None and not self.rows):
            self._write()

    def abandon(self) -> None:
        """Discard the pending rows."""
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._file, self._writer, self._pending = None, None, 0

    def _spool_rows(self, batch: pa.RecordBatch) -> None:
        if self._file is None or self._writer is None:
            self._file = tempfile.TemporaryFile(dir=self._spool, prefix=".flare-")  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)
        self._pending += batch.num_rows

    def _write(self) -> None:
        number, batches = next(self._numbers), []
        if self._file is not None and self._writer is not None:
            self._writer.close()
            self._file.flush()
            mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            batches = list(pa.ipc.open_stream(pa.py_buffer(mapped)))
        settings = Settings(shard_bytes=None, shard_rows=self._shard_rows)
        self._format.write_shard(self._at, number, self.columns, batches, settings)
        folder = "" if self._shard_rows is None else f"{shard_folder(number)}/"
        spec = json.dumps(dict(sorted(self._words.items())))
        (self._at / f"{folder}{SPEC}").write([spec.encode()])
        self._writer = None
        self.abandon()
