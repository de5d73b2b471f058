"""Columns of MessagePack that hold nothing but floats: a byte CB, then 8 bytes from the high end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli.encodings.names import BINARY
from flarecli.encodings.packed import unpack
from flarecli.errors import ValueFitError

__all__ = ["parse", "parse_all", "text"]


def text(array: pa.Array) -> pa.Array:
    """Give the stored bytes, large_binary [n], of a float64 array; null where it is."""
    data = np.empty((len(array), 9), np.uint8)
    data[:, 0] = 0xCB
    data[:, 1:] = (
        array.fill_null(0.0)
        .to_numpy(zero_copy_only=False)
        .astype(">f8")
        .view(np.uint8)
        .reshape(-1, 8)
    )
    ends = pa.py_buffer(np.arange(len(array) + 1, dtype=np.int64) * 9)
    out = pa.Array.from_buffers(BINARY, len(array), [None, ends, pa.py_buffer(data)])
    return pc.if_else(array.is_null(), pa.scalar(None, BINARY), out) if array.null_count else out


def parse(raw: pa.Array) -> pa.Array:
    """Give float64 [n] of stored bytes, large_binary [n]; null where that is null.

    raises  ValueFitError naming the first row that is no number
    """
    out = parse_all(raw)
    if out is not None:
        return out
    values = []
    for row, data in enumerate(raw.to_pylist()):
        try:
            value = None if data is None else unpack(data)
            if data is not None and (
                isinstance(value, bool) or not isinstance(value, (int, float))
            ):
                raise ValueFitError("not a number of MessagePack")
            values.append(None if value is None else float(value))
        except ValueFitError as error:
            raise error.changed(row=row) from None
    return pa.array(values, pa.float64())


def parse_all(raw: pa.Array) -> pa.Array | None:
    """Give the same if every value is a float of 64 bits; None if one is not."""
    if raw.null_count or not pc.all(pc.equal(pc.binary_length(raw), 9), min_count=0).as_py():
        return None
    if not pc.all(pc.starts_with(raw, b"\xcb"), min_count=0).as_py():
        return None
    if not len(raw):
        return pa.array([], pa.float64())
    start = np.frombuffer(raw.buffers()[1], np.int64, 1, raw.offset * 8)[0]
    data = np.frombuffer(raw.buffers()[2], np.uint8, len(raw) * 9, start).reshape(-1, 9)
    return pa.array(np.ascontiguousarray(data[:, 1:]).view(">f8").astype(np.float64).ravel())
