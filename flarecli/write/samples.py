"""Samples written one by one: encoded at once, and held until they make a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from flarecli import encodings
from flarecli.errors import FlareError, UsageError, ValueFitError
from flarecli.model import Columns

__all__ = ["Samples"]

_ROWS, _BYTES = 1024, 1 << 24  # that wait to become a batch


class Samples:
    """What waits, in order; its length is how many samples that is."""

    def __init__(self) -> None:
        self._held: list[dict[str, Any]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether they are enough for a batch."""
        return len(self._held) >= _ROWS or self._size >= _BYTES

    def add(self, columns: Columns, sample: Mapping[str, Any], first: int) -> None:
        """Encode a sample; `first` is the row of the first that waits.

        raises  UsageError for a missing or unknown column; ValueFitError for a value that its encoding cannot hold
        """
        if not hasattr(sample, "keys"):
            raise UsageError(
                f"a sample is a mapping of columns to values, not {type(sample).__name__}"
            )
        if sample.keys() != {column.name for column in columns}:
            names = sorted(set(sample) ^ {column.name for column in columns})
            raise UsageError(
                f"column {names[0]!r} is {'unknown' if names[0] in sample else 'missing'} in the sample",
                column=names[0],
            )
        row = {}
        for column in columns:
            try:
                row[column.name] = encodings.encode(
                    encodings.lookup(column.encoding), sample[column.name]
                )
            except FlareError as error:
                at = first + len(self._held)
                raise error.changed(address="", row=at).of_column(column.name) from None
        self._held.append(row)
        self._size += _weight(row)

    def batch(self, columns: Columns, first: int) -> pa.RecordBatch:
        """Give all that wait as typed columns; `first` is the row of the first.

        raises  ValueFitError naming the row of bytes that are not UTF-8
        """
        arrays = []
        for column in columns:
            encoding = encodings.lookup(column.encoding)
            try:
                arrays.append(
                    encodings.typed(
                        pa.array([sample[column.name] for sample in self._held], encoding.raw),
                        encoding,
                    )
                )
            except ValueFitError as error:
                raise error.at("", first).of_column(column.name) from None
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([encodings.field(column) for column in columns])
        )

    def passed(self, count: int, refused: int = -1) -> None:
        """Let go of the first ones, which were taken, and of one that cannot be, if there is such a one."""
        self._held = [one for at, one in enumerate(self._held) if at >= count and at != refused]
        self._size = sum(map(_weight, self._held))


def _weight(row: Mapping[str, Any]) -> int:
    return sum(
        sum(map(len, stored)) if isinstance(stored, list) else len(stored)
        for stored in row.values()
    )
