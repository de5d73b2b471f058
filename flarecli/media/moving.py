"""Headers of boxes in boxes: the MP4 family with its pictures (AVIF, HEIC), and Matroska with WebM.

Each gives width, height, frames and duration in seconds, None for what the header does not say. Sizes of boxes are held
against the box around them, so that a walk never leaves the bytes and always ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["matroska", "mp4", "still"]

_PARTS = 100_000  # boxes or elements that are walked on one level
Found = tuple[int | None, int | None, int | None, float | None]


def _boxes(data: bytes, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Give the boxes between two places: name, where the payload begins, and where it ends."""
    for _ in range(_PARTS):
        if start + 8 > stop:
            return
        size, name = struct.unpack_from(">I4s", data, start)
        begin = start + 8
        if size == 1:
            size, begin = struct.unpack_from(">Q", data, begin)[0], begin + 8
        end = stop if size == 0 else start + size
        if end > stop or end < begin:
            return
        yield name, begin, end
        start = end


def _inside(
    data: bytes, path: tuple[bytes, ...], start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Give the payloads of the boxes at a path."""
    for name, begin, end in _boxes(data, start, stop):
        if name == path[0]:
            if len(path) == 1:
                yield begin, end
            else:
                yield from _inside(data, path[1:], begin, end)


def mp4(data: bytes) -> Found:
    """Read `mvhd` for the duration, and of the first track of pictures `tkhd` and `stsz`."""
    width = height = frames = duration = None
    for moov, end in _inside(data, (b"moov",), 0, len(data)):
        for at, _ in _inside(data, (b"mvhd",), moov, end):
            scale, ticks = (
                struct.unpack_from(">IQ", data, at + 20)
                if data[at] == 1
                else struct.unpack_from(">II", data, at + 12)
            )
            duration = ticks / scale if ticks else None
        for track, stop in _inside(data, (b"trak",), moov, end):
            if not any(
                data[at + 8 : at + 12] == b"vide"
                for at, _ in _inside(data, (b"mdia", b"hdlr"), track, stop)
            ):
                continue
            for _, over in _inside(data, (b"tkhd",), track, stop):
                width, height = (side >> 16 for side in struct.unpack_from(">II", data, over - 8))
            for at, _ in _inside(data, (b"mdia", b"minf", b"stbl", b"stsz"), track, stop):
                frames = struct.unpack_from(">I", data, at + 8)[0]
            break
    return width or None, height or None, frames or None, duration


def still(data: bytes) -> Found:
    """Read the largest `ispe` of an AVIF or HEIC picture: tiles and thumbnails are smaller than the whole."""
    sizes = [
        struct.unpack_from(">II", data, at + 4)
        for meta, end in _inside(data, (b"meta",), 0, len(data))
        for at, _ in _inside(data, (b"iprp", b"ipco", b"ispe"), meta + 4, end)
    ]
    width, height = max(sizes, key=lambda size: size[0] * size[1], default=(None, None))
    return width, height, None if width is None else 1, None


_SEGMENT, _INFO, _TRACKS, _TRACK, _VIDEO = 0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0xE0
_SCALE, _DURATION, _WIDTH, _HEIGHT, _CLUSTER = 0x2AD7B1, 0x4489, 0xB0, 0xBA, 0x1F43B675


def matroska(data: bytes) -> Found:
    """Read Info and the first track with pictures; both stand before the first cluster."""
    scale, ticks = 1_000_000, 0.0
    width = height = None
    for name, start, stop in _below(data, _SEGMENT):
        if name == _CLUSTER:
            break
        if name == _INFO:
            for one, begin, end in _elements(data, start, stop):
                if one == _SCALE:
                    scale = int.from_bytes(data[begin:end])
                elif one == _DURATION:
                    ticks = struct.unpack(">f" if end - begin == 4 else ">d", data[begin:end])[0]
        elif name == _TRACKS and width is None:
            for one, begin, end in _elements(data, start, stop):
                for part, first, last in _elements(data, begin, end) if one == _TRACK else ():
                    if part == _VIDEO:
                        sides = {
                            side: int.from_bytes(data[a:b])
                            for side, a, b in _elements(data, first, last)
                            if side in (_WIDTH, _HEIGHT)
                        }
                        width, height = sides.get(_WIDTH), sides.get(_HEIGHT)
    return width, height, None, ticks * scale / 1e9 or None


def _below(data: bytes, wanted: int) -> Iterator[tuple[int, int, int]]:
    for name, start, stop in _elements(data, 0, len(data)):
        if name == wanted:
            yield from _elements(data, start, stop)


def _elements(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Give the elements between two places: name, where the payload begins, and where it ends; one of unknown size takes the rest."""
    for _ in range(_PARTS):
        if start >= stop:
            return
        length = 9 - data[start].bit_length()
        name = int.from_bytes(data[start : start + length])
        start += length
        width = 9 - data[start].bit_length()
        size = int.from_bytes(data[start : start + width]) & (1 << 7 * width) - 1
        start += width
        end = stop if size == (1 << 7 * width) - 1 else min(start + size, stop)
        yield name, start, end
        start = end
