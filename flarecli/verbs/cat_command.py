"""cat: rows.

sources -> Dataset -> the rows asked, in their order -> where -> first or last of them -> batches
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa

from flarecli.errors import UsageError
from flarecli.given import Addresses, address_texts, checked, name_list
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits
from flarecli.verbs import streamed
from flarecli.verbs.reach import bounded
from flarecli.verbs.rows import (
    check_names,
    first_rows,
    kept,
    last_rows,
    needed,
    opened,
    ordered,
    read_rows,
    weight,
)

__all__ = ["cat"]


@checked
def cat(
    sources: Addresses,
    *,
    format: str | None = None,
    streams: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    rows: str | None = None,
    where: str | None = None,
    limit: int | None = None,
    head: int | None = None,
    tail: int | None = None,
    sample: int | float | None = None,
    seed: int = 0,
    shuffle: int | None = None,
    epoch: int = 0,
    rank: tuple[int, int] | None = None,
    exact: bool = False,
    guard: Guard | None = None,
    allow_host: str | Sequence[str] = (),
    limits: Limits | None = None,
    stdin: IO[bytes] | None = None,
    progress: Progress | None = None,
) -> Iterator[pa.RecordBatch]:
    """Give rows as typed batches: those named, sampled, shuffled, of one rank; then where, limit, head and tail.

    columns  only these are read, and given in this order; None: all
    rows     such as `5`, `10:20`, `-5:`, `::100`, `3,1,4`
    where    SQL condition over the columns, or a whole `SELECT … FROM dataframe …`
    limit    keep the first rows that `where` leaves; `head` the first of those, `tail` the last
    sample   so many rows by chance, or such a share of them as a float; `seed` says which
    shuffle  the rows in the order of a run with this seed, in `epoch`
    rank     (R, N): the rows of rank R of N of that run
    sources  addresses; or `-`, a tar at standard input, or at `stdin`: it is read once, in order, and never held whole
    exact    numbers that a format keeps as text stay that text, byte for byte; not behind a `where`
    allow_host  private hosts and networks that data may name, such as `10.0.0.7:8080` or `10.1.0.0/16`
    return   at least one batch, if only to say the schema; of a remote dataset, ranges are read and no whole shard
    raises   UsageError for an unknown column; RowsError for a row outside the data; whatever reading raises
    """
    for name, value in (("limit", limit), ("head", head), ("tail", tail), ("sample", sample)):
        if value is not None and value < 0:
            raise UsageError(f"--{name} is {value}, below 0")
    sources = address_texts(sources)  # what gives them once is asked once
    if streamed.is_stdin(sources):
        if any(one is not None for one in (rows, sample, shuffle, rank)):
            hint = "Put it into a file, or choose by --where, --limit, --head and --tail."
            raise UsageError("a stream has no rows by number", where=streamed.STDIN, hint=hint)
        schema, batches = streamed.samples(format, stdin, exact and where is None)
        return _of_all(*kept(schema, batches, where, columns), limit, head, tail)
    columns = None if columns is None else name_list(columns)
    guard = bounded(guard, limits, allow_host, sources)
    data, parts = opened(sources, format, streams, guard, progress=progress)
    if columns is not None and where is None:
        check_names(data.schema.names, columns)
    order = ordered(len(data), rows, sample, seed, shuffle, epoch, rank)
    first, last = 0, len(order)
    if where is None:  # then which rows come is known before any is read
        last = min([last, *(one for one in (limit, head) if one is not None)])
        first = max(0, last - tail) if tail is not None else 0
    read = needed(data.schema.names, columns, where)
    exact = exact and where is None
    schema = pa.schema([(data.exact if exact else data.schema).field(name) for name in read])
    pairs = read_rows(data, order, first, last, read, weight(parts, len(data)), exact)
    schema, batches = kept(schema, (batch for _, batch in pairs), where, columns)
    return _some(schema, batches) if where is None else _of_all(schema, batches, limit, head, tail)


def _of_all(
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    limit: int | None,
    head: int | None,
    tail: int | None,
) -> Iterator[pa.RecordBatch]:
    """Keep the first and the last rows of those that come."""
    for most in (one for one in (limit, head) if one is not None):
        batches = first_rows(batches, most)
    return _some(schema, batches if tail is None else last_rows(batches, tail))


def _some(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the batches that hold rows, or an empty one: whoever writes a table wants to know its columns."""
    some = False
    for batch in batches:
        if batch.num_rows:
            some = True
            yield batch
    if not some:
        yield pa.RecordBatch.from_pylist([], schema=schema)
