"""Batches of any sizes, cut anew to one."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

__all__ = ["of_size"]


def of_size(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Give the same rows in batches of exactly `size` rows, the last one smaller."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while count + batch.num_rows >= size:
            cut = size - count
            yield pa.concat_batches([*held, batch.slice(0, cut)]) if held else batch.slice(0, cut)
            batch, held, count = batch.slice(cut), [], 0
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield pa.concat_batches(held)
