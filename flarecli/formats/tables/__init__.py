"""Tables: readers of Parquet, Arrow IPC, CSV and JSON files, and the formats that use them.

Memory use is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flarecli import encodings

if TYPE_CHECKING:
    from flarecli.lazy import pa
    from flarecli.model import Column

__all__ = ["default_encoding", "is_default", "typed_field", "without_storage_variants"]


def default_encoding(name: str, kind: pa.DataType) -> str:
    """Return the encoding of a column by its name and Arrow type; `str` for a column of nulls."""
    from flarecli.lazy import pa

    return "str" if pa.types.is_null(kind) else encodings.infer_encoding(pa.field(name, kind))


def is_default(column: Column, kind: pa.DataType) -> bool:
    """Return whether a column has the default encoding of its Arrow type."""
    return column.encoding == default_encoding(column.name, kind)


def typed_field(column: Column, kind: pa.DataType) -> pa.Field:
    """Return the field of a column; its metadata names an encoding that is not the default."""
    from flarecli.lazy import pa

    field = pa.field(column.name, kind)
    if is_default(column, kind):
        return field
    return field.with_metadata(encodings.field(column).metadata)


def without_storage_variants(array: pa.Array) -> pa.Array:
    """Return a column without dictionaries, run-end encoding, views and extensions, except tensors."""
    from flarecli.formats.tables.schema_merge import convert, plain

    return convert(array, plain(array.type))
