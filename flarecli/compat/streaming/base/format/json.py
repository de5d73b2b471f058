"""JSONWriter: shards of JSON lines."""

from __future__ import annotations

from collections.abc import Mapping

from flarecli.compat.streaming.base.format.writer import Writer

__all__ = ["JSONWriter"]


class JSONWriter(Writer):
    """Write JSON shards of `str`, `int` and `float`."""

    format = "json"
    encodings: Mapping[str, str] = {"str": "json_str", "int": "json_int", "float": "json_float"}
