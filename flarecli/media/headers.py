"""Read image size, frame count and duration from file headers, and check these headers.

No pixels or samples are decoded. The numbers are returned as they are in the file, so callers must
check them before they allocate memory. Width and height describe the stored pixels, without the
EXIF orientation.

`ffprobe` adds numbers that are missing in some headers:

    WebM, Matroska      frames            the header contains no frame count
    fragmented MP4      frames, duration  each fragment contains only its own numbers
    Ogg                 duration          only for codecs other than Vorbis and Opus

`ffprobe` uses FFmpeg through PyAV (the extra `media`) to count packets without decoding them. The
demuxer is chosen by the magic number, so FFmpeg never uses a demuxer that opens other files.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flarecli.errors import MissingLibraryError, ValueFitError
from flarecli.media.containers import (
    DAMAGE,
    boxes,
    ebml_elements,
    find_boxes,
    flac_blocks,
    gif_blocks,
    jpeg_segments,
    mp3_frames,
    ogg_pages,
    png_chunks,
    riff_chunks,
    tiff_directories,
    until_damage,
)
from flarecli.media.kinds import is_image, is_media, sniff

__all__ = ["INFO_COLUMNS", "MediaInfo", "check_header", "ffprobe", "has_ffmpeg", "probe"]

INFO_COLUMNS = ("width", "height", "frames", "duration")


@dataclass(slots=True)
class MediaInfo:
    """Facts in the header of a media file; a missing fact is None.

    kind           file type, as in `media.kinds`
    width, height  image size in pixels
    frames         number of images: 1 for a still image
    duration       duration in seconds
    """

    kind: str | None = None
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    duration: float | None = None


def probe(data: bytes) -> MediaInfo:
    """Return the facts in the header of a complete file in memory, without raising errors.

    A fact that is missing or damaged is None.
    """
    return _read(data, sniff(data[:512]))[0]


def check_header(data: bytes) -> MediaInfo:
    """Check the header of a complete file in memory, and return the facts in it.

    All parts of the container must be well-formed, and must end inside the file.

    raises  ValueFitError, such as
            `damaged wav: chunk 'data' at byte 36 is 4000 bytes long; only 1044 are left`
    """
    kind = sniff(data[:512])
    if kind is None or not is_media(kind):
        raise ValueFitError(
            "not an image, video or audio file" + (f" (found {kind})" if kind else "")
        )
    info, damage = _read(data, kind)
    if damage is None and is_image(kind) and not (info.width and info.height):
        damage = "no image size in the header"
    if damage is not None:
        raise ValueFitError(f"damaged {kind}: {damage}")
    return info


def _read(data: bytes, kind: str | None) -> tuple[MediaInfo, str | None]:
    """Return the facts in a header, and a description of the damage, or None if there is none.

    The facts after the first damaged part are missing.
    """
    info, damage = MediaInfo(kind), None
    reader = _READERS.get(kind or "")
    if reader is not None:
        try:
            reader(data, info)
        except ValueFitError as error:
            damage = error.message
        except DAMAGE:
            damage = "the file ends inside its header"
    if info.duration is not None and not (math.isfinite(info.duration) and info.duration >= 0):
        info.duration = None
    info.width, info.height = _side(info.width), _side(info.height)
    return info, damage


def _side(pixels: int | None) -> int | None:
    """Return a side length in pixels; None if it is missing or invalid."""
    return pixels if pixels is not None and 0 <= pixels < 1 << 31 else None


def _jpeg(data: bytes, header: MediaInfo) -> None:
    for marker, begin in jpeg_segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame
            header.height, header.width = struct.unpack_from(">HH", data, begin + 1)
            header.frames = 1
            return


def _png(data: bytes, header: MediaInfo) -> None:
    duration = 0.0
    for number, (name, begin, _) in enumerate(png_chunks(data)):
        if number == 0:
            header.width, header.height = struct.unpack_from(">II", data, 16)
            header.frames = 1
            if name != b"IHDR":
                raise ValueFitError(f"first chunk is {name.decode('latin-1')!a}, not 'IHDR'")
        elif number == 1:
            (crc,) = struct.unpack_from(">I", data, begin - 12)
            if zlib.crc32(data[12 : begin - 12]) != crc:
                raise ValueFitError("chunk 'IHDR' does not match its CRC-32")
        if name == b"acTL":
            header.frames = struct.unpack_from(">I", data, begin)[0]
        elif name == b"fcTL":
            delay, unit = struct.unpack_from(">HH", data, begin + 20)
            duration += delay / (unit or 100)
            header.duration = duration or None


def _gif(data: bytes, header: MediaInfo) -> None:
    frames = hundredths = 0
    for kind, begin in gif_blocks(data):
        if kind == 0x2C:
            frames += 1
        elif kind == 0xF9:  # graphic control extension
            hundredths += struct.unpack_from("<H", data, begin + 2)[0]
    header.width, header.height = struct.unpack_from("<HH", data, 6)
    header.frames, header.duration = frames or None, hundredths / 100 or None


def _webp(data: bytes, header: MediaInfo) -> None:
    first, frames, duration, names = data[12:16], 0, 0, set[bytes]()
    if first == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        header.width, header.height = width & 0x3FFF, height & 0x3FFF
    elif first == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        header.width, header.height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif first == b"VP8X":
        header.width, header.height = (
            int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27)
        )
    if header.width is not None:
        header.frames = 1
    for name, begin, _ in riff_chunks(data):
        names.add(name)
        if name == b"ANMF" and first == b"VP8X":
            frames += 1
            duration += int.from_bytes(data[begin + 12 : begin + 15], "little")
            header.frames, header.duration = frames, duration / 1000 or None
    if not names & {b"VP8 ", b"VP8L", b"ANMF"}:
        raise ValueFitError("no image data")


def _bmp(data: bytes, header: MediaInfo) -> None:
    width, height = struct.unpack_from("<HH" if data[14] == 12 else "<ii", data, 18)
    header.width, header.height, header.frames = abs(width), abs(height), 1


def _tiff(data: bytes, header: MediaInfo) -> None:
    directories = list(tiff_directories(data))
    if not directories:
        raise ValueFitError("the file contains no image")
    header.width, header.height = directories[0].get(256), directories[0].get(257)
    header.frames = len(directories)


def _avif(data: bytes, header: MediaInfo) -> None:
    """Read the image size from the largest `ispe` box; smaller boxes are tiles or thumbnails."""
    has_meta, largest = False, -1
    for name, begin, end in boxes(data, 0, len(data)):
        if name != b"meta":
            continue
        has_meta = True
        for at, _ in find_boxes(data, (b"iprp", b"ipco", b"ispe"), begin + 4, end):
            width, height = struct.unpack_from(">II", data, at + 4)
            if width * height > largest:
                largest = width * height
                header.width, header.height, header.frames = width, height, 1
    if not has_meta:
        raise ValueFitError("no box 'meta'")


def _mp4(data: bytes, header: MediaInfo) -> None:
    """Read the duration in `mvhd`, and the size and frame count of the first video track."""
    has_movie = False
    for name, begin, end in boxes(data, 0, len(data)):
        if name != b"moov":
            continue
        has_movie = True
        for at, _ in find_boxes(data, (b"mvhd",), begin, end):
            layout, offset = (">IQ", 20) if data[at] == 1 else (">II", 12)
            scale, ticks = struct.unpack_from(layout, data, at + offset)
            header.duration = ticks / scale if ticks and scale else None
        for track, stop in find_boxes(data, (b"trak",), begin, end):
            handlers = find_boxes(data, (b"mdia", b"hdlr"), track, stop)
            if not any(data[at + 8 : at + 12] == b"vide" for at, _ in handlers):
                continue
            for _, at in find_boxes(data, (b"tkhd",), track, stop):
                width, height = struct.unpack_from(">II", data, at - 8)
                header.width, header.height = width >> 16 or None, height >> 16 or None
            for at, _ in find_boxes(data, (b"mdia", b"minf", b"stbl", b"stsz"), track, stop):
                header.frames = struct.unpack_from(">I", data, at + 8)[0] or None
            break
        children = {child for child, *_ in boxes(data, begin, end)}
        for required in (b"mvhd", b"trak"):
            if required not in children:
                raise ValueFitError(f"box 'moov' has no '{required.decode()}'")
    if not has_movie:
        raise ValueFitError("no box 'moov'")


_SEGMENT, _INFO, _TRACKS, _TRACK, _VIDEO = 0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0xE0
_SCALE, _DURATION, _WIDTH, _HEIGHT, _CLUSTER = 0x2AD7B1, 0x4489, 0xB0, 0xBA, 0x1F43B675


def _matroska(data: bytes, header: MediaInfo) -> None:
    """Read the duration and the first video track in the first segment."""
    has_segment = has_tracks = False
    for name, begin, end in ebml_elements(data, 0, len(data)):
        if name != _SEGMENT or has_segment:
            continue
        has_segment = True
        for child, start, stop in ebml_elements(data, begin, end):
            if child == _INFO:
                _matroska_info(data, start, stop, header)
            elif child == _TRACKS:
                has_tracks = True
                _matroska_tracks(data, start, stop, header)
            elif child == _CLUSTER and not has_tracks:
                break
        if not has_tracks:
            raise ValueFitError("no tracks before the first cluster")
        # At the end of the file, continue: the parser raises the error for a truncated segment.
        if end < len(data):
            return
    if not has_segment:
        raise ValueFitError("no segment")


def _matroska_info(data: bytes, start: int, stop: int, header: MediaInfo) -> None:
    scale, ticks = 1_000_000, 0.0  # the scale is in nanoseconds per tick
    for name, begin, end in until_damage(ebml_elements(data, start, stop)):
        if name == _SCALE:
            scale = int.from_bytes(data[begin:end])
        elif name == _DURATION and end - begin in (4, 8):
            ticks = struct.unpack(">f" if end - begin == 4 else ">d", data[begin:end])[0]
    with suppress(OverflowError):  # the scale may be an integer of hundreds of bytes
        header.duration = ticks * scale / 1e9 or None


def _matroska_tracks(data: bytes, start: int, stop: int, header: MediaInfo) -> None:
    for name, begin, end in until_damage(ebml_elements(data, start, stop)):
        if name != _TRACK:
            continue
        for part, first, last in until_damage(ebml_elements(data, begin, end)):
            if part == _VIDEO and header.width is None:
                sides = {
                    side: int.from_bytes(data[a:b])
                    for side, a, b in until_damage(ebml_elements(data, first, last))
                    if side in (_WIDTH, _HEIGHT)
                }
                header.width, header.height = sides.get(_WIDTH), sides.get(_HEIGHT)


def _wav(data: bytes, header: MediaInfo) -> None:
    fault, has_data, byte_rate = None, False, None
    for name, begin, end in riff_chunks(data):
        if name == b"fmt ":
            if end - begin < 16:
                raise ValueFitError(f"chunk 'fmt ' is {end - begin} bytes; expected at least 16")
            channels, rate, byte_rate, width = struct.unpack_from("<HIIH", data, begin + 2)
            if not (channels and rate and width):
                fault = f"{channels} channels, {rate} samples per second, {width} bytes per sample"
        elif name == b"data":
            if byte_rate is None:
                raise ValueFitError("chunk 'data' precedes chunk 'fmt '")
            has_data = True
            header.duration = (end - begin) / byte_rate if byte_rate else None
            # At the end of the file, continue: the parser raises the error for a truncated chunk.
            if end < len(data):
                break
    if fault or not has_data:
        raise ValueFitError(fault or "no chunk 'data'")


def _flac(data: bytes, header: MediaInfo) -> None:
    packed = int.from_bytes(data[18:26])  # first 20 bits: sample rate; last 36: sample count
    rate, samples = packed >> 44, packed & (1 << 36) - 1
    header.duration = samples / rate if samples and rate else None
    at = 4
    for kind, begin, end in flac_blocks(data):
        if at == 4 and (kind, end - begin) != (0, 34):
            raise ValueFitError(
                f"first block has type {kind} and {end - begin} bytes; expected type 0 and 34 bytes"
            )
        at = end
    if not rate:
        raise ValueFitError("the sample rate is 0")
    if at < len(data) and (data[at] != 0xFF or data[at + 1] & 0xFC != 0xF8):
        raise ValueFitError(f"no frame at byte {at}")
    if at >= len(data) and samples:
        raise ValueFitError("the file ends before its first frame")


_XING = re.compile(b"Xing|Info|VBRI")  # a first frame with one of these tags contains no audio


def _mp3(data: bytes, header: MediaInfo) -> None:
    """Set the duration to the sum of the durations of all frames.

    raises  ValueFitError if the file contains no complete frame, or if the Xing or Info tag states
            more frames than the file contains
    """
    frames, duration, stated = 0, 0.0, None
    for number, (begin, end, seconds) in enumerate(mp3_frames(data)):
        tag = None if number else _XING.search(data, begin, min(end, begin + 64))
        if tag is None:
            frames, duration = frames + 1, duration + seconds
        elif tag[0] != b"VBRI" and data[tag.end() + 3] & 1:
            stated = int.from_bytes(data[tag.end() + 4 : tag.end() + 8])
    header.duration = duration or None
    if not frames:
        raise ValueFitError("the first frame is missing")
    if stated is not None and stated > frames:
        raise ValueFitError(f"the header states {stated} frames; {frames} are present")


def _ogg(data: bytes, header: MediaInfo) -> None:
    """Compute the duration from the position of the last page.

    In Vorbis and Opus, a position is a number of samples.
    """
    vorbis, opus = data.find(b"\x01vorbis", 0, 512), data.find(b"OpusHead", 0, 512)
    rate, skipped = 0, 0
    if vorbis >= 0:
        rate = int.from_bytes(data[vorbis + 12 : vorbis + 16], "little")
    elif opus >= 0:
        rate, skipped = 48_000, int.from_bytes(data[opus + 10 : opus + 12], "little")
    if rate:
        position = struct.unpack_from("<q", data, data.rfind(b"OggS") + 6)[0]
        header.duration = (position - skipped) / rate
    for number, flags in enumerate(ogg_pages(data)):
        if number == 0 and not flags & 2:
            raise ValueFitError("the first page does not begin a stream")


_READERS: dict[str, Callable[[bytes, MediaInfo], None]] = {
    "jpeg": _jpeg,
    "png": _png,
    "gif": _gif,
    "webp": _webp,
    "bmp": _bmp,
    "tiff": _tiff,
    "avif": _avif,
    "heic": _avif,
    "mp4": _mp4,
    "mov": _mp4,
    "m4a": _mp4,
    "mkv": _matroska,
    "webm": _matroska,
    "wav": _wav,
    "flac": _flac,
    "mp3": _mp3,
    "ogg": _ogg,
}


# -- FFmpeg

_DEMUXERS = {
    "mp4": "mov",
    "mov": "mov",
    "m4a": "mov",
    "mkv": "matroska",
    "webm": "matroska",
    "ogg": "ogg",
    "flac": "flac",
    "mp3": "mp3",
    "wav": "wav",
}
# FFmpeg allocates BYTES_PER_SAMPLE for each sample that an MP4 declares, before it reads a sample.
BYTES_PER_SAMPLE, MAX_SAMPLE_TABLE = 24, 1 << 20
_SAMPLE_COUNTS = re.compile(rb"(?:st(?:sz|z2)....|trun)....(....)|(cmov)", re.DOTALL)
_OPTIONS = {"analyzeduration": "0", "probesize": "32768", "protocol_whitelist": "none"}


def has_ffmpeg() -> bool:
    """Return whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


def ffprobe(data: bytes, use_ffmpeg: bool) -> MediaInfo:
    """Return the facts about a complete file in memory, from its header and from FFmpeg.

    use_ffmpeg  False to read only the header
    raises      MissingLibraryError if FFmpeg is necessary and PyAV is not installed
    """
    info = probe(data)
    if (
        not use_ffmpeg
        or info.kind not in _DEMUXERS
        or (info.duration is not None and (info.frames is not None or info.width is None))
    ):
        return info
    demuxer = _DEMUXERS[info.kind]
    if (
        demuxer == "mov"
        and _claimed_samples(data) * BYTES_PER_SAMPLE > len(data) + MAX_SAMPLE_TABLE
    ):
        return info
    try:
        import av
    except ImportError:
        raise MissingLibraryError(
            "--media-info needs PyAV for this file", hint="Run `pip install 'flarecli[media]'`."
        ) from None
    try:
        with av.open(io.BytesIO(data), format=demuxer, options=_OPTIONS) as container:
            return _count_packets(container, info)
    except (av.FFmpegError, ValueError, IndexError, OverflowError, MemoryError):
        return info  # damaged


def _claimed_samples(data: bytes) -> int:
    """Return the sum of all sample counts in an MP4.

    If the header is compressed, the counts are unknown, and the result is larger than any limit.
    """
    return sum(
        1 << 40 if match[2] else int.from_bytes(match[1]) for match in _SAMPLE_COUNTS.finditer(data)
    )


def _count_packets(container: Any, info: MediaInfo) -> MediaInfo:
    """Add missing facts about the first video track; without video, about the first audio track.

    The frame count is the number of packets. The duration is the duration of the container, if
    stored; otherwise, the time from the first packet to the end of the last packet.
    """
    streams = container.streams.video or container.streams.audio
    if not streams:
        return info
    stream, count = streams[0], 0
    first: int | None = None
    last = 0
    for packet in container.demux(stream):
        if not packet.size:  # end of the stream
            continue
        count += 1
        if packet.pts is not None:
            first = packet.pts if first is None else min(first, packet.pts)
            last = max(last, packet.pts + (packet.duration or 0))
    if not info.duration and container.duration and container.duration > 0:
        info.duration = container.duration / 1_000_000
    elif not info.duration and stream.time_base and last > (first or 0):
        info.duration = float((last - (first or 0)) * stream.time_base)
    if not info.frames and count and stream.type == "video":
        info.frames = count
    return info
