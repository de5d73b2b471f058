"""Typed columns: choose an encoding for each column, and convert each batch to these encodings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli import encodings
from flarecli.bisect import failing_rows
from flarecli.errors import FlareError, UnsafeError, UsageError, ValueFitError
from flarecli.formats import Format, OriginalValue
from flarecli.formats.tables import default_encoding, is_default
from flarecli.formats.tables.schema_merge import convert, plain
from flarecli.model import Columns, IntArray, Settings
from flarecli.names import shell_quoted
from flarecli.suggest import choose
from flarecli.units import format_count
from flarecli.write.failures import NULL_HINT, Failure, drop_rows
from flarecli.write.keys import is_empty_key, key_text

__all__ = [
    "ColumnConverter",
    "check_columns",
    "chosen_encodings",
    "convert_all",
    "reader_notes",
    "record_batches",
    "restored_batch",
    "schema_header",
    "source_types",
    "stored_schema",
    "table_encodings",
]

MAX_READER_NOTES = 8  # maximum number of columns that `reader_notes` names
_EMPTY, _NAN = "is empty; keys must not be empty", "is NaN; keys must not be NaN"
_NULL_ITEM = "contains a null"  # the reason that `encodings.coerce` returns for a list with a null
_INTEGER_TEXTS = ("str_int", "json_int")
_ADDRESS = "(?i)^(?:https?|s3|gs|az|hf|file)://"


def chosen_encodings(
    batch: pa.RecordBatch,
    names: Sequence[str],
    encode: Mapping[str, str],
    extensions: Mapping[str, str],
    stored: Mapping[str, str],
    types: Mapping[str, pa.DataType] = MappingProxyType({}),
    holds_null: bool = False,
) -> dict[str, str]:
    """Return the encoding of each column: column -> encoding.

    The user's choice has priority over the encoding in the source dataset, and that encoding has
    priority over the default encoding.

    batch       first batch; in a column of bytes, only the first value is read, so that the result
                does not depend on the batch size
    encode      column -> encoding that the user chose
    extensions  column -> file extension in the link of the first row
    stored      column -> encoding in the source dataset
    types       column -> Arrow type in the source dataset; a column that still has this type keeps
                its encoding
    holds_null  True if the format can store nulls; a column of only nulls then becomes `str`
    raises      UsageError for an unknown encoding, or for a type that no encoding can store
    """
    out = {}
    for name in names:
        field = batch.schema.field(name)
        source = encodings.source_of(field)  # None for a column that a query computed
        encoding = encode.get(name) or (stored.get(name, source.name) if source else None)
        if encoding is None and name in types and _is_same_type(types[name], field.type):
            encoding = stored.get(name)
        if encoding is None and holds_null and pa.types.is_null(field.type):
            encoding = "str"
        if encoding is None:
            column = batch.column(name)
            first = (
                column[0].as_py() if batch.num_rows and encodings.is_binary(column.type) else None
            )
            encoding = encodings.infer_encoding(field, first, extensions.get(name, ""))
        encodings.lookup(encoding)
        if name not in encode and pa.types.is_uint64(
            encodings.value_type(types.get(name, field.type))
        ):
            # some formats store these encodings as `int`, which cannot represent all uint64 values
            encoding = "uint64" if encoding in _INTEGER_TEXTS else encoding
        out[name] = encoding
    return out


def source_types(
    schema: pa.Schema,
    chosen: Mapping[str, str],
    encode: Mapping[str, str],
    types: Mapping[str, pa.DataType],
) -> dict[str, pa.DataType]:
    """Return the Arrow types for the playlist: column -> type, in the order of `chosen`.

    chosen  column -> encoding
    encode  columns whose encoding the user chose; these columns get the type of the encoding
    types   column -> type in the source; this type replaces the type in `schema` if only their
            dictionaries differ, or if the column comes from a flare dataset
    """
    out = {}
    for name, encoding in chosen.items():
        field = schema.field(name)
        if name in encode:
            kind = _natural(encoding).arrow
        elif encodings.source_of(field) is None:
            kind = field.type
            kept = types.get(name, kind)
            if _is_same_type(encodings.without_dictionaries(kept), kind):
                kind = kept
        else:  # the column is in its stored encoding, because it was read from a flare dataset
            kind = types.get(name, _natural(encoding).arrow)
        out[name] = encodings.without_variants(kind)
    return out


def _is_same_type(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(encodings.without_variants(one).equals(encodings.without_variants(other)))


def reader_notes(
    format: Format, columns: Columns, types: Mapping[str, pa.DataType]
) -> Iterator[str]:
    """Yield a note for each column whose values have another type in the format's original library.

    At most MAX_READER_NOTES notes name a column; one more note counts the other columns.

    columns  columns in the order of the format
    types    column -> Arrow type in the packed table, in the order of that table
    """
    stored = {column.name: column.encoding for column in columns}
    losses = [
        (name, kind, value)
        for name, kind in types.items()
        if format.readers
        and name in stored
        and (value := _original_value(kind, format.original_value(stored[name])))
    ]
    for name, kind, value in losses[:MAX_READER_NOTES]:
        yield f"column {name!r}: {format.readers} return {value}; flare returns {kind}"
    if more := losses[MAX_READER_NOTES:]:
        count = format_count(len(more), "more column")
        yield f"{count}: {format.readers} and flare return values of different types"


def _original_value(kind: pa.DataType, value: OriginalValue) -> str:
    """Describe the values that the original library returns for a column of an Arrow type.

    The result is empty if the original library and flare return values of the same type.

    value  result of `Format.original_value` for the encoding of the column
    """
    kind = encodings.value_type(kind)
    if pa.types.is_temporal(kind):
        time = "the number as text" if pa.types.is_duration(kind) else "ISO text"
        return time if value == "text" else value
    if pa.types.is_boolean(kind):
        return "0 or 1" if value == "numbers" else value
    if pa.types.is_decimal(kind):
        return "" if value == "decimals" else value
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "" if value == "numbers" else value
    if isinstance(kind, pa.FixedShapeTensorType):
        return "" if value == "arrays" else value
    if not pa.types.is_nested(kind):
        return ""
    if value not in ("lists", "arrays"):
        return value
    leaf = next(filter(_is_text_in_documents, _leaves(kind)), None)
    return "" if leaf is None else f"{value} with text in place of {leaf}"


def _is_text_in_documents(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types that a nested type contains, without types that are nested themselves."""
    kind = encodings.value_type(kind)
    if not pa.types.is_nested(kind):
        yield kind
        return
    for i in range(kind.num_fields):
        yield from _leaves(kind.field(i).type)


def schema_header(
    columns: Columns, types: Mapping[str, pa.DataType], key: str
) -> dict[str, Any] | None:
    """Return the playlist header that lists the columns of the packed table and their Arrow types.

    The result is None if the format stores the columns in the same order, and the encodings already
    determine the types. If stored values cannot be converted back to the type of their column, the
    header lists the type of the column's encoding instead.

    key  key column of the format, whose type is always the type of the encoding; empty if none
    """
    stored = {column.name: _natural(column.encoding) for column in columns}
    kept = {
        name: kind
        if (not key or name != key)
        and encodings.type_header(kind) is not None
        and encodings.is_restorable(stored[name], kind)
        else stored[name].arrow
        for name, kind in types.items()
    }
    if list(kept.items()) == [(name, encoding.arrow) for name, encoding in stored.items()]:
        return None
    return {name: encodings.type_header(kind) for name, kind in kept.items()}


def _natural(encoding: str) -> encodings.Encoding:
    """Return the encoding that a column has in batches if the playlist lists no Arrow type."""
    stored = encodings.lookup(encoding)
    return encodings.plain(pa.nulls(0, stored.arrow), stored)[1]


def table_encodings(
    format: Format, chosen: Mapping[str, str], types: Mapping[str, pa.DataType]
) -> dict[str, str]:
    """Return the encodings to store: column -> encoding.

    If the format stores Arrow types, encodings that do not match the types are replaced. For
    example, an MDS dataset may store lists as `json`, but a Parquet file stores them as `str[]`.

    chosen  column -> encoding
    types   column -> Arrow type in the table
    """
    if not format.typed:
        return dict(chosen)
    out = {}
    for name, encoding in chosen.items():
        kind = types.get(name)
        if kind is not None and not encodings.lookup(encoding).arrow.equals(kind):
            default = default_encoding(name, kind)
            if encodings.type_header(kind) and encodings.is_restorable(_natural(default), kind):
                encoding = default
        out[name] = encoding
    return out


def stored_schema(format: Format, columns: Columns, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema of the batches that a format stores.

    If the format stores Arrow types, a column with the default encoding of its type keeps this
    type, except that a dictionary type becomes its value type. The field of such a column has no
    metadata. All other columns have the types of their encodings.

    types  column -> Arrow type in the table
    """
    fields = []
    for column in columns:
        kind = types.get(column.name)
        if format.typed and kind is not None and is_default(column, kind):
            fields.append(pa.field(column.name, encodings.value_type(kind)))
        else:
            fields.append(encodings.field(column))
    return pa.schema(fields)


def restored_batch(
    batch: pa.RecordBatch, columns: Columns, types: Mapping[str, pa.DataType]
) -> pa.RecordBatch:
    """Convert a batch to the Arrow types of the packed table, for a format that stores types."""
    arrays, fields = [], []
    for column, array in zip(columns, batch.columns, strict=True):
        kind = types[column.name]
        if not array.type.equals(kind):
            natural = _natural(column.encoding)
            if array.type.equals(encodings.lookup(column.encoding).arrow):
                array, natural = encodings.plain(array, encodings.lookup(column.encoding))
            array = encodings.restore(array, kind, natural)
        arrays.append(array)
        fields.append(pa.field(column.name, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class ColumnConverter:
    """Converter that converts batches to the encodings of `columns`.

    A row that cannot be encoded becomes a failure. A row with a null also becomes a failure if
    `allows_nulls` is False.

    schema  result of `stored_schema`; None: all columns have the types of their encodings
    casts   columns to cast before they are encoded: column -> Arrow type. A value that the type
            cannot represent exactly is a failure
    """

    def __init__(
        self,
        columns: Columns,
        key: str | None,
        allows_nulls: bool = False,
        schema: pa.Schema | None = None,
        casts: Mapping[str, pa.DataType] = MappingProxyType({}),
    ) -> None:
        self._key, self._allows_nulls, self._casts = key, allows_nulls, casts
        self._encodings = [encodings.lookup(column.encoding) for column in columns]
        self._schema = schema or pa.schema([encodings.field(column) for column in columns])

    def convert(
        self, batch: pa.RecordBatch, rows: IntArray
    ) -> tuple[pa.RecordBatch, IntArray, list[Failure]]:
        """Convert a batch to typed columns.

        rows    int64 [rows of the batch]: the position of each row in the selection
        return  a batch of the encoded rows, the positions of these rows in the selection, and the
                failures in row order
        """
        typed, reasons = self.cast(batch)
        if not reasons:
            return typed, rows, []
        keys = batch.column(self._key) if self._key is not None else None
        out = []
        for at, (name, reason) in sorted(reasons.items()):
            key = "" if keys is None else key_text(keys[at])
            kind = "null" if reason in ("is null", _EMPTY, _NAN) else "value"
            hint = NULL_HINT if reason == "is null" and name != self._key else ""
            if reason == _NULL_ITEM:
                encode = shell_quoted(f"{name}=json")
                hint = f"Use --encode {encode} to store lists that contain nulls."
            out.append(Failure(int(rows[at]), key, name, kind, f"{name} {reason}", hint=hint))
        return *drop_rows(typed, rows, reasons), out

    def cast(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, tuple[str, str]]]:
        """Return a batch of all rows, and the failures: row in the batch -> (column, reason).

        raises  UsageError for a column whose Arrow type the encoding cannot store
        """
        arrays, reasons = [], self._unnamed(batch)
        for field, encoding in zip(self._schema, self._encodings, strict=True):
            source = encodings.source_of(batch.schema.field(field.name))
            array, failures = batch.column(field.name), list[tuple[int, str]]()
            is_encoded = encodings.encoding_of(field) is not None
            try:
                if (kind := self._casts.get(field.name)) is not None:
                    array, failures = _in_type(array, kind, source or encoding)
                    source = None
                is_restored = not is_encoded and (
                    source is None or encodings.is_restorable(_natural(source.name), field.type)
                )
                if not is_restored:
                    array, unfit = encodings.coerce(array, encoding, source)
                    failures += unfit
                    source = encoding
                if not is_encoded:
                    array, unfit = _in_type(array, field.type, source or encoding)
                    failures += unfit
            except pa.ArrowNotImplementedError:
                kind = batch.schema.field(field.name).type
                raise UsageError(
                    f"column {field.name!r}: {kind} cannot be stored as {encoding.name}",
                    hint="Select other columns with -c.",
                    column=field.name,
                ) from None
            arrays.append(array)
            for at, reason in (
                one for one in failures if not (self._allows_nulls and one[1] == "is null")
            ):
                reasons.setdefault(at, (field.name, reason))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), reasons

    def _unnamed(self, batch: pa.RecordBatch) -> dict[int, tuple[str, str]]:
        """Return the rows with a null, empty or NaN key: row in the batch -> (column, reason)."""
        if self._key is None:
            return {}
        keys = batch.column(self._key)
        invalid = _NAN if pa.types.is_floating(encodings.value_type(keys.type)) else _EMPTY
        return {
            at: (self._key, invalid if keys[at].is_valid else "is null")
            for at in np.flatnonzero(is_empty_key(keys)).tolist()
        }


def _in_type(
    array: pa.Array, kind: pa.DataType, source: encodings.Encoding
) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Convert a column to an Arrow type; return the column and the failures as (row, reason).

    An invalid value becomes null.

    source  encoding of the column; ignored if the column does not have the type of this encoding
    """
    array = convert(array, plain(array.type))

    def converted(start: int, stop: int) -> pa.Array:
        part, encoding = array.slice(start, stop - start), source
        if part.type.equals(source.arrow):
            part, encoding = encodings.plain(part, source)
        return encodings.restore(part, kind, encoding)

    def failure(start: int, stop: int) -> Exception | None:
        try:
            converted(start, stop)
        except ValueFitError as error:
            return error
        return None

    if failure(0, len(array)) is None:
        return converted(0, len(array)), []
    reasons = [(row, f"is not a valid {kind}") for row, _ in failing_rows(0, len(array), failure)]
    is_valid = np.ones(len(array), bool)
    is_valid[[row for row, _ in reasons]] = False
    array = pc.if_else(pa.array(is_valid), array, pa.scalar(None, array.type))
    return converted(0, len(array)), reasons


class Unstorable(NamedTuple):
    """A row that the encodings can store, but the format cannot.

    row  number of the row in the batch
    """

    row: int
    error: FlareError


def measured(
    format: Format, columns: Columns, batch: pa.RecordBatch, settings: Settings
) -> tuple[int, IntArray] | Unstorable:
    """Return the result of `Format.row_sizes`, or the first row that the format cannot store."""
    try:
        return format.row_sizes(columns, batch, settings)
    except (ValueFitError, UnsafeError) as error:
        if error.row is None or error.address:
            raise
        return Unstorable(error.row, error)


def record_batches(data: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """Validate a batch or a table, and return its batches.

    raises  UsageError for data of any other class; ValueFitError for invalid Arrow data, such as
            offsets outside the data, invalid UTF-8, or dictionary indices out of range
    """
    if not isinstance(data, (pa.RecordBatch, pa.Table)):
        raise UsageError(
            f"expected a table, got {type(data).__name__}",
            hint="Pass a pyarrow RecordBatch or Table, a DataFrame, or another Arrow stream.",
        )
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    try:
        for batch in batches:
            batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueFitError(f"invalid Arrow data: {error}") from None
    return batches


def convert_all(typed: ColumnConverter, batch: pa.RecordBatch, rows: IntArray) -> pa.RecordBatch:
    """Convert a batch to typed columns.

    raises  ValueFitError with the row, the column and its Arrow type for the first row that cannot
            be converted
    """
    out, reasons = typed.cast(batch)
    if reasons:
        at = min(reasons)
        name, reason = reasons[at]
        kind = batch.schema.field(name).type
        raise ValueFitError(f"column {name!r} ({kind}): {reason}", row=rows[at], column=name)
    return out


def check_columns(names: Sequence[str], expected: Sequence[str]) -> None:
    """Raise UsageError for a missing, an unknown or a repeated column name in a batch."""
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"column {name!r} occurs {names.count(name)} times in the batch", column=name
            )
    for name in sorted(set(names) ^ set(expected)):
        if name in names:
            raise UsageError(f"the batch has an unknown column {name!r}", column=name)
        raise UsageError(f"the batch has no column {name!r}", column=name)


def address_columns(batch: pa.RecordBatch) -> list[str]:
    """Return the text columns whose first 16 values are URLs or nulls, with at least one URL."""
    out = []
    for name in batch.schema.names:
        column = batch.column(name)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            head = column[:16].drop_null()
            if len(head) and pc.all(pc.match_substring_regex(head, _ADDRESS)).as_py():
                out.append(name)
    return out


def check_names(schema: pa.Schema, names: Sequence[str], option: str) -> None:
    """Raise UsageError for the first unknown column name.

    option  the option with which the user passed the names
    """
    known = set(schema.names)
    for name in names:
        if name not in known:
            raise UsageError(
                f"{option}: no column {name!r}",
                hint=choose(name, schema.names, "Choose from"),
                column=name,
            )
