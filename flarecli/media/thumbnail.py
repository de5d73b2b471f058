"""Thumbnails for a page or a terminal, decoded within a limit of pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flarecli.media.resize import opened_image, require_image

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["thumbnail"]

MAX_THUMBNAIL_SOURCE_PIXELS = 1 << 25  # 33 million


def thumbnail(
    data: bytes, width: int, height: int, max_pixels: int = MAX_THUMBNAIL_SOURCE_PIXELS
) -> Image:
    """Decode the first frame of an image into a box; it is never enlarged.

    return  RGB of at most width × height, upright by EXIF; transparent pixels become white
    raises  ValueFitError if the data are not an image, damaged, or of more than `max_pixels`
    """
    info = require_image(data)
    with opened_image(data, info, max_pixels) as image:
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
