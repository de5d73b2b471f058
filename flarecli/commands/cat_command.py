"""The `cat` command: read rows.

sources -> Dataset -> selected rows, in order -> where -> head or tail -> batches
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from flarecli.arguments import address_texts, from_options, name_list
from flarecli.commands import tar_stream as streamed
from flarecli.commands.options import CatOptions
from flarecli.commands.row_order import (
    average_row_bytes,
    check_names,
    first_rows,
    kept,
    last_rows,
    needed,
    opened,
    ordered,
    read_rows,
)
from flarecli.errors import UsageError

__all__ = ["cat"]


@from_options(CatOptions)
def cat(options: CatOptions) -> Iterator[pa.RecordBatch]:
    """Return rows as typed batches, at least one, so that the schema is known.

    Rows are selected in this order: rows, sample, shuffle, rank, where, limit, head, tail. Of a
    remote dataset only the ranges needed are read. The source `-` is a tar on stdin, or on
    `stdin`, that is read once. With `exact`, numbers that a format stores as text stay text.
    Raises UsageError for an unknown column, RowsError for a row that does not exist, and the
    errors of reading.
    """
    sources = address_texts(options.sources)  # an iterator is read once
    where, limit, head, tail = options.where, options.limit, options.head, options.tail
    exact = options.exact and where is None
    if streamed.is_stdin(sources):
        selected = (options.rows, options.sample, options.shuffle, options.rank)
        if any(one is not None for one in selected):
            hint = "Put it into a file, or choose by --where, --limit, --head and --tail."
            raise UsageError("a stream has no rows by number", where=streamed.STDIN, hint=hint)
        schema, batches = streamed.samples(options.format, options.stdin, exact)
        return _of_all(*kept(schema, batches, where, options.columns), limit, head, tail)
    columns = None if options.columns is None else name_list(options.columns)
    guard = options.guard(sources)
    data, parts = opened(sources, options.format, options.streams, guard, progress=options.progress)
    if columns is not None and where is None:
        check_names(data.schema.names, columns)
    order = ordered(
        len(data),
        options.rows,
        options.sample,
        options.seed,
        options.shuffle,
        options.epoch,
        options.rank,
    )
    first, last = 0, len(order)
    if where is None:  # invalid row numbers are reported before any row is read
        last = min([last, *(one for one in (limit, head) if one is not None)])
        first = max(0, last - tail) if tail is not None else 0
    read = needed(data.schema.names, columns, where)
    schema = pa.schema([(data.exact if exact else data.schema).field(name) for name in read])
    pairs = read_rows(data, order, first, last, read, average_row_bytes(parts, len(data)), exact)
    schema, batches = kept(schema, (batch for _, batch in pairs), where, columns)
    return _some(schema, batches) if where is None else _of_all(schema, batches, limit, head, tail)


def _of_all(
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    limit: int | None,
    head: int | None,
    tail: int | None,
) -> Iterator[pa.RecordBatch]:
    """Keep the first or the last rows of the batches."""
    for most in (one for one in (limit, head) if one is not None):
        batches = first_rows(batches, most)
    return _some(schema, batches if tail is None else last_rows(batches, tail))


def _some(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with rows, or one empty batch, so that the schema is known."""
    some = False
    for batch in batches:
        if batch.num_rows:
            some = True
            yield batch
    if not some:
        yield pa.RecordBatch.from_pylist([], schema=schema)
