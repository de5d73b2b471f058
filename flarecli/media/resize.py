"""Pictures on the way in: brought to a size, refused if they are too small, too long, or a bomb; else left as they are.

The bytes stay those that came unless something asks for a change. What is changed is turned the way its EXIF says, keeps
its colour profile and its format, and loses the rest of its metadata. Pillow decodes, in threads; how many pixels there
are the header says before that.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from flarecli.cpus import cpu_count
from flarecli.errors import UsageError, ValueFitError
from flarecli.media.measuring import measure

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image

__all__ = ["MODES", "Resize", "resize", "resized"]

MODES = ("fit", "crop", "stretch")
PIXELS = 1 << 26  # of a picture that is decoded: 67 million, 256 MB as RGBA
QUALITY = 95  # of lossy formats, where none is asked for
_FORMATS = {
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "gif": "GIF",
    "bmp": "BMP",
    "tiff": "TIFF",
    "avif": "AVIF",
}
_LOSSY = frozenset({"jpeg", "webp", "avif"})
_ORIENTATION, _ON_ITS_SIDE = (
    0x0112,
    frozenset({5, 6, 7, 8}),
)  # an EXIF tag, and its values that swap width and height
_SMOOTH = frozenset(
    {"L", "LA", "I;16", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F"}
)  # modes whose values can be mixed


@dataclass(frozen=True, slots=True)
class Resize:
    """What is asked of pictures.

    size        pixels of the sides of a square, or of the width and height of a box; None: as they are
    mode        `fit`: inside that box, never enlarged; `crop`: fills the box, the middle is kept;
                `stretch`: the box, whatever that does to the picture
    quality     1 to 100, of lossy formats; given, they are encoded anew even where the size is right
    min_size    pixels that the shorter side must have
    max_aspect  how many times as long as the other a side may be
    max_pixels  a picture of more is not decoded
    """

    size: int | tuple[int, int] | None = None
    mode: str = "fit"
    quality: int | None = None
    min_size: int = 0
    max_aspect: float | None = None
    max_pixels: int = PIXELS

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(
                f"--resize-mode is {self.mode!r}", hint=f"Choose one of {', '.join(MODES)}."
            )
        if self.box is None and self.mode != "fit":
            raise UsageError(
                f"--resize-mode {self.mode} without a size changes nothing",
                hint="Give --resize too.",
            )
        if self.box is not None and not all(0 < side <= 1 << 16 for side in self.box):
            shown = "x".join(map(str, self.box if isinstance(self.size, tuple) else self.box[:1]))
            raise UsageError(
                f"--resize {shown} is no size in pixels",
                hint="Give a number from 1 to 65536, or two as in 640x480.",
            )
        if self.min_size < 0:
            raise UsageError(f"--min-size is {self.min_size}", hint="Give a number of pixels.")
        if self.quality is not None and not 0 < self.quality <= 100:
            raise UsageError(f"--quality is {self.quality}", hint="Give a number from 1 to 100.")
        if self.max_aspect is not None and self.max_aspect < 1:
            raise UsageError(
                f"--max-aspect is {self.max_aspect:g}", hint="Give a number of at least 1."
            )

    @property
    def box(self) -> tuple[int, int] | None:
        """Width and height that are asked for, in pixels."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is asked for."""
        return (
            self.size is None
            and self.quality is None
            and not self.min_size
            and self.max_aspect is None
        )


def resize(
    pictures: pa.Array, asked: Resize, jobs: int | None = None
) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Bring a column of pictures to what is asked for, side by side; nulls stay.

    pictures  binary or large_binary [rows], whole files
    jobs      threads; None: as many as there are cores
    return    large_binary [rows], null where a picture fails; and (row, reason) of those, in order
    """
    import pyarrow as pa

    def one(data: bytes | None) -> bytes | str | None:
        try:
            return None if data is None else resized(data, asked)
        except ValueFitError as error:
            return error.message

    values = (scalar.as_py() for scalar in pictures)
    with ThreadPoolExecutor(jobs or cpu_count()) as pool:
        found = list(pool.map(one, values))
    failures = [(row, value) for row, value in enumerate(found) if isinstance(value, str)]
    return pa.array(
        [None if isinstance(value, str) else value for value in found], pa.large_binary()
    ), failures


def resized(data: bytes, asked: Resize) -> bytes:
    """Give a picture as it is asked for; the very same bytes if they are that already.

    raises  ValueFitError for what is no picture, damaged, too small, too long, or larger than may be decoded
    """
    known = measure(data)
    width, height = known.width, known.height
    if known.kind not in _FORMATS or not width or not height:
        raise ValueFitError(
            "is no picture that can be resized"
            if known.kind not in _FORMATS
            else f"is a {known.kind} whose size cannot be told"
        )
    short, long = sorted((width, height))
    if short < asked.min_size:
        raise ValueFitError(
            f"is {width}×{height} pixels, its shorter side is below {asked.min_size}"
        )
    if asked.max_aspect is not None and long > asked.max_aspect * short:
        raise ValueFitError(
            f"is {width}×{height} pixels, one side is more than {asked.max_aspect:g} times the other"
        )
    keeps = asked.quality is None or known.kind not in _LOSSY
    if (
        keeps and _is_right(width, height, asked) and _is_right(height, width, asked)
    ):  # whichever way its EXIF turns it
        return data
    if width * height > asked.max_pixels:
        raise ValueFitError(
            f"is {width}×{height} pixels, more than the {asked.max_pixels} that are decoded"
        )
    if (known.frames or 1) > 1 and known.kind != "tiff":
        raise ValueFitError(f"is an animation of {known.frames} frames, and those are not resized")
    return _made(data, known.kind or "", asked, keeps)


def _is_right(width: int, height: int, asked: Resize) -> bool:
    if asked.box is None:
        return True
    return (
        width <= asked.box[0] and height <= asked.box[1]
        if asked.mode == "fit"
        else (width, height) == asked.box
    )


def _made(data: bytes, kind: str, asked: Resize, keeps: bool) -> bytes:
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=[_FORMATS[kind]]) as opened:
            if opened.width * opened.height > asked.max_pixels:  # a header may say two things
                raise ValueFitError(
                    f"is {opened.width}×{opened.height} pixels, more than the {asked.max_pixels} that are decoded"
                )
            orientation = opened.getexif().get(_ORIENTATION, 1)
            is_right = _is_right(
                *(opened.size[::-1] if orientation in _ON_ITS_SIDE else opened.size), asked
            )
            if keeps and is_right:
                return data
            profile = opened.info.get("icc_profile")
            upright = (
                opened if orientation == 1 and not is_right else ImageOps.exif_transpose(opened)
            )  # a copy at least
            return _saved(_scaled(upright, asked), kind, asked, profile)
    except ValueFitError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise whatever damage makes them trip over
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueFitError(f"is a {kind} that cannot be decoded: {text[:100]}") from None


def _scaled(picture: Image, asked: Resize) -> Image:
    from PIL import Image

    width, height = picture.size
    if asked.box is None or _is_right(width, height, asked):
        return picture
    if picture.mode not in _SMOOTH:  # a palette, bits: their values mean nothing between
        picture = picture.convert(
            "RGBA"
            if "transparency" in picture.info or picture.mode in ("PA", "La", "RGBa")
            else "L"
            if picture.mode == "1"
            else "RGB"
        )
    wide, high = asked.box
    box = None
    if asked.mode == "fit" and width * high > height * wide:
        high = max(1, round(height / width * wide))
    elif asked.mode == "fit":
        wide = max(1, round(width / height * high))
    elif asked.mode == "crop":  # the largest part of that shape, around the middle
        across, down = min(width, height * wide / high), min(height, width * high / wide)
        box = ((width - across) / 2, (height - down) / 2, (width + across) / 2, (height + down) / 2)
    return picture.resize(
        (wide, high), Image.Resampling.BICUBIC, box=box
    )  # Lanczos takes a third longer


def _saved(picture: Image, kind: str, asked: Resize, profile: bytes | None) -> bytes:
    options: dict[str, Any] = {"icc_profile": profile} if profile and kind != "bmp" else {}
    if kind in _LOSSY:
        options["quality"] = asked.quality or QUALITY
    if kind == "jpeg" and picture.mode not in ("L", "RGB", "CMYK"):
        picture = picture.convert("RGB")
    picture.info.pop("exif", None)  # it says how to turn what is turned already
    with _numbered() if kind == "jpeg" else io.BytesIO() as out:
        picture.save(out, _FORMATS[kind], **options)
        out.seek(0)
        return out.read()


def _numbered() -> BinaryIO:
    """Give a file in memory with a descriptor: into one Pillow encodes without holding the interpreter, where the system has such files."""
    try:
        return os.fdopen(os.memfd_create("picture"), "w+b", buffering=0)
    except (AttributeError, OSError):
        return io.BytesIO()
