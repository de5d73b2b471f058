"""Measures of a whole column, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flarecli.media.measuring import measure

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["INFO", "info"]

INFO = ("width", "height", "frames", "duration")


def info(values: pa.Array) -> dict[str, pa.Array]:
    """Measure each value by its header.

    values  binary or large_binary [rows], whole files
    return  width, height and frames as int64 [rows], duration as float64 [rows] in seconds; null for what is not known
    """
    import pyarrow as pa

    found = [measure(memory.to_pybytes()) if memory is not None else None for memory in (scalar.as_buffer() for scalar in values)]
    return {
        name: pa.array([None if one is None else getattr(one, name) for one in found], pa.float64() if name == "duration" else pa.int64())
        for name in INFO
    }
