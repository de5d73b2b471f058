"""Pictures as MDS stores them, and several in one value.

pil                       uint32 width, height, length of the mode's name; the name; pixels as Pillow's tobytes gives them
jpeg, png                 a file, whatever its container: the bytes say what they are
jpeg_array, jpegarray     uint32 count, uint32[count] sizes, JPEG files
list[pil|jpeg|png]        uint32 0 (reserved), uint32 count, uint32[count] sizes, values
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from flarecli.errors import ValueFitError
from flarecli.units import format_size

__all__ = ["decode", "encode", "join", "split"]

_HEAD = struct.Struct("<III")
_PIXEL = {  # bytes of a pixel, by mode
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "PA", "La", "I;16", "I;16B", "I;16L", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 4),
}
_ARRAYS = ("jpeg_array", "jpegarray")


def encode(name: str, value: Any) -> bytes:
    """Give the stored bytes of a Pillow image, or of a sequence of them or of their files.

    raises  ValueFitError for what is no picture, or one that the encoding cannot hold
    """
    if name in _ARRAYS or name.startswith("list["):
        if not isinstance(value, (list, tuple)):
            raise ValueFitError(f"{type(value).__name__} does not fit {name}")
        return join(
            name,
            [
                bytes(one)
                if isinstance(one, (bytes, bytearray, memoryview))
                else encode(_inner(name), one)
                for one in value
            ],
        )
    if not hasattr(value, "save") or not hasattr(value, "mode"):
        raise ValueFitError(f"{type(value).__name__} does not fit {name}")
    return _raw(value) if name == "pil" else _file(name, value)


def _inner(name: str) -> str:
    return "jpeg" if name in _ARRAYS else name[5:-1]


def _raw(picture: Any) -> bytes:
    mode: str = picture.mode
    if mode in ("P", "PA") and picture.palette is not None and bytes(picture.palette.palette):
        hint = "Convert it to RGB, or choose png."
        raise ValueFitError(
            f"pil keeps no palette, and a picture of mode {mode} is nothing without its own",
            hint=hint,
        )
    name, pixels = mode.encode(), bytes(picture.tobytes())
    return _HEAD.pack(*picture.size, len(name)) + name + pixels


def _file(name: str, picture: Any) -> bytes:
    """Save a picture as Pillow does by default; a JPEG that was opened from a file is that file, as in the original: it loses nothing."""
    path: str = getattr(picture, "filename", "")
    if name == "jpeg" and path and type(picture).__name__ == "JpegImageFile":
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError:  # it is gone, or no file any more
            pass
    out = io.BytesIO()
    try:
        picture.save(out, format=name.upper())
    except (OSError, ValueError) as error:
        raise ValueFitError(
            f"a picture of mode {picture.mode} does not fit {name}", hint="Convert it to RGB."
        ) from error
    return out.getvalue()


def join(name: str, parts: Sequence[bytes]) -> bytes:
    """Give the stored bytes of a `jpeg_array`, or of a list, whose values have these. Raises ValueFitError for one of 4 GiB or more."""
    try:
        sizes = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    except struct.error:
        raise ValueFitError(f"a value of 4 GiB or more does not fit {name}") from None
    return b"".join((b"" if name in _ARRAYS else bytes(4), sizes, *parts))


def split(name: str, data: bytes) -> list[bytes]:
    """Give the stored bytes of each value in a `jpeg_array` or a list. Raises ValueFitError if the sizes are not those of the bytes."""
    start = 0 if name in _ARRAYS else 4
    count = int.from_bytes(data[start : start + 4], "little")
    at = start + 4 + 4 * count
    if len(data) < at:
        raise ValueFitError(f"{format_size(len(data))} cannot hold {count} pictures")
    sizes = struct.unpack_from(f"<{count}I", data, start + 4)
    if at + sum(sizes) != len(data):
        raise ValueFitError(
            f"{format_size(len(data))} are not the {sum(sizes)} bytes of {count} pictures"
        )
    parts = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return parts


def decode(name: str, data: bytes) -> Any:
    """Give a Pillow image, opened and not yet decoded; of several a list of them.

    raises  ValueFitError if the bytes are not what the encoding says
    """
    if name in _ARRAYS or name.startswith("list["):
        return [decode(_inner(name), part) for part in split(name, data)]
    return _from_raw(data) if name == "pil" else _opened(name, data)


def _opened(name: str, data: bytes) -> Any:
    """Open a picture's header; its pixels are decoded when they are asked for."""
    from PIL import Image, UnidentifiedImageError

    try:
        try:
            return Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        except UnidentifiedImageError:
            return Image.open(io.BytesIO(data), formats=_others())
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError, SyntaxError):
        raise ValueFitError(f"{format_size(len(data))} are not {name}") from None


@cache
def _others() -> tuple[str, ...]:
    """Name the formats that Pillow decodes by itself, as far as it has them: for an EPS it would run a program."""
    from PIL import Image

    from flarecli.media import FORMATS

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _from_raw(data: bytes) -> Any:
    from PIL import Image

    width, height, length = _HEAD.unpack_from(data)
    mode = data[12 : 12 + min(length, 8)].decode("ascii")
    row = (width + 7) // 8 if mode == "1" else width * _PIXEL.get(mode, 0)
    if not row or not height or row * height != len(data) - 12 - length:
        raise ValueFitError(f"{format_size(len(data))} are not pil")
    return Image.frombytes(mode, (width, height), data[12 + length :])
