"""Open the dataset at an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flarecli.arguments import Address, Addresses, address_text, address_texts, checked
from flarecli.cache import Cache
from flarecli.errors import UsageError
from flarecli.read.dataset import Dataset
from flarecli.read.decode import How
from flarecli.read.resolve import resolve, select_streams
from flarecli.storage import Guard, with_reach
from flarecli.units import parse_size

__all__ = ["open"]


@checked
def open(
    sources: Addresses,
    *,
    format: str | None = None,
    streams: Sequence[str] = (),
    allow_private: bool = False,
    allow_local: bool = False,
    allow_host: str | Sequence[str] = (),
    allow_pickle: bool = False,
    maps: bool = True,
    decode: Mapping[str, How] | None = None,
    cache: Address | None = None,
    cache_limit: int | str = "10GB",
) -> Dataset:
    """Open the dataset at one or several addresses; several are concatenated.

    sources       playlists, MDS folders, shards or folders of files; local, HTTP(S) or in a bucket;
                  globs, braces and pathlib paths are allowed
    streams       names of the streams to read; streams of equal length are joined by column
    allow_private the data may refer to private and loopback addresses
    allow_local   the data may refer to file://, paths outside its folder and symbolic links
    allow_host    private hosts and networks that the data may refer to, such as `10.0.0.7:8080`
                  or `10.1.0.0/16`
    allow_pickle  decode `pkl` columns; this runs code that the data contains
    maps          pass False if files may be truncated while they are read
    decode        column -> False for the stored bytes, or a function of them; see `Dataset.decoded`
    cache         folder that caches downloads, with at most `cache_limit` bytes: a number or `10GB`
    raises        MissingError, FormatError, UnsafeError, UnfinishedError: see `resolve`
    """
    typed = address_texts(sources)
    guard = with_reach(
        Guard(allow_private=allow_private, allow_local=allow_local), allow_host, typed
    )
    if cache is not None:
        limit = parse_size(cache_limit) if isinstance(cache_limit, str) else cache_limit
        if limit < 0:
            raise UsageError(f"cache_limit is {limit}: expected at least 0")
        guard = replace(guard, keeper=Cache(address_text(cache), limit))
    found = resolve(typed, format=format, guard=guard, maps=maps)
    data = Dataset(select_streams(found, streams), found, allow_pickle)
    return data.decoded(decode) if decode else data
