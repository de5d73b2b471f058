"""MPEG audio, layer III: frames one behind another, each with a head of four bytes that says how long it is.

    0   ID3v2    10 bytes and as many as four times seven bits say, if there is one
        frames   11 bits of ones, version, layer, bit rate, samples a second, padding, …
        tail     128 bytes `TAG`, APE, zeros: whatever follows the last frame

The first frame may hold no sound but, behind its side information, `Xing` or `Info` with how many frames follow.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Frames", "frames_of"]

_FRAMES, _LOST = (
    1_000_000,
    4096,
)  # frames that are counted: seven hours; zeros between a tag and the first frame
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_BITS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_NAMES = re.compile(b"Xing|Info|VBRI")  # in a first frame that holds no sound
_BITS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


class Frames(NamedTuple):
    """whole: frames that are there, whole ones; duration in seconds, None without any; told: frames as the file says, None if it does not."""

    whole: int
    duration: float | None
    told: int | None


def frames_of(data: bytes) -> Frames:
    """Walk the frames of a file in memory, from one head to the next; the last one may be cut short and is not counted."""
    at = 0
    if data[:3] == b"ID3" and len(data) >= 10:
        at = 10 + sum((byte & 0x7F) << 7 * (3 - i) for i, byte in enumerate(data[6:10]))
    if at < len(data) and not data[at]:
        at += next((i for i, byte in enumerate(data[at : at + _LOST]) if byte), 0)
    count, seconds, told = 0, 0.0, None
    while count < _FRAMES:
        head = _head(data, at)
        if head is None or at + head[0] > len(data):
            break
        size, samples, rate = head
        name = None if count else _NAMES.search(data, at, at + min(size, 64))
        if name is None:
            count, seconds = count + 1, seconds + samples / rate
        elif told is not None or _head(data, at + size) is None:
            break
        elif name[0] != b"VBRI" and data[name.end() + 3] & 1:
            told = int.from_bytes(data[name.end() + 4 : name.end() + 8])
        at += size
    return Frames(count, seconds or None, told)


def _head(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Read a frame's head: bytes of the frame, samples in it, samples a second; None if none is there, or it says no size."""
    if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] & 0xE6 != 0xE2:
        return None
    version, bits, rate = data[at + 1] >> 3 & 3, data[at + 2] >> 4, data[at + 2] >> 2 & 3
    if version == 1 or bits in (0, 15) or rate == 3:
        return None
    samples, kilobits = (1152, _BITS_1[bits]) if version == 3 else (576, _BITS_2[bits])
    hertz = _RATES[version][rate]
    return samples // 8 * kilobits * 1000 // hertz + (data[at + 2] >> 1 & 1), samples, hertz
