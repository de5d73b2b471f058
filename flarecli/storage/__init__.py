"""Storage backends (`Store`), and file addresses (`Location`: a store and a path in the store).

Local files are read with `pread` or memory maps, web servers with libcurl, buckets with obstore,
and other services with fsspec. If a client fails, flare does not try a different client. A short
read is always an error.
"""

from __future__ import annotations

from flarecli.storage.base import (
    Buffer,
    Entry,
    Guard,
    Keeper,
    Limits,
    Location,
    Store,
    Written,
    join_near,
    read_each,
    short_read,
)
from flarecli.storage.locator import (
    STDIN,
    bucket_in,
    bucket_note,
    globbed,
    is_stdin,
    is_stream,
    locate,
    stream_name,
    with_reach,
)
from flarecli.storage.mmap import (
    expect,
    files_limit,
    keep_freed,
    large_memory,
    map_file,
    needs_read_ahead,
    read_ahead,
)

__all__ = [
    "Entry",
    "Guard",
    "Keeper",
    "Limits",
    "Location",
    "Buffer",
    "STDIN",
    "Store",
    "Written",
    "bucket_in",
    "bucket_note",
    "expect",
    "files_limit",
    "globbed",
    "is_stdin",
    "is_stream",
    "join_near",
    "keep_freed",
    "large_memory",
    "locate",
    "map_file",
    "needs_read_ahead",
    "read_ahead",
    "read_each",
    "short_read",
    "stream_name",
    "with_reach",
]
