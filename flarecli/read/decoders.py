"""Decoders for the argument `decode`. They convert stored bytes to arrays, and can be pickled."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from flarecli.arguments import check_minimum, checked
from flarecli.errors import MissingLibraryError, UsageError, ValueFitError
from flarecli.media import FORMATS

__all__ = ["audio", "image", "text", "video"]

Decode: TypeAlias = "Callable[[bytes], Any]"

# A media file can refer to other files and addresses. This option keeps FFmpeg from opening them.
_NO_PROTOCOLS = {"protocol_whitelist": "none"}


@checked
def image(
    size: int | tuple[int, int] | None = None, mode: str = "RGB", crop: bool = True
) -> Decode:
    """Return a decoder that converts images to uint8 [height, width, channels].

    In mode `L`, the result is [height, width].

    size  size in pixels: one number or (width, height); None keeps the size of each image
    mode  a Pillow mode: `RGB`, `L`, …
    crop  True crops around the center to the target aspect ratio; False stretches the image
    """
    return partial(_decode_image, size=_pair(size), mode=mode, crop=crop)


def _decode_image(data: bytes, size: tuple[int, int] | None, mode: str, crop: bool) -> Any:
    from PIL import Image

    Image.init()
    try:
        with Image.open(
            io.BytesIO(data), formats=[name for name in FORMATS if name in Image.OPEN]
        ) as picture:
            if size is None:
                return np.asarray(_in_mode(picture, mode))
            if picture.format == "JPEG":
                picture.draft(mode, _draft_size(picture.size, size))
            box = _crop_box(picture.size, size) if crop else None
            resized = _in_mode(picture, mode).resize(
                size, Image.Resampling.BILINEAR, box, reducing_gap=2.0
            )
            return np.asarray(resized)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueFitError(f"invalid image: {error}") from error


def _in_mode(picture: Any, mode: str) -> Any:
    # `convert` is slow, because it copies all pixels while it holds the interpreter lock
    return picture if picture.mode == mode else picture.convert(mode)


def _draft_size(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest size with the image's aspect ratio that covers the target size."""
    scale = max(target[0] / size[0], target[1] / size[1])
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _crop_box(size: tuple[int, int], target: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the largest centered box with the target aspect ratio.

    return  left, top, right and bottom in pixels
    """
    width, height = target
    scale = min(size[0] / width, size[1] / height)
    left, top = (size[0] - width * scale) / 2, (size[1] - height * scale) / 2
    return left, top, left + width * scale, top + height * scale


def _pair(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    pair = (size, size) if isinstance(size, int) else size
    if pair is not None and min(pair) < 1:
        raise UsageError(f"size: expected at least 1 x 1, got {pair[0]} x {pair[1]}")
    return pair


@checked
def text(size: int) -> Decode:
    """Return a decoder that converts text to uint8 [size].

    The result contains the UTF-8 bytes of the text, truncated or padded with zeros.
    """
    check_minimum(0, size=size)
    return partial(_decode_text, size=size)


def _decode_text(data: bytes, size: int) -> Any:
    out = np.zeros(size, np.uint8)
    part = np.frombuffer(data[:size], np.uint8)
    out[: len(part)] = part
    return out


@checked
def audio(rate: int | None = None, seconds: float = 600.0) -> Decode:
    """Return a decoder that converts audio to float32 [channels, samples]. Requires PyAV.

    rate     sample rate in Hz; None keeps the rate of each file
    seconds  maximum duration to decode
    """
    check_minimum(1, rate=rate)
    if not seconds > 0:
        raise UsageError(f"seconds: expected more than 0, got {seconds}")
    return partial(_decode_audio, rate=rate, seconds=seconds)


def _decode_audio(data: bytes, rate: int | None, seconds: float) -> Any:
    av = _av()
    try:
        with av.open(io.BytesIO(data), options=_NO_PROTOCOLS) as file:
            stream = file.streams.audio[0]
            rate = rate or stream.rate
            resampler = av.AudioResampler("fltp", rate=rate)
            parts, remaining = [], int(seconds * rate)  # samples per channel left to decode
            # passing None flushes the resampler
            for frame in itertools.chain(file.decode(stream), [None]):
                for resampled in resampler.resample(frame):
                    parts.append(resampled.to_ndarray()[:, :remaining])
                    remaining -= parts[-1].shape[1]
                if remaining <= 0:
                    break
            return np.concatenate(parts, axis=1)
    except (av.error.FFmpegError, IndexError, ValueError) as error:
        raise ValueFitError(f"invalid audio: {error}") from error


@checked
def video(frames: int, step: int = 1, size: int | tuple[int, int] | None = None) -> Decode:
    """Return a decoder that converts video to uint8 [frames, height, width, 3]. Requires PyAV.

    frames  maximum number of frames
    step    decode every `step`-th frame
    size    size in pixels: one number or (width, height); None keeps the size of each video
    """
    check_minimum(1, frames=frames, step=step)
    return partial(_decode_video, frames=frames, step=step, size=_pair(size))


def _decode_video(data: bytes, frames: int, step: int, size: tuple[int, int] | None) -> Any:
    av = _av()
    width, height = size or (None, None)
    out: list[Any] = []
    try:
        with av.open(io.BytesIO(data), options=_NO_PROTOCOLS) as file:
            for k, frame in enumerate(file.decode(file.streams.video[0])):
                if len(out) == frames:
                    break
                if k % step == 0:
                    out.append(frame.reformat(width, height, "rgb24").to_ndarray())
            return np.stack(out)
    except (av.error.FFmpegError, IndexError, ValueError) as error:
        raise ValueFitError(f"invalid video: {error}") from error


def _av() -> Any:
    try:
        import av
    except ImportError:
        raise MissingLibraryError("PyAV is not installed", hint="Run `pip install av`.") from None
    return av
