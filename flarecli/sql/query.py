"""SQL conditions over batches, by DuckDB: rows stay in order, and nothing outside the batches is reached.

A condition, and a SELECT that looks at one row at a time, run over one batch after another, so that no row is read
ahead. A SELECT that sorts, groups or counts runs once over all of them, and DuckDB holds what it needs.
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
from flarecli.sql.connection import STATEMENT, connected
from flarecli.sql.provenance import with_beside
from flarecli.suggest import choose

__all__ = ["is_row_by_row", "select"]

_LOCAL = ("SET streaming_buffer_size = '64KB'", "SET lock_configuration = true")
_ROW_BY_ROW = {"PROJECTION", "FILTER"}
_POSITION = "position in its batch"  # a column that a condition cannot name by accident; longer, where the source has one of that name
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
    """Keep the rows that a condition is true for, or run a whole `SELECT … FROM dataframe …`.

    schema      of the batches; a condition leaves it as it is, a SELECT gives DuckDB's types
    batches     pulled as rows are wanted: one at a time, but for a SELECT that sorts, groups, counts or limits
    expression  a condition over the columns, such as `aes > 4 AND lang = 'en'`, or one SELECT
    beside      a column that the batches have behind those of `schema`, int64, and which no expression can mean: it comes along
                with the rows of the result, unless those are rows that a SELECT made
    known       all columns there are, for messages, where `schema` has only some
    return      the schema of the result without that column, and its rows in the order of the input, `batch_rows` at most in a batch
    raises      UsageError if it is neither, if it names columns that are not there, or fails on a row
    """
    import duckdb

    if not expression.strip():
        raise UsageError("--where is empty", hint=_HINT)
    _check_names(schema)
    bare = not STATEMENT.match(expression)
    con = connected()
    try:
        for setting in _LOCAL:
            con.execute(setting)
        position = _free(schema.names)
        query = (
            f'SELECT "{position}" FROM dataframe WHERE (\n{expression}\n)' if bare else expression
        )
        statements = con.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError("--where takes one condition, or one SELECT", hint=_HINT)
        con.register(
            "dataframe",
            _table(
                _numbered(pa.RecordBatch.from_pylist([], schema), position)
                if bare
                else schema.empty_table()
            ),
        )
        steps = _steps(con, query)
        reads = sum(step.endswith("ARROW_SCAN") for step in steps)
        if reads > 1:
            raise UsageError(
                "--where reads the rows more than once",
                hint="Name them once: WITH d AS MATERIALIZED (SELECT * FROM dataframe) …",
            )
        if reads == 0 and "EMPTY_RESULT" not in steps:
            raise UsageError(
                "--where reads no rows of the source",
                hint="Write SELECT … FROM dataframe …, or a condition.",
            )
        if bare:
            return schema, _kept(con, query, batches, position)
        given = result = _result(con.sql(query).to_arrow_table().schema, schema)
        if beside is not None:
            query, given, batches = _beside(con, query, beside, steps, schema, result, batches)
            schema = schema if given is result else schema.append(pa.field(beside, pa.int64()))
        if _are_row_by_row(steps):
            return result, _each(con, query, batches, given, batch_rows)
        return result, _all(con, query, _Source(schema, batches), given, batch_rows)
    except duckdb.Error as error:
        raise _refusal(error, known or schema.names, expression) from None


def is_row_by_row(schema: pa.Schema, expression: str) -> bool:
    """Say whether an expression that `select` takes looks at one row at a time: what sorts, groups, counts or limits does not."""
    if not STATEMENT.match(expression):
        return True
    with connected() as con:
        con.register("dataframe", _table(schema.empty_table()))
        return _are_row_by_row(_steps(con, expression))


def _are_row_by_row(steps: Sequence[str]) -> bool:
    return all(step in _ROW_BY_ROW or step.endswith("ARROW_SCAN") for step in steps)


def _check_names(schema: pa.Schema) -> None:
    """SQL does not tell upper case from lower, so a condition could look at the wrong one of two columns."""
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise UsageError(
                f"--where cannot tell the columns {seen[name.lower()]!r} and {name!r} apart",
                hint="Rename one of them in the source.",
            )
        seen[name.lower()] = name


def _steps(con: Any, query: str) -> list[str]:
    """Name the operators of a query's plan."""
    waiting, found = json.loads(con.execute(f"EXPLAIN (FORMAT JSON) {query}").fetchall()[0][1]), []
    while waiting:
        step = waiting.pop()
        found.append(step["name"].strip())
        waiting.extend(step["children"])
    return found


def _beside(
    con: Any,
    query: str,
    name: str,
    steps: list[str],
    schema: pa.Schema,
    result: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> tuple[str, pa.Schema, Iterable[pa.RecordBatch]]:
    """Give the query, the schema and the source of a SELECT with the column beside its rows; without it where they have none."""
    import duckdb

    wider = with_beside(query, schema, name, steps)
    if wider is not None:
        try:
            con.register(
                "dataframe", _table(schema.append(pa.field(name, pa.int64())).empty_table())
            )
            found = _result(con.sql(wider).to_arrow_table().schema, schema)
        except duckdb.Error:
            found = result
        if name in found.names and found.remove(found.get_field_index(name)).equals(result):
            return wider, found, batches
    return query, result, (batch.drop_columns([name]) for batch in batches)


# -- one batch at a time


def _free(names: Sequence[str]) -> str:
    """Give a name for the positions that no column has, in upper case or lower."""
    known = {name.lower() for name in names}
    return next(name for k in itertools.count() if (name := _POSITION + "'" * k) not in known)


def _numbered(batch: pa.RecordBatch, position: str) -> pa.RecordBatch:
    return batch.append_column(position, pa.array(np.arange(batch.num_rows, dtype=np.int32)))


def _table(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    return (
        rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    ).replace_schema_metadata(None)


def _kept(
    con: Any, query: str, batches: Iterable[pa.RecordBatch], position: str
) -> Iterator[pa.RecordBatch]:
    """Take the rows that a condition leaves out of the batches themselves: no type changes on the way."""
    with con:
        for batch in batches:
            positions = (
                _run(con, query, _numbered(batch, position)).column(0).combine_chunks().sort()
            )
            if len(positions) == batch.num_rows:
                yield batch
            elif len(positions):
                yield batch.take(positions)


def _each(
    con: Any, query: str, batches: Iterable[pa.RecordBatch], result: pa.Schema, most: int
) -> Iterator[pa.RecordBatch]:
    with con:
        for batch in batches:
            for part in _run(con, query, batch).to_batches(most):
                yield _typed(part, result)


def _run(con: Any, query: str, batch: pa.RecordBatch) -> pa.Table:
    import duckdb

    con.register("dataframe", _table(batch))
    try:
        return con.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise _failure(error) from None


# -- all batches at once


class _Source:
    """The batches as DuckDB pulls them; an error of theirs is kept, for DuckDB passes on its text alone."""

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


def _all(
    con: Any, query: str, source: _Source, result: pa.Schema, most: int
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
            )  # the name before DuckDB 1.5
            with read(most) as reader:
                while (batch := next(reader, None)) is not None:
                    if batch.num_rows:
                        yield _typed(batch, result)
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            if source.error is not None:
                raise source.error from None
            raise _failure(error) from None


# -- types and messages


def _result(found: pa.Schema, source: pa.Schema) -> pa.Schema:
    """Give a result's schema: no dictionaries, and a column of the source keeps what its metadata says of its encoding."""
    fields = []
    for field in found:
        if found.names.count(field.name) > 1:
            raise UsageError(
                f"--where gives two columns named {field.name!r}",
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


def _refusal(error: Exception, names: Sequence[str], expression: str) -> UsageError:
    line = _line(error)
    missing = re.search(r'[Rr]eferenced column "(.+?)"', line)
    if missing:
        hint = choose(missing[1], names, "Choose from")
        if f'"{missing[1]}"' in expression:  # SQL's names of columns
            hint = f"{hint} Text stands between single quotes: '{missing[1]}'."
        return UsageError(f"--where: no column {missing[1]!r}", hint=hint, column=missing[1])
    if (
        line == 'syntax error at or near ")"' and ")" not in expression
    ):  # the one that stands behind a condition
        line = "syntax error: it breaks off"
    if line.startswith("Table with name ") and STATEMENT.match(expression):
        return UsageError(
            f"--where: {line}", hint="The rows are called dataframe: SELECT … FROM dataframe …"
        )
    return UsageError(f"--where: {line}", hint=_HINT)


def _failure(error: Exception) -> UsageError:
    return UsageError(
        f"--where fails on a row: {_line(error)}", hint="Guard it, for example by try_cast."
    )


def _line(error: Exception) -> str:
    """Give the first line of DuckDB's message, without the name of its kind."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"^(?:[A-Z][\w ]* )?(?:Error|Exception): ", "", text.splitlines()[0])[:200]
