"""LocalDataset: samples of a local folder of shards by position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flarecli.compat.streaming.base.format.reader import Shards, items, read_index
from flarecli.model import Sample

__all__ = ["LocalDataset"]


class LocalDataset:
    """A map-style dataset of a local folder: `data[i]`, `data[a:b]`, `data[[7, 3]]`, `len(data)`.

    allow_unsafe_types  decode `pkl` columns, which runs code from the data
    """

    def __init__(
        self, local: str, split: str | None = None, allow_unsafe_types: bool = False
    ) -> None:
        self.local, self.split = local, split or ""
        self.shards = Shards(local, self.split, read_index(local, split), allow_unsafe_types)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.shards.starts[-1]

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return self.size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(self.size))

    def __getitem__(self, at: Any) -> Any:
        return items(at, self.size, self.get_item)

    def get_item(self, sample_id: int) -> Sample:
        """Return one sample by its position."""
        shard, row = self.shards.find(sample_id)
        sample: Sample = self.shards[shard].get_item(row)
        return sample
