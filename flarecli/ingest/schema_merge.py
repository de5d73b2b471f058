"""Several files as one table: columns in the order of the first file, with their common types."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from flarecli.errors import FormatError
from flarecli.ingest.registry import Part
from flarecli.ingest.types import common_type, convert

__all__ = ["align", "merge"]

_TEXT = "Pack the files one by one, or read the column as text: --encode {}=str."
_MISSING = "Use --allow-missing to fill missing columns with nulls."


def merge(parts: Sequence[Part], allow_missing: bool) -> tuple[pa.Schema, tuple[Part, ...]]:
    """Return the columns of all parts, and the parts, which are read with these types if possible.

    allow_missing  columns that some files lack are null present
    raises         FormatError with two files whose types have no common type
    """
    fields: dict[str, pa.DataType] = {}
    first: dict[str, Part] = {}  # the file that gave a column its type
    for part in parts:
        for field in part.schema:
            if field.name not in fields:
                if not allow_missing and part is not parts[0]:
                    raise _differs(part, parts[0], f"{field.name!r} is additional", _MISSING)
                fields[field.name], first[field.name] = field.type, part
                continue
            kind = _common_type(fields[field.name], field.type, first[field.name], part)
            if kind is None:
                what = f"{field.name!r} is {field.type} instead of {fields[field.name]}"
                raise _differs(part, first[field.name], what, _TEXT.format(field.name))
            if kind != fields[field.name]:
                fields[field.name], first[field.name] = kind, part
        present = set(part.schema.names)
        missing = next((name for name in fields if name not in present), None)
        if missing is not None and not allow_missing:
            raise _differs(part, parts[0], f"{missing!r} is missing", _MISSING)
    schema = pa.schema(list(fields.items()))
    return schema, tuple(_with_types(part, fields) for part in parts)


def _differs(part: Part, other: Part, what: str, hint: str) -> FormatError:
    return FormatError(f"columns differ from those of {other.at}: {what}", where=part.at, hint=hint)


def _common_type(
    one: pa.DataType, two: pa.DataType, first: Part, second: Part
) -> pa.DataType | None:
    """Return the common type of a column in two files; string if both files are text."""
    kind = common_type(one, two)
    if kind is None and all(hasattr(part, "as_text") for part in (first, second)):
        return pa.string()
    return kind


def _with_types(part: Part, types: dict[str, pa.DataType]) -> Part:
    declared = getattr(part, "declared", None)
    wanted = {
        field.name: types[field.name] for field in part.schema if field.type != types[field.name]
    }
    found: Part = declared(wanted) if declared is not None and wanted else part
    return found


def align(batch: pa.RecordBatch, schema: pa.Schema, part: Part, row: int) -> pa.RecordBatch:
    """Return a batch of a part with the columns of the whole table; missing columns are null.

    row     number of its first row in the part
    raises  FormatError with the row of a value that does not fit the common type
    """
    if batch.schema.equals(schema):
        return batch
    arrays, present = [], set(batch.schema.names)
    for field in schema:
        if field.name not in present:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            arrays.append(convert(column, field.type))
        except pa.ArrowInvalid:
            at = next(i for i in range(len(column)) if not _fits(column.slice(i, 1), field.type))
            message = (
                f"column {field.name!r} contains {str(column[at].as_py())[:60]}, "
                f"which does not fit {field.type}"
            )
            raise FormatError(
                message,
                where=part.at,
                row=row + at,
                column=field.name,
                hint=_TEXT.format(field.name),
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fits(array: pa.Array, kind: pa.DataType) -> bool:
    try:
        convert(array, kind)
    except pa.ArrowInvalid:
        return False
    return True
