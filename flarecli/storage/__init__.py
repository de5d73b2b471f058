"""Bytes at an address: stores, and `Location`, a store and a path in it.

Local files are read with `pread` or mapped, HTTP(S) goes through libcurl and nothing else. There is one client
per scheme: no store falls back to another. A short read is always an error.
"""

from __future__ import annotations

from flarecli.storage.base import (
    Entry,
    Guard,
    Keeper,
    Location,
    Part,
    Store,
    Written,
    read_each,
)
from flarecli.storage.glob import globbed
from flarecli.storage.limits import Limits
from flarecli.storage.locator import bucket_in, bucket_note, locate, with_reach
from flarecli.storage.mmap import (
    expect,
    files_limit,
    large_memory,
    needs_read_ahead,
    read_ahead,
)

__all__ = [
    "Entry",
    "Guard",
    "Keeper",
    "Limits",
    "Location",
    "Part",
    "Store",
    "Written",
    "bucket_in",
    "bucket_note",
    "expect",
    "files_limit",
    "globbed",
    "large_memory",
    "locate",
    "needs_read_ahead",
    "read_ahead",
    "read_each",
    "with_reach",
]
