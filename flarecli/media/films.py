"""What FFmpeg tells of films and sounds whose headers are silent: how many pictures there are, and when the last one ends.

    WebM, Matroska      frames          a header has no count
    MP4 of fragments    frames, length  both lie spread over the file
    Ogg                 length          of codecs other than Vorbis and Opus

It is asked where PyAV is installed, as the extra `media`. Packets are counted and nothing is decoded. The container is
the one that the first bytes say: no demuxer that follows names into other files is ever tried.
"""

from __future__ import annotations

import importlib.util
import io
import re
from typing import Any

from flarecli.errors import MissingLibraryError
from flarecli.media.measuring import Measures, measure

__all__ = ["INFO", "has_films", "measured"]

INFO = ("width", "height", "frames", "duration")  # what is measured
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
_ENTRY, _FREE = (
    24,
    1 << 20,
)  # bytes that FFmpeg takes for each sample of an MP4 before it gives one; and that it may take anyway
_COUNTS = re.compile(
    rb"(?:st(?:sz|z2)....|trun)....(....)|(cmov)", re.DOTALL
)  # how many samples a track, or a fragment, says it has
_OPTIONS = {"analyzeduration": "0", "probesize": "32768", "protocol_whitelist": "none"}


def has_films() -> bool:
    """Say whether FFmpeg can be asked."""
    return importlib.util.find_spec("av") is not None


def measured(data: bytes, films: bool) -> Measures:
    """Measure a whole file in memory by its header, and by FFmpeg what that does not say.

    films   whether FFmpeg is asked
    raises  MissingLibraryError if it is to be asked, and PyAV is not installed
    """
    known = measure(data)
    has_pictures = known.width is not None
    if (
        not films
        or known.kind not in _DEMUXERS
        or (known.duration is not None and (known.frames is not None or not has_pictures))
    ):
        return known
    if _DEMUXERS[known.kind] == "mov" and _samples(data) * _ENTRY > len(data) + _FREE:
        return known
    try:
        import av
    except ImportError:
        raise MissingLibraryError(
            "--media-info needs PyAV here", hint="Run pip install 'flarecli[media]'."
        ) from None
    try:
        with av.open(io.BytesIO(data), format=_DEMUXERS[known.kind], options=_OPTIONS) as container:
            return _counted(container, known)
    except (av.FFmpegError, ValueError, IndexError, OverflowError, MemoryError):
        return known  # damaged: what the header says is all that is known


def _samples(data: bytes) -> int:
    """Give how many samples an MP4 says it has, wherever it says it: a few bytes may say billions, and compressed headers anything."""
    return sum(
        1 << 40 if found[2] else int.from_bytes(found[1]) for found in _COUNTS.finditer(data)
    )


def _counted(container: Any, known: Measures) -> Measures:
    """Count the packets of the first track of pictures, or of sound; the length is what the container says, or where the last packet ends."""
    streams = container.streams.video or container.streams.audio
    if not streams:
        return known
    stream, count, first, last = streams[0], 0, 0, 0
    for packet in container.demux(stream):
        if packet.size:  # an empty one ends the file
            count += 1
            if packet.pts is not None:
                first, last = (
                    min(first, packet.pts) if count > 1 else packet.pts,
                    max(last, packet.pts + (packet.duration or 0)),
                )
    ends = float((last - first) * stream.time_base) if stream.time_base and last > first else None
    duration = known.duration or (
        container.duration / 1_000_000 if container.duration and container.duration > 0 else ends
    )
    return known._replace(
        frames=known.frames or (count if stream.type == "video" and count else None),
        duration=duration,
    )
