"""Types of the objects that runs and loaders read: rows, their order, and gathered batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from flarecli.read.dataset import Dataset
    from flarecli.read.epoch_order import Epoch
    from flarecli.read.mixture import Mix, MixOrder

__all__ = ["Closable", "GatheredBatches", "Order", "Rows"]

Rows: TypeAlias = "Dataset | Mix"
Order: TypeAlias = "Epoch | MixOrder"  # the row order of one epoch


class Closable:
    """A context manager that calls `close()`. A closed object reopens its files when it is used."""

    def close(self) -> None:
        """Close all open files."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class GatheredBatches(NamedTuple):
    """Consecutive batches whose stored values have been gathered from shards in memory.

    rows   the number of gathered rows
    batch  function(start, stop) that returns the gathered rows start..stop as a batch
    """

    rows: int
    batch: Callable[[int, int], dict[str, Any]]
