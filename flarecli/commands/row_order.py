"""Row selection and order.

Rows are first selected, and then sampled, shuffled, split by rank, and limited to the first or last
rows. An order is a sequence of row numbers. A step is a position in this sequence. The row numbers
are computed only when they are needed, for one block of steps at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from flarecli import sql
from flarecli.commands.options import sample_size
from flarecli.errors import UsageError
from flarecli.model import IntArray
from flarecli.read import parse_rows, positions
from flarecli.suggest import choose

__all__ = [
    "Order",
    "check_names",
    "check_no_rows",
    "first_rows",
    "filtered",
    "last_rows",
    "columns_to_read",
    "order_of",
    "select_rows",
    "without_rows",
]


@dataclass(frozen=True)
class Order:
    """A sequence of row numbers, each of which is computed from its position in the sequence.

    starts   first row of each selected range of rows
    strides  distance between consecutive rows of each range
    firsts   number of rows in all ranges before each range
    count    number of rows in the sample; without a sample, number of selected rows
    picks    positions of the sampled rows among the selected rows, ascending; None: no sample
    shuffle  seed and epoch of the shuffle; None: no shuffle
    rank     rank and number of ranks; each rank has every N-th row
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

    def sampled(self, sample: int | float, seed: int) -> Order:
        """Return a random sample of the rows, which keep their order. `shuffle` must not be set.

        sample  number of rows, or a share of the rows as a float
        """
        count = min(self.count, sample_size(sample, self.count))
        picks = np.sort(positions(np.arange(count), self.count, seed))
        return replace(self, count=count, picks=picks)


def order_of(rows: IntArray) -> Order:
    """Convert an array of row numbers, int64 [rows], to an `Order`."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    firsts = np.concatenate([np.zeros(min(1, len(rows)), np.int64), breaks])
    return Order(rows[firsts], np.ones_like(firsts), firsts, len(rows))


def select_rows(
    total: int,
    spec: str | Sequence[range] | None = None,
    sample: int | float | None = None,
    seed: int = 0,
    shuffle: int | None = None,
    epoch: int = 0,
    rank: tuple[int, int] | None = None,
) -> Order:
    """Return an order of `total` rows, selected by `spec`, sampled, shuffled, and split by rank.

    spec    text such as `10:20`, or ranges of rows; None: all rows
    sample  number of rows, or a share of the rows as a float; the sample is in row order
    seed    random seed for the sample
    raises  UsageError for invalid values, such as a share above 1.0; RowsError for a row outside
            the data
    """
    own_rank, ranks = rank or (0, 1)
    if not 0 <= own_rank < ranks:
        raise UsageError(f"invalid rank {own_rank} of {ranks}: ranks are numbered from 0")
    if epoch and shuffle is None:
        raise UsageError("--epoch needs --shuffle", hint="Add --shuffle SEED.")
    if spec is None:
        spec = [range(total)]
    ranges = [one for one in (parse_rows(spec, total) if isinstance(spec, str) else spec) if one]
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


def columns_to_read(
    names: Sequence[str], columns: Sequence[str] | None, where: str | None
) -> list[str]:
    """Return the columns to read: the selected columns, and the columns in the condition."""
    if columns is None:
        return list(names)
    used = {*columns, *([] if where is None else sql.columns_of(where, names))}
    return [name for name in names if name in used]


def filtered(
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    where: str | None,
    columns: Sequence[str] | None,
    option: str = "--columns",
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the rows that match a condition, with the selected columns in the selected order.

    option  name of the option that contains `columns`, for messages
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

    option  name of the option that contains `columns`, for messages
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
    """Yield the first `rows` rows, and then stop reading."""
    while rows > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, min(rows, batch.num_rows))
        rows -= batch.num_rows


def without_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows after the first `rows` rows. No batch is empty."""
    for batch in batches:
        skipped = min(rows, batch.num_rows)
        rows -= skipped
        if batch.num_rows > skipped:
            yield batch.slice(skipped)


def last_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the last `rows` rows, which are kept in memory until all batches are read."""
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
