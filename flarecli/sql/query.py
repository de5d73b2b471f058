"""SQL conditions over batches, with DuckDB; rows keep their order.

A condition, and a SELECT that uses one row at a time, run over one batch after another, without
reading ahead. A SELECT that sorts, groups or counts runs once over all batches, in DuckDB's memory.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.errors import UsageError
from flarecli.sql.connection import STATEMENT, connect
from flarecli.sql.provenance import with_column
from flarecli.suggest import choose

__all__ = ["is_row_by_row", "select"]

_LOCAL = ("SET streaming_buffer_size = '64KB'", "SET lock_configuration = true")
_ROW_BY_ROW = {"PROJECTION", "FILTER"}
# hidden column; made longer if the source has a column of that name
_POSITION = "position in its batch"
_HINT = "Write it like \"aes > 4 and lang = 'en'\"."


def select(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    expression: str,
    *,
    batch_rows: int = 8192,
    beside: str | None = None,
    known: Sequence[str] = (),
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the rows for which a condition is true, or the result of a SELECT.

    schema      of the batches; unchanged by a condition, DuckDB's types for a SELECT
    batches     read on demand one at a time, unless a SELECT sorts, groups, counts or limits
    expression  a condition over the columns, such as `aes > 4 AND lang = 'en'`, or one SELECT
    beside      a hidden int64 column of the batches, after those of `schema`. The result has it
                too, unless a SELECT returns other rows than those of the source
    known       names of all columns for messages, if `schema` has only some
    return      schema of the result without the hidden column, and its rows in the order of the
                input, at max_rows `batch_rows` in a batch
    raises      UsageError for an invalid expression or unknown columns, or if a row fails
    """
    import duckdb

    if not expression.strip():
        raise UsageError("--where is empty", hint=_HINT)
    _check_names(schema)
    is_condition = not STATEMENT.match(expression)
    con = connect()
    try:
        for setting in _LOCAL:
            con.execute(setting)
        position = _unused_name(schema.names)
        query = (
            f'SELECT "{position}" FROM dataframe WHERE (\n{expression}\n)'
            if is_condition
            else expression
        )
        statements = con.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError("--where must be one condition or one SELECT", hint=_HINT)
        con.register(
            "dataframe",
            _table(
                _with_positions(pa.RecordBatch.from_pylist([], schema), position)
                if is_condition
                else schema.empty_table()
            ),
        )
        steps = _steps(con, query)
        reads = sum(step.endswith("ARROW_SCAN") for step in steps)
        if reads > 1:
            raise UsageError(
                "--where reads the rows more than once",
                hint="Read them once: WITH d AS MATERIALIZED (SELECT * FROM dataframe) …",
            )
        if reads == 0 and "EMPTY_RESULT" not in steps:
            raise UsageError(
                "--where reads no rows of the source",
                hint="Write SELECT … FROM dataframe …, or a condition.",
            )
        if is_condition:
            return schema, _filter(con, query, batches, position)
        given = result = _result_schema(con.sql(query).to_arrow_table().schema, schema)
        if beside is not None:
            query, given, batches = _with_provenance(
                con, query, beside, steps, schema, result, batches
            )
            schema = schema if given is result else schema.append(pa.field(beside, pa.int64()))
        if _are_row_by_row(steps):
            return result, _query_each(con, query, batches, given, batch_rows)
        return result, _query_all(con, query, _Source(schema, batches), given, batch_rows)
    except duckdb.Error as error:
        raise _query_error(error, known or schema.names, expression) from None


def is_row_by_row(schema: pa.Schema, expression: str) -> bool:
    """Return whether `select` evaluates an expression row by row: without sorting, grouping or
    limits.
    """
    if not STATEMENT.match(expression):
        return True
    with connect() as con:
        con.register("dataframe", _table(schema.empty_table()))
        return _are_row_by_row(_steps(con, expression))


def _are_row_by_row(steps: Sequence[str]) -> bool:
    return all(step in _ROW_BY_ROW or step.endswith("ARROW_SCAN") for step in steps)


def _check_names(schema: pa.Schema) -> None:
    """Raise UsageError for column names that differ only in case, which SQL ignores."""
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise UsageError(
                f"--where cannot tell the columns {seen[name.lower()]!r} and {name!r} apart",
                hint="Rename one of them in the source.",
            )
        seen[name.lower()] = name


def _steps(con: Any, query: str) -> list[str]:
    """Return the names of the operators in a query's plan."""
    waiting, found = json.loads(con.execute(f"EXPLAIN (FORMAT JSON) {query}").fetchall()[0][1]), []
    while waiting:
        step = waiting.pop()
        found.append(step["name"].strip())
        waiting.extend(step["children"])
    return found


def _with_provenance(
    con: Any,
    query: str,
    name: str,
    steps: list[str],
    schema: pa.Schema,
    result: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> tuple[str, pa.Schema, Iterable[pa.RecordBatch]]:
    """Return query, result schema and batches of a SELECT with the hidden column, or without it."""
    import duckdb

    wider = with_column(query, schema, name, steps)
    if wider is not None:
        try:
            con.register(
                "dataframe", _table(schema.append(pa.field(name, pa.int64())).empty_table())
            )
            found = _result_schema(con.sql(wider).to_arrow_table().schema, schema)
        except duckdb.Error:
            found = result
        if name in found.names and found.remove(found.get_field_index(name)).equals(result):
            return wider, found, batches
    return query, result, (batch.drop_columns([name]) for batch in batches)


# -- one batch at a time


def _unused_name(names: Sequence[str]) -> str:
    """Return a name for the positions that no column has, ignoring case."""
    known = {name.lower() for name in names}
    return next(name for k in itertools.count() if (name := _POSITION + "'" * k) not in known)


def _with_positions(batch: pa.RecordBatch, position: str) -> pa.RecordBatch:
    return batch.append_column(position, pa.array(np.arange(batch.num_rows, dtype=np.int32)))


def _table(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    return (
        rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    ).replace_schema_metadata(None)


def _filter(
    con: Any, query: str, batches: Iterable[pa.RecordBatch], position: str
) -> Iterator[pa.RecordBatch]:
    """Take the selected rows from the batches themselves, so that types do not change."""
    with con:
        for batch in batches:
            positions = (
                _run(con, query, _with_positions(batch, position)).column(0).combine_chunks().sort()
            )
            if len(positions) == batch.num_rows:
                yield batch
            elif len(positions):
                yield batch.take(positions)


def _query_each(
    con: Any, query: str, batches: Iterable[pa.RecordBatch], result: pa.Schema, max_rows: int
) -> Iterator[pa.RecordBatch]:
    with con:
        for batch in batches:
            for part in _run(con, query, batch).to_batches(max_rows):
                yield _typed(part, result)


def _run(con: Any, query: str, batch: pa.RecordBatch) -> pa.Table:
    import duckdb

    con.register("dataframe", _table(batch))
    try:
        return con.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise _row_error(error) from None


# -- all batches at once


class _Source:
    """The batches as DuckDB reads them. Keeps their error, because DuckDB passes on only its text."""

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self.schema, self._batches = schema, batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                yield batch.replace_schema_metadata(None)
        except BaseException as error:
            self.error = error
            raise


def _query_all(
    con: Any, query: str, source: _Source, result: pa.Schema, max_rows: int
) -> Iterator[pa.RecordBatch]:
    import duckdb

    with con:
        try:
            con.register(
                "dataframe",
                pa.RecordBatchReader.from_batches(source.schema.remove_metadata(), source),
            )
            answer = con.sql(query)
            read = (
                getattr(answer, "to_arrow_reader", None) or answer.fetch_arrow_reader
            )  # before DuckDB 1.5
            with read(max_rows) as reader:
                while (batch := next(reader, None)) is not None:
                    if batch.num_rows:
                        yield _typed(batch, result)
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            if source.error is not None:
                raise source.error from None
            raise _row_error(error) from None


# -- types and messages


def _result_schema(found: pa.Schema, source: pa.Schema) -> pa.Schema:
    """Return the schema of a result: without dictionaries, and with the metadata of the source's
    columns.
    """
    fields = []
    for field in found:
        if found.names.count(field.name) > 1:
            raise UsageError(
                f"--where returns two columns named {field.name!r}",
                hint="Rename one of them: SELECT … AS name.",
            )
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        at = source.get_field_index(field.name)
        fields.append(
            pa.field(field.name, kind, metadata=source.field(at).metadata if at >= 0 else None)
        )
    return pa.schema(fields)


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _query_error(error: Exception, names: Sequence[str], expression: str) -> UsageError:
    line = _line(error)
    missing = re.search(r'[Rr]eferenced column "(.+?)"', line)
    if missing:
        hint = choose(missing[1], names, "Choose from")
        if f'"{missing[1]}"' in expression:
            hint = f"{hint} For text, use single quotes: '{missing[1]}'."
        return UsageError(f"--where: no column {missing[1]!r}", hint=hint, column=missing[1])
    if line == 'syntax error at or near ")"' and ")" not in expression:  # added by `select`
        line = "syntax error: unexpected end"
    if line.startswith("Table with name ") and STATEMENT.match(expression):
        return UsageError(
            f"--where: {line}", hint="The table is named dataframe: SELECT … FROM dataframe …"
        )
    return UsageError(f"--where: {line}", hint=_HINT)


def _row_error(error: Exception) -> UsageError:
    return UsageError(
        f"--where fails on a row: {_line(error)}",
        hint="Handle such rows, for example with try_cast.",
    )


def _line(error: Exception) -> str:
    """Return the first line of DuckDB's message, without the type of the error."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"^(?:[A-Z][\w ]* )?(?:Error|Exception): ", "", text.splitlines()[0])[:200]
