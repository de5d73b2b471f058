"""StreamingDataLoader, a DataLoader that can save its position. The module loads torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from flarecli.compat.streaming.base.dataset import StreamingDataset

__all__ = ["StreamingDataLoader"]


class StreamingDataLoader(DataLoader):  # type: ignore[misc, type-arg, unused-ignore]
    """torch's DataLoader with `state_dict()` and `load_state_dict(…)` for a StreamingDataset."""

    num_samples_yielded = 0

    def __iter__(self) -> Iterator[Any]:
        self.num_samples_yielded = 0
        for batch in super().__iter__():
            if isinstance(batch, Mapping):
                self.num_samples_yielded += len(next(iter(batch.values())))
            else:  # an array of any library, or a sequence of columns
                self.num_samples_yielded += len(batch if hasattr(batch, "shape") else batch[0])
            yield batch

    def state_dict(self) -> dict[str, Any] | None:
        """Return the position in the epoch; None unless the dataset is a StreamingDataset."""
        if not isinstance(self.dataset, StreamingDataset):
            return None
        return self.dataset.state_dict(self.num_samples_yielded * self.dataset._ranks()[1], False)

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Start the next iteration at a saved position."""
        if isinstance(self.dataset, StreamingDataset):
            self.dataset.load_state_dict(obj)
