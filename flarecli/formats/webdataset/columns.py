"""Mapping between column names, member extensions and encodings.

If no columns are listed, each extension in lower case is a column. The last part of the extension
determines the encoding; the encoding of an unknown extension is `bytes`.

For listed columns, and when writing, the extension is the column's name if the last part of the
name is an extension of the column's encoding. Otherwise, the extension is NAME.EXTENSION, where
EXTENSION is the first extension of the encoding, or, if the encoding has no extensions, its name.
Examples of columns, with their encodings and members:

    jpg (jpeg)       KEY.jpg
    image.jpg (jpeg) KEY.image.jpg
    image (jpeg)     KEY.image.jpg
    label (str_int)  KEY.label.cls
    data (ndarray)   KEY.data.ndarray

The name of a `bytes` column is its extension. If the name is an extension of another encoding, the
extension is NAME.bin.

For text, integers, floats and JSON, the decoder of webdataset returns the same values as flare,
except for the extension `count`: its values are integers according to the documentation of
webdataset, but the decoder returns bytes.

A column that was packed from files has the extension of the files, such as `jpg` for `image`
(`Column.extension`). If the extension differs from row to row, an extension column such as
`image_extension` contains the extensions. An extension column has no members in a tar, because its
values are part of the member names. For example, the content of `KEY.png` is a value of `image`,
and `png` is the value of `image_extension`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from types import MappingProxyType

from flarecli.media import category_of
from flarecli.model import Column, Columns, column_of

__all__ = [
    "KEY",
    "MAX_EXTENSION_BYTES",
    "NAME",
    "belongs_to",
    "encoding_of",
    "extension_of",
    "extensions_of",
    "member_columns",
]

NAME = "webdataset"
KEY = "__key__"
_EXTENSIONS: Mapping[str, tuple[str, ...]] = (
    MappingProxyType(  # encoding -> extensions; the first extension is used for writing
        {
            "jpeg": ("jpg", "jpeg"),
            "png": ("png",),
            "str": ("txt", "text", "transcript"),
            "str_decimal": ("txt", "text"),
            "json": ("json", "jsn"),
            "json_float": ("json", "jsn"),
            "str_int": ("cls", "cls2", "id", "index", "inx", "count"),
            "pkl": ("pkl", "pickle", "pyd"),
            "msgpack": ("mp", "msg", "msgpack"),
            "mp4": ("mp4",),
            "webm": ("webm",),
            "bytes": ("bin",),
        }
    )
)
_ENCODINGS: dict[str, str] = {
    extension: encoding
    for encoding, extensions in reversed(list(_EXTENSIONS.items()))
    for extension in extensions
}
_RESERVED = (KEY, "__url__", "__local_path__")  # keys that webdataset adds to a sample
_NOT_ALLOWED = r"[\x00-\x1f\x7f/\\]"
MAX_EXTENSION_BYTES = 255  # the usual limit of file systems for a file name


def encoding_of(extension: str) -> str:
    """Return the encoding for the last part of an extension; `bytes` for an unknown part."""
    return _ENCODINGS.get(extension.rpartition(".")[2], "bytes")


def member_columns(columns: Columns) -> Columns:
    """Return the columns that have members: all columns except the key and extension columns."""
    others = {KEY, *(name for one in columns if (name := column_of(one.extension)))}
    return tuple(one for one in columns if one.name not in others)


def belongs_to(extension: str, name: str) -> bool:
    """Return whether a column with several extensions can have members with this extension.

    extension  extension of the members in lower case
    name       name of the column
    """
    return extension == name.lower() or category_of(extension) == name


def extension_of(one: Column) -> str:
    """Return the extension of a column's members.

    If the extensions are in an extension column, the result is a default extension.
    Characters that are invalid in a file name are escaped, for example as `%2f`.
    """
    if one.extension and not column_of(one.extension) and _is_allowed(one.extension.lower()):
        return one.extension
    name = re.sub(_NOT_ALLOWED, lambda match: f"%{ord(match[0]):02x}", one.name).lower()
    own_encoding = encoding_of(name)
    if _is_allowed(name) and (
        own_encoding == one.encoding or name.rpartition(".")[2] in _EXTENSIONS.get(one.encoding, ())
    ):
        return name
    default = _EXTENSIONS.get(
        one.encoding, (re.sub("[^a-z0-9]+", "_", one.encoding.partition(":")[0]).strip("_"),)
    )[0]
    return f"{name}.{default}"


def _is_allowed(extension: str) -> bool:
    """Return whether webdataset allows members with this extension (in lower case)."""
    return extension not in _RESERVED and not extension.endswith("__")


def extensions_of(columns: Columns, known: Container[str] = ()) -> list[str]:
    """Return the extension of each column of `member_columns`, in column order.

    The extension is the result of `extension_of`. If `known` includes the name of the column, but
    not this result, the extension is the name of the column.

    known  extensions in a tar, in lower case
    """
    named = [(one.name, extension_of(one)) for one in member_columns(columns)]
    return [
        name if extension.lower() not in known and name in known else extension
        for name, extension in named
    ]
