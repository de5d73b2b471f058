"""Plan the requests for byte ranges of a file: near ranges are read together, large ones in several requests."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["REQUEST_BYTES", "cut", "join_near", "split"]

REQUEST_BYTES = 8 << 20  # of one request, or of one part of an upload
_GAP_BYTES = 1 << 16  # a smaller gap costs less to read than another request


def split(start: int, stop: int) -> list[tuple[int, int]]:
    """Split a range of more than two requests into pieces of REQUEST_BYTES."""
    return (
        [(at, min(at + REQUEST_BYTES, stop)) for at in range(start, stop, REQUEST_BYTES)]
        if stop - start > 2 * REQUEST_BYTES
        else [(start, stop)]
    )


def join_near(ranges: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the pieces to read, in order, and for each range the index of its piece; 0 for an empty range."""
    starts: list[int] = []
    stops: list[int] = []
    piece_of = [0] * len(ranges)
    last = -_GAP_BYTES - 1
    for i in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[i]
        if start == stop:
            continue
        if start > last + _GAP_BYTES:
            starts.append(start)
            stops.append(stop)
            last = stop
        elif stop > last:
            stops[-1] = last = stop
        piece_of[i] = len(starts) - 1
    return list(zip(starts, stops, strict=True)), piece_of


def cut(
    data: Sequence[bytes | bytearray | memoryview],
    pieces: Sequence[tuple[int, int]],
    piece_of: Sequence[int],
    ranges: Sequence[tuple[int, int]],
) -> list[bytes]:
    """Return the bytes of the ranges, in the order asked, out of the pieces that were read."""
    firsts = [start for start, _ in pieces]
    return [
        bytes(data[k][start - firsts[k] : stop - firsts[k]]) if start != stop else b""
        for k, (start, stop) in zip(piece_of, ranges, strict=True)
    ]
