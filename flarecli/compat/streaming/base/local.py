"""LocalDataset, which reads samples by position from a local folder of shards."""

from __future__ import annotations

from flarecli.compat.streaming.base.format.reader import Array, Shards, read_index
from flarecli.model import Sample

__all__ = ["LocalDataset"]


class LocalDataset(Array):
    """Map-style dataset of the shards in a local folder.

    split               subfolder of `local` with the shards
    allow_unsafe_types  True decodes `pkl` columns; a pickle can run code
    """

    def __init__(
        self, local: str, split: str | None = None, allow_unsafe_types: bool = False
    ) -> None:
        self.local, self.split = local, split or ""
        self.shards = Shards(local, self.split, read_index(local, split), allow_unsafe_types)
        self.num_samples = self.shards.starts[-1]

    @property
    def size(self) -> int:
        """Number of samples in the dataset."""
        return self.num_samples

    def get_item(self, sample_id: int) -> Sample:
        """Return one sample by its position."""
        shard, row = self.shards.find(sample_id)
        sample: Sample = self.shards[shard].get_item(row)
        return sample
