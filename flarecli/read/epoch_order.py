"""Epoch orders, which map each step to a row, independently of the number of ranks.

sequential  step i reads row i
shuffle     a keyed permutation of all rows
windows     a keyed permutation of the chunks, with the rows of `window` consecutive chunks
            permuted together; a reader needs only `window` chunks open or cached at a time
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from flarecli.arguments import check_minimum, shown
from flarecli.errors import UsageError
from flarecli.model import IntArray
from flarecli.read.permutation import positions, positions_apart

__all__ = ["ORDERS", "Epoch"]

MAX_EPOCH = 1 << 63
ORDERS = ("shuffle", "windows", "sequential")


class Epoch:
    """The row order of one epoch.

    edges   int64 [chunks + 1]: the first row of each chunk, then the number of rows
    window  number of chunks whose rows are mixed, for order `windows`
    raises  UsageError for an unknown order or a window below 1
    """

    parallel_windows = 1

    def __init__(self, edges: IntArray, seed: int, epoch: int, order: str, window: int) -> None:
        if order not in ORDERS:
            raise UsageError(
                f"unknown order {shown(order)}", hint=f"Choose one of {', '.join(ORDERS)}."
            )
        check_minimum(1, window=window)
        check_minimum(0, seed=seed, epoch=epoch)
        if epoch >= MAX_EPOCH:  # keys have 64 bits, so later epochs would repeat earlier orders
            raise UsageError(f"epoch: expected less than 2^63, got {epoch}")
        self.rows = int(edges[-1])
        self._seed, self._epoch, self._order = seed, epoch, order
        self._edges, self._window = edges, window
        if order == "windows":
            chunks = len(edges) - 1
            self._chunks = positions(np.arange(chunks), chunks, seed, epoch)
            # for the chunks in permuted order: the first row, and the first step before mixing
            self._firsts = edges[:-1][self._chunks]
            self._starts = np.concatenate([[0], np.cumsum(np.diff(edges)[self._chunks])])
            # the first step of each window
            self._bounds = self._starts[[*range(0, chunks, window), chunks]]

    def windows(self, step: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield the windows from a step on: first step, end step, and (start, stop) rows per chunk.

        Order `shuffle` has no windows.
        """
        if self._order == "sequential":
            chunk = max(0, int(np.searchsorted(self._edges, step, "right")) - 1)
            for start, stop in pairwise(self._edges[chunk:].tolist()):
                if start < stop:
                    yield start, stop, [(start, stop)]
        elif self._order == "windows":
            first = max(0, int(np.searchsorted(self._bounds, step, "right")) - 1)
            for k in range(first, len(self._bounds) - 1):
                chunks = self._chunks[k * self._window : (k + 1) * self._window]
                starts, stops = self._edges[chunks].tolist(), self._edges[chunks + 1].tolist()
                ranges = [
                    (start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop
                ]
                yield int(self._bounds[k]), int(self._bounds[k + 1]), ranges

    def at(self, steps: IntArray) -> IntArray:
        """Return the row of each step.

        steps   int64 [k], each in [0, rows)
        return  int64 [k]
        """
        if self._order == "sequential":
            return np.asarray(steps, np.int64)
        if self._order == "shuffle":
            return positions(steps, self.rows, self._seed, self._epoch)
        windows = np.searchsorted(self._bounds, steps, "right") - 1
        firsts = self._bounds[windows]
        distinct, which = np.unique(windows, return_inverse=True)
        rows = (self._bounds[distinct + 1] - self._bounds[distinct]).tolist()
        epochs = [self._epoch + ((window + 1) << 32) for window in distinct.tolist()]
        if len(distinct) == 1:
            mixed = firsts + positions(steps - firsts, rows[0], self._seed, epochs[0])
        else:
            mixed = firsts + positions_apart(steps - firsts, which, rows, self._seed, epochs)
        chunk = np.searchsorted(self._starts, mixed, "right") - 1
        return np.asarray(self._firsts[chunk] + mixed - self._starts[chunk])
