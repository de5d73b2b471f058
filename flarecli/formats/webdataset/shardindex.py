"""`shardindex.json` of wids: which tars there are, with the rows of each; read to hold it against them, no row is found by it.

    {"__kind__": "wids-shard-index-v1", "wids_version": 1,
     "shardlist": [{"url": "00000.tar", "nsamples": 100, "filesize": 20480, "md5sum": "…"}, …]}

`filesize` and `md5sum` may be left out, and other keys may stand beside them; but one that is left out must not stand there misspelt.
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

SHARDS = "shardindex.json"  # what widsindex calls it
KIND, VERSION = "wids-shard-index-v1", 1
_KEYS = ("url", "nsamples", "filesize", "md5sum")
_LIMIT, _MOST = 1 << 30, 1 << 63
_AGAIN = "Fetch it again, or remove it: the tars are found without it."


def read_shards(at: Location) -> Stream:
    """Read what a `shardindex.json` lists; no tar is opened. Raises MissingError if there is none; FormatError if it is none."""
    size = at.size()
    if size > _LIMIT:
        raise FormatError(f"{size} bytes, {_LIMIT} is the most that is read", where=at)
    try:
        return _stream(at, parse(at.read(0, size), at))
    except FormatError as error:
        raise FormatError(error.message, where=error.place, hint=error.hint or _AGAIN) from None


def _stream(at: Location, index: Any) -> Stream:
    if not isinstance(index, dict) or not isinstance(index.get("shardlist"), list):
        raise FormatError("no list of shards in it", where=at)
    version = index.get("wids_version")
    if version != VERSION or isinstance(version, bool):
        raise FormatError(f"version {version!r:.60}, {VERSION} is wanted", where=at)
    if index.get("__kind__") != KIND:
        raise FormatError(f"kind {index.get('__kind__')!r:.60}, {KIND!r} is wanted", where=at)
    urls, rows, sizes, sums = [], [], [], []
    for i, shard in enumerate(index["shardlist"]):
        here = Place(at, item=f"shardlist[{i}]")
        if not isinstance(shard, dict) or not isinstance(shard.get("url"), str) or not shard["url"]:
            raise FormatError("no url in it", where=here)
        for key in ("filesize", "md5sum"):
            if (
                key not in shard
                and (other := nearest(key, (name for name in shard if name not in _KEYS)))
                is not None
            ):
                raise FormatError(f"no {key} in it, but {other!r:.60}", where=here)
        if not isinstance(md5 := shard.get("md5sum", ""), str):
            raise FormatError("its md5sum is not a text", where=here)
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
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise FormatError(f"{value!r:.60} is not a count", where=Place(at, item=item))
    return value
