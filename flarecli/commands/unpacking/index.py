"""Index of an unpacked folder: for each row, the file names and the values of other columns."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from flarecli.errors import UsageError

__all__ = ["KINDS", "plain", "read_index_texts", "write_index"]

KINDS = ("jsonl", "csv", "parquet", "none")
_STEP = 8192


def plain(value: Any) -> Any:
    """Convert a value for storage in JSON; dates, decimals and similar values become text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def write_index(
    kind: str, fields: Sequence[pa.Field], rows: Iterable[Mapping[str, Any]]
) -> Iterator[bytes]:
    """Yield the bytes of an index, a few thousand rows at a time.

    kind    `jsonl`, `csv` or `parquet`
    fields  columns of the index, in order; only parquet uses their types
    rows    for each row, a mapping from column to the result of `plain`
    """
    if kind == "parquet":
        yield from _parquet(fields, rows)
        return
    names = [field.name for field in fields]
    if kind == "csv":
        yield _csv([names])
    # one encoder for all rows, because `json.dumps` creates an encoder in each call
    encode = json.JSONEncoder(ensure_ascii=False).encode
    for some in _blocks(rows):
        if kind == "csv":
            yield _csv(
                [["" if row[name] is None else _cell(row[name]) for name in names] for row in some]
            )
        else:
            yield "".join(
                encode({name: _finite(row[name]) for name in names}) + "\n" for row in some
            ).encode()


def _blocks(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    rest = iter(rows)
    while some := list(islice(rest, _STEP)):
        yield some


def _finite(value: Any) -> Any:
    """Return None for NaN and infinity, which JSON cannot store."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else str(value)


def _csv(rows: Iterable[Sequence[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _parquet(fields: Sequence[pa.Field], rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    from flarecli.formats.tables.parquet_write import taken

    schema = pa.schema(
        [
            pa.field(field.name, field.type if _is_plain(field.type) else pa.string())
            for field in fields
        ]
    )
    out = io.BytesIO()
    with pq.ParquetWriter(pa.PythonFile(out, mode="w"), schema) as writer:
        for some in _blocks(rows):
            writer.write_table(
                pa.table(
                    [_array([row[field.name] for row in some], field.type) for field in schema],
                    schema=schema,
                )
            )
            yield taken(out)
    yield out.getvalue()


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([None if value is None else _cell(value) for value in values], kind)
    if pa.types.is_float16(kind):
        return pa.array(values, pa.float32()).cast(kind)
    return pa.array(values, kind)


def read_index_texts(path: str) -> Iterator[list[str]]:
    """Yield the strings in each row of an index: file names, and text in other columns.

    Raises UsageError if the index cannot be read.
    """
    try:
        if path.endswith(".parquet"):
            import pyarrow.parquet as pq

            for batch in pq.ParquetFile(path).iter_batches(_STEP):
                yield from (
                    [value for value in row.values() if isinstance(value, str)]
                    for row in batch.to_pylist()
                )
            return
        with open(path, encoding="utf-8", newline="") as file:
            if path.endswith(".csv"):
                yield from csv.reader(file)
                return
            for line in file:
                yield [value for value in json.loads(line).values() if isinstance(value, str)]
    except (OSError, ValueError, AttributeError, csv.Error, pa.ArrowException):
        raise UsageError(
            "cannot read the index",
            where=path,
            hint="Remove the folder yourself, or specify another folder.",
        ) from None
