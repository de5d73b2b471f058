"""Import path `streaming.base.format`."""

from flarecli.compat.streaming.shard import FileInfo, Reader, reader_from_json
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
