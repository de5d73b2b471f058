"""SQL over batches with DuckDB: conditions and SELECT statements.

Rows keep their order unless a SELECT changes the order.

User expressions have no access to files, the network or extensions.

A condition, or a SELECT that uses one row at a time, is evaluated for one batch after another,
without read-ahead. Any other SELECT, such as a SELECT that sorts, groups or counts, runs once over
all batches. DuckDB then keeps rows or groups in memory.

The result of a SELECT can include a hidden column of the batches, which contains the number of each
source row. For this purpose, the SELECT must read only `dataframe`, and return its rows without
grouping or DISTINCT. No expression may use all columns, because the hidden column would change the
value of such an expression.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from flarecli import lifetimes
from flarecli.errors import UsageError
from flarecli.names import whole_path
from flarecli.suggest import choose

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "columns_of",
    "connect",
    "is_row_by_row",
    "is_statement",
    "node_type",
    "parse",
    "reads_plain_table",
    "select",
]

_STATEMENT = re.compile(r"\s*(?:select|with|from)\b", re.IGNORECASE)
_CONNECTION_SETTINGS: dict[str, Any] = {
    "threads": "1",  # several threads would read ahead and change the order of rows
    "memory_limit": "1GB",
    "enable_external_access": "false",  # queries cannot use files, URLs or extensions
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # queries cannot read Python variables as tables
}
_RESULT_SETTINGS = ("SET streaming_buffer_size = '64KB'", "SET lock_configuration = true")
# Operators of DuckDB's query plans. Operators in `_ROW_BY_ROW` process one row at a time. Operators
# in `_ROW_PRESERVING` return one row, or no row, for each source row.
_ROW_BY_ROW = {"PROJECTION", "FILTER"}
_ROW_PRESERVING = {
    *_ROW_BY_ROW,
    "ORDER_BY",
    "TOP_N",
    "LIMIT",
    "STREAMING_LIMIT",
    "EMPTY_RESULT",
}
_MAX_DIGITS = 38  # maximum number of digits of a decimal in DuckDB
# name of the column with row positions that `select` adds for a condition; see `_unused_name`
_POSITION = "position in its batch"
_SELECT_HINT = "Write SELECT … FROM dataframe …, or a condition."
_HINT = "Use a form such as \"aes > 4 and lang = 'en'\"."

# DuckDB ends a forked child that closes a connection of its parent. Therefore, the child keeps all
# connections of its parent.
_open: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()
_inherited: list[Any] = []
lifetimes.after_fork(lambda: _inherited.extend(_open))


def connect() -> duckdb.DuckDBPyConnection:
    """Open an in-memory database.

    raises  MissingError if the current folder was deleted; DuckDB would end the process in this
            case
    """
    import duckdb

    whole_path("")
    con = duckdb.connect(":memory:", config=_CONNECTION_SETTINGS)
    _open.add(con)
    con.execute("SELECT setseed(0)")  # random() must return the same values when a pack is resumed
    con.execute("SET TimeZone = 'UTC'")  # the default depends on the machine
    return con


def is_statement(expression: str) -> bool:
    """Return whether an expression is a SELECT statement rather than a condition."""
    return bool(_STATEMENT.match(expression))


# -- syntax trees


def parse(expression: str) -> dict[str, Any] | None:
    """Return DuckDB's syntax tree of a SELECT statement or a condition.

    A condition is parsed as the WHERE clause of a SELECT. The result is None if the expression is
    neither a condition nor exactly one SELECT.
    """
    import duckdb

    if not is_statement(expression):
        expression = f"SELECT 1 FROM dataframe WHERE (\n{expression}\n)"
    try:
        with connect() as con:
            row = con.execute("SELECT json_serialize_sql(?::VARCHAR)", [expression]).fetchone()
        statements = json.loads(row[0]).get("statements", []) if row else []
    except (duckdb.Error, ValueError, RecursionError):
        return None
    node = statements[0].get("node") if len(statements) == 1 else None
    return node if node_type(node) == "SELECT_NODE" else None


def to_sql(node: dict[str, Any]) -> str | None:
    """Convert a syntax tree to SQL. The result is None if DuckDB rejects the tree."""
    import duckdb

    tree = {"error": False, "statements": [{"node": node, "named_param_map": []}]}
    try:
        with connect() as con:
            row = con.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchone()
    except duckdb.Error:
        return None
    return None if row is None else str(row[0])


def node_type(node: Any) -> str:
    """Return the type of a node of a syntax tree; empty if the argument is not a node."""
    return str(node.get("type", "")) if isinstance(node, dict) else ""


def reads_plain_table(node: dict[str, Any]) -> bool:
    """Return whether a SELECT reads `dataframe` without sampling, column aliases or WITH."""
    table = node["from_table"]
    return (
        node_type(table) == "BASE_TABLE"
        and table["table_name"].lower() == "dataframe"
        and not (table.get("sample") or table.get("column_name_alias"))
        and not (node.get("sample") or (node.get("cte_map") or {}).get("map"))
    )


def columns_of(expression: str, names: Sequence[str]) -> list[str]:
    """Return the columns that an expression may use, in the order of `names`.

    The result is `names` if the columns cannot be determined.
    """
    node = parse(expression)
    if node is None:
        return list(names)
    used: set[str] = set()
    for item in _nodes([node if is_statement(expression) else node.get("where_clause")]):
        if "STAR" in (item.get("class"), node_type(item)):
            return list(names)
        if item.get("class") == "COLUMN_REF":
            used.update(str(name).lower() for name in item.get("column_names", ()))
    return [name for name in names if name.lower() in used]


def _nodes(todo: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a list of syntax trees, and empty the list."""
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            yield item
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def select(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    expression: str,
    *,
    batch_rows: int = 8192,
    hidden: str | None = None,
    known: Sequence[str] = (),
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the rows for which a condition is true, or the result of a SELECT.

    schema      schema of the batches; the result of a SELECT has the types of DuckDB
    batches     input, read one batch at a time unless a SELECT sorts, groups, counts or limits
    expression  a condition over the columns, such as `aes > 4 AND lang = 'en'`, or one SELECT
    hidden      name of an int64 column that is the last column of the batches and is not in
                `schema`. The batches of the result also have this column if the result consists of
                source rows
    known       names of all columns, for messages, if some of them are not in `schema`
    return      schema of the result without the hidden column, and the batches of the result. The
                batches of a SELECT have at most `batch_rows` rows. Rows keep the order of the
                input, unless the SELECT sorts them
    raises      UsageError for an invalid expression, unknown columns, or a row that causes an error
    """
    import duckdb

    if not expression.strip():
        raise UsageError("--where is empty", hint=_HINT)
    _check_names(schema)
    is_condition = not is_statement(expression)
    con = connect()
    try:
        for setting in _RESULT_SETTINGS:
            con.execute(setting)
        query, table = expression, schema.empty_table()
        position = _unused_name(schema.names)
        if is_condition:
            query = f'SELECT "{position}" FROM dataframe WHERE (\n{expression}\n)'
            table = table.append_column(position, pa.array([], pa.int32()))
        statements = con.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError("--where must be one condition or one SELECT", hint=_HINT)
        con.register("dataframe", _table(table))
        steps = _steps(con, query)
        _check_steps(steps)
        if is_condition:
            return schema, _filter(con, query, batches, position)
        result = _result_schema(con.sql(query).to_arrow_table().schema, schema)
        query_result = result
        if hidden is not None:
            wider = _add_column(con, query, hidden, steps, schema, result)
            if wider is None:
                batches = (batch.drop_columns([hidden]) for batch in batches)
            else:
                query, query_result = wider
                schema = schema.append(pa.field(hidden, pa.int64()))
        if _are_row_by_row(steps):
            return result, _query_each(con, query, batches, query_result, batch_rows)
        source = _Source(schema, batches)
        return result, _query_all(con, query, source, query_result, batch_rows)
    except duckdb.Error as error:
        raise _query_error(error, known or schema.names, expression) from None


def is_row_by_row(schema: pa.Schema, expression: str) -> bool:
    """Return whether an expression uses one row at a time, without sorting, grouping or limits."""
    if not is_statement(expression):
        return True
    with connect() as con:
        con.register("dataframe", _table(schema.empty_table()))
        return _are_row_by_row(_steps(con, expression))


def _are_row_by_row(steps: Sequence[str]) -> bool:
    return all(step in _ROW_BY_ROW or step.endswith("ARROW_SCAN") for step in steps)


def _check_steps(steps: Sequence[str]) -> None:
    """Raise UsageError for a query plan that does not read the source rows exactly once.

    steps  names of the operators in the plan
    """
    reads = sum(step.endswith("ARROW_SCAN") for step in steps)
    if reads > 1:
        raise UsageError(
            "--where: the query reads the table `dataframe` more than once",
            hint="Start with WITH d AS MATERIALIZED (SELECT * FROM dataframe), and read from d.",
        )
    if reads == 0 and "EMPTY_RESULT" not in steps:
        raise UsageError(
            "--where: the query does not read the table `dataframe`",
            hint=_SELECT_HINT,
        )


def _check_names(schema: pa.Schema) -> None:
    """Raise UsageError for column names that differ only in case, which SQL ignores."""
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise UsageError(
                f"--where: the columns {seen[name.lower()]!r} and {name!r} have the same name in SQL",
                hint="Rename one of the columns in the source.",
            )
        seen[name.lower()] = name


def _steps(con: Any, query: str) -> list[str]:
    """Return the names of the operators in a query's plan."""
    plan = con.execute(f"EXPLAIN (FORMAT JSON) {query}").fetchall()[0][1]
    waiting, names = json.loads(plan), []
    while waiting:
        step = waiting.pop()
        names.append(step["name"].strip())
        waiting.extend(step["children"])
    return names


# -- source row numbers, as a hidden column in the result of a SELECT


def _add_column(
    con: Any, query: str, name: str, steps: list[str], schema: pa.Schema, result: pa.Schema
) -> tuple[str, pa.Schema] | None:
    """Return a SELECT whose result has one more column of `dataframe`, and the result's schema.

    Return None if the additional column could change the other columns or the rows of the result.
    """
    import duckdb

    wider = _select_with_column(query, schema, name, steps)
    if wider is None:
        return None
    table = schema.append(pa.field(name, pa.int64())).empty_table()
    try:
        con.register("dataframe", _table(table))
        found = _result_schema(con.sql(wider).to_arrow_table().schema, schema)
    except duckdb.Error:
        return None
    if name not in found.names or not found.remove(found.get_field_index(name)).equals(result):
        return None
    return wider, found


def _select_with_column(
    expression: str, schema: pa.Schema, name: str, steps: list[str]
) -> str | None:
    """Return a SELECT whose result also has the column `name`.

    Return None if the additional column could change other columns of the result.

    schema  schema of `dataframe` without the additional column, which is the last column
    steps   names of the operators in the plan of the query
    """
    node = parse(expression)
    if node is None or not all(
        step in _ROW_PRESERVING or step.endswith("ARROW_SCAN") for step in steps
    ):
        return None
    if not reads_plain_table(node):
        return None
    chosen = node["select_list"]
    expressions = [item for item in chosen if not _is_plain_star(item)]
    stars = len(chosen) - len(expressions)
    known = {name.lower() for name in schema.names}
    clauses = [node[part] for part in node if part not in ("from_table", "select_list")]
    for child in _nodes(clauses + expressions):
        if child.get("class") in ("STAR", "SUBQUERY"):
            return None
        column = str(child.get("column_names", [""])[-1]).lower()
        if child.get("class") == "COLUMN_REF" and column not in known:
            return None
    if stars > 1:
        return None
    if not stars:
        chosen.append(
            {
                "class": "COLUMN_REF",
                "type": "COLUMN_REF",
                "alias": "",
                "query_location": 0,
                "column_names": [name],
            }
        )
    return to_sql(node)


def _is_plain_star(item: Any) -> bool:
    """Return whether an item of a SELECT list is `*` without modifiers."""
    if not isinstance(item, dict) or item.get("class") != "STAR":
        return False
    return not item.get("columns") and not item.get("expr")


# -- one batch at a time


def _unused_name(names: Sequence[str]) -> str:
    """Return a name for the position column that differs from all `names`, ignoring case."""
    known = {name.lower() for name in names}
    return next(name for k in itertools.count() if (name := _POSITION + "'" * k) not in known)


def _table(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """Return rows as a table without metadata, in types that DuckDB can read."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    schema = _readable_schema(table.schema)
    try:
        arrays = [
            _cast(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"--where: a decimal has more than {_MAX_DIGITS} digits, which SQL cannot read: {error}",
            hint="Store the column as text with --encode COLUMN=str.",
        ) from None


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(kind)


def _readable_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata, in types that DuckDB can read."""
    return pa.schema([pa.field(field.name, _readable(field.type)) for field in schema])


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return a type that DuckDB can read and that can represent the same values.

    DuckDB cannot read float16, decimals of more than 38 digits, or decimals with a negative scale.
    """
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind) and (pa.types.is_decimal256(kind) or kind.scale < 0):
        digits = kind.precision - min(kind.scale, 0)
        return pa.decimal128(min(digits, _MAX_DIGITS), min(max(kind.scale, 0), _MAX_DIGITS))
    if pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        stored = kind.value_type if pa.types.is_dictionary(kind) else kind.storage_type
        plain = _readable(stored)
        return kind if plain == stored else plain
    if pa.types.is_map(kind):
        return pa.map_(_readable(kind.key_type), _readable(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_readable(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_readable(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(_readable(kind.value_type))
        return pa.list_(item, kind.list_size)
    return kind


def _filter(
    con: Any, query: str, batches: Iterable[pa.RecordBatch], position: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows for which the condition is true.

    DuckDB returns only row positions. The rows are taken from the input batches, because DuckDB may
    return values of other types.
    """
    with _closing(con):
        for batch in batches:
            numbers = pa.array(np.arange(batch.num_rows, dtype=np.int32))
            selected = _run(con, query, batch.append_column(position, numbers))
            positions = selected.column(0).combine_chunks().sort()
            if len(positions) == batch.num_rows:
                yield batch
            elif len(positions):
                yield batch.take(positions)


@contextlib.contextmanager
def _closing(resource: Any) -> Iterator[Any]:
    """Close a connection or a reader at the end of the block; in a forked child, keep it open."""
    process = os.getpid()
    try:
        yield resource
    finally:
        if os.getpid() == process:
            resource.close()
        else:
            _inherited.append(resource)


def _query_each(
    con: Any, query: str, batches: Iterable[pa.RecordBatch], result: pa.Schema, max_rows: int
) -> Iterator[pa.RecordBatch]:
    with _closing(con):
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
    """The batches that DuckDB reads.

    error  exception raised while a batch was read; DuckDB replaces it with an exception of its own
    """

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self.schema, self._batches = _readable_schema(schema), batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                yield from _table(batch).to_batches()
        except BaseException as error:
            self.error = error
            raise


def _query_all(
    con: Any, query: str, source: _Source, result: pa.Schema, max_rows: int
) -> Iterator[pa.RecordBatch]:
    import duckdb

    with _closing(con):
        try:
            reader = pa.RecordBatchReader.from_batches(source.schema, source)
            con.register("dataframe", reader)
            with _closing(con.sql(query).to_arrow_reader(max_rows)) as reader:
                while (batch := next(reader, None)) is not None:
                    if batch.num_rows:
                        yield _typed(batch, result)
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            if source.error is not None:
                raise source.error from None
            raise _row_error(error) from None


# -- types and messages


def _result_schema(found: pa.Schema, source: pa.Schema) -> pa.Schema:
    """Return the schema of a result.

    Dictionary types are replaced by their value types. A column has the metadata of the source
    column with the same name.
    """
    fields = []
    for field in found:
        if found.names.count(field.name) > 1:
            raise UsageError(
                f"--where returns two columns named {field.name!r}",
                hint="Rename one of the columns: SELECT … AS name.",
            )
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        index = source.get_field_index(field.name)
        metadata = source.field(index).metadata if index >= 0 else None
        fields.append(pa.field(field.name, kind, metadata=metadata))
    return pa.schema(fields)


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _query_error(error: Exception, names: Sequence[str], expression: str) -> UsageError:
    line = _line(error)
    if match := re.search(r'[Rr]eferenced column "(.+?)"', line):
        name = match[1]
        hint = choose(name, names, "Choose from")
        if is_statement(expression) and not re.search(r"(?i)\bfrom\b", expression):
            hint = _SELECT_HINT
        # A name on the right side of a comparison may be text that lacks single quotes.
        if re.search(rf"""[=<>]\s*"?{re.escape(name)}(?!\w)""", expression):
            hint = f"{hint} For text, use single quotes: '{name}'."
        return UsageError(f"--where: no column {name!r}", hint=hint, column=name)
    # The user did not write this parenthesis: `select` adds parentheses around the condition.
    if line == 'syntax error at or near ")"' and ")" not in expression:
        line = "syntax error: unexpected end"
    if line.startswith("Table with name ") and is_statement(expression):
        return UsageError(
            f"--where: {line}", hint="The table is named dataframe: SELECT … FROM dataframe …"
        )
    return UsageError(f"--where: {line}", hint=_HINT)


def _row_error(error: Exception) -> UsageError:
    return UsageError(
        f"--where failed on a row: {_line(error)}",
        hint="Exclude rows that fail, or convert values with try_cast.",
    )


def _line(error: Exception) -> str:
    """Return the first line of DuckDB's message, without the type of the error."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"^(?:[A-Z][\w ]* )?(?:Error|Exception): ", "", text.splitlines()[0])[:200]
