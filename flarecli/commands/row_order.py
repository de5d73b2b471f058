"""Row selection and order. Consecutive rows are read by scans, other rows by `take`.

rows -> sample -> shuffle -> rank -> head or tail

An order is a sequence of row numbers. A step is a position in this sequence. The row numbers are
computed only when they are needed, for one block of steps at a time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from flarecli import sql
from flarecli.arguments import Addresses
from flarecli.commands.large_values import RowReader
from flarecli.commands.options import sample_size
from flarecli.commands.sources import note_sources
from flarecli.errors import UsageError
from flarecli.model import IntArray, Stream
from flarecli.progress import Progress
from flarecli.read import Dataset, parse_rows, positions, resolve, select_streams
from flarecli.storage import Guard
from flarecli.suggest import choose

if TYPE_CHECKING:
    from flarecli.ingest import Spool

__all__ = [
    "Order",
    "average_row_bytes",
    "check_names",
    "check_no_rows",
    "first_rows",
    "filtered",
    "last_rows",
    "format_runs",
    "columns_to_read",
    "open_dataset",
    "order_of",
    "select_rows",
    "read_rows",
    "without_rows",
]

_BLOCK_STEPS = 1 << 13  # steps mapped per block
_TAKE_ROWS, _TAKE_BYTES = 64, 16 << 20  # maximum rows and bytes per `take`
_MIN_RUN_ROWS = 16  # scans are faster if the average run has at least this length


@dataclass(frozen=True)
class Order:
    """A sequence of row numbers, each computed from its step, the position in the sequence.

    starts, strides, firsts  first row, stride and first step of each range of rows
    picks                    steps in the sample, in increasing order; None: all steps
    """

    starts: IntArray
    strides: IntArray
    firsts: IntArray
    count: int
    picks: IntArray | None = None
    shuffle: tuple[int, int] | None = None
    rank: tuple[int, int] = (0, 1)

    def __len__(self) -> int:
        rank, ranks = self.rank
        return max(0, -(-(self.count - rank) // ranks))

    def rows(self, start: int, stop: int) -> IntArray:
        """Return the rows at steps start..stop, as int64."""
        rank, ranks = self.rank
        steps = rank + ranks * np.arange(start, stop, dtype=np.int64)
        if self.shuffle is not None:
            steps = positions(steps, self.count, *self.shuffle)
        if self.picks is not None:
            steps = self.picks[steps]
        at = np.searchsorted(self.firsts, steps, "right") - 1
        out: IntArray = self.starts[at] + self.strides[at] * (steps - self.firsts[at])
        return out

    def runs(self) -> list[range] | None:
        """Return the rows as ranges, or None if the order is not a sequence of long ranges.

        An order with a sample, a shuffle or a rank has no ranges.
        """
        is_whole = self.picks is None and self.shuffle is None and self.rank == (0, 1)
        if not is_whole or len(self) < _MIN_RUN_ROWS * len(self.starts):
            return None
        if (self.strides != 1).any():
            return None
        stops = self.starts + np.diff(self.firsts, append=self.count)
        return list(map(range, self.starts.tolist(), stops.tolist()))

    def first(self, rows: int) -> Order:
        """Return the order of the first rows.

        The order must have no sample, no shuffle and no rank.
        """
        kept = self.firsts < rows
        return replace(
            self,
            starts=self.starts[kept],
            strides=self.strides[kept],
            firsts=self.firsts[kept],
            count=min(rows, self.count),
        )

    def sampled(self, sample: int | float, seed: int) -> Order:
        """Return a random sample of the rows, in the same order. The order must have no shuffle.

        sample  number of rows, or a share of the rows as a float
        """
        count = min(self.count, sample_size(sample, self.count))
        picks = np.sort(positions(np.arange(count), self.count, seed))
        return replace(self, count=count, picks=picks)


def order_of(rows: IntArray) -> Order:
    """Return the order of the given rows: int64 [rows]."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    firsts = np.concatenate([np.zeros(min(1, len(rows)), np.int64), breaks])
    return Order(rows[firsts], np.ones_like(firsts), firsts, len(rows))


def select_rows(
    total: int,
    spec: str | None = None,
    sample: int | float | None = None,
    seed: int = 0,
    shuffle: int | None = None,
    epoch: int = 0,
    rank: tuple[int, int] | None = None,
) -> Order:
    """Return an order of `total` rows, selected by `spec`, sampled, shuffled, and split by rank.

    sample  number of rows, or a share of the rows as a float; the sample is in row order
    seed    random seed for the sample
    raises  UsageError for invalid values, such as a share above 1.0; RowsError for a row outside
            the data
    """
    own_rank, ranks = rank or (0, 1)
    if not 0 <= own_rank < ranks:
        raise UsageError(f"invalid rank {own_rank} of {ranks}: ranks are counted from 0")
    if min(seed, epoch, shuffle or 0) < 0 or (sample is not None and not sample >= 0):
        raise UsageError(
            f"expected numbers of at least 0, got sample {sample}, seed {seed}, shuffle {shuffle}, "
            f"epoch {epoch}"
        )
    if epoch and shuffle is None:
        raise UsageError("--epoch needs --shuffle", hint="Add --shuffle SEED.")
    ranges = [
        one for one in ([range(total)] if spec is None else parse_rows(spec, total)) if len(one)
    ]
    firsts = np.cumsum([0, *(len(one) for one in ranges)], dtype=np.int64)
    order = Order(
        np.array([one.start for one in ranges], np.int64),
        np.array([one.step for one in ranges], np.int64),
        firsts[:-1],
        int(firsts[-1]),
    )
    if sample is not None:
        order = order.sampled(sample, int(seed))
    shuffled = None if shuffle is None else (shuffle, epoch)
    return replace(order, shuffle=shuffled, rank=(own_rank, ranks))


def format_runs(runs: Sequence[range]) -> str:
    """Format ranges of rows as text for the `spec` of `select_rows`, such as `0:10,20:30`."""
    return ",".join(f"{run.start}:{run.stop}" for run in runs) or "0:0"


def open_dataset(
    sources: Addresses,
    format: str | None,
    streams: Sequence[str],
    guard: Guard | None,
    maps: bool = True,
    progress: Progress | None = None,
    table: Mapping[str, object] = MappingProxyType({}),
    opened: Mapping[str, Spool] = MappingProxyType({}),
) -> tuple[Dataset, list[list[Stream]]]:
    """Open a dataset; return the dataset and the parts of each stream.

    table   values of the options `input` and `csv`, for tables without a playlist
    opened  open input streams, by address
    """
    playlists = resolve(sources, format=format, guard=guard, maps=maps, table=table, opened=opened)
    note_sources(playlists, progress or Progress())
    parts = select_streams(playlists, streams)
    return Dataset(parts, playlists), parts


def average_row_bytes(parts: Sequence[Sequence[Stream]], rows: int) -> int:
    """Return the average row size in bytes according to the listed sizes, but at least 1."""
    size = sum(
        int(np.maximum(stream.raw_sizes if stream.raw_sizes is not None else stream.sizes, 0).sum())
        for one in parts
        for stream in one
        if stream.sizes is not None
    )
    return max(1, size // max(1, rows))


def read_rows(
    reader: RowReader,
    order: Order,
    start: int,
    stop: int,
    columns: Sequence[str],
    row_bytes: int,
) -> Iterator[tuple[IntArray, pa.RecordBatch]]:
    """Yield row numbers and typed batches of bounded size for steps start..stop of an order.

    row_bytes  estimated size of a row in bytes
    """
    take_rows = max(1, min(_TAKE_ROWS, _TAKE_BYTES // row_bytes))
    for begin in range(start, stop, _BLOCK_STEPS):
        rows = order.rows(begin, min(begin + _BLOCK_STEPS, stop))
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        if len(rows) < _MIN_RUN_ROWS * len(breaks):
            for k in range(0, len(rows), take_rows):
                yield from reader.take(columns, rows[k : k + take_rows])
            continue
        for run in np.split(rows, breaks):
            yield from reader.scan(columns, int(run[0]), int(run[-1]) + 1)


def columns_to_read(
    names: Sequence[str], columns: Sequence[str] | None, where: str | None
) -> list[str]:
    """Return the columns to read: the selected columns, and the columns in the condition."""
    if columns is None:
        return list(names)
    text = (where or "").lower()
    if re.match(r"\s*(?:select|with|from)\b", text) or any('"' in name for name in names):
        return list(names)
    return [name for name in names if name in columns or name.lower() in text]


def filtered(
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    where: str | None,
    columns: Sequence[str] | None,
    option: str = "--columns",
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the rows that match a condition, with the selected columns in the selected order.

    option  the option with which the user passed the columns
    raises  UsageError for an unknown column
    """
    if where is not None:
        schema, batches = sql.select(schema, batches, where)
    if columns is None:
        return schema, batches
    check_names(schema.names, columns, option)
    selected = pa.schema([schema.field(name) for name in dict.fromkeys(columns)])
    return selected, (
        pa.RecordBatch.from_arrays([batch.column(name) for name in selected.names], schema=selected)
        for batch in batches
    )


def check_names(names: Sequence[str], columns: Sequence[str], option: str) -> None:
    """Raise UsageError for an unknown column.

    option  the option with which the user passed the columns
    """
    for name in columns:
        if name not in names:
            raise UsageError(
                f"{option}: no column {name!r}",
                hint=choose(name, names, "Choose from"),
                column=name,
            )


def check_no_rows(
    address: str, streams: Sequence[str], rows: str | None, kind: str = "table"
) -> None:
    """Raise UsageError for `rows` or `streams`, which tables and folders do not support."""
    if rows is not None:
        raise UsageError(
            f"rows of a {kind} cannot be selected by number",
            where=address,
            hint="Use --where or --limit.",
        )
    if streams:
        raise UsageError(f"a {kind} has no streams", where=address, hint="Omit --stream.")


def first_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows, and then stop reading."""
    while rows > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, min(rows, batch.num_rows))
        rows -= batch.num_rows


def without_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows after the first rows. No batch is empty."""
    for batch in batches:
        skipped = min(rows, batch.num_rows)
        rows -= skipped
        if batch.num_rows > skipped:
            yield batch.slice(skipped)


def last_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the last rows, which are kept in memory until the end."""
    buffered: deque[pa.RecordBatch] = deque()
    count = 0
    for batch in batches:
        buffered.append(batch)
        count += batch.num_rows
        while buffered and count - buffered[0].num_rows >= rows:
            count -= buffered.popleft().num_rows
    while buffered:
        batch = buffered.popleft()
        cut = max(0, count - rows)
        count -= batch.num_rows
        yield batch.slice(cut)
