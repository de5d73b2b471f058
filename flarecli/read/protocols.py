"""What a run or a loader takes rows from: a Dataset, or a Mix of some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

from flarecli.arguments import shown
from flarecli.errors import UsageError
from flarecli.model import IntArray, Sample
from flarecli.read.decode import How
from flarecli.read.gather import Found

__all__ = ["Closable", "Order", "Rows", "check_rows"]


class Closable:
    """A context manager that closes itself at its end. What is used after `close()` opens again."""

    def close(self) -> None:
        """Close the files that are open."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Order(Protocol):
    """One epoch: which row each step has. `beside`: windows that are read at the same time."""

    rows: int
    beside: int

    def at(self, steps: IntArray) -> IntArray:
        """Give the row of each step; int64 [k] to int64 [k]."""

    def windows(self, step: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Give what is read one after the other from a step on: first step, step behind, runs of rows (start, stop)."""


class Rows(Protocol):
    """Rows by number, and orders of them."""

    def __len__(self) -> int: ...
    def __getitems__(self, indices: Sequence[int] | IntArray) -> list[Sample]: ...

    @property
    def checksum(self) -> str:
        """Which rows these are, and in which order: equal for equal data."""

    def begins_with(self, checksum: str, rows: int) -> bool:
        """Return whether the first `rows` rows are all of the data that has this checksum."""

    def collated(self, indices: Sequence[int] | IntArray) -> dict[str, Any]:
        """Give rows as one batch."""

    def found(self, rows: IntArray, least: int) -> Found | None:
        """Find rows in memory, from the first on: at least so many of them, or None where that is no faster than `collated`."""

    @property
    def is_copied(self) -> bool:
        """Whether `collated` does little but copy bytes of local, uncompressed, mapped files."""

    def collate(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Give samples as one batch, numbers with the dtypes that rows have."""

    def decoded(self, how: Mapping[str, How]) -> Rows:
        """Give the same rows with other values."""

    def order(self, seed: int, epoch: int, order: str, window: int) -> Order:
        """Give an epoch."""

    def close(self) -> None:
        """Close the shards that are open."""

    def load(self) -> None:
        """Load the code that reading takes, before processes are forked."""

    @property
    def room(self) -> int:
        """Bytes of the cache before its shards; 0 without one."""

    @property
    def stored(self) -> int:
        """Bytes of its shards, from what is listed; -1 where that does not say."""

    def expect(self, together: int) -> None:
        """Say that most rows will be read, in whatever order, among so many bytes."""

    def weight(self, start: int, stop: int) -> int:
        """Reckon the bytes of the shards that hold rows start..stop."""

    def fetch(self, start: int, stop: int) -> None:
        """Fetch the shards that hold rows start..stop into the cache, whole; those that are there cost nothing."""

    def have(self, rows: IntArray, passing: bool = False) -> None:
        """Fetch the shards that hold these rows, int64 [k], where they are not there yet.

        passing  as for `fetch`, whose shards they are too: `release` will come
        """

    def release(self, start: int, stop: int) -> None:
        """Let go of those shards in memory."""

    def release_all(self) -> None:
        """Let go of whatever shards runs have left in memory."""


def check_rows(data: object) -> None:
    """Refuse what is neither a Dataset nor a Mix. Raises UsageError."""
    if isinstance(data, type) or not hasattr(data, "order") or not hasattr(data, "collated"):
        raise UsageError(f"{shown(data)} is no dataset", hint="Give what flare.open gives.")
