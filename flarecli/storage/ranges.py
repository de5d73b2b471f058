"""Ranges of a file, planned: near ones become one piece, since a gap costs less to read than another request; a large one becomes several."""

from __future__ import annotations

from collections.abc import Sequence

from flarecli.storage.base import Part

__all__ = ["PIECE", "cut", "joined", "split"]

PIECE = 8 << 20  # what one request reads, or one part of an upload holds
_NEAR = 1 << 16  # bytes of a gap that costs less to read


def split(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut a large range into pieces that are asked for side by side; what is little more than one of them is not cut."""
    return (
        [(at, min(at + PIECE, stop)) for at in range(start, stop, PIECE)]
        if stop - start > 2 * PIECE
        else [(start, stop)]
    )


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


def cut(
    data: Sequence[Part],
    pieces: Sequence[tuple[int, int]],
    piece_of: Sequence[int],
    ranges: Sequence[tuple[int, int]],
) -> list[bytes]:
    """Give the ranges out of the pieces that were read, in the order asked."""
    firsts = [start for start, _ in pieces]
    return [
        bytes(data[k][start - firsts[k] : stop - firsts[k]]) if start != stop else b""
        for k, (start, stop) in zip(piece_of, ranges, strict=True)
    ]
