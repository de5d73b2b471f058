"""SQL conditions over batches, by DuckDB: rows stream through in order, and nothing outside the batches is reached.

Each query has a connection of its own, on one thread: more would reorder nothing but read ahead without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from flarecli.errors import FlareError, UsageError

__all__ = ["select"]

_STATEMENT = re.compile(r"\s*(?:select|with|from)\b", re.IGNORECASE)
_SETTINGS: dict[str, Any] = {
    "threads": "1",
    "memory_limit": "1GB",
    "enable_external_access": "false",  # no file, no URL, no extension out of a condition
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no table out of a caller's variables
    "lock_configuration": "true",
}


class _Source:
    """The batches as they are pulled; an error of theirs is kept, for DuckDB passes on its text alone."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except BaseException as error:
            self.error = error
            raise


def select(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], expression: str, *, batch_rows: int = 8192
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Keep the rows that a condition is true for, or run a whole `SELECT … FROM dataframe …`.

    schema      of the batches, which are pulled as rows are wanted, a bounded number ahead
    expression  a condition over the columns, such as `aes > 4 AND lang = 'en'`, or one SELECT
    return      the schema of the result, and its rows in the order of the input, `batch_rows` at most in a batch
    raises      UsageError if it is no condition, or names columns that are not there
    """
    import duckdb

    query = expression if _STATEMENT.match(expression) else f"SELECT * FROM dataframe WHERE (\n{expression}\n)"
    source = _Source(batches)
    con = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        statements = con.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError("--where takes one condition, or one SELECT", hint="Write it like \"aes > 4 and lang = 'en'\".")
        con.register("dataframe", pa.RecordBatchReader.from_batches(_plain(schema), source))
        reader = con.sql(query).to_arrow_reader(batch_rows)
    except duckdb.Error as error:
        con.close()
        raise _refusal(error, schema) from None
    result = pa.schema([_with_encoding(field, schema) for field in reader.schema])
    return result, _rows(con, reader, source, result)


def _plain(schema: pa.Schema) -> pa.Schema:
    return schema.remove_metadata()


def _with_encoding(field: pa.Field, schema: pa.Schema) -> pa.Field:
    """Give a result's field what the source's field of that name says of its encoding."""
    at = schema.get_field_index(field.name)
    return field if at < 0 else field.with_metadata(schema.field(at).metadata)


def _rows(con: Any, reader: pa.RecordBatchReader, source: _Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        for batch in reader:
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    except (pa.ArrowException, OSError, RuntimeError) as error:
        if source.error is not None:
            raise source.error from None
        if isinstance(error, FlareError):
            raise
        raise UsageError(f"--where fails on a row: {_line(error)}", hint="Guard it, for example by try_cast.") from None
    finally:
        reader.close()
        con.close()


def _refusal(error: Exception, schema: pa.Schema) -> UsageError:
    text = _line(error)
    hint = f"Choose from the columns {', '.join(schema.names)}." if "column" in text.lower() else "Write it like \"aes > 4 and lang = 'en'\"."
    return UsageError(f"--where: {text}", hint=hint)


def _line(error: Exception) -> str:
    """Give the first line of DuckDB's message, without the name of its kind."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return re.sub(r"^(?:\w+ )?(?:Error|Exception): ", "", line)[:200]
