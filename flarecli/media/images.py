"""Resize images, create thumbnails, and reject images outside the limits for size and aspect ratio.

If no change is needed, the bytes of an image are returned unchanged. A changed image is rotated
upright according to EXIF. It keeps its color profile and file format, but not its other metadata.
Pillow decodes images in threads, after the number of pixels in the header has been checked.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from flarecli.errors import UsageError, ValueFitError
from flarecli.media.headers import MediaInfo, probe
from flarecli.units import format_list

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

__all__ = ["Resize", "resize_image", "thumbnail"]

MODES = ("fit", "crop", "stretch")
MAX_PIXELS = 1 << 26  # 67 million, which need 256 MB as RGBA
DEFAULT_QUALITY = 95  # for lossy formats
MAX_SIDE = 1 << 16
MAX_THUMBNAIL_SOURCE_PIXELS = 1 << 25  # 33 million
KINDS = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif")  # Pillow's names, in lower case
_LOSSY = frozenset({"jpeg", "webp", "avif"})
_ORIENTATION = 0x0112  # EXIF tag
_TRANSPOSED = frozenset({5, 6, 7, 8})  # orientations that swap width and height
_INTERPOLATED = frozenset({"L", "LA", "I;16", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F"})


@dataclass(frozen=True, slots=True)
class Resize:
    """Options for resizing images.

    size        side of a square box, or width and height of a box, in pixels; None for no resizing
    mode        `fit`: shrink to fit inside the box; `crop`: scale to fill the box, and cut off the
                edges; `stretch`: scale to the size of the box, without keeping the aspect ratio
    quality     quality for lossy formats, 1 to 100; if set, these formats are always encoded again
    min_size    minimum length of the shorter side in pixels
    max_aspect  maximum ratio of the longer side to the shorter side
    max_pixels  maximum number of pixels in an image that is decoded
    """

    size: int | tuple[int, int] | None = None
    mode: str = "fit"
    quality: int | None = None
    min_size: int = 0
    max_aspect: float | None = None
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(
                f"--resize-mode: expected {format_list(MODES, 'or')}, got {self.mode!r}"
            )
        if self.box is None and self.mode != "fit":
            raise UsageError(
                f"--resize-mode {self.mode} needs --resize",
                hint="Add --resize, or omit --resize-mode.",
            )
        if self.box is not None and not all(0 < side <= MAX_SIDE for side in self.box):
            shown = "x".join(map(str, self.box if isinstance(self.size, tuple) else self.box[:1]))
            raise UsageError(
                f"--resize: expected sides from 1 to {MAX_SIDE} pixels, got {shown}",
                hint="Use one number, or two numbers such as 640x480.",
            )
        if self.min_size < 0:
            raise UsageError(f"--min-size: expected a number of pixels, got {self.min_size}")
        if self.quality is not None and not 0 < self.quality <= 100:
            raise UsageError(f"--quality: expected a number from 1 to 100, got {self.quality}")
        if self.max_aspect is not None and self.max_aspect < 1:
            raise UsageError(f"--max-aspect must be at least 1, got {self.max_aspect:g}")

    @property
    def box(self) -> tuple[int, int] | None:
        """Return width and height of the box for resized images in pixels; None: no resizing."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def is_noop(self) -> bool:
        """Return whether these options neither change nor reject any image."""
        return (
            self.size is None
            and self.quality is None
            and not self.min_size
            and self.max_aspect is None
        )


def resize_image(data: bytes, options: Resize) -> bytes:
    """Return a resized image, or the same bytes if no change is needed.

    raises  ValueFitError for damaged data, unsupported data, or an image outside the limits
    """
    info = _require_image(data)
    width, height = info.width or 0, info.height or 0
    short, long = sorted((width, height))
    if short < options.min_size:
        raise ValueFitError(
            f"{width}×{height} pixels; the shorter side must be at least {options.min_size}"
        )
    if options.max_aspect is not None and long > options.max_aspect * short:
        raise ValueFitError(
            f"{width}×{height} pixels; the aspect ratio must be at most {options.max_aspect:g}"
        )
    may_keep = options.quality is None or info.kind not in _LOSSY
    # EXIF may rotate the image by 90°. If the image has the requested size in both orientations, it
    # need not be decoded.
    if may_keep and _has_size(width, height, options) and _has_size(height, width, options):
        return data
    if (info.frames or 1) > 1 and info.kind != "tiff":
        raise ValueFitError(f"an animation of {info.frames} frames cannot be resized")
    with _opened_image(data, info, options.max_pixels) as image:
        orientation = image.getexif().get(_ORIENTATION, 1)
        upright_size = image.size[::-1] if orientation in _TRANSPOSED else image.size
        has_size = _has_size(*upright_size, options)
        if may_keep and has_size:
            return data
        profile = image.info.get("icc_profile")
        from PIL import ImageOps

        # An image that is neither scaled nor rotated is copied, because saving the original object
        # would keep its metadata.
        upright = image if orientation == 1 and not has_size else ImageOps.exif_transpose(image)
        return _encode(_scale(upright, options), info.kind or "", options, profile)


def thumbnail(data: bytes, width: int, height: int) -> Image:
    """Return the first frame of an image, shrunk to fit a box of width × height pixels.

    return  RGB image, rotated upright according to EXIF; transparent pixels are white
    raises  ValueFitError for damaged data, unsupported data, or too many pixels
    """
    info = _require_image(data)
    with _opened_image(data, info, MAX_THUMBNAIL_SOURCE_PIXELS) as image:
        from PIL import Image, ImageOps

        image.draft("RGB", (2 * width, 2 * height))
        small = ImageOps.exif_transpose(image)
        if small.mode.startswith("I;16"):
            small = small.point(lambda value: value / 256, "L")
        if "A" in small.getbands() or "transparency" in small.info:
            clear = small.convert("RGBA")
            small = Image.new("RGB", clear.size, "white")
            small.paste(clear, mask=clear.getchannel("A"))
        small = small.convert("RGB")
        small.thumbnail((width, height))
        return small


def _require_image(data: bytes) -> MediaInfo:
    """Return the facts in the header of an image.

    raises  ValueFitError for an unsupported format, or if the header contains no image size
    """
    info = probe(data)
    if info.kind not in KINDS:
        raise ValueFitError("not an image in a supported format")
    if not info.width or not info.height:
        raise ValueFitError(f"damaged {info.kind}: no image size in the header")
    return info


@contextmanager
def _opened_image(data: bytes, info: MediaInfo, max_pixels: int) -> Iterator[ImageFile]:
    """Open an image with Pillow; errors in the `with` block are raised as ValueFitError.

    info  facts in the image header, from `_require_image`
    """

    def check_pixels(width: int, height: int) -> None:
        if width * height > max_pixels:
            raise ValueFitError(f"{width}×{height} pixels; the maximum is {max_pixels}")

    check_pixels(info.width or 0, info.height or 0)
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=[str(info.kind).upper()]) as image:
            check_pixels(*image.size)  # Pillow may read a larger size than the header parser
            yield image
    except (ValueFitError, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders may raise any error for damaged data
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueFitError(f"damaged {info.kind}: {text[:100]}") from None


def _has_size(width: int, height: int, options: Resize) -> bool:
    if options.box is None:
        return True
    if options.mode == "fit":  # images are never enlarged
        return width <= options.box[0] and height <= options.box[1]
    return (width, height) == options.box


def _scale(image: Image, options: Resize) -> Image:
    from PIL import Image

    width, height = image.size
    if options.box is None or _has_size(width, height, options):
        return image
    if image.mode not in _INTERPOLATED:  # for example, a palette image
        if "transparency" in image.info or image.mode in ("PA", "La", "RGBa"):
            image = image.convert("RGBA")
        else:
            image = image.convert("L" if image.mode == "1" else "RGB")
    wide, high = options.box
    box = None
    if options.mode == "fit" and width * high > height * wide:
        high = max(1, round(height / width * wide))
    elif options.mode == "fit":
        wide = max(1, round(width / height * high))
    elif options.mode == "crop":  # crop to the largest centered area with the box's aspect ratio
        across, down = min(width, height * wide / high), min(height, width * high / wide)
        box = ((width - across) / 2, (height - down) / 2, (width + across) / 2, (height + down) / 2)
    # Bicubic interpolation is faster than Lanczos.
    return image.resize((wide, high), Image.Resampling.BICUBIC, box=box)


def _encode(image: Image, kind: str, options: Resize, profile: bytes | None) -> bytes:
    parameters: dict[str, Any] = {"icc_profile": profile} if profile and kind != "bmp" else {}
    if kind in _LOSSY:
        parameters["quality"] = options.quality or DEFAULT_QUALITY
    if kind == "jpeg" and image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("RGB")
    image.info.pop("exif", None)  # the image is already upright
    with _memory_file() if kind == "jpeg" else io.BytesIO() as out:
        image.save(out, kind.upper(), **parameters)
        out.seek(0)
        return out.read()


def _memory_file() -> BinaryIO:
    """Return an in-memory file, with a file descriptor if the system supports it.

    Pillow releases the GIL while it encodes a JPEG into a file descriptor.
    """
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        with suppress(OSError):
            return open(os.memfd_create("image"), "w+b", buffering=0)
    return io.BytesIO()
