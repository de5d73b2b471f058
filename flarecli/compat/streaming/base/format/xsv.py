"""XSVWriter, CSVWriter and TSVWriter: shards of lines with separated values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flarecli.compat.streaming.base.format.writer import Writer

__all__ = ["CSVWriter", "TSVWriter", "XSVWriter"]


class XSVWriter(Writer):
    """Write shards of lines with any separator, of `str`, `int` and `float`."""

    format = "xsv"
    encodings: Mapping[str, str] = {"str": "str", "int": "str_int", "float": "str_float"}

    def __init__(self, *, separator: str, **rest: Any) -> None:
        super().__init__(separator=separator, **rest)


class CSVWriter(XSVWriter):
    """Write CSV shards of `str`, `int` and `float`."""

    format = "csv"

    def __init__(self, **rest: Any) -> None:
        super().__init__(separator=",", **rest)


class TSVWriter(XSVWriter):
    """Write TSV shards of `str`, `int` and `float`."""

    format = "tsv"

    def __init__(self, **rest: Any) -> None:
        super().__init__(separator="\t", **rest)
