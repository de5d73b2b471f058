"""The work of a loader's worker: read, decode, transform and collate the rows of a batch."""

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

_BLOCK_ROWS = 512  # rows whose position in memory is looked up together


class Block:
    """Rows of several consecutive batches, int64 [k], which are located in memory together."""

    def __init__(self, rows: IntArray) -> None:
        self.rows, self._is_read = rows, False
        self._found: tuple[int, Found | None] = 0, None  # the first located row, and the rows

    def batch(self, data: Rows, start: int, stop: int) -> dict[str, Any]:
        """Return rows start..stop as one batch. Raises the errors of `Rows.collated`."""
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
    """The rows of one batch.

    rows   int64 [k]
    apart  return the samples of each row instead of a batch
    block  the block that contains the rows, from its row `start` on
    """

    rows: IntArray
    apart: bool = False
    block: Block | None = None
    start: int = 0


def parts_of(rows: IntArray, batch: int, apart: bool = False) -> Iterator[Part]:
    """Split rows into batches; consecutive batches share a block."""
    block_rows = batch * max(1, _BLOCK_ROWS // batch)
    for first in range(0, len(rows), block_rows):
        block = Block(rows[first : first + block_rows])
        for start in range(0, len(block.rows), batch):
            yield Part(block.rows[start : start + batch], apart, block, start)


class Made(NamedTuple):
    """The result of a part: a batch, or the samples of each row.

    samples  set if the part has `apart`, or if a transform returned other than one sample per row
    """

    rows: IntArray
    batch: Any
    samples: list[list[Any]] | None = None


class Work:
    """Make a batch of each part. Picklable if the transforms are.

    fetches  download whole shards into the cache before reading them
    """

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
        self._pid, self._is_over = os.getpid(), False  # only this process releases shards
        self._transforms = [(one, _wants_rng(one)) for one in transforms]

    @property
    def is_inline(self) -> bool:
        """Whether the thread that takes the batches makes them.

        Copying mapped bytes costs less than passing a batch between threads.
        """
        return not self._transforms and self._collate is None and self._data.is_copied

    def __call__(self, part: Part) -> Made:
        if self._fetches:  # a range read first would be downloaded again with its shard
            self._data.have(part.rows, os.getpid() == self._pid)
            if self._is_over:  # `end` ran before this call added its shards
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
        """Release the shards that prefetched batches keep; a call in flight releases its own."""
        self._is_over = True
        if self._fetches:
            self._data.release_all()

    def samples(self, rows: IntArray) -> list[list[Any]]:
        """Return the samples of each row. Raises TransformError, which names the row."""
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
        """Collate samples into a batch."""
        return self._data.collate(samples) if self._collate is None else self._collate(samples)


def _several(made: Any) -> Iterable[Any]:
    return made if isinstance(made, list) or inspect.isgenerator(made) else [made]


def _wants_rng(transform: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a builtin
        return False
