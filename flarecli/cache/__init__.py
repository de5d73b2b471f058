"""A cache of remote files: a folder of copies that processes share, with a size limit.

A `Cache` is the keeper of a `Guard`: it puts a `CachedStore` in front of each remote store. The files in the folder are
the only state: their names are digests of address and version, and a copy is checked before it is used. Data that cannot
be kept is read as if there were no cache.
"""

from __future__ import annotations

from flarecli.cache.directory import (
    BATCH_SHARE,
    MANY_COPIES,
    CachedCopy,
    CacheWarning,
    NamedFiles,
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
    "NamedFiles",
    "least_recently_used_first",
    "list_copies",
]
