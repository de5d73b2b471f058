"""The limit of `--max-object` on the bytes of a value, for every kind of source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from flarecli.encodings import value_sizes
from flarecli.model import IntArray
from flarecli.write.failures import Failure
from flarecli.write.fetch_links import Fetched
from flarecli.write.keys import key_text

__all__ = ["limited", "within_limit"]


def limited(parts: Iterator[Fetched], key: str | None, max_bytes: int) -> Iterator[Fetched]:
    """Yield the same rows; those with a larger value become failures with the text of column `key`."""
    try:
        for part in parts:
            batch, rows, failures = within_limit(part.batch, part.rows, key, max_bytes)
            if not failures:
                yield part
                continue
            kept = np.flatnonzero(np.isin(part.rows, rows)).tolist()
            names = {name: [values[row] for row in kept] for name, values in part.names.items()}
            failed = sorted([*part.failures, *failures], key=lambda one: one.row)
            yield replace(part, batch=batch, rows=rows, failures=failed, names=names)
    finally:
        parts.close()  # type: ignore[attr-defined]


def within_limit(
    batch: pa.RecordBatch, rows: IntArray, key: str | None, max_bytes: int
) -> tuple[pa.RecordBatch, IntArray, list[Failure]]:
    """Return the batch and rows without larger values, and a failure for each row left out."""
    failures: dict[int, Failure] = {}
    if batch.nbytes <= max_bytes:
        return batch, rows, []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        sizes = value_sizes(array)
        if sizes is None:
            continue
        for at in np.flatnonzero(sizes > max_bytes).tolist():
            failures.setdefault(
                at,
                Failure(
                    int(rows[at]),
                    "" if key is None or key == name else key_text(batch.column(key)[at]),
                    name,
                    "large",
                    f"a value of {sizes[at]} bytes, larger than the limit of {max_bytes} bytes",
                ),
            )
    if not failures:
        return batch, rows, []
    keep = np.ones(len(rows), bool)
    keep[list(failures)] = False
    return batch.filter(pa.array(keep)), rows[keep], [failures[at] for at in sorted(failures)]
