"""The `cat` command: read rows.

Rows are selected and ordered, filtered with the condition, and limited to the first or last rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from flarecli.arguments import address_texts, from_options, name_list
from flarecli.commands.options import CatOptions
from flarecli.commands.row_order import (
    check_names,
    columns_to_read,
    filtered,
    first_rows,
    last_rows,
    select_rows,
)
from flarecli.commands.row_reader import ValueLimit, small_batches
from flarecli.commands.sources import note_sources, open_streams, samples, single_tar
from flarecli.errors import UsageError
from flarecli.progress import Progress
from flarecli.read import Dataset, resolve, select_streams
from flarecli.redact import redact
from flarecli.sql import is_statement

__all__ = ["cat"]


@from_options(CatOptions)
def cat(options: CatOptions) -> Iterator[pa.RecordBatch]:
    """Return the selected rows as typed batches. If no row is selected, return one empty batch.

    The options are applied in this order: rows, sample, shuffle, rank, where, limit, head, tail.
    A value larger than `max_object` is an error.
    For a remote dataset, only the necessary byte ranges are read. The source `-` is a table or a
    tar on `stdin` (default: standard input); a tar is read only once. With `exact`, numbers that a
    format stores as text remain text. `exact` has no effect on a playlist that lists Arrow types,
    unless `stored` is also set. With `stored`, each column has the type of its encoding. Neither
    option has an effect with `where`. Raises UsageError for an unknown column, RowsError for a row
    that does not exist, and any error that reading a dataset raises.
    """
    sources = address_texts(options.sources)  # an iterator can be read only once
    format = options.source_format(options.format)
    progress = options.progress or Progress()
    where, tail = options.where, options.tail
    limit = min((one for one in (options.limit, options.head) if one is not None), default=None)
    exact = (options.exact or options.stored) and where is None
    option = "--raw" if options.stored else "--columns"  # named in messages
    guard = options.guard(sources)
    opened = open_streams(sources, options.input, options.stdin)
    tar = single_tar(sources, opened, options)
    if tar is not None:
        selected = (options.rows, options.sample, options.shuffle, options.rank)
        if any(one is not None for one in selected):
            hint = "Save the tar to a file, or select rows with --where, --limit or --tail."
            raise UsageError(
                "the rows of a tar from standard input or a pipe have no numbers",
                where=tar,
                hint=hint,
            )
        progress.start("cat", None)
        schema, batches = samples(tar, format, exact)
        batches = _reported(batches, progress)
        schema, batches = filtered(schema, batches, where, options.columns, option)
        batches = small_batches(batches, guard.limits.max_bytes, str(tar))
        return _limited(schema, batches, limit, tail)
    columns = None if options.columns is None else name_list(options.columns)
    table = options.table_headers()
    playlists = resolve(sources, format=format, guard=guard, table=table, opened=opened)
    note_sources(playlists, progress)
    parts = select_streams(playlists, options.streams)
    data = Dataset(parts, playlists)
    exact = exact and (options.stored or not data.types)
    if columns is not None and (where is None or not is_statement(where)):
        check_names(data.schema.names, columns, option)
    order = select_rows(
        len(data),
        options.rows,
        options.sample,
        options.seed,
        options.shuffle,
        options.epoch,
        options.rank,
    )
    first, last = 0, len(order)
    if where is None:  # without a condition, skip the rows outside the limits
        last = last if limit is None else min(last, limit)
        first = max(0, last - tail) if tail is not None else 0
    read = columns_to_read(data.schema.names, columns, where)
    schema = pa.schema([(data.exact if exact else data.schema).field(name) for name in read])
    values = ValueLimit(data, parts, guard.limits.max_bytes)
    # a condition may use any column, so no value may be replaced with NUL bytes
    reader = values.reader(read if where is None else (), exact)
    pairs = reader.read(order, read, first, last)
    is_partial = where is not None and limit is not None
    progress.start("cat", None if is_partial else last - first)
    if where is None:
        batches = _reported(values.checked(pairs), progress)
        return _at_least_one(*filtered(schema, batches, where, columns, option))
    batches = _reported((batch for _, batch in pairs), progress)
    schema, batches = filtered(schema, batches, where, columns, option)
    batches = small_batches(batches, guard.limits.max_bytes, " ".join(map(redact, sources)))
    return _limited(schema, batches, limit, tail)


def _limited(
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    limit: int | None,
    tail: int | None,
) -> Iterator[pa.RecordBatch]:
    """Apply `limit`, and then `tail`. If no rows remain, yield one empty batch."""
    batches = batches if limit is None else first_rows(batches, limit)
    return _at_least_one(schema, batches if tail is None else last_rows(batches, tail))


def _reported(batches: Iterator[pa.RecordBatch], progress: Progress) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged, and report their rows as progress."""
    for batch in batches:
        progress.advance(batch.num_rows, batch.nbytes)
        yield batch


def _at_least_one(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that have rows, or one empty batch with the schema if there are none."""
    is_empty = True
    for batch in batches:
        if batch.num_rows:
            is_empty = False
            yield batch
    if is_empty:
        yield pa.RecordBatch.from_pylist([], schema=schema)
