"""Epoch orders, which map each step to a row, independently of the number of ranks.

sequential  step i reads row i
shuffle     a keyed permutation of all rows
windows     a keyed permutation of the chunks. Each group of `window` consecutive chunks in this
            permutation is a window, and the rows of a window are permuted together. A reader needs
            only the chunks of one window at a time

A keyed permutation computes the row of any step in any epoch, and needs no stored table. It is a
Feistel network: a number below `rows` is a pair (left, right) in Z_a x Z_b, where a·b is `rows` or
slightly more. Each round adds a keyed hash of one half to the other half; a round is a bijection on
the pairs. If a result is not below `rows`, it is permuted again (cycle walking). Steps are permuted
in blocks that fit into the CPU cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flarecli.arguments import check_minimum, shown
from flarecli.errors import RowsError, UsageError
from flarecli.hashes import mix64
from flarecli.model import IntArray

__all__ = ["Epoch", "positions"]

_UInt64Array: TypeAlias = npt.NDArray[np.uint64]

_ROUNDS = 6
_BLOCK_STEPS = 1 << 14
# constants of splitmix64
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
_HALF = np.uint64(32)  # half of the bits of a uint64
MAX_EPOCH = 1 << 63
ORDERS = ("shuffle", "windows", "sequential")


def positions(steps: IntArray, rows: int, seed: int, epoch: int = 0) -> IntArray:
    """Return the row of each step: a keyed permutation of `range(rows)`.

    A result depends only on (step, rows, seed, epoch), so a run can resume at any step.

    steps        int64 [k], each in [0, rows)
    rows         number of rows, at least 1
    seed, epoch  numbers of at least 0, which determine the permutation
    return       int64 [k], each in [0, rows), distinct for distinct steps
    raises       RowsError if a step is outside [0, rows)
    source       cycle walking on a Feistel network: Black and Rogaway, CT-RSA 2002
    """
    steps = np.asarray(steps, np.int64)
    if len(steps) and (rows < 1 or steps.min() < 0 or steps.max() >= rows):
        raise RowsError(f"step is outside the range 0 to {rows - 1}")
    a, b = _sides(rows)
    keys = _keys(seed, epoch)
    return _inside(
        steps, np.uint64(max(rows, 0)), lambda numbers, _: _permuted(numbers, a, b, keys)
    )


def positions_apart(
    steps: IntArray, which: IntArray, rows: Sequence[int], seed: int, epochs: Sequence[int]
) -> IntArray:
    """Return the row of each step; `which` selects one of n permutations for each step.

    steps   int64 [k], each in [0, rows[which])
    which   int64 [k]: the index of the permutation for each step, in [0, n)
    rows, epochs   n values each, one per permutation; see `positions`
    return  int64 [k]
    """
    sides = np.array([_sides(count) for count in rows], np.uint64).reshape(-1, 2)
    table = np.array([_keys(seed, epoch) for epoch in epochs], np.uint64).reshape(-1, _ROUNDS)

    def permuted(numbers: _UInt64Array, at: Any) -> _UInt64Array:
        indices = which[at]
        return _permuted(
            numbers,
            sides[indices, 0],
            sides[indices, 1],
            (table[indices, i] for i in range(_ROUNDS)),
        )

    return _inside(steps, np.asarray(rows, np.uint64)[which], permuted)


def _inside(
    steps: IntArray, rows: Any, permuted: Callable[[_UInt64Array, Any], _UInt64Array]
) -> IntArray:
    """Permute steps, one block at a time. A result that is not below `rows` is permuted again.

    rows      number of rows: one number, or uint64 [k] with a number for each step
    permuted  function(numbers, positions) that permutes numbers. `positions`, a slice or int64 [n],
              selects the elements of `steps` to which the numbers belong
    """
    out = np.empty(len(steps), np.int64)
    for start in range(0, len(steps), _BLOCK_STEPS):
        here = slice(start, start + _BLOCK_STEPS)
        block = permuted(steps[here].astype(np.uint64), here)
        ends = rows if np.ndim(rows) == 0 else rows[here]
        while (outside := np.flatnonzero(block >= ends)).size:
            block[outside] = permuted(block[outside], start + outside)
        out[here] = block
    return out


def _sides(rows: int) -> tuple[int, int]:
    """Return two numbers of similar size whose product is `rows` or slightly more."""
    a = math.isqrt(max(rows - 1, 0)) + 1
    return a, -(-rows // a)


def _keys(seed: int, epoch: int) -> list[np.uint64]:
    state = (seed * 0xD1342543DE82EF95 + epoch * 0xAF251AF3B0F025B5 + 1) & _MASK
    # splitmix64 makes the keys of adjacent seeds unrelated
    states = [(state + (i + 1) * _GOLDEN) & _MASK for i in range(_ROUNDS)]
    return list(mix64(np.array(states, np.uint64)))


def _permuted(numbers: _UInt64Array, a: Any, b: Any, keys: Iterable[Any]) -> _UInt64Array:
    """Return the permuted numbers; numbers and results are below a * b.

    a, b, keys  scalars, or arrays with one value for each number
    """
    high, low = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
    left = numbers // low
    right = numbers - left * low
    mixed, spare = np.empty_like(left), np.empty_like(left)
    for i, key in enumerate(keys):
        half, other, size = (left, right, low) if i % 2 else (right, left, high)
        np.add(half, key, out=mixed)  # a uint64 overflow wraps around
        np.multiply(mixed, _MIX1, out=mixed)
        np.right_shift(mixed, _HALF, out=spare)
        np.bitwise_xor(mixed, spare, out=mixed)
        np.multiply(mixed, _MIX2, out=mixed)
        # (32-bit hash * size) >> 32 is below size and needs no division
        np.right_shift(mixed, _HALF, out=mixed)
        np.multiply(mixed, size, out=mixed)
        np.right_shift(mixed, _HALF, out=mixed)
        np.add(other, mixed, out=other)
        # Compute other % size, where other < 2 * size, as the minimum of `other` and
        # `other - size`. If other < size, the subtraction wraps around to a huge number.
        np.subtract(other, size, out=spare)
        np.minimum(other, spare, out=other)
    np.multiply(left, low, out=left)
    np.add(left, right, out=left)
    return left


class Epoch:
    """The row order of one epoch.

    edges   int64 [chunks + 1]: the first row of each chunk, then the number of rows
    window  number of chunks whose rows are mixed, for order `windows`
    raises  UsageError for an unknown order, and for an invalid window, seed or epoch
    """

    parallel_windows = 1  # number of windows that are read at the same time; see `MixOrder`

    def __init__(self, edges: IntArray, seed: int, epoch: int, order: str, window: int) -> None:
        if order not in ORDERS:
            raise UsageError(
                f"unknown order {shown(order)}", hint=f"Choose one of {', '.join(ORDERS)}."
            )
        check_minimum(1, window=window)
        check_minimum(0, seed=seed, epoch=epoch)
        if epoch >= MAX_EPOCH:  # keys have 64 bits, so higher epochs would repeat earlier orders
            raise UsageError(f"epoch: expected less than 2^63, got {epoch}")
        self.rows = int(edges[-1])
        self._seed, self._epoch, self._order = seed, epoch, order
        self._edges, self._window = edges, window
        if order == "windows":
            chunks = len(edges) - 1
            self._chunks = positions(np.arange(chunks), chunks, seed, epoch)
            # Both arrays are in the permuted order of the chunks: the first row of each chunk, and
            # the number of rows in the preceding chunks (at the end, the number of all rows).
            self._firsts = edges[:-1][self._chunks]
            self._starts = np.concatenate([[0], np.cumsum(np.diff(edges)[self._chunks])])
            # the first step of each window, then the number of steps
            self._bounds = self._starts[[*range(0, chunks, window), chunks]]

    def windows(self, step: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield the window that contains a step, and all later windows.

        A window is a tuple: first step, end step (exclusive), and a list with the row range
        (start, stop) of each chunk. The order `shuffle` has no windows.
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
