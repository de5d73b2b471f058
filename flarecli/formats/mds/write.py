"""Join the fields of rows to the samples of an MDS shard.

numpy first joins adjacent fields of fixed size (lengths, numbers) for thousands of rows at once.
Arrow then joins them with the fields of variable size.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flarecli import encodings
from flarecli.encodings import lookup
from flarecli.errors import ValueFitError
from flarecli.formats.lines import base as lines
from flarecli.lazy import np, pa, pc
from flarecli.model import Column, Columns

__all__ = ["bodies"]

if TYPE_CHECKING:
    import numpy.typing as npt

    _Bytes = npt.NDArray[np.uint8]

_WORD_BYTES = (8, 4, 2, 1)  # bytes copied at a time
_STEP_ROWS = 8192  # rows joined at once; their fields of fixed size fit the CPU cache


def bodies(columns: Columns, batches: Sequence[pa.RecordBatch]) -> Iterator[memoryview]:
    """Yield the bytes of the samples in order, in pieces that fit the CPU cache.

    raises  ValueFitError for a null, or a field that does not have the size of its column
    """
    for batch in batches:
        for start in range(0, batch.num_rows, _STEP_ROWS):
            yield from _bodies(columns, batch.slice(start, _STEP_ROWS))


def _bodies(columns: Columns, batch: pa.RecordBatch) -> Iterator[memoryview]:
    pieces = _pieces(columns, batch)
    step = lines.step_of(
        batch.num_rows,
        sum(int(ends[-1] - ends[0]) for ends in map(lines.ends, pieces)),
        len(pieces),
    )
    for start in range(0, batch.num_rows, step):
        fields = [piece.slice(start, step) for piece in pieces]
        body = (
            fields[0]
            if len(fields) == 1
            else pc.binary_join_element_wise(*fields, pa.scalar(b"", encodings.BINARY))
        )
        ends = lines.ends(body)
        yield memoryview(body.buffers()[2] or b"")[int(ends[0]) : int(ends[-1])]


def _pieces(columns: Columns, batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the fields of the samples in order, with adjacent fixed fields joined: large_binary
    [rows] each.
    """
    fields = []
    for column in columns:
        array = batch.column(column.name)
        if array.null_count:  # Arrow would silently drop the whole row
            raise ValueFitError(
                f"column {column.name!r} is null; mds cannot store nulls", column=column.name
            )
        fields.append(
            encodings.stored(array, lookup(column.encoding))
            if column.size is None
            else _fixed(array, column)
        )
    run: list[_Bytes] = [
        _lengths([field for field in fields if isinstance(field, pa.Array)], batch.num_rows)
    ]
    pieces: list[pa.Array] = []
    for field in fields:
        if isinstance(field, pa.Array):
            pieces += [*_joined(run), field]
            run = []
        else:
            run.append(field)
    return [*pieces, *_joined(run)]


def _fixed(array: pa.Array, column: Column) -> _Bytes:
    """Return the stored bytes of a column of fixed size: uint8 [rows, size]."""
    encoding, size = lookup(column.encoding), column.size or 0
    if encoding.arrow.equals(encodings.BINARY):
        raw = encodings.stored(array, encoding)
        ends, data = lines.ends(raw), raw.buffers()[2]
        if (np.diff(ends) != size).any():
            raise ValueFitError(
                f"column {column.name!r}: expected {size} bytes", column=column.name
            )
        first = int(ends[0])
    else:
        data, first = array.buffers()[1], array.offset * size
    return np.frombuffer(
        data if data is not None else b"", np.uint8, len(array) * size, first
    ).reshape(len(array), size)


def _lengths(fields: Sequence[pa.Array], rows: int) -> _Bytes:
    """Return the lengths of fields of variable size: uint8 [rows, 4 * fields]."""
    words = np.empty((rows, len(fields)), "<u4")
    for i, field in enumerate(fields):
        words[:, i] = lines.lengths(field)
    return words.view(np.uint8)


@functools.lru_cache(maxsize=64)
def _word(width: int) -> np.dtype[Any]:
    """Return the widest dtype that divides a field of `width` bytes, to copy it by."""
    return np.dtype(f"u{next(size for size in _WORD_BYTES if width % size == 0)}")


def _joined(run: Sequence[_Bytes]) -> list[pa.Array]:
    """Join columns of fixed size to one large_binary array; an empty list if there are none."""
    if not run:
        return []
    rows, size = len(run[0]), sum(field.shape[1] for field in run)
    data, at = np.empty((rows, size), np.uint8), 0
    for field in run:
        width = field.shape[1]
        word = _word(width)
        data[:, at : at + width].view(word)[...] = field.view(word)
        at += width
    ends = np.arange(rows + 1, dtype=np.int64) * size
    return [
        pa.Array.from_buffers(
            encodings.BINARY, rows, [None, pa.py_buffer(ends), pa.py_buffer(data)]
        )
    ]
