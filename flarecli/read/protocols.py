"""The interface through which runs and loaders read a Dataset or a Mix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from flarecli.model import IntArray, Sample
from flarecli.read.decode import DecodeRule
from flarecli.read.table import Shards

__all__ = ["Closable", "GatheredBatches", "Order", "Rows"]


class Closable:
    """A context manager that calls `close()`. A closed object reopens its files when it is used."""

    def close(self) -> None:
        """Close all open files."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Order(Protocol):
    """The row order of one epoch.

    rows              the number of steps
    parallel_windows  the number of windows that are read at the same time
    """

    rows: int
    parallel_windows: int

    def at(self, steps: IntArray) -> IntArray:
        """Return the row of each step: int64 [k] -> int64 [k]."""

    def windows(self, step: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield the window that contains a step, and all later windows.

        A window is a tuple: first step, end step (exclusive), and row ranges (start, stop).
        """


class GatheredBatches(NamedTuple):
    """Consecutive batches whose stored values have been gathered from shards in memory.

    rows   the number of gathered rows
    batch  function(start, stop) that returns the gathered rows start..stop as a batch
    """

    rows: int
    batch: Callable[[int, int], dict[str, Any]]


class Rows(Protocol):
    """The interface for reading rows by number, and for the row order of each epoch."""

    def __len__(self) -> int: ...
    def __getitems__(self, indices: Sequence[int] | IntArray) -> list[Sample]: ...

    @property
    def checksum(self) -> str:
        """Return the checksum of the rows in order; equal data has equal checksums."""

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return whether `checksum` is the checksum of exactly the first `rows` rows."""

    def is_compaction_of(self, checksum: str) -> bool:
        """Return whether an earlier version with this checksum has the same rows.

        True only if all changes since this version are compactions.
        """

    def version_with(self, checksum: str) -> str:
        """Return the address of the newest version with this checksum; empty if it is unknown."""

    def collated(self, indices: Sequence[int] | IntArray) -> dict[str, Any]:
        """Return rows as one batch."""

    def gather(self, rows: IntArray, least: int) -> GatheredBatches | None:
        """Gather the stored values of at least the first `least` of the given rows.

        The result is None if `collated` is equally fast.

        rows  row numbers, int64 [k]
        """

    @property
    def is_copied(self) -> bool:
        """Return whether `collated` only copies bytes from local, uncompressed, mapped files."""

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch; numbers have the dtypes of the columns."""

    def decoded(self, how: Mapping[str, DecodeRule]) -> Rows:
        """Return a copy of this object with other decoders for the given columns."""

    def order(self, seed: int, epoch: int, order: str, window: int) -> Order:
        """Return the row order of an epoch."""

    @property
    def shards(self) -> Shards:
        """Return the shards that contain the rows, for prefetching and releasing."""

    def load(self) -> None:
        """Import the format modules, so that forked processes share them."""

    def close(self) -> None:
        """Close all open shards."""
