"""JSONWriter, which writes shards of JSON lines."""

from __future__ import annotations

from collections.abc import Mapping

from flarecli.compat.streaming.base.format.writer import Writer

__all__ = ["JSONWriter"]


class JSONWriter(Writer):
    """Writer of JSON shards, for `str`, `int` and `float` columns."""

    format = "json"
    encodings: Mapping[str, str] = {"str": "json_str", "int": "json_int", "float": "json_float"}
