"""LocalDataset: a folder of shards, by position. Also what StreamingDataset counts its shards with."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from flarecli.compat.streaming.reader import Reader, items, reader_from_json
from flarecli.compat.streaming.refusals import CorruptIndexError
from flarecli.errors import FormatError
from flarecli.formats import INDEX
from flarecli.formats.mds_index import read_shards
from flarecli.model import Sample
from flarecli.storage import locate

__all__ = ["LocalDataset", "Shards"]

_OPEN = 128  # shards whose tables are kept


class Shards(Sequence[Reader]):
    """Readers of the shards that an index lists, each made when asked for, so that a hundred thousand fit.

    starts  the sample at which each begins, and the end
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        entries: Sequence[Mapping[str, Any]],
        allow_unsafe_types: bool = False,
    ) -> None:
        self._dirname, self._split, self._entries, self._allow = (
            dirname,
            split,
            entries,
            allow_unsafe_types,
        )
        self._made: OrderedDict[int, Reader] = OrderedDict()
        self.starts = [0, *accumulate(int(one["samples"]) for one in entries)]

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, (self._dirname, self._split, self._entries, self._allow)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        i = range(len(self))[i]
        if (found := self._made.get(i)) is None:
            found = reader_from_json(self._dirname, self._split, self._entries[i])
            found.allow_unsafe_types = self._allow
            self._made[i] = found
            while len(self._made) > _OPEN:
                self._made.popitem(last=False)
        return found

    def files(self, i: int) -> list[tuple[str, int]]:
        """Return name and bytes of each file of a shard as listed, compressed ones included; no Reader is made."""
        entry = self._entries[i]
        listed = (entry.get(key) for key in ("raw_data", "raw_meta", "zip_data", "zip_meta"))
        return [(one["basename"], int(one["bytes"])) for one in listed if one]

    def find(self, sample: int) -> tuple[int, int]:
        """Give the shard that holds a sample, and its place there."""
        i = bisect_right(self.starts, sample) - 1
        return i, sample - self.starts[i]


def listed(local: str, split: str | None) -> list[dict[str, Any]]:
    """Read what the folder's index lists, and check each entry. Raises MissingError, CorruptIndexError, FormatError."""
    at = locate(f"{os.path.join(local, split or '').rstrip('/')}/") / INDEX
    try:
        shards, _ = read_shards(at)
    except FormatError as error:
        raise CorruptIndexError(
            f"Index file at {at.name} is empty or corrupted: {error.message}",
            where=error.place,
            hint=error.hint,
        ) from None
    for one in shards:
        reader_from_json(local, split, one)
    return shards


class LocalDataset:
    """Samples of a local folder by position: `data[i]`, `data[a:b]`, `data[[7, 3]]`, `len(data)`; a map-style dataset for torch.

    allow_unsafe_types  decode `pkl` columns, which runs code that the data brings
    """

    def __init__(
        self, local: str, split: str | None = None, allow_unsafe_types: bool = False
    ) -> None:
        self.local, self.split = local, split or ""
        self.shards = Shards(local, self.split, listed(local, split), allow_unsafe_types)

    @property
    def size(self) -> int:
        """How many samples there are."""
        return self.shards.starts[-1]

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return self.size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(self.size))

    def __getitem__(self, at: Any) -> Any:
        return items(at, self.size, self.get_item)

    def get_item(self, sample_id: int) -> Sample:
        """Give one sample by its position."""
        shard, row = self.shards.find(sample_id)
        sample: Sample = self.shards[shard].get_item(row)
        return sample
