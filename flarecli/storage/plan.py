"""Ranges of a file, planned: those that lie near each other become one piece, since a gap costs less to read than another request."""

from __future__ import annotations

from collections.abc import Sequence

from flarecli.storage.location import Part

__all__ = ["cut", "joined"]

_NEAR = 1 << 16  # bytes of a gap that costs less to read


def joined(ranges: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Give the pieces to read, in order, and for each range the piece that it lies in; empty ranges lie in none."""
    starts: list[int] = []
    stops: list[int] = []
    piece_of = [0] * len(ranges)
    last = -_NEAR - 1
    for i in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[i]
        if start == stop:
            continue
        if start > last + _NEAR:
            starts.append(start)
            stops.append(stop)
            last = stop
        elif stop > last:
            stops[-1] = last = stop
        piece_of[i] = len(starts) - 1
    return list(zip(starts, stops, strict=True)), piece_of


def cut(data: Sequence[Part], pieces: Sequence[tuple[int, int]], piece_of: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Give the ranges out of the pieces that were read, in the order asked."""
    firsts = [start for start, _ in pieces]
    return [bytes(data[k][start - firsts[k] : stop - firsts[k]]) if start != stop else b"" for k, (start, stop) in zip(piece_of, ranges, strict=True)]
