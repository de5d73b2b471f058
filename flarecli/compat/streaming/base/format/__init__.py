"""The import path `streaming.base.format`."""

from flarecli.compat.streaming.reader import FileInfo, Reader, reader_from_json
from flarecli.compat.streaming.writers import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

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
