"""Ray Data source and sink.

    ray.data.read_datasource(FlareSource(…))
    ds.write_datasink(FlareSink(…))

Blocks are Arrow tables. Each source task reads consecutive rows. Each sink task writes one part
(`00000/`, `00001/`, …). An index and a playlist join the parts; the playlist is written last.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli import __version__, encodings, read, sql
from flarecli.errors import MissingLibraryError, NoRowsError, UsageError
from flarecli.formats import DEFAULT, find
from flarecli.model import Columns, Settings
from flarecli.names import is_url, whole_path
from flarecli.write import Journal, Target, Writer, claim, error_of, parts
from flarecli.write.columns import ColumnConverter, check_names, chosen_encodings, source_types

try:
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasink, Datasource, ReadTask
except ImportError:
    raise MissingLibraryError(
        "flarecli.ray requires ray", hint="Run `pip install 'flarecli[ray]'`."
    ) from None

__all__ = ["FlareSink", "FlareSource"]

_ROW_BYTES = 1024  # assumed size of a row if the listing has no sizes


class FlareSource(Datasource):
    """A source that reads the rows of a dataset, for `ray.data.read_datasource`.

    address  any address that `flarecli.open` accepts; every node must be able to read it
    columns  columns to read (default: all)
    where    SQL condition on these columns, or a SELECT statement without sorting, grouping or
             limits
    allow_private, allow_local, allow_host  as in `flarecli.open`
    raises   errors of `flarecli.open`; UsageError for an unknown column, and for a SELECT
             statement that sorts, groups, counts or limits rows
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        allow_private: bool = False,
        allow_local: bool = False,
        allow_host: str | Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._address = (
            _absolute(address)
            if isinstance(address, str)
            else [_absolute(path) for path in address]
        )
        self._where = where
        self._access: dict[str, Any] = {
            "allow_private": allow_private,
            "allow_local": allow_local,
            "allow_host": allow_host,
        }
        data = read.open(address, **self._access)
        check_names(data.schema, columns or (), "columns")
        self._columns = data.schema.names if columns is None else list(columns)
        # schema of the columns that are read, and schema of the blocks
        self._stored_schema = pa.schema([data.schema.field(name) for name in self._columns])
        self._schema = self._stored_schema
        if where is not None:
            if not sql.is_row_by_row(self._schema, where):
                hint = "Read all rows, then sort or aggregate them with Ray."
                raise UsageError(
                    "cannot sort, group, count or limit rows, because each task reads only some rows",
                    hint=hint,
                )
            self._schema, _ = sql.select(self._schema, iter(()), where)
        self._rows, self._ends, self._bytes = len(data), data.edges[1:], _stored(data)

    def estimate_inmemory_data_size(self) -> int:
        """Return the stored size of the shards, as an estimate of the size of all rows."""
        return self._bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return tasks that read consecutive rows. If possible, each task reads complete shards."""
        count = min(max(1, parallelism), max(1, self._rows))
        cuts = np.linspace(0, self._rows, count + 1).astype(np.int64)
        if len(self._ends) >= count:
            shards = np.minimum(np.searchsorted(self._ends, cuts[1:]), len(self._ends) - 1)
            cuts = np.unique(np.concatenate([[0], self._ends[shards]]))
        tasks = []
        for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            rows = stop - start if self._where is None else None
            weight = self._bytes * (stop - start) // max(1, self._rows)
            about = BlockMetadata(
                num_rows=rows, size_bytes=weight, exec_stats=None, input_files=None
            )
            tasks.append(
                ReadTask(
                    self._reader(start, stop),
                    about,
                    schema=self._schema,
                    per_task_row_limit=per_task_row_limit,
                )
            )
        return tasks

    def _reader(self, start: int, stop: int) -> Callable[[], Iterator[pa.Table]]:
        address, columns, where, access = self._address, self._columns, self._where, self._access
        schema = self._stored_schema

        def blocks() -> Iterator[pa.Table]:
            data = read.open(address, **access)
            batches = data.scan(columns, start, stop)
            if where is not None:
                _, batches = sql.select(schema, batches, where)
            for batch in batches:
                yield pa.Table.from_batches([batch])

        return blocks


class FlareSink(Datasink[Any]):
    """A sink that writes a dataset, for `Dataset.write_datasink`.

    Rows are in the order of the tasks, which may differ from the order of the Ray dataset.

    out        folder to write; `overwrite` replaces an existing dataset
    format     format of the shards
    columns    column -> encoding; the encodings of other columns are in the schema, or are
               inferred from the first rows
    settings   size, compression and checksums of shards
    raises     the errors of `claim`, before any row is written; the error of an invalid row, after
               the written files were removed
    """

    def __init__(
        self,
        out: str,
        *,
        format: str = DEFAULT,
        columns: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        overwrite: bool = False,
    ) -> None:
        super().__init__()
        find(format)
        self._out, self._format, self._encodings = (
            _absolute(out),
            format,
            dict(columns or {}),
        )
        self._settings, self._overwrite = settings or Settings(shard_bytes=1 << 26), overwrite
        self._at = ""
        self._open: tuple[Target, Journal] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}  # only the driver locks the folder

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Lock the folder."""
        target = claim(self._out, overwrite=self._overwrite)
        head = {
            "flare": __version__,
            "format": self._format,
            "settings": asdict(self._settings),
            "source": "ray",
            "options": {},
        }
        self._open = target, Journal(target.at, json.loads(json.dumps(head)))
        self._at = str(target.at)

    def write(self, blocks: Iterable[Any], ctx: Any) -> int | None:
        """Write the blocks of one task as one part.

        A retried task writes the part again.

        return  number of the part; None if there are no rows
        """
        batches = _batches(blocks)
        first = next(batches, None)
        if first is None:
            return None
        out = f"{self._at}/{parts.part_name(ctx.task_idx)}"
        with Writer(out, format=self._format, settings=self._settings, overwrite=True) as writer:
            columns = self._columns(writer, first)
            typed = ColumnConverter(columns, None, schema=writer.stored_schema)
            rows = 0
            for batch in itertools.chain([first], batches):
                _put(writer, typed, batch, rows)
                rows += batch.num_rows
        return int(ctx.task_idx)

    def _columns(self, writer: Writer, batch: pa.RecordBatch) -> Columns:
        check_names(batch.schema, list(self._encodings), "columns")
        stored = {
            field.name: kept for field in batch.schema if (kept := encodings.encoding_of(field))
        }
        chosen = chosen_encodings(batch, batch.schema.names, self._encodings, {}, stored)
        return writer.name_columns(chosen, source_types(batch.schema, chosen, self._encodings, {}))

    def on_write_complete(self, write_result: Any) -> None:
        """Join the parts and write the playlist."""
        if self._open is None:
            raise UsageError("on_write_start was not called", where=self._out)
        target, journal = self._open
        names = [
            parts.part_name(number)
            for number in sorted(
                number for number in write_result.write_returns if number is not None
            )
        ]
        if not names:
            self.on_write_failed(NoRowsError("no rows to write"))
            raise NoRowsError("no rows to write", where=self._out)
        parts.join(target.at, names, {})
        journal.close()
        target.finish()
        self._open = None

    def on_write_failed(self, error: Exception) -> None:
        """Remove the written files and unlock the folder."""
        if self._open is not None:
            target, journal = self._open
            journal.close()
            target.abandon(keep=False)
            self._open = None


def _absolute(address: str) -> str:
    """Return a path as an absolute path, because tasks may run in a different folder."""
    return os.path.abspath(whole_path(address)) if address and not is_url(address) else address


def _put(writer: Writer, typed: ColumnConverter, batch: pa.RecordBatch, first: int) -> None:
    fit, places, failures = typed.convert(batch, first + np.arange(batch.num_rows))
    if failures:
        raise error_of(failures[0], writer.target.shown, "Remove the row before writing.")
    writer.write_typed(fit, places)


def _batches(blocks: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of Arrow and pandas blocks as batches. Blocks without rows yield no batch."""
    for block in blocks:
        is_table = isinstance(block, pa.Table)
        table = block if is_table else pa.Table.from_pandas(block, preserve_index=False)
        yield from table.combine_chunks().to_batches()


def _stored(data: read.Dataset) -> int:
    sizes = [stream.stored for playlist in data.playlists for stream in playlist.streams]
    known = sum(int(size[size >= 0].sum()) for size in sizes if size is not None)
    return known or len(data) * _ROW_BYTES
