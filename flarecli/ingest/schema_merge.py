"""Several files as one table: columns by name in the order of the first file, types that hold what each file has."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from flarecli.errors import FormatError
from flarecli.ingest.registry import Part
from flarecli.ingest.types import converted, met

__all__ = ["fitted", "joined"]

_TEXT = "Pack them one by one, or read it as text: --encode {}=str."
_MISSING = "Give --allow-missing to take nulls for what a file does not have."


def joined(parts: Sequence[Part], allow_missing: bool) -> tuple[pa.Schema, tuple[Part, ...]]:
    """Give the columns of all parts, and the parts, each read as those types where its kind of file leaves a choice.

    allow_missing  a column that some files do not have is null there
    raises         FormatError naming two files that differ in what no type holds
    """
    fields: dict[str, pa.DataType] = {}
    first: dict[str, Part] = {}  # the file that gave a column its type
    for part in parts:
        for field in part.schema:
            if field.name not in fields:
                if not allow_missing and part is not parts[0]:
                    raise _differs(part, parts[0], f"{field.name!r} is new", _MISSING)
                fields[field.name], first[field.name] = field.type, part
                continue
            kind = _meeting(fields[field.name], field.type, first[field.name], part)
            if kind is None:
                what = f"{field.name!r} is {field.type}, not {fields[field.name]}"
                raise _differs(part, first[field.name], what, _TEXT.format(field.name))
            if kind != fields[field.name]:
                fields[field.name], first[field.name] = kind, part
        there = set(part.schema.names)
        missing = next((name for name in fields if name not in there), None)
        if missing is not None and not allow_missing:
            raise _differs(part, parts[0], f"{missing!r} is missing", _MISSING)
    schema = pa.schema(list(fields.items()))
    return schema, tuple(_declared(part, fields) for part in parts)


def _differs(part: Part, other: Part, what: str, hint: str) -> FormatError:
    return FormatError(f"its columns are not those of {other.at}: {what}", where=part.at, hint=hint)


def _meeting(one: pa.DataType, two: pa.DataType, first: Part, second: Part) -> pa.DataType | None:
    """Give the type that two files meet in; of two that are text anyway, text is one."""
    kind = met(one, two)
    if kind is None and all(hasattr(part, "as_text") for part in (first, second)):
        return pa.string()
    return kind


def _declared(part: Part, types: dict[str, pa.DataType]) -> Part:
    declared = getattr(part, "declared", None)
    wanted = {
        field.name: types[field.name] for field in part.schema if field.type != types[field.name]
    }
    found: Part = declared(wanted) if declared is not None and wanted else part
    return found


def fitted(batch: pa.RecordBatch, schema: pa.Schema, part: Part, row: int) -> pa.RecordBatch:
    """Give a batch of a part as the columns of the whole; what the part does not have is null.

    row     place of its first row in the part
    raises  FormatError naming the row whose value the common type cannot hold
    """
    if batch.schema.equals(schema):
        return batch
    arrays, there = [], set(batch.schema.names)
    for field in schema:
        if field.name not in there:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            arrays.append(converted(column, field.type))
        except pa.ArrowInvalid:
            at = next(i for i in range(len(column)) if not _fits(column.slice(i, 1), field.type))
            message = f"column {field.name!r} holds {str(column[at].as_py())[:60]}, which {field.type} cannot hold"
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
        converted(array, kind)
    except pa.ArrowInvalid:
        return False
    return True
