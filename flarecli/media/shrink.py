"""Small pictures for a page or a terminal: decoded within a limit of pixels, and nothing but pixels comes out."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from flarecli.errors import ValueFitError
from flarecli.media.measuring import measure
from flarecli.media.resize import _FORMATS

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["thumbnail"]

_PIXELS = 1 << 25  # of a picture that is decoded only to be looked at: 33 million


def thumbnail(data: bytes, width: int, height: int, max_pixels: int = _PIXELS) -> Image:
    """Decode the first frame of a picture, turned as its EXIF says, to fit a box; never enlarged.

    return  an RGB picture of at most width × height; what is transparent becomes white
    raises  ValueFitError for what is no picture, damaged, or larger than `max_pixels`
    """
    known = measure(data)
    if known.kind not in _FORMATS or not known.width or not known.height:
        raise ValueFitError("is no picture that can be shown")
    if known.width * known.height > max_pixels:
        raise ValueFitError(
            f"is {known.width}×{known.height} pixels, more than the {max_pixels} that are decoded"
        )
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=[_FORMATS[known.kind]]) as opened:
            if opened.width * opened.height > max_pixels:  # a header may say two things
                raise ValueFitError(
                    f"is {opened.width}×{opened.height} pixels, more than the {max_pixels} that are decoded"
                )
            opened.draft("RGB", (2 * width, 2 * height))
            small = ImageOps.exif_transpose(opened)
            if small.mode.startswith("I;16"):
                small = small.point(lambda value: value / 256, "L")
            if "A" in small.getbands() or "transparency" in small.info:
                clear = small.convert("RGBA")
                small = Image.new("RGB", clear.size, "white")
                small.paste(clear, mask=clear.getchannel("A"))
            small = small.convert("RGB")
            small.thumbnail((width, height))
            return small
    except ValueFitError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise whatever damage makes them trip over
        raise ValueFitError(f"is damaged: {error}" if str(error) else "is damaged") from None
