"""Shard formats: `base` defines their interface, and `registry` lists them."""

from __future__ import annotations

from flarecli.formats.base import Format, LargeValue, OriginalValue
from flarecli.formats.registry import (
    DEFAULT,
    FALLBACK,
    HEAD_BYTES,
    INDEX,
    INDEX_FILES,
    INDEX_INPUTS,
    INPUTS,
    LIST_INPUT,
    SHARD_INDEX,
    STREAMED,
    all_names,
    arranged,
    facts,
    find,
    first_index,
    is_known,
    looks_like_table,
    names,
    of_folder,
    of_suffix,
    sniff,
    with_option,
)
from flarecli.formats.table_options import TableOptions

__all__ = [
    "DEFAULT",
    "FALLBACK",
    "Format",
    "HEAD_BYTES",
    "INDEX",
    "SHARD_INDEX",
    "INDEX_FILES",
    "INDEX_INPUTS",
    "INPUTS",
    "LIST_INPUT",
    "LargeValue",
    "OriginalValue",
    "STREAMED",
    "TableOptions",
    "all_names",
    "arranged",
    "facts",
    "find",
    "first_index",
    "is_known",
    "looks_like_table",
    "names",
    "of_folder",
    "of_suffix",
    "sniff",
    "with_option",
]
