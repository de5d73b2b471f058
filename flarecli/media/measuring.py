"""How large a picture, video or sound is, by what its header says: no pixel is decoded, and no number is believed twice.

Numbers come from hostile bytes: they are told as they stand, and whoever allocates by them checks them first. What the
header does not say is None. Width and height are those of the stored pixels, before any EXIF orientation.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from flarecli.media import moving
from flarecli.media.kinds import sniff
from flarecli.media.sound import frames_of

__all__ = ["Measures", "measure"]


class Measures(NamedTuple):
    """What a header says. frames: pictures in it, 1 for a still one; duration in seconds."""

    kind: str | None = None
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    duration: float | None = None


def measure(data: bytes) -> Measures:
    """Measure a whole file in memory; what cannot be told, or is damaged, is None. Never raises."""
    kind = sniff(data[:512])
    read = _READERS.get(kind or "")
    if read is None:
        return Measures(kind)
    try:
        width, height, frames, duration = read(data)
    except (struct.error, IndexError, ValueError, OverflowError, ZeroDivisionError):
        return Measures(kind)
    if duration is not None and not (math.isfinite(duration) and duration >= 0):
        duration = None
    return Measures(kind, _side(width), _side(height), frames, duration)


def _side(pixels: int | None) -> int | None:
    """Leave out what is no length of a side: no picture has 2 to the 31 pixels in a row."""
    return pixels if pixels is not None and 0 <= pixels < 1 << 31 else None


_Found = tuple[int | None, int | None, int | None, float | None]
_NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})  # markers among those of frames that begin none


def _jpeg(data: bytes) -> _Found:
    at = 2
    while True:
        at = data.index(b"\xff", at)
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width = struct.unpack_from(">HH", data, at + 3)
            return width, height, 1, None
        if marker == 0xDA:  # the scan begins, and no frame did
            return None, None, None, None
        if marker not in (0x00, 0x01) and not 0xD0 <= marker <= 0xD8:
            at += int(struct.unpack_from(">H", data, at)[0])


def _png(data: bytes) -> _Found:
    width, height = struct.unpack_from(">II", data, 16)
    frames, duration, at = 1, 0.0, 8
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        if name == b"acTL":
            frames = struct.unpack_from(">I", data, at + 8)[0]
        elif name == b"fcTL":
            part, whole = struct.unpack_from(">HH", data, at + 28)
            duration += part / (whole or 100)
        elif name == b"IDAT" and frames == 1:
            break
        at += 12 + size
    return width, height, frames, duration or None


def _gif(data: bytes) -> _Found:
    width, height = struct.unpack_from("<HH", data, 6)
    frames, duration, at = 0, 0, 13 + _palette(data[10])
    while at < len(data) and data[at] != 0x3B:
        if data[at] == 0x2C:
            frames += 1
            at += 11 + _palette(data[at + 9])
        else:
            if data[at + 1] == 0xF9:
                duration += struct.unpack_from("<H", data, at + 4)[0]
            at += 2
        while data[at]:  # blocks of up to 255 bytes, until an empty one
            at += 1 + data[at]
        at += 1
    return width, height, frames or None, duration / 100 or None


def _palette(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp(data: bytes) -> _Found:
    first = data[12:16]
    if first == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF, 1, None
    if first == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 1, None
    if first != b"VP8X":
        return None, None, None, None
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    durations = [
        int.from_bytes(data[at + 12 : at + 15], "little")
        for name, at in _chunks(data, 12)
        if name == b"ANMF"
    ]
    return width, height, len(durations) or 1, sum(durations) / 1000 or None


def _chunks(data: bytes, at: int) -> Iterator[tuple[bytes, int]]:
    """Give the chunks of a RIFF file: name, and where the payload begins."""
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        yield name, at + 8
        at += 8 + size + size % 2


def _bmp(data: bytes) -> _Found:
    if data[14] == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return abs(width), abs(height), 1, None


def _tiff(data: bytes) -> _Found:
    order = "<" if data[:2] == b"II" else ">"
    at, seen = struct.unpack_from(f"{order}I", data, 4)[0], set[int]()
    size: dict[int, int] = {}
    while at and at not in seen and len(seen) < 10_000:
        seen.add(at)
        count = struct.unpack_from(f"{order}H", data, at)[0]
        for entry in range(at + 2, at + 2 + 12 * count, 12) if len(seen) == 1 else ():
            tag, kind = struct.unpack_from(f"{order}HH", data, entry)
            if tag in (256, 257):
                size[tag] = struct.unpack_from(
                    f"{order}{'H' if kind == 3 else 'I'}", data, entry + 8
                )[0]
        at = struct.unpack_from(f"{order}I", data, at + 2 + 12 * count)[0]
    return size.get(256), size.get(257), len(seen), None


def _wav(data: bytes) -> _Found:
    rate = 0
    for name, at in _chunks(data, 12):
        if name == b"fmt ":
            rate = struct.unpack_from("<I", data, at + 8)[0]
        elif name == b"data" and rate:
            return (
                None,
                None,
                None,
                min(struct.unpack_from("<I", data, at - 4)[0], len(data) - at) / rate,
            )
    return None, None, None, None


def _mp3(data: bytes) -> _Found:
    return None, None, None, frames_of(data).duration


def _flac(data: bytes) -> _Found:
    packed = int.from_bytes(data[18:26])
    rate, samples = packed >> 44, packed & (1 << 36) - 1
    return None, None, None, samples / rate if samples else None


def _ogg(data: bytes) -> _Found:
    last = data.rfind(b"OggS")
    samples = struct.unpack_from("<q", data, last + 6)[0]
    vorbis, opus = data.find(b"\x01vorbis", 0, 512), data.find(b"OpusHead", 0, 512)
    if vorbis >= 0:
        return None, None, None, samples / int(struct.unpack_from("<I", data, vorbis + 12)[0])
    if opus >= 0:
        return (
            None,
            None,
            None,
            (samples - int(struct.unpack_from("<H", data, opus + 10)[0])) / 48_000,
        )
    return None, None, None, None


_READERS: dict[str, Callable[[bytes], _Found]] = {
    "jpeg": _jpeg,
    "png": _png,
    "gif": _gif,
    "webp": _webp,
    "bmp": _bmp,
    "tiff": _tiff,
    "wav": _wav,
    "flac": _flac,
    "mp3": _mp3,
    "ogg": _ogg,
    "avif": moving.still,
    "heic": moving.still,
    "mp4": moving.mp4,
    "mov": moving.mp4,
    "m4a": moving.mp4,
    "mkv": moving.matroska,
    "webm": moving.matroska,
}
