"""Container parsers: one generator per format, which yields the parts of a container in file order.

A parser reads only the headers of parts. It raises ValueFitError for the first part that is
malformed or ends outside its parent. It never allocates memory based on a size in the file, and
yields at most MAX_PARTS parts. A truncated header may also raise struct.error or IndexError.

Sources: PNG (W3C), RIFF (Microsoft), ISO/IEC 14496-12, EBML (RFC 8794), FLAC (RFC 9639), Ogg
(RFC 3533), JPEG (ITU T.81), GIF89a, TIFF 6.0, MPEG audio (ISO/IEC 11172-3, 13818-3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from flarecli.errors import ValueFitError

__all__ = [
    "DAMAGE",
    "boxes",
    "ebml_elements",
    "find_boxes",
    "flac_blocks",
    "gif_blocks",
    "jpeg_segments",
    "mp3_frames",
    "ogg_pages",
    "png_chunks",
    "riff_chunks",
    "tiff_directories",
    "until_damage",
]

DAMAGE = (ValueFitError, struct.error, IndexError)  # errors that a parser raises
MAX_PARTS = 1_000_000  # per container
MAX_TIFF_DIRECTORIES = 10_000
MAX_MP3_PADDING = 4096  # maximum number of zeros before the first frame
UNKNOWN_WAV_SIZE = 0x7FFFF000  # a WAV written to a pipe has this size or more in its header

_Part = TypeVar("_Part")
Chunk = tuple[bytes, int, int]  # name, start and end of the payload


def until_damage(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Yield parts; stop at the first damaged part without raising an error."""
    with suppress(*DAMAGE):
        yield from parts


def _check_end(what: str, name: bytes | int | None, start: int, size: int, end: int) -> None:
    """Raise ValueFitError if a part extends past the end of its parent."""
    if start + size > end:
        label = what if name is None else f"{what} {_label(name)}"
        raise ValueFitError(
            f"{label} at byte {start} is {size} bytes long; only {end - start} are left"
        )


def _label(name: bytes | int) -> str:
    return f"{name:x}" if isinstance(name, int) else ascii(name.decode("latin-1"))


# -- images


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (marker, payload start) for each JPEG segment up to the first scan (0xDA)."""
    at = 2
    for _ in range(MAX_PARTS):
        at = data.find(b"\xff", at)
        if at < 0:
            return
        while data[at] == 0xFF:  # fill bytes
            at += 1
        marker = data[at]
        at += 1
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:  # no payload
            continue
        yield marker, at + 2
        if marker == 0xDA:
            return
        at += int.from_bytes(data[at : at + 2])


def png_chunks(data: bytes) -> Iterator[Chunk]:
    """Yield PNG chunks up to IEND. A truncated chunk is yielded before the error is raised."""
    at = 8
    for _ in range(MAX_PARTS):
        size, name = struct.unpack_from(">I4s", data, at)
        yield name, at + 8, at + 8 + size
        _check_end("chunk", name, at, 12 + size, len(data))
        if name == b"IEND":
            return
        at += 12 + size


def gif_blocks(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (type, start) for each GIF block: 0x2C for an image, or the label of an extension."""

    def palette_size(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    at = 13 + palette_size(data[10])
    for _ in range(MAX_PARTS):
        if at >= len(data) or data[at] == 0x3B:
            return
        if data[at] == 0x2C:
            yield 0x2C, at + 1
            at += 11 + palette_size(data[at + 9])
        else:
            yield data[at + 1], at + 2
            at += 2
        while data[at]:  # sub-blocks of up to 255 bytes
            at += 1 + data[at]
        at += 1


def tiff_directories(data: bytes) -> Iterator[dict[int, int]]:
    """Yield a dict of tag -> value for each TIFF directory. Stop before a directory is repeated.

    Only the first directory is parsed; the dicts of all other directories are empty.
    """
    order = "<" if data[:2] == b"II" else ">"
    at, seen = struct.unpack_from(f"{order}I", data, 4)[0], set[int]()
    while at and at not in seen and len(seen) < MAX_TIFF_DIRECTORIES:
        count = struct.unpack_from(f"{order}H", data, at)[0]
        end = at + 2 + 12 * count
        tags = {}
        for entry in range(at + 2, end, 12) if not seen else ():
            tag, kind = struct.unpack_from(f"{order}HH", data, entry)
            tags[tag] = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", data, entry + 8)[
                0
            ]
        yield tags
        seen.add(at)
        at = struct.unpack_from(f"{order}I", data, end)[0]


# -- containers of images, video and audio


def riff_chunks(data: bytes) -> Iterator[Chunk]:
    """Yield RIFF chunks.

    The available bytes of a truncated chunk are yielded before the error is raised.
    """
    at = 12
    for _ in range(MAX_PARTS):
        if len(data) - at < 8:
            return
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"data" and size >= UNKNOWN_WAV_SIZE:
            size = len(data) - at - 8
        yield name, at + 8, min(at + 8 + size, len(data))
        _check_end("chunk", name, at, 8 + size, len(data))
        at += 8 + size + size % 2


def boxes(data: bytes, start: int, stop: int) -> Iterator[Chunk]:
    """Yield the ISO-BMFF boxes in data[start:stop]. A truncated box is not yielded."""
    for _ in range(MAX_PARTS):
        if not any(data[start : min(stop, start + 8)]):  # end of the data, or zero padding
            return
        if stop - start < 8:
            raise ValueFitError(f"box at byte {start} is {stop - start} bytes; expected at least 8")
        size, name = struct.unpack_from(">I4s", data, start)
        begin = start + 8
        if size == 1:
            size, begin = struct.unpack_from(">Q", data, begin)[0], begin + 8
        size = size or stop - start  # a box of size 0 extends to the end
        if size < begin - start:
            raise ValueFitError(
                f"box {_label(name)} at byte {start} is {size} bytes; "
                f"its header alone is {begin - start}"
            )
        _check_end("box", name, start, size, stop)
        yield name, begin, start + size
        start += size


def find_boxes(
    data: bytes, path: tuple[bytes, ...], start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the payload of each box at a path; stop at a damaged box."""
    for name, begin, end in until_damage(boxes(data, start, stop)):
        if name != path[0]:
            continue
        if len(path) == 1:
            yield begin, end
        else:
            yield from find_boxes(data, path[1:], begin, end)


def ebml_elements(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (id, payload start, payload end) for each EBML element in data[start:stop].

    An element of unknown size extends to `stop`. For a truncated element, the range of the
    available bytes is yielded before the error is raised.
    """
    for _ in range(MAX_PARTS):
        if start >= stop:
            return
        at, id_size = start, 9 - data[start].bit_length()
        if id_size > 4:
            raise ValueFitError(f"invalid element id at byte {at}")
        name = int.from_bytes(data[at : at + id_size])
        begin = at + id_size
        width = 9 - data[begin].bit_length()
        if width > 8:
            raise ValueFitError(f"element {name:x} at byte {at} has an invalid size")
        unknown = (1 << 7 * width) - 1
        size = int.from_bytes(data[begin : begin + width]) & unknown
        begin += width
        if size == unknown:
            yield name, begin, stop
            return
        yield name, begin, min(begin + size, stop)
        _check_end("element", name, at, begin + size - at, stop)
        start = begin + size


# -- audio


def flac_blocks(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (type, payload start, payload end) for each FLAC metadata block."""
    at = 4
    for _ in range(MAX_PARTS):
        kind, size = data[at], int.from_bytes(data[at + 1 : at + 4])
        yield kind & 0x7F, at + 4, at + 4 + size
        _check_end("metadata block", None, at, 4 + size, len(data))
        at += 4 + size
        if kind & 0x80:
            return


def ogg_pages(data: bytes) -> Iterator[int]:
    """Yield the flags of each Ogg page."""
    at = 0
    for _ in range(MAX_PARTS):
        if at == len(data):
            return
        if data[at : at + 4] != b"OggS" or data[at + 4]:
            raise ValueFitError(f"no page at byte {at}")
        segments = data[at + 26]
        sizes = data[at + 27 : at + 27 + segments]
        size = 27 + segments + sum(sizes)
        _check_end("page", None, at, size, len(data))
        yield data[at + 5]
        at += size


_SAMPLE_RATES = {
    3: (44_100, 48_000, 32_000),  # MPEG 1
    2: (22_050, 24_000, 16_000),  # MPEG 2
    0: (11_025, 12_000, 8_000),  # MPEG 2.5
}
_KBITS_MPEG1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBITS_MPEG2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


def mp3_frames(data: bytes) -> Iterator[tuple[int, int, float]]:
    """Yield (start, end, duration in seconds) for consecutive, complete layer III frames.

    An ID3v2 tag before the first frame is skipped. The generator ends at a truncated frame or at
    bytes that are not a frame, such as an ID3v1 tag, an APE tag or zeros. It raises no errors.
    """
    at = 0
    if data[:3] == b"ID3" and len(data) >= 10:
        at = 10 + sum((byte & 0x7F) << 7 * (3 - i) for i, byte in enumerate(data[6:10]))
    if at < len(data) and not data[at]:
        at += next((i for i, byte in enumerate(data[at : at + MAX_MP3_PADDING]) if byte), 0)
    for _ in range(MAX_PARTS):
        if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] & 0xE6 != 0xE2:
            return
        version, bit_rate, rate = data[at + 1] >> 3 & 3, data[at + 2] >> 4, data[at + 2] >> 2 & 3
        if version == 1 or bit_rate in (0, 15) or rate == 3:
            return
        hertz = _SAMPLE_RATES[version][rate]
        samples, kbits = (1152, _KBITS_MPEG1) if version == 3 else (576, _KBITS_MPEG2)
        end = at + samples // 8 * kbits[bit_rate] * 1000 // hertz + (data[at + 2] >> 1 & 1)
        if end > len(data):
            return
        yield at, end, samples / hertz
        at = end
