"""What was fetched is kept: a folder of copies, shared by any number of processes, never larger
than its limit.

`Cache(folder, limit)` goes into a `Guard` as its keeper; from then on every store on the network
that is opened has a `CachedStore` before it, and nothing above can tell. Files are the truth: names
are sums of the address and the version, a copy is checked before it is used, and what cannot be
kept is read as if there were no cache.
"""

from __future__ import annotations

from flarecli.cache.directory import CacheWarning, Kept, kept
from flarecli.cache.named import BATCH_SHARE, MANY, NamedFiles, coldest_first
from flarecli.cache.store import BLOCK, Cache, CachedStore

__all__ = [
    "BATCH_SHARE",
    "BLOCK",
    "MANY",
    "Cache",
    "CacheWarning",
    "CachedStore",
    "Kept",
    "NamedFiles",
    "coldest_first",
    "kept",
]
