"""The flare side of `formats.py`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from formats_data import RECORD, SHARD, WORKLOADS, picks, samples

import flarecli
from flarecli import formats
from flarecli.model import Settings
from flarecli.write.columns import ColumnConverter

TYPES = {"int": pa.int64(), "float64": pa.float64(), "str": pa.string(), "bytes": pa.large_binary()}
BATCH_BYTES = 8 << 20
ONE_COLUMN = ("ffrecord",)
SHARDS = {"granular": None}  # bytes; the original reads only a folder without shards


def batches(form: str, workload: str, rows: int) -> list[pa.RecordBatch]:
    """Return a workload as an Arrow table."""
    kinds = WORKLOADS[workload].kinds
    names = [RECORD[workload]] if form in ONE_COLUMN else list(kinds)
    schema = pa.schema([(name, TYPES[kinds[name]]) for name in names])
    out: list[pa.RecordBatch] = []
    held: list[dict[str, Any]] = []
    size = 0
    for sample in samples(workload, rows):
        held.append({name: sample[name] for name in names})
        size += sum(
            len(value) if isinstance(value, (str, bytes)) else 8 for value in held[-1].values()
        )
        if size > BATCH_BYTES or len(held) == 8192:
            out.append(pa.RecordBatch.from_pylist(held, schema))
            held, size = [], 0
    return [*out, pa.RecordBatch.from_pylist(held, schema)] if held else out


def write(form: str, folder: Path, data: list[pa.RecordBatch], kinds: dict[str, str]) -> int:
    """Write batches with the Writer: shards, index and playlist, synced to the disk."""
    settings = Settings(shard_bytes=SHARDS.get(form, SHARD))
    with flarecli.Writer(str(folder), format=form, settings=settings) as writer:
        columns = writer.name_columns({name: kinds[name] for name in data[0].schema.names})
        typed, first = ColumnConverter(columns, None), 0
        for batch in data:
            fit, rows, _ = typed.convert(batch, np.arange(first, first + batch.num_rows))
            writer.write_typed(fit, rows)
            first += batch.num_rows
    return first


def make(form: str, workload: str, folder: Path) -> None:
    """Write the dataset for random reads, and a dataset of its first rows for reads in order."""
    shape = WORKLOADS[workload]
    write(form, folder, batches(form, workload, shape.rows), shape.kinds)
    write(form, Path(f"{folder}-scan"), batches(form, workload, shape.scanned), shape.kinds)


class Flare:
    """The measured operations on one dataset."""

    def __init__(self, form: str, workload: str, folder: Path) -> None:
        self.form, self.workload, self.folder = form, workload, folder
        self.data = flarecli.open(str(folder))
        self.scanned = flarecli.open(f"{folder}-scan")
        self.read = formats.find(form).read_rows
        series = self.data._table.series[0]
        edges = self.data.edges.tolist()
        shards = [series.shard(i) for i in range(series.chunks)]
        self.rows = picks(workload, False)
        where = np.searchsorted(self.data.edges, self.rows, "right") - 1
        self.places = [
            (shards[i], row - edges[i]) for i, row in zip(where.tolist(), self.rows, strict=True)
        ]
        self.batches: list[pa.RecordBatch] | None = None

    def row(self) -> int:
        read = self.read
        for shard, row in self.places:
            read(shard, (row,))
        return len(self.places)

    def row_of_dataset(self) -> int:
        rows = self.data.rows
        for row in self.rows:
            rows((row,))
        return len(self.rows)

    def scan(self) -> int:
        return sum(batch.num_rows for batch in self.scanned.scan())

    def scan_views(self) -> int:
        return sum(batch.num_rows for batch in self.scanned.scan(views=True))

    def copies(self) -> int:
        from flarecli.formats.ffrecord import table as ffrecord_table

        return self._by_64(ffrecord_table.read_copies)

    def views(self) -> int:
        from flarecli.formats.ffrecord import table as ffrecord_table

        return self._by_64(ffrecord_table.read_views)

    def _by_64(self, read: Callable[..., Any]) -> int:
        """Read all rows of the shards, 64 at a time."""
        done, by_shard = 0, dict[int, list[int]]()
        shards = {id(shard): shard for shard, _ in self.places}
        for shard, row in self.places:
            by_shard.setdefault(id(shard), []).append(row)
        for key, rows in by_shard.items():
            for start in range(0, len(rows) - 63, 64):
                done += len(read(shards[key], rows[start : start + 64]))
        return done

    def write(self, out: Path) -> Callable[[], int]:
        if self.batches is None:
            self.batches = batches(self.form, self.workload, WORKLOADS[self.workload].rows)
        data = self.batches
        return lambda: write(self.form, out, data, WORKLOADS[self.workload].kinds)
