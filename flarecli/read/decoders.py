"""Picklable decoders for the argument `decode`, which convert stored bytes to arrays."""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from flarecli.arguments import check_minimum, checked
from flarecli.errors import MissingLibraryError, UsageError, ValueFitError
from flarecli.media import FORMATS

__all__ = ["Audio", "Image", "Text", "Video", "audio", "image", "text", "video"]

# a media file can refer to other files and addresses, which FFmpeg would otherwise open
_NO_PROTOCOLS = {"protocol_whitelist": "none"}


@dataclass(frozen=True, slots=True)
class Image:
    """A decoder from images to uint8 [height, width, channels], or [height, width] in mode L."""

    size: tuple[int, int] | None
    mode: str
    crop: bool

    def __call__(self, data: bytes) -> Any:
        from PIL import Image as pillow

        pillow.init()
        try:
            with pillow.open(
                io.BytesIO(data), formats=[name for name in FORMATS if name in pillow.OPEN]
            ) as picture:
                if self.size is None:
                    return np.asarray(self._in_mode(picture))
                width, height = self.size
                if picture.format == "JPEG":
                    picture.draft(self.mode, self._draft_size(picture.size))
                box = self._crop_box(picture.size) if self.crop else None
                return np.asarray(
                    self._in_mode(picture).resize(
                        (width, height), pillow.Resampling.BILINEAR, box, reducing_gap=2.0
                    )
                )
        except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
            raise ValueFitError(f"invalid image: {error}") from error

    def _in_mode(self, picture: Any) -> Any:
        # `convert` is slow, because it copies all pixels while it holds the interpreter lock
        return picture if picture.mode == self.mode else picture.convert(self.mode)

    def _draft_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the smallest size with the image's aspect ratio that covers the target size."""
        width, height = self.size or size
        scale = max(width / size[0], height / size[1])
        return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))

    def _crop_box(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Return the largest centered box with the target aspect ratio.

        return  left, top, right and bottom in pixels
        """
        width, height = self.size or size
        scale = min(size[0] / width, size[1] / height)
        left, top = (size[0] - width * scale) / 2, (size[1] - height * scale) / 2
        return left, top, left + width * scale, top + height * scale


@checked
def image(size: int | tuple[int, int] | None = None, mode: str = "RGB", crop: bool = True) -> Image:
    """Return a decoder from images to uint8 [height, width, channels].

    In mode `L`, the result is [height, width].

    size  pixels: one number or (width, height); None keeps the size of each image
    mode  a Pillow mode: `RGB`, `L`, …
    crop  True crops around the center to the target aspect ratio; False stretches the image
    """
    return Image(_pair(size), mode, crop)


def _pair(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    pair = (size, size) if isinstance(size, int) else size
    if pair is not None and min(pair) < 1:
        raise UsageError(f"size: expected at least 1 x 1, got {pair[0]} x {pair[1]}")
    return pair


@dataclass(frozen=True, slots=True)
class Text:
    """A decoder from text to uint8 [size]: UTF-8 bytes, truncated or padded with zeros."""

    size: int

    def __call__(self, data: bytes) -> Any:
        out = np.zeros(self.size, np.uint8)
        part = np.frombuffer(data[: self.size], np.uint8)
        out[: len(part)] = part
        return out


@checked
def text(size: int) -> Text:
    """Return a decoder from text to uint8 [size]: UTF-8 bytes, truncated or padded with zeros."""
    check_minimum(0, size=size)
    return Text(size)


@dataclass(frozen=True, slots=True)
class Audio:
    """A decoder from audio files to float32 [channels, samples]."""

    rate: int | None
    seconds: float

    def __call__(self, data: bytes) -> Any:
        av = _av()
        try:
            with av.open(io.BytesIO(data), options=_NO_PROTOCOLS) as file:
                stream = file.streams.audio[0]
                rate = self.rate or stream.rate
                resampler = av.AudioResampler("fltp", rate=rate)
                # `missing` is the number of samples per channel that may still be decoded
                parts, missing = [], int(self.seconds * rate)
                # passing None flushes the resampler
                for frame in itertools.chain(file.decode(stream), [None]):
                    for resampled in resampler.resample(frame):
                        parts.append(resampled.to_ndarray()[:, :missing])
                        missing -= parts[-1].shape[1]
                    if missing <= 0:
                        break
                return np.concatenate(parts, axis=1)
        except (av.error.FFmpegError, IndexError, ValueError) as error:
            raise ValueFitError(f"invalid audio: {error}") from error


@checked
def audio(rate: int | None = None, seconds: float = 600.0) -> Audio:
    """Return a decoder from audio to float32 [channels, samples]. Requires PyAV.

    rate     sample rate in Hz; None keeps the rate of each file
    seconds  maximum duration to decode
    """
    check_minimum(1, rate=rate)
    if not seconds > 0:
        raise UsageError(f"seconds: expected more than 0, got {seconds}")
    return Audio(rate, seconds)


@dataclass(frozen=True, slots=True)
class Video:
    """A decoder from video files to uint8 [frames, height, width, 3]."""

    frames: int
    step: int
    size: tuple[int, int] | None

    def __call__(self, data: bytes) -> Any:
        av = _av()
        width, height = self.size or (None, None)
        out: list[Any] = []
        try:
            with av.open(io.BytesIO(data), options=_NO_PROTOCOLS) as file:
                for k, frame in enumerate(file.decode(file.streams.video[0])):
                    if len(out) == self.frames:
                        break
                    if k % self.step == 0:
                        out.append(frame.reformat(width, height, "rgb24").to_ndarray())
                return np.stack(out)
        except (av.error.FFmpegError, IndexError, ValueError) as error:
            raise ValueFitError(f"invalid video: {error}") from error


@checked
def video(frames: int, step: int = 1, size: int | tuple[int, int] | None = None) -> Video:
    """Return a decoder from video to uint8 [frames, height, width, 3]. Requires PyAV.

    frames  maximum number of frames
    step    decode every `step`-th frame
    size    pixels: one number or (width, height); None keeps the size of each video
    """
    check_minimum(1, frames=frames, step=step)
    return Video(frames, step, _pair(size))


def _av() -> Any:
    try:
        import av
    except ImportError:
        raise MissingLibraryError("PyAV is not installed", hint="Run `pip install av`.") from None
    return av
