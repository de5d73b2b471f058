"""Shard reader and shard writers; the names are loaded on first use."""

from __future__ import annotations

from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.streaming.base.format.json import JSONWriter
    from flarecli.compat.streaming.base.format.mds import MDSWriter
    from flarecli.compat.streaming.base.format.reader import FileInfo, Reader, reader_from_json
    from flarecli.compat.streaming.base.format.xsv import CSVWriter, TSVWriter, XSVWriter

_MODULES = {
    "CSVWriter": "xsv",
    "FileInfo": "reader",
    "JSONWriter": "json",
    "MDSWriter": "mds",
    "Reader": "reader",
    "TSVWriter": "xsv",
    "XSVWriter": "xsv",
    "reader_from_json": "reader",
}

__all__ = [
    "CSVWriter",
    "FileInfo",
    "JSONWriter",
    "MDSWriter",
    "Reader",
    "TSVWriter",
    "XSVWriter",
    "reader_from_json",
]


def __getattr__(name: str) -> object:
    return named(__name__, _MODULES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
