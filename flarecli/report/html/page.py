"""A dataset as one self-contained HTML page: facts, histograms of values, and a gallery of rows.

The page fetches nothing. All text from data is escaped. The size of embedded images and audio is
bounded; a note replaces what does not fit.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from flarecli.encodings import value_sizes
from flarecli.errors import ValueFitError
from flarecli.expansion import MAX_TEXT_VALUE
from flarecli.media import is_image, sniff, thumbnail
from flarecli.report.facts import facts_table
from flarecli.report.html.plots import plot, plots
from flarecli.report.result import shown
from flarecli.units import format_count, format_size

if TYPE_CHECKING:
    import pyarrow as pa

    from flarecli.commands import Inspection, StreamInfo

__all__ = ["PAGE_BYTES", "dataset_page"]

STYLE = resources.files(__package__).joinpath("page.css").read_text("utf-8")
SCRIPT = resources.files(__package__).joinpath("page.js").read_text("utf-8")

PAGE_BYTES = 4_500_000  # maximum size of a page, with images and audio as base64
_SIDE, _TEXT, _SHARDS, _CELLS, _HOLES = (
    320,
    2000,
    500,
    40,
    20,
)  # maximum pixels; characters; plotted shards; columns of a row; missing shards
_SHORT = 28  # maximum characters of a value on the line of its name
_LEAST = 12_000  # bytes that must be left on the page to decode another image
_SOUNDS = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "m4a": "audio/mp4",
}


def dataset_page(found: Inspection, page_bytes: int = PAGE_BYTES) -> str:
    """Return the result of `inspect` as HTML; the gallery shows its sample.

    page_bytes  maximum size of the page: later images and audio, then rows are replaced by a note
    """
    counts = [
        ("format", found.format),
        ("rows", f"{found.rows:,}"),
        ("shards", f"{found.shards:,}"),
        ("stored", format_size(found.bytes)),
    ]
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(found.address)}</title><style>{STYLE}</style></head><body><main>",
        f"<h1>{_text(found.address)}</h1>",
        _facts(counts),
        *(part for one in found.streams for part in _stream(one, len(found.streams) > 1)),
    ]
    if found.sample:
        head += plots(found.sample)
    left = page_bytes - sum(len(part.encode()) for part in head) - len(SCRIPT) - 2000
    tail = [
        "<footer>Made by flare inspect. This page fetches nothing.</footer>",
        f"</main><script>{SCRIPT}</script></body></html>",
        "",
    ]
    return "\n".join([*head, *_gallery(found, left), *tail])


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# The page may run its own script, use its own style and show embedded media, and nothing else.
POLICY = (
    f"default-src 'none'; style-src '{_csp_hash(STYLE)}'; script-src '{_csp_hash(SCRIPT)}'; "
    "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
)


def _text(text: str) -> str:
    return escape(shown(text))


def _facts(pairs: Sequence[tuple[str, str]]) -> str:
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{name}</dt><dd>{_text(text)}</dd></div>" for name, text in pairs)
        + "</dl>"
    )


def _stream(one: StreamInfo, several: bool) -> Iterator[str]:
    """Yield the columns and shards of one stream."""
    yield f"<h2>{_text(one.name) if several else 'Columns'}</h2>"
    if several:
        yield _facts(
            [
                ("format", one.format),
                ("rows", f"{one.rows:,}"),
                ("shards", f"{one.shards:,}"),
                ("stored", format_size(one.bytes)),
            ]
        )
    types = one.types()
    names, told = facts_table(one.stats or {})
    facts = dict(zip(one.stats or (), told, strict=True))
    heads = "".join(f'<th class="n" scope="col">{name}</th>' for name in names)
    yield f'<div class="wide"><table><tr><th scope="col">column</th><th scope="col">encoding</th><th scope="col">Arrow type</th>{heads}</tr>'
    for column in one.columns or ():
        cells = "".join(
            f'<td class="n">{_text(text)}</td>'
            for text in facts.get(column.name, [""] * len(names))
        )
        cells = f"<td><code>{_text(types[column.name])}</code></td>{cells}"
        yield f"<tr><td>{_text(column.name)}</td><td><code>{_text(column.encoding)}</code></td>{cells}</tr>"
    yield "</table></div>"
    sizes = [size for size in (one.smallest, one.median, one.largest) if size is not None]
    yield "<h2>Shards</h2>"
    facts_of = [
        ("compression", one.compression or "none"),
        ("sums", ", ".join(one.hashes) or "none"),
        ("writer", one.writer or "not said"),
    ]
    names_of = ("smallest", "median", "largest")
    yield _facts(
        [
            *facts_of,
            *((name, format_size(size)) for name, size in zip(names_of, sizes, strict=False)),
        ]
    )
    if one.holes:
        more = f"<li>and {len(one.holes) - _HOLES} more</li>" if len(one.holes) > _HOLES else ""
        yield (
            '<ul class="holes">'
            + "".join(f"<li>{_text(hole)}</li>" for hole in one.holes[:_HOLES])
            + more
            + "</ul>"
        )
    if one.shard_list and len(one.shard_list) > 1:
        yield '<div class="plots">' + _shard_sizes(one.shard_list) + "</div>"


def _shard_sizes(shards: Sequence[tuple[str, int, int]]) -> str:
    """Plot the sizes of shards in order; of many shards, the largest of each run."""
    import numpy as np

    sizes = np.array([size for _, _, size in shards], np.int64)
    if len(sizes) > _SHARDS:
        sizes = np.maximum.reduceat(
            sizes, np.linspace(0, len(sizes), _SHARDS, endpoint=False).astype(np.int64)
        )
    labels = [format_size(size) for size in sizes.tolist()]
    return plot("size of each shard", sizes, labels, "first", "last")


def _gallery(found: Inspection, left: int) -> Iterator[str]:
    """Yield rows of the sample until the page is full."""
    if not found.sample:
        return
    total = max(found.asked, sum(batch.num_rows for batch in found.sample))
    schema = found.sample[0].schema
    cards: list[str] = []
    for number, row in enumerate(_rows(found.sample)):
        card = _card(found.sample_rows[number], row, left)
        if len(card.encode()) > left:
            break
        left -= len(card.encode())
        cards.append(card)
    note = f"{format_count(len(cards), 'row')} at random" + (
        f"; {total - len(cards):,} more do not fit on the page" if len(cards) < total else ""
    )
    options = "".join(
        f'<option value="{i}">{_text(name)}</option>'
        for i, name in enumerate(schema.names[:_CELLS])
    )
    yield f"<h2>Rows <small>{note}</small></h2>"
    yield (
        '<div class="tools"><input id="find" type="search" placeholder="Search these rows" aria-label="Search these rows">'
        f'<select id="by" aria-label="Sort by"><option value="">in order</option>{options}</select>'
        '<button id="turn" type="button" aria-pressed="false" aria-label="Turn the order around">⇅</button>'
        '<span id="count" class="soft" role="status"></span></div><div id="gallery">'
    )
    yield from cards
    yield "</div>"


def _rows(batches: Sequence[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        shown = [(name, batch.column(i)) for i, name in enumerate(batch.schema.names[:_CELLS])]
        sizes = {name: value_sizes(column) for name, column in shown}
        for i in range(batch.num_rows):  # few rows, read one at a time
            row: dict[str, Any] = {}
            for name, column in shown:
                own = sizes[name]
                size = 0 if own is None else int(own[i])
                row[name] = (
                    column[i].as_py()
                    if size <= MAX_TEXT_VALUE
                    else f"{format_size(size)}: omitted, does not fit on the page"
                )
            yield row


def _card(number: int, row: dict[str, Any], left: int) -> str:
    media, cells = [], []
    for i, (name, value) in enumerate(row.items()):
        sort = ""
        if isinstance(value, bytes):
            medium, text = _medium(value, name, left // 2)
            media.append(medium)
            sort = f' data-value="{len(value)}"'
        else:
            text = "" if value is None else str(value)
        text = text if len(text) <= _TEXT else text[:_TEXT] + "…"
        lines = "\n".join(_text(line) for line in text.split("\n"))
        long = ' class="long"' if len(text) > _SHORT or "\n" in text else ""
        cells.append(f'<dt{long}>{_text(name)}</dt><dd{long} data-column="{i}"{sort}>{lines}</dd>')
    at = f'<p class="soft">row {number}</p>'
    return f'<article class="row" data-row="{number}">{"".join(media)}{at}<dl>{"".join(cells)}</dl></article>'


def _medium(data: bytes, name: str, left: int) -> tuple[str, str]:
    """Return the element that shows or plays a value, empty if there is none, and its caption."""
    kind, size = sniff(data[:512]), format_size(len(data))
    if is_image(kind) and left < _LEAST:
        return "", f"{kind}, {size}: omitted, does not fit on the page"
    if is_image(kind):
        try:
            small = thumbnail(data, _SIDE, _SIDE)
        except ValueFitError as error:
            return "", f"{kind}, {size}: {error.message}"
        made = io.BytesIO()
        small.save(made, "JPEG", quality=82)
        return _sourced(
            made.getvalue(),
            "image/jpeg",
            f'<img alt="{_text(name)}" src="',
            '">',
            left,
            f"{kind}, {size}",
        )
    if kind in _SOUNDS:
        return _sourced(
            data,
            _SOUNDS[kind],
            f'<audio controls preload="none" aria-label="{_text(name)}" src="',
            '"></audio>',
            left,
            f"{kind}, {size}",
        )
    return "", f"{kind or 'bytes'}, {size}"


def _sourced(
    data: bytes, kind: str, before: str, after: str, left: int, told: str
) -> tuple[str, str]:
    if len(data) * 4 // 3 > left:
        return "", f"{told}: omitted, does not fit on the page"
    return f"{before}data:{kind};base64,{base64.b64encode(data).decode()}{after}", told
