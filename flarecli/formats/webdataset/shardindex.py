"""`shardindex.json` of wids: the tars of a dataset and the number of rows in each.

    {"__kind__": "wids-shard-index-v1", "wids_version": 1,
     "shardlist": [{"url": "00000.tar", "nsamples": 100, "filesize": 20480, "md5sum": "…"}, …]}

`filesize` and `md5sum` are optional, and other keys are allowed; a misspelt `filesize` or `md5sum`
is an error.
"""

from __future__ import annotations

from typing import Any

from flarecli.errors import FormatError, Place
from flarecli.formats.mds.config import parse
from flarecli.formats.webdataset.columns import NAME
from flarecli.lazy import np
from flarecli.model import Stream
from flarecli.storage import Location
from flarecli.suggest import nearest

__all__ = ["KIND", "SHARDS", "VERSION", "read_shards"]

SHARDS = "shardindex.json"  # the name that widsindex uses
KIND, VERSION = "wids-shard-index-v1", 1
_KEYS = ("url", "nsamples", "filesize", "md5sum")
_MAX_BYTES, _COUNT_LIMIT = 1 << 30, 1 << 63
_HINT = "Fetch it again, or delete it: flare then lists the folder."


def read_shards(at: Location) -> Stream:
    """Read a `shardindex.json`; no tar is opened.

    raises  MissingError if the file is missing; FormatError if it is invalid
    """
    size = at.size()
    if size > _MAX_BYTES:
        raise FormatError(f"file is {size} bytes, the limit is {_MAX_BYTES}", where=at)
    try:
        return _stream(at, parse(at.read(0, size), at))
    except FormatError as error:
        raise FormatError(error.message, where=error.place, hint=error.hint or _HINT) from None


def _stream(at: Location, index: Any) -> Stream:
    if not isinstance(index, dict) or not isinstance(index.get("shardlist"), list):
        raise FormatError("shardlist is missing, or not a list", where=at)
    version = index.get("wids_version")
    if version != VERSION or isinstance(version, bool):
        raise FormatError(f"unsupported wids_version {version!r:.60}, expected {VERSION}", where=at)
    if index.get("__kind__") != KIND:
        raise FormatError(
            f"unsupported __kind__ {index.get('__kind__')!r:.60}, expected {KIND!r}", where=at
        )
    urls, rows, sizes, sums = [], [], [], []
    for i, shard in enumerate(index["shardlist"]):
        here = Place(at, item=f"shardlist[{i}]")
        if not isinstance(shard, dict) or not isinstance(shard.get("url"), str) or not shard["url"]:
            raise FormatError("url is missing, or not a text", where=here)
        for key in ("filesize", "md5sum"):
            if (
                key not in shard
                and (other := nearest(key, (name for name in shard if name not in _KEYS)))
                is not None
            ):
                raise FormatError(f"unknown key {other!r:.60}; did you mean {key!r}?", where=here)
        if not isinstance(md5 := shard.get("md5sum", ""), str):
            raise FormatError("md5sum is not a text", where=here)
        urls.append(shard["url"])
        rows.append(_count(shard.get("nsamples"), at, f"shardlist[{i}].nsamples"))
        has_size = "filesize" in shard
        sizes.append(_count(shard["filesize"], at, f"shardlist[{i}].filesize") if has_size else -1)
        sums.append(md5.lower())
    hashes = {"md5": sums} if any(sums) else {}
    return Stream(
        "data",
        at.folder,
        NAME,
        urls,
        rows=np.array(rows, np.int64),
        sizes=np.array(sizes, np.int64),
        hashes=hashes,
    )


def _count(value: Any, at: Location, item: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _COUNT_LIMIT:
        raise FormatError(f"expected a count, got {value!r:.60}", where=Place(at, item=item))
    return value
