"""Encoders and decoders for granular's types.

They can be pickled, because a reader with its decoders is sent to worker processes.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flarecli import encodings, read
from flarecli.errors import MissingLibraryError, ValueFitError

__all__ = ["decoders", "encoders"]

_ENCODINGS = {
    "bytes": "bytes",
    "utf8": "str",
    "msgpack": "msgpack",
    "int": "varint",
    "i64": "int",
    "u64": "uint64",
    "array": "array",
    "tree": "tree",
}
_CODECS = {"mp4": "h264", "webm": "vp9"}
_FRAME_RATE = 20  # per second


def _encode(name: str, value: Any) -> bytes:
    if name == "bytes" and not isinstance(value, bytes):
        raise ValueFitError(f"expected bytes, got {type(value).__name__}")
    data: bytes = encodings.encode(encodings.lookup(name), value)
    return data


def _decode(name: str, data: bytes) -> Any:
    return encodings.decode(encodings.lookup(name), data)


def _encode_image(name: str, value: Any) -> bytes:
    from PIL import Image

    return _encode(name, value if isinstance(value, bytes) else Image.fromarray(np.asarray(value)))


def _decode_image(name: str, data: bytes) -> Any:
    return np.asarray(_decode(name, data))


def _encode_video(name: str, codec: str, value: Any) -> bytes:
    """Encode frames as a video file.

    value  frames: uint8 [frames, height, width, 3]; the bytes of a video file are returned as is
    """
    if isinstance(value, bytes):
        return value
    frames = np.asarray(value)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise ValueFitError(
            f"cannot encode as {name}: expected bytes or uint8 [frames, height, width, 3], "
            f"got {frames.dtype} {list(frames.shape)}"
        )
    try:
        import av
    except ImportError:
        raise MissingLibraryError(
            f"encoding frames as {name} requires PyAV", hint="Run `pip install 'flarecli[media]'`."
        ) from None
    file = io.BytesIO()
    try:
        with av.open(file, "w", format=name) as container:
            stream: Any = container.add_stream(codec, rate=_FRAME_RATE)
            stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
            for i, pixels in enumerate(frames):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts = i
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    except av.FFmpegError as error:
        raise ValueFitError(f"cannot encode as {name}: {error}") from None
    return file.getvalue()


def _decode_video(data: bytes) -> Any:
    """Decode a video file to its frames: uint8 [frames, height, width, 3]."""
    return read.decoders.video(sys.maxsize)(data)


encoders: dict[str, Callable[[Any], bytes]] = {
    **{word: partial(_encode, name) for word, name in _ENCODINGS.items()},
    **{word: partial(_encode_image, name) for word, name in (("jpg", "jpeg"), ("png", "png"))},
    **{word: partial(_encode_video, word, codec) for word, codec in _CODECS.items()},
}
decoders: dict[str, Callable[[bytes], Any]] = {
    **{word: partial(_decode, name) for word, name in _ENCODINGS.items()},
    **{word: partial(_decode_image, name) for word, name in (("jpg", "jpeg"), ("png", "png"))},
    **dict.fromkeys(_CODECS, _decode_video),
}
