"""Rows of Python objects, saved as an Arrow stream that a pack reads like any other table.

    pandas and Polars DataFrames, DuckDB relations, pyarrow tables, flare datasets
                                          objects with `__arrow_c_stream__` or `__arrow_c_array__`
    Hugging Face datasets                 through `with_format("arrow").iter()`
    iterables of dicts, RecordBatches or Tables, and map-style datasets of dicts

An iterable is read once, and only one batch is in memory. The saved file has a checksum, so a pack
of an object can be resumed if the object returns the same rows again.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.arguments import shown
from flarecli.errors import ReachError, UsageError, ValueFitError
from flarecli.ingest.base import check_columns

__all__ = ["PythonRows", "rows_of"]

_ROWS = 1024  # dicts per batch
_INDEX = re.compile(r"__index_level_\d+__")  # column name of an unnamed pandas index
_EXPECTED = "expected an address, a DataFrame, an Arrow table, a dataset, or an iterable of dicts"


class PythonRows:
    """The rows of a Python object.

    name     class name of the object, for messages
    batches  the rows, which can be read once
    """

    def __init__(self, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        self.name, self.batches = name, iter(batches)

    def save(self, folder: str) -> str:
        """Write the rows to a file in a folder, and return the path of the file.

        raises  UsageError if there are no rows, or if batches have different columns; ValueFitError
                for a value that Arrow cannot store; ReachError if the disk is full
        """
        path = os.path.join(folder, f"{self.name}.arrows")
        first = next(self.batches, None)
        if first is None:
            raise UsageError(f"{self.name} has no rows")
        check_columns(first.schema.names, self.name, "Rename one of the columns.")
        try:
            with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
                for batch in itertools.chain((first,), self.batches):
                    if batch.schema != first.schema:
                        raise UsageError(
                            f"a batch has the columns {shown(_types(batch.schema))}; "
                            f"the first batch has {shown(_types(first.schema))}"
                        )
                    writer.write_batch(batch)
        except OSError as error:
            if isinstance(error, ReachError):
                raise
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ReachError(
                f"cannot write a temporary file: {reason.lower()}",
                where=tempfile.gettempdir(),
                hint="Set TMPDIR to a folder on a larger disk.",
            ) from None
        return path


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def rows_of(source: Any) -> tuple[PythonRows | None, Any]:
    """Return the rows of an object (None for addresses), and the source.

    If the source is an iterator of addresses, a list is returned instead, because reading the first
    address changes the iterator.

    raises  UsageError for an object with neither rows nor addresses
    """
    name = type(source).__name__
    if isinstance(source, (str, os.PathLike)):
        return None, source
    if hasattr(source, "__arrow_c_stream__"):
        return PythonRows(name, _arrow_batches(source)), source
    if hasattr(source, "__arrow_c_array__"):
        return PythonRows(name, [pa.record_batch(source)]), source
    if hasattr(source, "with_format") and hasattr(source, "iter"):
        tables = source.with_format("arrow").iter(_ROWS)
        return PythonRows(name, _table_batches(tables)), source
    if isinstance(source, (Mapping, bytes)):
        raise UsageError(f"{_EXPECTED}, got {shown(source)}")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not _is_sequence(source):
        items: Iterator[Any] = (source[row] for row in range(len(source)))
    else:
        try:
            items = iter(source)
        except TypeError:
            raise UsageError(f"{_EXPECTED}, got {shown(source)}") from None
    first = next(items, None)
    items = itertools.chain(() if first is None else (first,), items)
    if isinstance(first, (pa.RecordBatch, pa.Table)):
        return PythonRows(name, _table_batches(items)), source
    if isinstance(first, Mapping):
        return PythonRows(name, _dict_batches(items)), source
    if first is not None and not isinstance(first, (str, os.PathLike)):
        raise UsageError(
            f"{name} contains values of type {type(first).__name__}; expected dicts",
            hint='Return each row as a dict, such as {"image": image, "label": label}.',
        )
    return None, list(items)


def _is_sequence(source: Any) -> bool:
    return isinstance(source, (Sequence, set, frozenset))


def _arrow_batches(source: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow stream, without the columns of an unnamed pandas index."""
    reader = pa.RecordBatchReader.from_stream(source)
    kept = [name for name in reader.schema.names if not _INDEX.fullmatch(name)]
    for batch in reader:
        yield batch if len(kept) == len(batch.schema) else batch.select(kept)


def _table_batches(tables: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches() if isinstance(table, pa.Table) else (table,)


# -- dicts


def _dict_batches(rows: Iterator[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield dicts as batches; the first rows determine the columns and their types."""
    schema: pa.Schema | None = None
    first = 0
    while chunk := list(itertools.islice(rows, _ROWS)):
        if schema is None:
            names = list(dict.fromkeys(name for row in chunk for name in row))
        arrays = []
        for name in names:
            kind = None if schema is None else schema.field(name).type
            arrays.append(_column(name, [row.get(name) for row in chunk], kind, first))
        for number, row in enumerate(chunk):
            if unknown := [name for name in row if name not in names]:
                raise UsageError(
                    f"column {unknown[0]!r} is not in the first {_ROWS} rows",
                    hint="Return all columns in the first row, with None for a missing value.",
                    row=first + number,
                    column=str(unknown[0]),
                )
        batch = pa.RecordBatch.from_arrays(arrays, names=list(map(str, names)))
        schema = batch.schema if schema is None else schema
        first += len(chunk)
        yield batch


def _column(name: str, values: list[Any], kind: pa.DataType | None, first: int) -> pa.Array:
    """Return values as an array. Raises ValueFitError for a value that Arrow cannot store."""
    plain = [_plain(value) for value in values]
    tensors = [value for value in plain if isinstance(value, np.ndarray) and value.ndim > 1]
    try:
        if tensors and len(tensors) == len(plain):
            array = pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(tensors))
            if kind is not None and array.type != kind:
                raise pa.ArrowInvalid(f"an array has another shape or dtype than {kind}")
            return array
        return pa.array(plain, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        reason, failed = str(error), 0
        for number, value in enumerate(plain):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as own:
                reason, failed = str(own), number
                break
    raise ValueFitError(f"column {name!r}: {reason}", row=first + failed, column=str(name))


def _plain(value: Any) -> Any:
    """Return a value that Arrow accepts: images as PNG, tensors as numpy arrays."""
    image = sys.modules.get("PIL.Image")
    if image is not None and isinstance(value, image.Image):
        out = io.BytesIO()
        value.save(out, "PNG")
        return out.getvalue()
    if hasattr(value, "__array__") and not isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
