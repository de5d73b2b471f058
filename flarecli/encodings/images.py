"""Images in the byte layouts of MDS: one image or several images per value.

pil                       uint32 width, uint32 height, uint32 n, n bytes (name of the image mode),
                          pixels (as in Pillow's `tobytes`)
jpeg, png                 an image file; its content determines the format
jpeg_array, jpegarray     uint32 count, uint32[count] sizes, JPEG files
list[pil|jpeg|png]        uint32 0 (reserved), uint32 count, uint32[count] sizes, stored images
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
_PIXEL_BYTES = {  # by mode
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "PA", "La", "I;16", "I;16B", "I;16L", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 4),
}
_ARRAYS = ("jpeg_array", "jpegarray")


def encode(name: str, value: Any) -> bytes:
    """Return the stored bytes of a Pillow image, or of a list of images or image files.

    raises  ValueFitError for a value that is not an image, or an image that the encoding cannot
            store
    """
    if name in _ARRAYS or name.startswith("list["):
        if not isinstance(value, (list, tuple)):
            raise ValueFitError(f"{type(value).__name__} cannot be stored as {name}")
        return join(
            name,
            [
                bytes(item)
                if isinstance(item, (bytes, bytearray, memoryview))
                else encode(_inner(name), item)
                for item in value
            ],
        )
    if not hasattr(value, "save") or not hasattr(value, "mode"):
        raise ValueFitError(f"{type(value).__name__} cannot be stored as {name}")
    return _encode_raw(value) if name == "pil" else _encode_file(name, value)


def _inner(name: str) -> str:
    return "jpeg" if name in _ARRAYS else name[5:-1]


def _encode_raw(image: Any) -> bytes:
    mode: str = image.mode
    if mode in ("P", "PA") and image.palette is not None and bytes(image.palette.palette):
        hint = "Convert the image to RGB, or choose png."
        raise ValueFitError(
            f"pil does not store palettes, but an image of mode {mode} needs a palette",
            hint=hint,
        )
    name, pixels = mode.encode(), bytes(image.tobytes())
    return _HEAD.pack(*image.size, len(name)) + name + pixels


def _encode_file(name: str, image: Any) -> bytes:
    """Encode an image as an image file with Pillow's default settings.

    If Pillow opened a JPEG image from a file, the bytes of that file are returned, as in MDS. A new
    encoding would reduce the quality of the image.
    """
    path: str = getattr(image, "filename", "")
    if name == "jpeg" and path and type(image).__name__ == "JpegImageFile":
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError:  # for example, the file was deleted
            pass
    out = io.BytesIO()
    try:
        image.save(out, format=name.upper())
    except (OSError, ValueError) as error:
        raise ValueFitError(
            f"an image of mode {image.mode} cannot be stored as {name}",
            hint="Convert the image to RGB.",
        ) from error
    return out.getvalue()


def join(name: str, parts: Sequence[bytes]) -> bytes:
    """Return the stored bytes of a `jpeg_array` or a list of images.

    parts   stored bytes of each image
    raises  ValueFitError for an image of 4 GiB or more
    """
    try:
        sizes = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    except struct.error:
        raise ValueFitError(f"{name} cannot contain a value of 4 GiB or more") from None
    return b"".join((b"" if name in _ARRAYS else bytes(4), sizes, *parts))


def split(name: str, data: bytes) -> list[bytes]:
    """Return the stored bytes of each image in a `jpeg_array` or a list of images.

    raises  ValueFitError if the listed sizes do not match the size of `data`
    """
    start = 0 if name in _ARRAYS else 4
    count = int.from_bytes(data[start : start + 4], "little")
    at = start + 4 + 4 * count
    if len(data) < at:
        raise ValueFitError(f"{format_size(len(data))} cannot contain {count} images")
    sizes = struct.unpack_from(f"<{count}I", data, start + 4)
    if at + sum(sizes) != len(data):
        raise ValueFitError(
            f"the sizes of {count} images add up to {sum(sizes)} bytes; expected {len(data) - at}"
        )
    parts = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return parts


def decode(name: str, data: bytes) -> Any:
    """Return a Pillow image, or a list of Pillow images. Pixels are decoded on first access.

    raises  ValueFitError for invalid bytes
    """
    if name in _ARRAYS or name.startswith("list["):
        return [decode(_inner(name), part) for part in split(name, data)]
    return _decode_raw(data) if name == "pil" else _open_image(name, data)


def _open_image(name: str, data: bytes) -> Any:
    """Open an image file with Pillow. JPEG and PNG are tried before all other formats."""
    from PIL import Image, UnidentifiedImageError

    try:
        try:
            return Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        except UnidentifiedImageError:
            return Image.open(io.BytesIO(data), formats=_other_formats())
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError, SyntaxError):
        raise ValueFitError(f"not a valid {name} value ({format_size(len(data))})") from None


@cache
def _other_formats() -> tuple[str, ...]:
    """Return the file formats that Pillow decodes without an external program."""
    from PIL import Image

    from flarecli.media import FORMATS

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _decode_raw(data: bytes) -> Any:
    from PIL import Image

    width, height, length = _HEAD.unpack_from(data)
    mode = data[12 : 12 + min(length, 8)].decode("ascii")
    row = (width + 7) // 8 if mode == "1" else width * _PIXEL_BYTES.get(mode, 0)
    if not row or not height or row * height != len(data) - 12 - length:
        raise ValueFitError(f"not a valid pil value ({format_size(len(data))})")
    return Image.frombytes(mode, (width, height), data[12 + length :])
