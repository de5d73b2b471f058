"""What each of granular's types does with a value, and back. All of them can be pickled, so that workers can be sent a reader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flarecli import encodings, read
from flarecli.errors import ValueFitError

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


def _encode(name: str, value: Any) -> bytes:
    if name == "bytes" and not isinstance(value, bytes):
        raise ValueFitError(f"{type(value).__name__} does not fit bytes")
    data: bytes = encodings.encode(encodings.lookup(name), value)
    return data


def _decode(name: str, data: bytes) -> Any:
    return encodings.decode(encodings.lookup(name), data)


def _encode_image(name: str, value: Any) -> bytes:
    from PIL import Image

    return _encode(name, value if isinstance(value, bytes) else Image.fromarray(np.asarray(value)))


def _decode_image(name: str, data: bytes) -> Any:
    return np.asarray(_decode(name, data))


def _encode_video(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueFitError(
            f"{type(value).__name__} is no {name} file",
            hint="Give the bytes of the file: what a frame becomes is your choice.",
        )
    return value


def _decode_video(name: str, data: bytes) -> Any:
    """Give the frames: uint8 [frames, height, width, 3]."""
    return read.presets.video(sys.maxsize)(data)


encoders: dict[str, Callable[[Any], bytes]] = {
    **{word: partial(_encode, name) for word, name in _ENCODINGS.items()},
    **{word: partial(_encode_image, name) for word, name in (("jpg", "jpeg"), ("png", "png"))},
    **{word: partial(_encode_video, word) for word in ("mp4", "webm")},
}
decoders: dict[str, Callable[[bytes], Any]] = {
    **{word: partial(_decode, name) for word, name in _ENCODINGS.items()},
    **{word: partial(_decode_image, name) for word, name in (("jpg", "jpeg"), ("png", "png"))},
    **{word: partial(_decode_video, word) for word in ("mp4", "webm")},
}
