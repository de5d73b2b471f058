"""Shard reader and shard writers."""

from __future__ import annotations

from flarecli.compat.streaming.base.format.json import JSONWriter
from flarecli.compat.streaming.base.format.mds import MDSWriter
from flarecli.compat.streaming.base.format.reader import FileInfo, Reader, reader_from_json
from flarecli.compat.streaming.base.format.xsv import CSVWriter, TSVWriter, XSVWriter

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
