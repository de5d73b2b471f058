"""Pictures as a terminal's own graphics: kitty's protocol and sixel, where the environment says that the terminal knows one.

Nothing is asked of the terminal: its answer would land in the shell. A picture goes over blank lines that were written for
it: the cursor is kept, moved up and aside, and put back. What is sent is pixels made here, as base64 or as sixels, so no
byte of the data can end the sequence around it.

    kitty   ESC _ G keys ; base64 of a part of a PNG ESC \\           at most 4096 characters each, m=1 on all but the last
    sixel   ESC P 0;1 q " 1;1;width;height  #n;2;r;g;b …  bands ESC \\   a band is six rows, a character six pixels of one colour
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from flarecli.errors import ValueFitError

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.text import Text

__all__ = ["Graphic", "graphic", "painted", "protocol"]

COLUMNS, LINES = 24, 12  # of a picture in a cell
_CELL, _MOST = (
    (10, 20),
    40,
)  # pixels of a character where the terminal does not say; the most of a side that are believed
_COLOURS, _PART = 128, 4096
_KITTY_TERMS = frozenset({"xterm-kitty", "xterm-ghostty"})
_SIXEL_TERMS = re.compile(r"(?:foot|mlterm|yaft|contour|.*sixel).*")
_SIXEL_PROGRAMS = frozenset({"WezTerm", "iTerm.app", "mintty", "contour", "mlterm", "rio"})
_KONSOLE = 220400  # the first that knows sixel


class Graphic(NamedTuple):
    """A picture in a cell of a table: what is sent, and how many lines it needs above its caption."""

    picture: Image
    lines: int
    columns: int
    caption: str

    def text(self, number: int) -> Text:
        """Give the room for it as text: blanks whose style says which picture they wait for."""
        from rich.style import Style
        from rich.text import Text

        text = Text(no_wrap=True, overflow="crop")
        for _ in range(self.lines):
            text.append(" " * self.columns, Style(meta={"graphic": number}))
            text.append("\n")
        text.append(self.caption)
        return text


def protocol(environment: Mapping[str, str] = os.environ) -> str | None:
    """Say which graphics the terminal knows, `kitty` or `sixel`, by its own variables; None where none of them says so.

    Inside tmux and screen there is none: what they pass on, and where it lands, is theirs.
    """
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if environment.get("TMUX") or environment.get("STY") or term.startswith(("screen", "tmux")):
        return None
    if (
        term in _KITTY_TERMS
        or program == "ghostty"
        or (environment.get("KITTY_WINDOW_ID") and not program)
    ):
        return "kitty"
    konsole = environment.get("KONSOLE_VERSION", "")
    if (
        _SIXEL_TERMS.fullmatch(term)
        or program in _SIXEL_PROGRAMS
        or (konsole.isdecimal() and int(konsole[:9]) >= _KONSOLE)
    ):
        return "sixel"
    return None


def graphic(data: bytes, caption: str) -> Graphic | None:
    """Make room for a picture; None for what is no picture, is damaged, or has too many pixels to be decoded.

    caption  text that is fit for a terminal
    """
    from flarecli.media import thumbnail

    width, height = _cell_size()
    try:
        small = thumbnail(data, COLUMNS * width, LINES * height)
    except ValueFitError:
        return None
    return Graphic(small, -(-small.height // height), -(-small.width // width), caption)


def _cell_size() -> tuple[int, int]:
    """Give width and height of a character in pixels, as the terminal's driver knows them; nothing is asked of the terminal."""
    import fcntl
    import struct
    import sys
    import termios

    try:
        lines, columns, width, height = struct.unpack(
            "HHHH", fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
        )
    except (OSError, ValueError, AttributeError):
        return _CELL
    if not (lines and columns and width // columns and height // lines):
        return _CELL
    return min(width // columns, _MOST), min(height // lines, _MOST)


def painted(one: Graphic, how: str, column: int, columns: int, up: int) -> str:
    """Give what draws a picture over the blanks that were written for it, from the line below, and leaves the cursor there.

    how      `kitty` or `sixel`
    column   of the first blank, 0 is the left one; `columns` of them there are
    up       lines from here to the first blank
    """
    picture = one.picture
    if columns < one.columns:  # the table had less room
        picture = picture.resize(
            (
                max(1, picture.width * columns // one.columns),
                max(1, picture.height * columns // one.columns),
            )
        )
    sent = (
        _kitty(
            picture,
            min(columns, one.columns),
            max(1, one.lines * min(columns, one.columns) // one.columns),
        )
        if how == "kitty"
        else _sixel(picture)
    )
    return f"\x1b7\x1b[{up}A\x1b[{column + 1}G{sent}\x1b8"


def _kitty(picture: Image, columns: int, lines: int) -> str:
    """C=1 leaves the cursor where it is, q=2 asks for no answer."""
    import base64
    import io

    held = io.BytesIO()
    picture.save(held, "PNG")
    text = base64.b64encode(held.getvalue()).decode()
    parts = [text[i : i + _PART] for i in range(0, len(text), _PART)]
    keys = f"a=T,f=100,q=2,C=1,c={columns},r={lines},"
    return "".join(
        f"\x1b_G{keys if i == 0 else ''}m={int(i < len(parts) - 1)};{part}\x1b\\"
        for i, part in enumerate(parts)
    )


def _sixel(picture: Image) -> str:
    import numpy as np

    few = picture.quantize(_COLOURS)
    colours = few.getpalette() or []
    pixels = np.asarray(few)
    out = [f'\x1bP0;1q"1;1;{few.width};{few.height}']
    for number in np.unique(pixels).tolist():
        out.append(
            f"#{number};2;"
            + ";".join(str(round(part / 2.55)) for part in colours[3 * number : 3 * number + 3])
        )
    for top in range(0, few.height, 6):
        band = pixels[top : top + 6]
        bits = (1 << np.arange(len(band)))[:, None]
        rows = [
            f"#{number}{_runs(((band == number) * bits).sum(0) + 63)}"
            for number in np.unique(band).tolist()
        ]
        out.append("$".join(rows) + "-")
    return "".join(out) + "\x1b\\"


def _runs(sixels: object) -> str:
    """Write sixels as characters; four and more of one kind as their count."""
    import numpy as np

    text = np.asarray(sixels, np.uint8).tobytes().decode("ascii")
    return re.sub(r"(.)\1{3,}", lambda found: f"!{len(found[0])}{found[1]}", text, flags=re.DOTALL)
