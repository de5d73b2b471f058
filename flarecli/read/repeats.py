"""The same shards, named by two lists at once: a shell makes `out/index.json out/playlist.yaml out/shard.00000.mds` of `out/*`.

Each would give its rows, so that every row came three times. Who wants rows more often names the same address again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from flarecli.errors import UsageError
from flarecli.model import Playlist, Stream
from flarecli.names import is_url
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = ["place_of", "places_of", "refuse_repeats"]


def refuse_repeats(found: Sequence[Playlist], chosen: Sequence[Sequence[Stream]]) -> None:
    """Refuse sources that share shards, but for one that is named again as it is.

    found   one Playlist a source
    chosen  the streams of each that are read
    raises  UsageError naming a shard and both of its lists
    """
    import numpy as np

    lists = {}
    for one, streams in zip(found, chosen, strict=True):
        shards = np.unique(
            np.fromiter(
                (hash(place) for stream in streams for place in places_of(stream)), np.int64
            )
        )  # a million are 8 MB
        lists["" if one.at is None else place_of(one.at), shards.tobytes()] = (one, streams, shards)
    every = [shards for _, _, shards in lists.values()]
    if not every or np.unique(np.concatenate(every)).size == sum(shards.size for shards in every):
        return
    seen: dict[int, Playlist] = {}
    for one, streams, shards in lists.values():
        for stream in streams:
            for i, place in enumerate(places_of(stream)):
                if (other := seen.get(hash(place))) is not None:
                    named = " and by ".join(str(by.at or by.streams[0].at) for by in (other, one))
                    hint = "Name the folder alone, or its playlist."
                    raise UsageError(
                        f"it is named by {named}: its rows would come twice",
                        where=stream.chunk(i).at,
                        hint=hint,
                    )
        seen |= dict.fromkeys(shards.tolist(), one)


def places_of(stream: Stream) -> Iterator[str]:
    """Say where each shard lies, in the same words whatever lists it."""
    folder = place_of(stream.at)
    for url in stream.urls:
        yield url if is_url(url) else f"{folder}/{url.removeprefix('./')}"


def place_of(at: Location) -> str:
    """Say where a file lies, however the user came to it: a local one by its whole path."""
    return (
        os.path.join(at.store.root, at.path) if isinstance(at.store, LocalStore) else at.key
    ).rstrip("/")
