"""Datasets with lists, as granular wrote them up to 0.21: their tables lie behind the records, so they are written when all rows are there."""

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
from flarecli.formats.granular_folder import shard_folder
from flarecli.model import Columns, Settings
from flarecli.storage import Location

__all__ = ["Gatherer"]

SPEC = "spec.json"


class Gatherer:
    """Keep rows in a file without a name until a dataset, or a shard of one, is whole; then write that. None is added to later.

    at          the dataset's folder
    columns     of `bytes` and `bytes[]`
    words       what spec.json calls their types
    shard_rows  rows of a shard; None: the folder is one dataset
    start, step of the shards' numbers
    spool       a folder for the file; None: that for temporary files
    rows        rows that were given
    raises      UsageError if a dataset is there
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
        self._form = formats.find("granular-refs")
        self.columns = self._form.arrange(columns)
        self._at, self._words, self._shard_rows, self._spool = at, dict(words), shard_rows, spool
        self._numbers = itertools.count(start, step)
        for there in (SPEC, f"{shard_folder(start)}/{SPEC}"):
            if (at / there).exists():
                raise UsageError(
                    "a dataset with lists is not added to",
                    where=at / there,
                    hint="Choose a folder without one.",
                )
        self.rows = self._kept = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def begin(self) -> None:
        """Nothing is written before all rows are there."""

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows; those of a shard that is full are written."""
        done = 0
        while done < batch.num_rows:
            room = (
                batch.num_rows - done if self._shard_rows is None else self._shard_rows - self._kept
            )
            self._keep(batch.slice(done, room))
            done += min(room, batch.num_rows - done)
            if self._kept == self._shard_rows:
                self._write()
        self.rows += batch.num_rows

    def close(self) -> None:
        """Write what is there; a dataset without rows, too, but no shard of none."""
        if self._kept or (self._shard_rows is None and not self.rows):
            self._write()

    def abandon(self) -> None:
        """Let go of rows that no shard has yet."""
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._file, self._writer, self._kept = None, None, 0

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self._file is None or self._writer is None:
            self._file = tempfile.TemporaryFile(dir=self._spool, prefix=".flare-")  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)
        self._kept += batch.num_rows

    def _write(self) -> None:
        number, batches = next(self._numbers), []
        if self._file is not None and self._writer is not None:
            self._writer.close()
            self._file.flush()
            batches = list(
                pa.ipc.open_stream(
                    pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
                )
            )
        settings = Settings(shard_bytes=None, shard_rows=self._shard_rows)
        self._form.write_shard(self._at, number, self.columns, batches, settings)
        folder = "" if self._shard_rows is None else f"{shard_folder(number)}/"
        (self._at / f"{folder}{SPEC}").write(
            [json.dumps(dict(sorted(self._words.items()))).encode()]
        )
        self._writer = None
        self.abandon()
