"""Whether the header of a picture, video or sound holds together with the bytes that are there; nothing is decoded.

`measure` tells what it can of damaged files too; here what is wrong is said. A file is walked by the parts of its
container: each must begin as one does and end inside the file. Walks go forward, one level at a time, for a bounded
number of parts; no size that a file says is allocated.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

from flarecli.errors import ValueFitError
from flarecli.media.kinds import is_medium, is_picture, sniff
from flarecli.media.measuring import Measures, measure
from flarecli.media.sound import frames_of

__all__ = ["headers"]

_PARTS = 1_000_000  # of one file that are looked at
_STREAMED = 0x7FFFF000  # who writes a WAV into a pipe does not know its size, and says this or more


def headers(data: bytes) -> Measures:
    """Read the header of a whole file in memory, and hold what it says against the bytes that are there.

    return  kind; width and height in pixels, frames, duration in seconds: None for what the header does not say
    raises  ValueFitError saying what is wrong, such as `is a damaged wav: chunk 'data' at byte 36 takes 4000 bytes of 1044`
    """
    kind = sniff(data[:512])
    if kind is None or not is_medium(kind):
        raise ValueFitError("is no picture, video or sound" + (f", but {kind}" if kind else ""))
    try:
        _WALKS.get(kind, _nothing)(data)
    except (struct.error, IndexError):
        raise ValueFitError(f"is a damaged {kind}: it ends inside its header") from None
    except ValueFitError as error:
        raise ValueFitError(f"is a damaged {kind}: {error.message}") from None
    found = measure(data)
    if is_picture(kind) and not (found.width and found.height):
        raise ValueFitError(f"is a damaged {kind}: its header says no size")
    return found


def _nothing(_: bytes) -> None:
    """Of JPEG, GIF, BMP and TIFF the size is all that a header says."""


def _named(name: bytes) -> str:
    return ascii(name.decode("latin-1"))


def _png(data: bytes) -> None:
    at = 8
    for number in range(_PARTS):
        size, name = struct.unpack_from(">I4s", data, at)
        if number == 0 and name != b"IHDR":
            raise ValueFitError(f"its first chunk is {_named(name)}, not 'IHDR'")
        _held("chunk", name, at, 12 + size, len(data))
        if (
            number == 0
            and zlib.crc32(data[at + 4 : at + 8 + size])
            != struct.unpack_from(">I", data, at + 8 + size)[0]
        ):
            raise ValueFitError("chunk 'IHDR' fails its CRC-32")
        if name == b"IEND":
            return
        at += 12 + size


def _held(what: str, name: bytes, at: int, size: int, total: int) -> None:
    """Refuse a part that ends behind what it lies in. Raises ValueFitError."""
    if at + size > total:
        raise ValueFitError(
            f"{what} {_named(name)} at byte {at} takes {size} bytes of {total - at}"
        )


def _riff(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Give the chunks of a RIFF file: name, and where the payload begins and ends."""
    at = 12
    for _ in range(_PARTS):
        if len(data) - at < 8:
            return
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"data" and size >= _STREAMED:
            size = len(data) - at - 8
        _held("chunk", name, at, 8 + size, len(data))
        yield name, at + 8, at + 8 + size
        at += 8 + size + size % 2


def _webp(data: bytes) -> None:
    names = {name for name, _, _ in _riff(data)}
    if not names & {b"VP8 ", b"VP8L", b"ANMF"}:
        raise ValueFitError("it holds no picture")


def _wav(data: bytes) -> None:
    form = False
    for name, begin, end in _riff(data):
        if name == b"fmt ":
            if end - begin < 16:
                raise ValueFitError(f"chunk 'fmt ' has {end - begin} bytes, less than 16")
            channels, rate, _, width = struct.unpack_from("<HIIH", data, begin + 2)
            if not (channels and rate and width):
                raise ValueFitError(
                    f"it has {channels} channels, {rate} samples a second, {width} bytes a sample"
                )
            form = True
        elif name == b"data":
            if not form:
                raise ValueFitError("chunk 'data' comes before any 'fmt '")
            return
    raise ValueFitError("it has no chunk 'data'")


def _flac(data: bytes) -> None:
    at, last = 4, False
    for number in range(_PARTS):
        if last:
            break
        kind, size = data[at] & 0x7F, int.from_bytes(data[at + 1 : at + 4])
        if number == 0 and (kind, size) != (0, 34):
            raise ValueFitError(
                f"its first block is of kind {kind} and {size} bytes, not the 34 bytes of kind 0"
            )
        if at + 4 + size > len(data):
            raise ValueFitError(f"block at byte {at} takes {4 + size} bytes of {len(data) - at}")
        last = bool(data[at] & 0x80)
        at += 4 + size
    if not int.from_bytes(data[18:21]) >> 4:
        raise ValueFitError("it has 0 samples a second")
    if at < len(data) and (data[at] != 0xFF or data[at + 1] & 0xFC != 0xF8):
        raise ValueFitError(f"byte {at} begins no frame")
    if at >= len(data) and int.from_bytes(data[21:26]) & (1 << 36) - 1:
        raise ValueFitError("it ends before its first frame")


def _ogg(data: bytes) -> None:
    at = 0
    for number in range(_PARTS):
        if at == len(data):
            return
        if data[at : at + 4] != b"OggS" or data[at + 4]:
            raise ValueFitError(f"byte {at} begins no page")
        if number == 0 and not data[5] & 2:
            raise ValueFitError("its first page does not begin a stream")
        count = data[at + 26]
        table = data[at + 27 : at + 27 + count]
        size = 27 + count + sum(table)
        if len(table) < count or at + size > len(data):
            raise ValueFitError(f"page at byte {at} takes {size} bytes of {len(data) - at}")
        at += size


def _mp3(data: bytes) -> None:
    found = frames_of(data)
    if not found.whole:
        raise ValueFitError("it holds no frame where the first should be")
    if found.told is not None and found.told > found.whole:
        raise ValueFitError(f"it says {found.told} frames, and {found.whole} are there")


def _boxes(data: bytes, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Give the boxes between two places: name, and where the payload begins and ends."""
    for _ in range(_PARTS):
        if not any(data[start : min(stop, start + 8)]):  # the end, or zeros behind it
            return
        if stop - start < 8:
            raise ValueFitError(f"byte {start} begins a box of {stop - start} bytes, less than 8")
        size, name = struct.unpack_from(">I4s", data, start)
        begin = start + 8
        if size == 1:
            size, begin = struct.unpack_from(">Q", data, begin)[0], begin + 8
        size = size or stop - start
        if size < begin - start:
            raise ValueFitError(
                f"box {_named(name)} at byte {start} takes {size} bytes, less than its head"
            )
        _held("box", name, start, size, stop)
        yield name, begin, start + size
        start += size


def _film(data: bytes) -> None:
    found: dict[bytes, tuple[int, int]] = {}
    for name, begin, end in _boxes(data, 0, len(data)):
        found.setdefault(name, (begin, end))
    if b"moov" not in found:
        raise ValueFitError("it has no box 'moov'")
    inside = [name for name, *_ in _boxes(data, *found[b"moov"])]
    for name in (b"mvhd", b"trak"):
        if name not in inside:
            raise ValueFitError(f"box 'moov' has no {_named(name)}")


def _still(data: bytes) -> None:
    if b"meta" not in {name for name, *_ in _boxes(data, 0, len(data))}:
        raise ValueFitError("it has no box 'meta'")


_SEGMENT, _TRACKS, _CLUSTER = 0x18538067, 0x1654AE6B, 0x1F43B675


def _elements(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, bool]]:
    """Give the elements between two places: name, where the payload begins and ends, and whether its size is told."""
    for _ in range(_PARTS):
        if start >= stop:
            return
        at, length = start, 9 - data[start].bit_length()
        if length > 4:
            raise ValueFitError(f"byte {at} begins no element")
        name = int.from_bytes(data[start : start + length])
        start += length
        width = 9 - data[start].bit_length()
        if width > 8:
            raise ValueFitError(f"element {name:x} at byte {at} says no size")
        size = int.from_bytes(data[start : start + width]) & (1 << 7 * width) - 1
        start += width
        told = size != (1 << 7 * width) - 1
        if told and start + size > stop:
            raise ValueFitError(
                f"element {name:x} at byte {at} takes {start - at + size} bytes of {stop - at}"
            )
        yield name, start, start + size if told else stop, told
        if not told:
            return
        start += size


def _matroska(data: bytes) -> None:
    for name, begin, end, _ in _elements(data, 0, len(data)):
        if name != _SEGMENT:
            continue
        tracks = False
        for one, *_ in _elements(data, begin, end):
            tracks |= one == _TRACKS
            if one == _CLUSTER and not tracks:
                break
        if tracks:
            return
        raise ValueFitError("it has no tracks before its first cluster")
    raise ValueFitError("it has no segment")


_WALKS: dict[str, Callable[[bytes], None]] = {
    "png": _png,
    "webp": _webp,
    "wav": _wav,
    "flac": _flac,
    "ogg": _ogg,
    "mp3": _mp3,
    "mp4": _film,
    "mov": _film,
    "m4a": _film,
    "avif": _still,
    "heic": _still,
    "mkv": _matroska,
    "webm": _matroska,
}
