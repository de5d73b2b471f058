"""The first rows of a dataset as an HTML table for notebooks; images are thumbnails."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

from flarecli.errors import ValueFitError
from flarecli.media import is_image, sniff, thumbnail
from flarecli.names import escape
from flarecli.units import format_size

__all__ = ["html_table"]

MAX_CHARS = 200  # maximum length of a value's text
THUMBNAIL_PIXELS = 96  # maximum width and height
MAX_IMAGE_BYTES = 32 << 20


def html_table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as an HTML table. All text is escaped, and the table loads no other file."""
    if not rows:
        return f"<p>{_text(title)}</p>"
    head = "".join(f"<th>{_text(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><caption>{_text(title)}</caption><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        return _image(value) or f"{format_size(len(value))} of bytes"
    return _text(repr(value) if not isinstance(value, str) else value)


def _text(text: str) -> str:
    if len(text) > MAX_CHARS:
        text = text[: MAX_CHARS - 1] + "…"
    return html.escape(escape(text))


def _image(data: bytes) -> str:
    """Return an HTML image element, or an empty string for bytes that are not a valid image."""
    if len(data) > MAX_IMAGE_BYTES or not is_image(sniff(data[:512])):
        return ""
    try:
        image = thumbnail(data, THUMBNAIL_PIXELS, THUMBNAIL_PIXELS)
    except ValueFitError:
        return ""
    out = io.BytesIO()
    image.save(out, "PNG")
    return f'<img src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}">'
