"""Readers for indexes: tables, address lists and folders of samples. Memory use is bounded."""

from __future__ import annotations

from flarecli.formats.tables.dialect import DEFAULT as DIALECT
from flarecli.formats.tables.dialect import Dialect
from flarecli.formats.tables.registry import text_file
from flarecli.ingest.folder import data_among
from flarecli.ingest.index import Index, SourceChecksum, open_folder, open_index
from flarecli.ingest.lists import is_index, is_named_table, text_lines
from flarecli.ingest.python_rows import PythonRows, arrow_batches, rows_of
from flarecli.ingest.read_files import Flaw, binary_array, contents, filled
from flarecli.ingest.stdin import (
    Spool,
    open_streams,
    sniff,
    standard_input,
)

__all__ = [
    "DIALECT",
    "Dialect",
    "Flaw",
    "Index",
    "PythonRows",
    "SourceChecksum",
    "Spool",
    "arrow_batches",
    "binary_array",
    "contents",
    "data_among",
    "filled",
    "is_index",
    "is_named_table",
    "open_folder",
    "open_index",
    "open_streams",
    "rows_of",
    "sniff",
    "standard_input",
    "text_file",
    "text_lines",
]
