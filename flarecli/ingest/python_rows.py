"""Rows of Python objects. They are saved to a temporary Arrow file, which is the source of a pack.

    pandas and Polars DataFrames, DuckDB relations, pyarrow tables, flare datasets
                                          through `__arrow_c_stream__` or `__arrow_c_array__`
    Polars LazyFrames                     through `collect()`
    Hugging Face datasets                 through `with_format("arrow").iter()`
    iterables of dicts, RecordBatches or Tables, and map-style datasets of dicts

An iterable is read once, and only one batch is in memory. An interrupted pack can be resumed if the
object returns the same rows again: the checksums of the old and the new saved file are then equal.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.arguments import shown
from flarecli.errors import UsageError, ValueFitError
from flarecli.formats.tables.base import check_columns
from flarecli.formats.tables.schema_merge import common_type, convert
from flarecli.storage.local import temporary_file_error

__all__ = ["PythonRows", "arrow_batches", "rows_of"]

MAX_DEPTH = 64  # maximum nesting depth of values, as for JSON sources
_CONTAINERS = (list, tuple, set, frozenset, Mapping, np.ndarray)
_ROWS = 1024  # dicts per batch
_ARROW_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError, NotImplementedError)
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
        path = os.path.join(folder, "rows.arrows")
        first = next(self.batches, None)
        if first is None:
            raise UsageError(f"{self.name} has no rows")
        check_columns(first.schema.names, self.name, "Rename one of the columns.")
        with contextlib.ExitStack() as stack:
            with _disk_errors():
                file = stack.enter_context(pa.OSFile(path, "wb"))
                writer = pa.ipc.new_stream(file, first.schema)
            for batch in itertools.chain((first,), self.batches):
                if batch.schema != first.schema:
                    raise UsageError(
                        f"a batch has the columns {shown(_types(batch.schema))}; "
                        f"the first batch has {shown(_types(first.schema))}"
                    )
                with _disk_errors():
                    writer.write_batch(batch)
            with _disk_errors():
                writer.close()
                file.close()
        return path


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Convert an OSError in the `with` block to an error about the temporary file of the rows."""
    try:
        yield
    except OSError as error:
        raise temporary_file_error(error, "the rows") from None


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def rows_of(source: Any) -> tuple[PythonRows | None, Any]:
    """Return the rows of an object (None for addresses), and the source.

    The source is returned unchanged, except that an iterable of addresses is returned as a list,
    because the check of its first item may have consumed this item.

    raises  UsageError for an object that contains neither rows nor addresses
    """
    name = type(source).__name__
    if isinstance(source, (str, os.PathLike)):
        return None, source
    if (batches := arrow_batches(source)) is not None:
        return PythonRows(name, batches), source
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
            hint='Use a dict for each row, such as {"image": image, "label": label}.',
        )
    return None, list(items)


def _is_sequence(source: Any) -> bool:
    return isinstance(source, (Sequence, set, frozenset))


def arrow_batches(source: Any) -> Iterator[pa.RecordBatch] | None:
    """Return the batches of an Arrow object; None for any other object.

    An Arrow object has the method `__arrow_c_stream__` or `__arrow_c_array__`. A LazyFrame of
    Polars is collected. The column of an unnamed pandas index is omitted.

    raises  UsageError for an object that is a single column without a name, such as a pandas
            Series, and for a DataFrame that cannot be converted to Arrow, for example because two
            columns have the same name
    """
    if hasattr(source, "collect_schema") and not hasattr(source, "__arrow_c_stream__"):
        source = source.collect()  # a Polars LazyFrame
    try:
        if hasattr(source, "__arrow_c_stream__"):
            return _named_batches(pa.RecordBatchReader.from_stream(source))
        if hasattr(source, "__arrow_c_array__"):
            return iter((pa.record_batch(source),))
    except (pa.ArrowException, TypeError, ValueError) as error:
        name = type(source).__name__
        if not hasattr(source, "columns"):
            raise UsageError(
                f"expected a table, got {name}: {error}",
                hint="Pass a DataFrame, or a table with named columns.",
            ) from None
        raise UsageError(
            f"cannot convert the {name} to Arrow: {'; '.join(map(str, error.args))}",
            hint="Use a different name for each column, and values of one type in each column.",
        ) from None
    return None


def _named_batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    kept = [name for name in reader.schema.names if not _INDEX.fullmatch(name)]
    for batch in reader:
        yield batch if len(kept) == len(batch.schema) else batch.select(kept)


def _table_batches(tables: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.RecordBatch]:
    for number, table in enumerate(tables):
        if not isinstance(table, (pa.RecordBatch, pa.Table)):
            raise UsageError(f"item {number}: expected a batch or table, got {shown(table)}")
        yield from table.to_batches() if isinstance(table, pa.Table) else (table,)


# -- dicts


def _dict_batches(rows: Iterator[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield dicts as batches; the first rows determine the columns and their types."""
    schema: pa.Schema | None = None
    first = 0
    while chunk := list(itertools.islice(rows, _ROWS)):
        for number, row in enumerate(chunk, first):
            if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
                raise UsageError(
                    f"row {number}: expected a dict with column names, got {shown(row)}"
                )
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
                    hint="Include every column in the first row, with None for each missing value.",
                    row=first + number,
                    column=unknown[0],
                )
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        schema = batch.schema if schema is None else schema
        first += len(chunk)
        yield batch


def _column(name: str, values: list[Any], kind: pa.DataType | None, first: int) -> pa.Array:
    """Return values as an array. Raises ValueFitError for the first value that cannot be converted.

    kind   type of the array; None: inferred from the values
    first  row number of the first value
    """
    plain = [_plain(value) for value in values]
    for number, value in enumerate(plain):
        if not _is_shallow(value):
            message = f"column {name!r}: more than {MAX_DEPTH} levels of nesting"
            raise ValueFitError(message, row=first + number, column=name)
    try:
        return _array(plain, kind)
    except _ARROW_ERRORS as error:
        reason, failed = str(error), 0
        for number, value in enumerate(plain):
            try:
                _array([value], kind)
            except _ARROW_ERRORS as own:
                reason, failed = str(own), number
                break
    raise ValueFitError(f"column {name!r}: {reason}", row=first + failed, column=name)


def _is_shallow(value: Any, depth: int = 0) -> bool:
    """Return whether a value has at most MAX_DEPTH levels.

    This check also rejects a list that contains itself, because such a list would crash Arrow.
    """
    if isinstance(value, Mapping):
        value = value.values()
    elif isinstance(value, np.ndarray):
        value = list(value.flat) if value.dtype == object else ()
    elif not isinstance(value, _CONTAINERS):
        return True
    # creating the set of types is much faster than checking each item
    if not any(issubclass(kind, _CONTAINERS) for kind in set(map(type, value))):
        return True
    return depth < MAX_DEPTH and all(_is_shallow(item, depth + 1) for item in value)


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Convert values to an Arrow array.

    kind    type of the column in earlier rows; None if there are no earlier rows
    raises  one of _ARROW_ERRORS
    """
    if any(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
        array = _tensors(values)
    elif isinstance(kind, pa.FixedShapeTensorType) and values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    else:
        array = pa.array(values)
        if pa.types.is_timestamp(array.type):
            _check_zones(values)
    return array if kind is None else _as_type(array, kind)


def _check_zones(values: list[Any]) -> None:
    """Raise ArrowInvalid if only some values have a time zone. Arrow itself accepts a mixture."""
    if len({value.tzinfo is None for value in values if isinstance(value, datetime)}) > 1:
        raise pa.ArrowInvalid("some values have a time zone, and others have none")


def _tensors(values: list[Any]) -> pa.Array:
    """Return numpy arrays of one shape as tensors; None is null."""
    example = next(value for value in values if value is not None)
    if not all(
        value is None
        or (
            isinstance(value, np.ndarray)
            and (value.shape, value.dtype) == (example.shape, example.dtype)
        )
        for value in values
    ):
        raise pa.ArrowInvalid(
            "arrays with more than one dimension must have the same shape and dtype"
        )
    flat = [None if value is None else np.ascontiguousarray(value).reshape(-1) for value in values]
    if example.dtype == bool:
        flat = [None if value is None else value.astype(np.uint8) for value in flat]
    item = pa.array(next(value for value in flat if value is not None)).type
    kind = pa.fixed_shape_tensor(item, example.shape)
    return pa.ExtensionArray.from_storage(kind, pa.array(flat, kind.storage_type))


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array to the type of earlier rows. Raises ArrowInvalid if a value would change."""
    own = array.type
    if common_type(kind, own) == kind:
        return convert(array, kind)
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        unknown = {field.name for field in own} - {field.name for field in kind}
        if not unknown:
            children = {
                field.name: child for field, child in zip(own, array.flatten(), strict=True)
            }
            fields = [
                _as_type(children[field.name], field.type)
                if field.name in children
                else pa.nulls(len(array), field.type)
                for field in kind
            ]
            return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    elif pa.types.is_list(own) and pa.types.is_list(kind):
        offsets, items = array.offsets, _as_type(array.values, kind.value_type)
        return pa.ListArray.from_arrays(offsets, items, mask=array.is_null())
    raise pa.ArrowInvalid(f"got {own}; earlier rows have {kind}")


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
