"""XSVWriter, CSVWriter and TSVWriter, which write shards of lines with separated values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flarecli.compat.streaming.base.format.writer import Writer

__all__ = ["CSVWriter", "TSVWriter", "XSVWriter"]


class XSVWriter(Writer):
    """Writer of shards with any separator, for `str`, `int` and `float` columns."""

    format = "xsv"
    encodings: Mapping[str, str] = {"str": "str", "int": "str_int", "float": "str_float"}

    def __init__(self, *, separator: str, **rest: Any) -> None:
        super().__init__(separator=separator, **rest)


class CSVWriter(XSVWriter):
    """Writer of CSV shards, for `str`, `int` and `float` columns."""

    format = "csv"

    def __init__(self, **rest: Any) -> None:
        super().__init__(separator=",", **rest)


class TSVWriter(XSVWriter):
    """Writer of TSV shards, for `str`, `int` and `float` columns."""

    format = "tsv"

    def __init__(self, **rest: Any) -> None:
        super().__init__(separator="\t", **rest)
