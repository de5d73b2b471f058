"""What a pack reads from: an index of samples, or a dataset that is converted; both are batches of columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from flarecli import ingest, playlists, read
from flarecli.hashes import DEFAULT, Sums
from flarecli.names import redact
from flarecli.storage import Guard, Location

__all__ = ["Source", "open_source"]


@dataclass(frozen=True)
class Source:
    """Rows to pack.

    address  as the user typed it, without secrets
    at       where relative links in it start
    rows     how many there are, if that is known without reading
    batches  gives the rows, only the columns named
    sum      gives the xxh3_128 of what the rows come from: the index's own bytes, or the listing of the dataset
    """

    address: str
    at: Location
    schema: pa.Schema
    rows: int | None
    batches: Callable[[Sequence[str] | None], Iterator[pa.RecordBatch]]
    sum: Callable[[], str]


def open_source(sources: str | Sequence[str], *, text: Collection[str], guard: Guard) -> Source:
    """Open an index (parquet, CSV, TSV …) or a dataset.

    text  columns of a CSV that are read as text, whatever they look like
    """
    addresses = [sources] if isinstance(sources, str) else list(sources)
    expanded = [one for address in addresses for one in read.expand(address)]
    shown = " ".join(redact(address) for address in addresses)
    if expanded and all(ingest.is_index(address) for address in expanded):
        index = ingest.open_index(expanded, guard=guard, text=text)
        return Source(shown, index.at, index.schema, index.rows, index.batches, index.sum)
    data = read.open(expanded, guard=guard, maps=False)
    first = data.playlists[0].streams[0].at

    def listing() -> str:
        sums = Sums([DEFAULT])
        for one in data.playlists:
            sums.update(playlists.text(one))
        return sums.hex()[DEFAULT]

    return Source(shown, first, data.schema, len(data), lambda columns: data.scan(columns), listing)
