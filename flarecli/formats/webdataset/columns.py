"""Which member of a sample holds which column: names of columns to extensions, and extensions to encodings.

    reading, nothing listed   column = extension in lower case; its encoding is what the last part of the extension means, else `bytes`
    listed, and writing       extension = the column's name, if its last part means the column's encoding; else name `.` the encoding's own

so `jpg` and `image.jpg` (jpeg) stay what they are, `image` (jpeg) lies in `KEY.image.jpg` and `label` (str_int) in `KEY.label.cls`. A name
of `bytes` stays as it is unless it means something else. The extensions are those that webdataset's own decoder reads to the same value.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from types import MappingProxyType

from flarecli.model import Column, Columns

__all__ = ["KEY", "LIMIT", "NAME", "extension_of", "extensions_of", "meant"]

NAME = "webdataset"
KEY = "__key__"
_EXTENSIONS: Mapping[str, tuple[str, ...]] = (
    MappingProxyType(  # encoding -> extensions that mean it, the one that is written first
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
_MEANT: dict[str, str] = {
    one: encoding for encoding, ones in reversed(list(_EXTENSIONS.items())) for one in ones
}
_TAKEN = (KEY, "__url__", "__local_path__")  # what webdataset itself puts into a sample
_UNFIT = r"[\x00-\x1f\x7f/\\]"
LIMIT = 255  # bytes of an extension: what a file system takes of a whole name


def meant(extension: str) -> str:
    """Give the encoding that an extension means where no listing says: that of its last part, or `bytes`."""
    return _MEANT.get(extension.rpartition(".")[2], "bytes")


def extension_of(one: Column) -> str:
    """Give the extension of the members that hold a column; what no member's name may hold becomes `%2f` and the like."""
    name = re.sub(_UNFIT, lambda match: f"%{ord(match[0]):02x}", one.name).lower()
    means = _MEANT.get(name.rpartition(".")[2], "bytes")
    if (
        name not in _TAKEN
        and not name.endswith("__")
        and (means == one.encoding or name.rpartition(".")[2] in _EXTENSIONS.get(one.encoding, ()))
    ):
        return name
    own = _EXTENSIONS.get(
        one.encoding, (re.sub("[^a-z0-9]+", "_", one.encoding.partition(":")[0]).strip("_"),)
    )[0]
    return f"{name}.{own}"


def extensions_of(columns: Columns, known: Container[str] = ()) -> list[str]:
    """Give the extension of each column but the key, in order; a name that is itself a known extension is that where the rule gives none."""
    named = [(one.name, extension_of(one)) for one in columns if one.name != KEY]
    return [
        name if extension not in known and name in known else extension for name, extension in named
    ]
