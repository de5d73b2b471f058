"""Assignment of rows to the parts of a split, by a hash of the seed and the row number or key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import xxhash

from flarecli import encodings
from flarecli.arguments import shown
from flarecli.encodings import BINARY
from flarecli.errors import UsageError
from flarecli.hashes import mix64
from flarecli.model import IntArray, UInt64Array

__all__ = ["check_fractions", "key_hashes", "part_rows", "row_hashes"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # increment of splitmix64
_TOLERANCE = 1e-9  # allowed error in a sum of fractions such as 0.7 + 0.2 + 0.1


def check_fractions(fractions: Mapping[str, float]) -> None:
    """Raise UsageError unless the fractions are positive numbers whose sum is 1."""
    values = list(fractions.values())
    is_valid = all(
        isinstance(value, (int, float)) and math.isfinite(value) and value > 0 for value in values
    )
    if not is_valid or abs(sum(values) - 1) > _TOLERANCE:
        raise UsageError(
            f"expected fractions with a sum of 1, got {shown(dict(fractions))}",
            hint='Pass a dict such as {"train": 0.9, "val": 0.1}.',
        )


def row_hashes(rows: int, seed: int) -> UInt64Array:
    """Return a hash of the seed and each row number: uint64 [rows]."""
    with np.errstate(over="ignore"):
        mixed = np.arange(rows, dtype=np.uint64) + np.uint64(seed % (1 << 64)) * _GOLDEN
        for _ in range(2):  # one pass would return related hashes for adjacent seeds
            mixed = mix64(mixed + _GOLDEN)
    return mixed


def key_hashes(columns: Iterable[pa.Array], seed: int) -> UInt64Array:
    """Return a hash of the seed and each key: uint64 [rows]; a null has the hash of an empty key.

    columns  arrays of text, bytes, integers or other types that Arrow casts to text
    """
    hashes = [
        xxhash.xxh3_64_intdigest(b"" if data is None else data, seed % (1 << 64))
        for column in columns
        for data in encodings.raw_values(_as_bytes(column))
    ]
    return np.array(hashes, np.uint64)


def _as_bytes(column: pa.Array) -> pa.Array:
    if encodings.is_binary(column.type):
        return column.cast(BINARY)
    try:
        return column.cast(pa.large_string())
    except pa.ArrowNotImplementedError:
        raise UsageError(f"values of type {column.type} cannot be keys") from None


def part_rows(hashes: UInt64Array, fractions: Mapping[str, float]) -> dict[str, IntArray]:
    """Return part name -> row numbers, int64 [k], ascending. A row's hash determines its part."""
    ends = np.cumsum(list(fractions.values()))
    ends[-1] = 1
    # only the upper 53 bits of a hash are used, because a float64 represents them exactly
    part = np.searchsorted(ends, (hashes >> np.uint64(11)) * 2.0**-53, "right")
    return {name: np.flatnonzero(part == i) for i, name in enumerate(fractions)}
