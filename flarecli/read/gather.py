"""Gather rows from mapped shards: locate the rows of several batches at once, copy one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from flarecli.formats import byte_ranges as spans
from flarecli.model import IntArray

__all__ = ["Found", "Stock"]


class Found(NamedTuple):
    """Rows located in memory.

    rows   the number of rows
    batch  returns rows start..stop as a batch
    """

    rows: int
    batch: Callable[[int, int], dict[str, Any]]


class Stock:
    """Located rows in the requested order. It keeps the maps of its shards open.

    parts  the located rows of each shard
    sizes  the number of rows of each part
    order  int64 [rows]: the requested position of each row of the concatenated parts
    """

    def __init__(
        self, parts: Sequence[spans.LocatedRows], sizes: Sequence[int], order: IntArray
    ) -> None:
        self.rows = len(order)
        self._is_viewed = any(isinstance(part.source, memoryview) for part in parts)
        pieces = {name: [part.columns[name] for part in parts] for name in parts[0].columns}
        if len(parts) > 1:
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            taken = itemgetter(*back.tolist())
        # an array of voids, or (buffer, start, stop) of each value
        self._columns: dict[str, Any] = {}
        for name, of_parts in pieces.items():
            if all(
                isinstance(one, np.ndarray) and one.dtype == of_parts[0].dtype for one in of_parts
            ):
                self._columns[name] = (
                    of_parts[0] if len(parts) == 1 else np.concatenate(of_parts)[back]
                )
                continue
            places: list[tuple[Any, int, int]] = []
            for part, one, size in zip(parts, of_parts, sizes, strict=True):
                places += _places(part.source, one, size)
            self._columns[name] = places if len(parts) == 1 else taken(places)

    def columns(self, start: int, stop: int) -> dict[str, Any]:
        """Copy the stored bytes of rows start..stop.

        return  name -> array of voids [rows] if all values have one size, else a list of bytes
        """
        return {name: self._cut(one, start, stop) for name, one in self._columns.items()}

    def _cut(self, one: Any, start: int, stop: int) -> Any:
        if isinstance(one, np.ndarray):
            return one if stop - start == self.rows else one[start:stop].copy()
        values = [source[at:end] for source, at, end in one[start:stop]]
        return (
            [*map(bytes, values)] if self._is_viewed else values
        )  # a slice of a memoryview is no copy


def _places(source: Any, one: Any, size: int) -> Iterable[tuple[Any, int, int]]:
    if isinstance(one, tuple):
        starts, stops = one
        return zip(repeat(source, size), starts.tolist(), stops.tolist(), strict=True)
    values = one.tolist() if isinstance(one, np.ndarray) else one
    return zip(values, repeat(0, size), map(len, values), strict=True)
