"""Which encoding a column gets when nobody says: by its declared type, then by the first value's own bytes."""

from __future__ import annotations

import pyarrow as pa

from flarecli.encodings.cast import is_list, is_text
from flarecli.errors import UsageError
from flarecli.media import kind_of, sniff

__all__ = ["infer_encoding"]

_SCALARS = {
    pa.int64(): "int",  # the original's plain `int` is int64 too
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.bool_(): "uint8",  # MDS has no bool: 0 and 1
}
_DTYPES = {
    kind: "int64" if name == "int" else name
    for kind, name in _SCALARS.items()
    if not pa.types.is_boolean(kind)
}


def infer_encoding(field: pa.Field, first: bytes | None = None, extension: str = "") -> str:
    """Choose an encoding for a column: of lists of text, numbers or bytes `X[]`, of all that is nested otherwise JSON.

    first      the first value's bytes, for a binary column: pictures and films are told by their magic numbers
    extension  of the first value's own address, lower case: `txt` and `json` are text when the bytes agree; where there is none, the
               column's own name may end in one
    raises     UsageError for a type that no encoding holds (an all-null column)
    """
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if isinstance(kind, pa.BaseExtensionType):
        return _extension(field, kind, first, extension)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if is_text(kind) or pa.types.is_temporal(kind):
        return "str"
    if pa.types.is_decimal(kind):
        return "str_decimal"
    if is_list(kind):
        return _list(kind.value_type)
    if pa.types.is_nested(kind):
        return "json"
    if pa.types.is_null(kind):
        raise UsageError(
            f"column {field.name!r} holds nothing but nulls",
            hint="Name the columns to pack with -c, without it.",
            column=field.name,
        )
    return _by_content(first or b"", extension, field.name)


def _extension(
    field: pa.Field, kind: pa.BaseExtensionType, first: bytes | None, extension: str
) -> str:
    """See through a type that is another with a name; tensors are arrays of one shape, text of JSON is JSON."""
    if (
        isinstance(kind, pa.FixedShapeTensorType)
        and kind.value_type in _DTYPES
        and kind.shape
        and all(kind.shape)
    ):
        return f"ndarray:{_DTYPES[kind.value_type]}:{','.join(map(str, kind.shape))}"
    if kind.extension_name == "arrow.json":
        return "json"
    return infer_encoding(pa.field(field.name, kind.storage_type), first, extension)


def _list(item: pa.DataType) -> str:
    """Keep a list where its items have an encoding of their own; JSON tells true from 1, and knows a date and a list in a list."""
    item = item.value_type if pa.types.is_dictionary(item) else item
    if is_text(item):
        return "str[]"
    if item in _SCALARS and not pa.types.is_boolean(item):
        return f"{_SCALARS[item]}[]"
    if (
        pa.types.is_nested(item)
        or pa.types.is_temporal(item)
        or pa.types.is_decimal(item)
        or pa.types.is_boolean(item)
        or pa.types.is_null(item)
    ):
        return "json"
    return "bytes[]"


def _by_content(data: bytes, extension: str, name: str) -> str:
    """Tell what files are. What no encoding stands for, other pictures, films and sounds, and arrays as numpy saves them, is bytes: whole files."""
    found = sniff(data[:512])
    if found in ("jpeg", "png"):
        return found
    if found in ("mp4", "webm") and (kind_of(f".{extension}") or kind_of(f".{name}")) in (
        None,
        found,
    ):  # a sound or a mov may begin alike
        return found
    if found is None and extension in ("txt", "text", "json"):
        try:
            data.decode()
        except UnicodeDecodeError:
            return "bytes"
        return "json" if extension == "json" else "str"
    return "bytes"
