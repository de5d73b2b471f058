"""Images on a terminal: a half block per two pixels, with the upper one as foreground colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flarecli.errors import ValueFitError

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["half_blocks"]

WIDTH, HEIGHT = 24, 24  # pixels of an image in a cell: 24 characters on 12 lines


def half_blocks(data: bytes, caption: str) -> Text | None:
    """Draw an image above a caption; return None if it is invalid or has too many pixels to decode.

    caption  escaped text
    """
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    from flarecli.media import thumbnail

    try:
        small = thumbnail(data, WIDTH, HEIGHT)
    except ValueFitError:
        return None
    width, height = small.size
    pixels = small.tobytes()

    def colour(x: int, y: int) -> Color | None:
        at = 3 * (y * width + x)
        return Color.from_rgb(*pixels[at : at + 3]) if y < height else None

    text = Text(no_wrap=True)
    for y in range(0, height, 2):
        for x in range(width):
            text.append("▀", Style(color=colour(x, y), bgcolor=colour(x, y + 1)))
        text.append("\n")
    text.append(caption)
    return text
