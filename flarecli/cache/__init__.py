"""Cache for remote files: a size-limited folder of copies that several processes can share.

A `Guard` with a `Cache` as its `keeper` reads each remote store through a `CachedStore`. The cache
has no state except the files in the folder. The name of a copy is a digest of the object's address
and version. Each process checks a copy before its first use. Data that cannot be cached is read
directly from the remote store.
"""

from __future__ import annotations

from flarecli.cache.directory import (
    BATCH_SHARE,
    MANY_COPIES,
    CachedCopy,
    CacheWarning,
    least_recently_used_first,
    list_copies,
)
from flarecli.cache.store import BLOCK, Cache, CachedStore

__all__ = [
    "BATCH_SHARE",
    "BLOCK",
    "MANY_COPIES",
    "Cache",
    "CacheWarning",
    "CachedCopy",
    "CachedStore",
    "least_recently_used_first",
    "list_copies",
]
