"""StreamingDataLoader: torch's DataLoader, which counts the samples it gave and so knows where the epoch is. Loads torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from flarecli.compat.streaming.dataset import StreamingDataset

__all__ = ["StreamingDataLoader"]


class StreamingDataLoader(DataLoader):  # type: ignore[misc, type-arg, unused-ignore]
    """torch's own, with `state_dict()` and `load_state_dict(…)`."""

    num_samples_yielded = 0

    def __iter__(self) -> Iterator[Any]:
        self.num_samples_yielded = 0
        for batch in super().__iter__():
            one = (
                next(iter(batch.values()))
                if isinstance(batch, Mapping)
                else batch
                if hasattr(batch, "shape")
                else batch[0]
            )
            self.num_samples_yielded += len(one)
            yield batch

    def state_dict(self) -> dict[str, Any] | None:
        """Say where the epoch is, if the dataset is a StreamingDataset."""
        if not isinstance(self.dataset, StreamingDataset):
            return None
        return self.dataset.state_dict(self.num_samples_yielded * self.dataset._ranks()[1], False)

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Go on from there with the next iteration."""
        if isinstance(self.dataset, StreamingDataset):
            self.dataset.load_state_dict(obj)
