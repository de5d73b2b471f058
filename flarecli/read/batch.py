"""What a worker of a loader does with the rows of a batch: read, decode, transform, collate."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flarecli.errors import FlareError, TransformError
from flarecli.model import IntArray
from flarecli.read.gather import Found
from flarecli.read.protocols import Rows

__all__ = ["Made", "Part", "Work", "parts_of"]

_FOUND = 512  # rows that are found at once


class Block:
    """Rows of several batches, int64 [k], one behind the other: where they lie in memory is found for all at once."""

    def __init__(self, rows: IntArray) -> None:
        self.rows, self._is_read = rows, False
        self._found: tuple[int, Found | None] = 0, None  # from which row on

    def batch(self, data: Rows, start: int, stop: int) -> dict[str, Any]:
        """Give rows start..stop as one batch. Raises what reading them does."""
        first, found = self._found
        if not self._is_read and (
            found is None or not first <= start <= stop <= first + found.rows
        ):
            first, found = self._found = start, data.found(self.rows[start:], stop - start)
            self._is_read = found is None
        if found is None:
            return data.collated(self.rows[start:stop])
        return found.batch(start - first, stop - first)


class Part(NamedTuple):
    """Rows of one batch, int64 [k], and whether their samples are wanted one by one; the block that they are in, and where they begin there."""

    rows: IntArray
    apart: bool = False
    block: Block | None = None
    start: int = 0


def parts_of(rows: IntArray, batch: int, apart: bool = False) -> Iterator[Part]:
    """Cut rows into batches, in blocks of many rows."""
    most = batch * max(1, _FOUND // batch)
    for first in range(0, len(rows), most):
        block = Block(rows[first : first + most])
        for start in range(0, len(block.rows), batch):
            yield Part(block.rows[start : start + batch], apart, block, start)


class Made(NamedTuple):
    """What came of a part: a batch, or the samples that each row became, where they are not one each or were wanted apart."""

    rows: IntArray
    batch: Any
    samples: list[list[Any]] | None = None


class Work:
    """The work itself; it goes to other processes if the transforms do. `fetches`: shards are fetched whole into a cache first."""

    def __init__(
        self,
        data: Rows,
        transforms: Sequence[Callable[..., Any]],
        collate: Callable[[list[Any]], Any] | None,
        seed: int,
        epoch: int,
        fetches: bool = False,
    ) -> None:
        self._data, self._collate, self._key, self._fetches = data, collate, (seed, epoch), fetches
        self._pid, self._is_over = (
            os.getpid(),
            False,
        )  # of the process that runs through the data, and lets go of what it has passed
        self._transforms = [(one, _wants_rng(one)) for one in transforms]

    @property
    def is_inline(self) -> bool:
        """Whether batches are made by the thread that takes them.

        Copying mapped bytes costs less than handing a batch to another thread.
        """
        return not self._transforms and self._collate is None and self._data.is_copied

    def __call__(self, part: Part) -> Made:
        if self._fetches:  # whole shards: a piece read now would be fetched again with them
            self._data.have(part.rows, os.getpid() == self._pid)
            if self._is_over:  # nobody else lets go of it now
                self._data.release_all()
        if not part.apart and not self._transforms and self._collate is None:
            if not self._fetches and part.block is not None:
                return Made(
                    part.rows, part.block.batch(self._data, part.start, part.start + len(part.rows))
                )
            return Made(part.rows, self._data.collated(part.rows))
        samples = self.samples(part.rows)
        if part.apart or any(len(one) != 1 for one in samples):
            return Made(part.rows, None, samples)
        return Made(part.rows, self.collated([one[0] for one in samples]))

    def end(self) -> None:
        """Let go of what batches made ahead of the run have fetched; one that is still being made does so itself."""
        self._is_over = True
        if self._fetches:
            self._data.release_all()

    def samples(self, rows: IntArray) -> list[list[Any]]:
        """Give the samples that each row becomes. Raises TransformError naming the row."""
        return [
            self._transformed(int(row), sample)
            for row, sample in zip(rows, self._data.__getitems__(rows), strict=True)
        ]

    def _transformed(self, row: int, sample: Any) -> list[Any]:
        out = [sample]
        if not self._transforms:
            return out
        try:
            rng = (
                np.random.default_rng((*self._key, row))
                if any(wants for _, wants in self._transforms)
                else None
            )
            for transform, wants in self._transforms:
                out = [
                    one
                    for given in out
                    for one in _several(transform(given, rng=rng) if wants else transform(given))
                ]
        except Exception as error:
            message = (
                error.message
                if isinstance(error, FlareError)
                else f"{type(error).__name__}: {error}"
            )
            raise TransformError(f"the transform failed: {message}", row=row) from error
        return out

    def collated(self, samples: list[Any]) -> Any:
        """Make a batch of samples."""
        return self._data.collate(samples) if self._collate is None else self._collate(samples)


def _several(made: Any) -> Iterable[Any]:
    return made if isinstance(made, list) or inspect.isgenerator(made) else [made]


def _wants_rng(transform: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a builtin
        return False
