"""Frame count and duration from FFmpeg, for files whose headers lack them.

    WebM, Matroska      frames            the header has no count
    fragmented MP4      frames, duration  both are spread over the file
    Ogg                 duration          of codecs other than Vorbis and Opus

FFmpeg is used through PyAV (the extra `media`). Packets are counted; nothing is decoded. The
demuxer is chosen by the magic number, so no demuxer that opens other files is ever used.
"""

from __future__ import annotations

import importlib.util
import io
import re
from typing import Any

from flarecli.errors import MissingLibraryError
from flarecli.media.probe import MediaInfo, probe

__all__ = ["INFO_COLUMNS", "ffprobe", "has_ffmpeg"]

INFO_COLUMNS = ("width", "height", "frames", "duration")
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
# FFmpeg allocates BYTES_PER_SAMPLE for each sample that an MP4 claims before it reads one
BYTES_PER_SAMPLE, MAX_SAMPLE_TABLE = 24, 1 << 20
_SAMPLE_COUNTS = re.compile(rb"(?:st(?:sz|z2)....|trun)....(....)|(cmov)", re.DOTALL)
_OPTIONS = {"analyzeduration": "0", "probesize": "32768", "protocol_whitelist": "none"}


def has_ffmpeg() -> bool:
    """Return whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


def ffprobe(data: bytes, use_ffmpeg: bool) -> MediaInfo:
    """Return what the header of a complete file in memory states, completed by FFmpeg.

    raises  MissingLibraryError if FFmpeg is needed and PyAV is not installed
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
            "--media-info needs PyAV here", hint="Run pip install 'flarecli[media]'."
        ) from None
    try:
        with av.open(io.BytesIO(data), format=demuxer, options=_OPTIONS) as container:
            return _count_packets(container, info)
    except (av.FFmpegError, ValueError, IndexError, OverflowError, MemoryError):
        return info  # damaged


def _claimed_samples(data: bytes) -> int:
    """Return the sum of all sample counts in an MP4, wherever they are; huge if compressed."""
    return sum(
        1 << 40 if found[2] else int.from_bytes(found[1]) for found in _SAMPLE_COUNTS.finditer(data)
    )


def _count_packets(container: Any, info: MediaInfo) -> MediaInfo:
    """Count the packets of the first video track, else audio track.

    The duration is that of the container, else the time from the first packet to the last.
    """
    streams = container.streams.video or container.streams.audio
    if not streams:
        return info
    stream, count = streams[0], 0
    first: int | None = None
    last = 0
    for packet in container.demux(stream):
        if not packet.size:  # the end
            continue
        count += 1
        if packet.pts is not None:
            first = packet.pts if first is None else min(first, packet.pts)
            last = max(last, packet.pts + (packet.duration or 0))
    duration = info.duration
    if not duration and container.duration and container.duration > 0:
        duration = container.duration / 1_000_000
    elif not duration and stream.time_base and last > (first or 0):
        duration = float((last - (first or 0)) * stream.time_base)
    is_video = stream.type == "video"
    return info._replace(
        frames=info.frames or (count if is_video else 0) or None, duration=duration
    )
