"""Tables: readers of Parquet, Arrow IPC, CSV and JSON files, and the formats that use the readers.

The readers use a bounded amount of memory.
"""

from __future__ import annotations

from flarecli import encodings
from flarecli.lazy import pa
from flarecli.model import Column

__all__ = ["default_encoding", "is_default", "typed_field"]


def default_encoding(name: str, kind: pa.DataType) -> str:
    """Return the default encoding of a column with this name and type; `str` for the null type."""
    return "str" if pa.types.is_null(kind) else encodings.infer_encoding(pa.field(name, kind))


def is_default(column: Column, kind: pa.DataType) -> bool:
    """Return whether a column has the default encoding of its Arrow type."""
    return column.encoding == default_encoding(column.name, kind)


def typed_field(column: Column, kind: pa.DataType) -> pa.Field:
    """Return the Arrow field of a column.

    The field's metadata contains the encoding, unless it is the default encoding of the type.
    """
    field = pa.field(column.name, kind)
    if is_default(column, kind):
        return field
    return field.with_metadata(encodings.field(column).metadata)
