"""Infer the default encoding of a column from its type and the bytes of its first value."""

from __future__ import annotations

import pyarrow as pa

from flarecli.encodings.columns import is_list, is_text, is_utf8, value_type
from flarecli.errors import UsageError
from flarecli.media import kind_of, sniff

__all__ = ["infer_encoding"]

_SCALARS = {
    pa.int64(): "int",  # `int` is MDS's name for int64
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
    pa.bool_(): "uint8",  # MDS has no boolean encoding; uint8 stores 0 and 1
}
_DTYPES = {
    kind: "int64" if name == "int" else name
    for kind, name in _SCALARS.items()
    if not pa.types.is_boolean(kind)
}


def infer_encoding(field: pa.Field, first: bytes | None = None, extension: str = "") -> str:
    """Return the default encoding of a column.

    Lists of text, numbers or bytes become `X[]`; other nested types become JSON.

    first      bytes of the first value in a binary column. The content determines whether the
               column contains images or videos
    extension  extension of the file from which the first value was read, in lower case; empty if
               unknown. UTF-8 files with the extension `txt` or `text` become `str`, and UTF-8 files
               with the extension `json` become `json`. An extension distinguishes audio from video;
               if it is unknown, the extension in the name of the column is used
    raises     UsageError for a column that contains only nulls
    """
    kind = value_type(field.type)
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
            f"column {field.name!r} has only nulls",
            hint="Use -c to pack only the other columns, or --null fill to store empty text.",
            column=field.name,
        )
    return _by_content(first or b"", extension, field.name)


def _extension(
    field: pa.Field, kind: pa.BaseExtensionType, first: bytes | None, extension: str
) -> str:
    """Return the encoding for an Arrow extension type.

    Tensors and JSON have their own encodings; other extension types use their storage type.
    """
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
    """Return the encoding for lists with items of this type.

    Lists of booleans, dates, decimals and nested values become JSON.
    """
    item = value_type(item)
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
    """Return the encoding for a binary column: jpeg, png, mp4, webm, json, str or bytes.

    All other files, such as audio files and npy files, are stored as bytes.
    """
    found = sniff(data[:512])
    if found in ("jpeg", "png"):
        return found
    # An audio file or mov file may have the same magic number as an mp4 or webm file.
    declared = kind_of(f".{extension}") or kind_of(f".{name}")
    if found in ("mp4", "webm") and declared in (None, found):
        return found
    if found is None and extension in ("txt", "text", "json"):
        text = "json" if extension == "json" else "str"
        return text if is_utf8(data) else "bytes"
    return "bytes"
