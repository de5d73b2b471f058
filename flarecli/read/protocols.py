"""The interface between runs or loaders and the data that they read: a Dataset or a Mix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

from flarecli.arguments import shown
from flarecli.errors import UsageError
from flarecli.model import IntArray, Sample
from flarecli.read.decode import How
from flarecli.read.gather import Found

__all__ = ["DATASET_HINT", "Closable", "Data", "Order", "Rows", "check_rows"]

DATASET_HINT = "Pass a dataset that flare.open or flare.mix returned."


class Closable:
    """A context manager that calls `close()`. A closed object opens its files again when used."""

    def close(self) -> None:
        """Close all open files."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Data(Closable):
    """The base class of Dataset and Mix, which implement `Rows`."""


class Order(Protocol):
    """The order of one epoch.

    rows    the number of steps
    beside  the number of windows that are read at the same time
    """

    rows: int
    beside: int

    def at(self, steps: IntArray) -> IntArray:
        """Return the row of each step: int64 [k] -> int64 [k]."""

    def windows(self, step: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield the windows from a step on: first step, end step, row ranges (start, stop)."""


class Rows(Protocol):
    """Rows by position, and the order of their epochs."""

    def __len__(self) -> int: ...
    def __getitems__(self, indices: Sequence[int] | IntArray) -> list[Sample]: ...

    @property
    def checksum(self) -> str:
        """The checksum of the rows and their order; equal for equal data."""

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return whether `checksum` is the checksum of exactly the first `rows` rows."""

    def collated(self, indices: Sequence[int] | IntArray) -> dict[str, Any]:
        """Return rows as one batch."""

    def found(self, rows: IntArray, least: int) -> Found | None:
        """Locate the first rows in memory: at least `least`, or None if `collated` is as fast."""

    @property
    def is_copied(self) -> bool:
        """Whether `collated` only copies bytes of local, uncompressed, mapped files."""

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Collate samples into one batch; numbers have the dtypes of the columns."""

    def decoded(self, how: Mapping[str, How]) -> Rows:
        """Return the same rows with other decoders."""

    def order(self, seed: int, epoch: int, order: str, window: int) -> Order:
        """Return the order of an epoch."""

    def close(self) -> None:
        """Close all open shards."""

    def load(self) -> None:
        """Import the code of the formats, so that forked processes share it."""

    @property
    def room(self) -> int:
        """Cache bytes available for prefetched shards; 0 without a cache."""

    @property
    def stored(self) -> int:
        """Total bytes of the shards as listed; -1 if a size is not listed."""

    def expect(self, together: int) -> None:
        """Announce that most rows will be read, as part of `together` bytes."""

    def weight(self, start: int, stop: int) -> int:
        """Return the listed bytes of the shards of rows start..stop."""

    def fetch(self, start: int, stop: int) -> None:
        """Download the shards of rows start..stop into the cache, unless they are cached."""

    def have(self, rows: IntArray, passing: bool = False) -> None:
        """Download the shards of these rows, int64 [k], unless they are cached.

        passing  `release` will be called for the shards, as after `fetch`
        """

    def release(self, start: int, stop: int) -> None:
        """Release the shards of rows start..stop."""

    def release_all(self) -> None:
        """Release all shards that runs keep in memory."""


def check_rows(data: object) -> None:
    """Raise UsageError unless `data` is a Dataset or a Mix."""
    if not isinstance(data, Data):
        raise UsageError(f"expected a dataset, got {shown(data)}", hint=DATASET_HINT)
