"""A run through an epoch: samples in a keyed order, on one of any number of ranks, from any step on."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import numpy as np

from flarecli.errors import UsageError
from flarecli.model import Cursor, Sample
from flarecli.read.fetching import begun
from flarecli.read.rows import Order, Rows

__all__ = ["Run", "beginning", "check_place"]

_BLOCK = 1 << 14  # steps mapped to rows at once
_READ = 64  # rows read at once


def beginning(seed: int, epoch: int, order: str) -> Cursor:
    """Give the place where an epoch begins. Raises UsageError for a seed or an epoch that is no whole number.

    Numpy's integers become Python's: those do not wrap, and JSON takes them.
    """
    try:
        return Cursor(operator.index(seed), operator.index(epoch), 0, order)
    except TypeError:
        raise UsageError(f"seed is {seed!r:.60}, epoch {epoch!r:.60}: whole numbers are wanted") from None


def check_place(rows: int, place: Cursor) -> None:
    """Refuse a place outside its epoch. Raises UsageError."""
    if not 0 <= place.step <= rows:
        raise UsageError(f"step {place.step} is outside the epoch, which has {rows}")


class Run:
    """Iterate it once: the samples of one rank, in order; `cursor` is the place behind the last one given.

    Every step of an epoch has one row, and rank r of R takes steps r, r + R, … behind the place where the run began. So
    the ranks together give each row once, in one order, and another number of ranks goes on where they stopped. Where
    the rows are no multiple of the ranks, the last ranks give one row less.

    raises  UsageError for a rank outside the ranks, an order that is none, a place outside the epoch
    """

    def __init__(self, data: Rows, cursor: Cursor, rank: int, ranks: int, window: int) -> None:
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks} is no rank")
        self._ranks = ranks
        self._epoch = data.order(cursor.seed, cursor.epoch, cursor.order, window)
        check_place(self._epoch.rows, cursor)
        self._begun, self._given, self._place = cursor.step + rank, 0, cursor
        self._samples = _read(data, self._epoch, cursor, rank, ranks)

    @property
    def cursor(self) -> Cursor:
        """The place behind the samples given so far, if every rank gave as many: after k of them, k × ranks steps on."""
        start = self._place
        step = min(self._epoch.rows, start.step + self._given * self._ranks)
        return Cursor(start.seed, start.epoch, step, start.order)

    def __repr__(self) -> str:
        at = self.cursor
        return f"<Run: {len(self)} samples left, seed {at.seed}, epoch {at.epoch}, step {at.step} of {self._epoch.rows}, {at.order}>"

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Sample:
        sample = next(self._samples)
        self._given += 1
        return sample

    def __len__(self) -> int:
        """How many samples are left on this rank."""
        return max(0, -(-(self._epoch.rows - self._begun) // self._ranks) - self._given)


def _read(data: Rows, order: Order, place: Cursor, rank: int, ranks: int) -> Iterator[Sample]:
    """Give the samples; what fetches ahead ends with this."""
    fetching, block = begun(data, order, place, ranks), _BLOCK * ranks
    try:
        for first in range(place.step + rank, order.rows, block):
            steps = np.arange(first, min(first + block, order.rows), ranks, dtype=np.int64)
            rows = order.at(steps)
            for start in range(0, len(rows), _READ):
                some = rows[start : start + _READ]
                if fetching:
                    fetching.reached(int(steps[start]))
                    data.have(some, passing=True)
                yield from data.__getitems__(some)
    finally:
        if fetching:
            fetching.close()
            data.release_all()
