"""A dataset as one self-contained HTML page with properties, histograms and a gallery of rows.

The page does not load anything from other addresses. All text from data is escaped. The total size
of the page is limited; a note replaces images and audio beyond this limit.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from flarecli import commands
from flarecli.encodings import is_text, value_sizes
from flarecli.errors import ValueFitError
from flarecli.expansion import MAX_TEXT_VALUE
from flarecli.lazy import np, pa, pc
from flarecli.media import is_image, sniff, thumbnail
from flarecli.report.result import html_text
from flarecli.units import format_count, format_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from flarecli.commands import Inspection, StreamInfo

__all__ = ["dataset_page"]

STYLE = resources.files(__package__).joinpath("page.css").read_text("utf-8")
SCRIPT = resources.files(__package__).joinpath("page.js").read_text("utf-8")

MAX_PAGE_BYTES = 4_500_000  # maximum size of a page, including images and audio as base64
_RESERVED_BYTES = 2_000  # space reserved for the end of the page
_MIN_IMAGE_BYTES = 12_000  # remaining page size below which no further image is decoded
_IMAGE_PIXELS = 320  # maximum width and height of an image
_MAX_CHARS = 2_000  # maximum length of the text of a value
_ONE_LINE_CHARS = 28  # a longer value begins on a new line, below the name of its column
_MAX_COLUMNS = 40  # maximum number of columns per row
_MAX_GAPS = 20  # maximum number of gaps to list
_MAX_BARS = 500  # maximum number of bars in the plot of shard sizes
_BINS = 32  # number of bars in a histogram
_MAX_WORDS = 12  # maximum number of distinct values that are counted separately
_PLOT_HEIGHT = 100
_OMITTED = "omitted, does not fit on the page"
_AUDIO = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "m4a": "audio/mp4",
}


def dataset_page(found: Inspection, page_bytes: int = MAX_PAGE_BYTES) -> str:
    """Return the result of `inspect` as HTML; the gallery shows the sampled rows.

    page_bytes  maximum size of the page; a note replaces images, audio and rows beyond this limit
    """
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{html_text(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html_text(found.address)}</title><style>{STYLE}</style></head><body><main>",
        f"<h1>{html_text(found.address)}</h1>",
        _totals(found),
        *(line for stream in found.streams for line in _stream(stream, len(found.streams) > 1)),
    ]
    if found.sample:
        head += _plots(found.sample)
    left = page_bytes - sum(len(line.encode()) for line in head) - len(SCRIPT) - _RESERVED_BYTES
    tail = [
        "<footer>Made by flare inspect. This page loads nothing from other addresses.</footer>",
        f"</main><script>{SCRIPT}</script></body></html>",
        "",
    ]
    return "\n".join([*head, *_gallery(found, left), *tail])


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# The policy allows only the script and the style of the page, and embedded media.
POLICY = (
    f"default-src 'none'; style-src '{_csp_hash(STYLE)}'; script-src '{_csp_hash(SCRIPT)}'; "
    "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
)


# -- facts


def _facts(pairs: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{name}</dt><dd>{html_text(text)}</dd></div>" for name, text in pairs)
    return f'<dl class="facts">{items}</dl>'


def _totals(of: Inspection | StreamInfo) -> str:
    return _facts(
        [
            ("format", of.format),
            ("rows", f"{of.rows:,}"),
            ("shards", f"{of.shards:,}"),
            ("stored", format_size(of.bytes)),
        ]
    )


def _stream(stream: StreamInfo, is_one_of_several: bool) -> Iterator[str]:
    """Yield the columns and shards of one stream."""
    yield f"<h2>{html_text(stream.name) if is_one_of_several else 'Columns'}</h2>"
    if is_one_of_several:
        yield _totals(stream)
    yield from _columns(stream)
    yield "<h2>Shards</h2>"
    facts = [
        ("compression", stream.compression or "none"),
        ("checksums", ", ".join(stream.hashes) or "none"),
        ("writer", stream.writer or "unknown"),
    ]
    for name, size in (
        ("smallest", stream.smallest),
        ("median", stream.median),
        ("largest", stream.largest),
    ):
        if size is not None:
            facts.append((name, format_size(size)))
    yield _facts(facts)
    if stream.holes:
        gaps = [f"<li>{html_text(hole)}</li>" for hole in stream.holes[:_MAX_GAPS]]
        if len(stream.holes) > _MAX_GAPS:
            gaps.append(f"<li>and {len(stream.holes) - _MAX_GAPS} more</li>")
        yield f'<ul class="holes">{"".join(gaps)}</ul>'
    if stream.shard_list and len(stream.shard_list) > 1:
        yield f'<div class="plots">{_shard_sizes(stream.shard_list)}</div>'


def _columns(stream: StreamInfo) -> Iterator[str]:
    types = stream.types()
    names, rows = commands.stats_table(stream.stats or {})
    stats = dict(zip(stream.stats or (), rows, strict=True))
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("column", "encoding", "Arrow type"))
    heads += "".join(f'<th class="n" scope="col">{name}</th>' for name in names)
    yield f'<div class="wide"><table><tr>{heads}</tr>'
    for column in stream.columns or ():
        cells = "".join(
            f'<td class="n">{html_text(text)}</td>'
            for text in stats.get(column.name, [""] * len(names))
        )
        yield (
            f"<tr><td>{html_text(column.name)}</td>"
            f"<td><code>{html_text(column.encoding)}</code></td>"
            f"<td><code>{html_text(types[column.name])}</code></td>{cells}</tr>"
        )
    yield "</table></div>"


# -- plots


def _shard_sizes(shards: Sequence[tuple[str, int, int]]) -> str:
    """Plot shard sizes in order. With many shards, each bar shows the largest of several shards."""
    sizes = np.array([size for _, _, size in shards], np.int64)
    if len(sizes) > _MAX_BARS:
        starts = np.linspace(0, len(sizes), _MAX_BARS, endpoint=False).astype(np.int64)
        sizes = np.maximum.reduceat(sizes, starts)
    labels = [format_size(size) for size in sizes.tolist()]
    return _plot("size of each shard", sizes, labels, "first", "last")


def _plots(batches: Sequence[pa.RecordBatch]) -> Iterator[str]:
    """Yield a plot for each column whose values or sizes can be counted."""
    table = pa.Table.from_batches(batches)
    plots = [_column_plot(name, table.column(name).combine_chunks()) for name in table.schema.names]
    if any(plots):
        yield f'<h2>Values <small>of {format_count(table.num_rows, "random row")}</small></h2><div class="plots">'
        yield from filter(None, plots)
        yield "</div>"


def _column_plot(name: str, array: pa.Array) -> str:
    kind = array.type
    if isinstance(array, pa.ChunkedArray):  # the values are too large for one Arrow array
        return ""
    sizes = value_sizes(array)
    is_small = sizes is None or sizes.max(initial=0) <= MAX_TEXT_VALUE
    if is_small and (is_text(kind) or pa.types.is_boolean(kind)):
        words = pc.value_counts(array.drop_null())
        if 0 < len(words) <= _MAX_WORDS and len(words) < max(3, len(array)):
            return _word_plot(name, words)
        if pa.types.is_boolean(kind):
            return ""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = array.drop_null().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return _histogram(name, values[np.isfinite(values)], lambda value: f"{value:.6g}")
    try:
        lengths = pc.binary_length(array).drop_null().cast(pa.float64())
    except pa.ArrowNotImplementedError:
        return ""
    values = lengths.to_numpy(zero_copy_only=False)
    return _histogram(f"{name}, size", values, lambda value: format_size(int(value)))


def _word_plot(name: str, words: pa.Array) -> str:
    """Plot the number of occurrences of each value, the most frequent value first."""
    counts = [(str(word["values"]), word["counts"]) for word in words.to_pylist()]
    counts.sort(key=lambda pair: (-pair[1], pair[0]))
    heights = np.array([count for _, count in counts])
    labels = [f"{word[:80]}: {count}" for word, count in counts]
    last = counts[-1][0][:24] if len(counts) > 1 else ""
    return _plot(name, heights, labels, counts[0][0][:24], last)


def _histogram(name: str, values: npt.NDArray[np.float64], text_of: Callable[[float], str]) -> str:
    if not len(values):
        return ""
    with np.errstate(over="ignore", invalid="ignore"):
        least, most = float(values.min()), float(values.max())
        if not np.isfinite(most - least):
            return ""
        try:
            counts, edges = np.histogram(values, _BINS if most > least else 1, (least, most))
        except ValueError:  # the values are too close together for separate bins
            counts, edges = np.array([len(values)]), np.array([least, most])
    ends = [text_of(edge) for edge in edges.tolist()]
    labels = [
        f"{start} to {stop}: {count}"
        for start, stop, count in zip(ends[:-1], ends[1:], counts.tolist(), strict=True)
    ]
    return _plot(name, counts, labels, text_of(least), text_of(most) if most > least else "")


def _plot(
    name: str, heights: npt.NDArray[np.int64], labels: Sequence[str], first: str, last: str
) -> str:
    """Return an HTML figure with a caption, and with labeled bars as an SVG drawing.

    name         caption
    heights      height of each bar, at least 0: int64 [bars]
    first, last  labels below the first and the last bar
    """
    scaled = heights / max(1, heights.max()) * _PLOT_HEIGHT
    bars = "".join(
        f'<rect x="{i + 0.06:.2f}" y="{_PLOT_HEIGHT - height:.1f}" width=".88" height="{height:.1f}"><title>{html_text(label)}</title></rect>'
        for i, (height, label) in enumerate(zip(scaled.tolist(), labels, strict=True))
    )
    name = html_text(name)
    svg = f'<svg viewBox="0 0 {len(heights)} {_PLOT_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{name}">{bars}</svg>'
    ends = f'<div class="ends soft"><span>{html_text(first)}</span><span>{html_text(last)}</span></div>'
    return f"<figure><figcaption>{name}</figcaption>{svg}{ends}</figure>"


# -- rows


def _gallery(found: Inspection, left: int) -> Iterator[str]:
    """Yield the sampled rows that fit on the page.

    left  free space on the page in bytes
    """
    if not found.sample:
        return
    cards: list[str] = []
    for number, row in zip(found.sample_rows, _rows(found.sample), strict=True):
        card = _card(number, row, left)
        size = len(card.encode())
        if size > left:
            break
        left -= size
        cards.append(card)
    note = format_count(len(cards), "random row")
    total = max(found.asked, sum(batch.num_rows for batch in found.sample))
    if len(cards) < total:
        note += f"; {total - len(cards):,} more do not fit on the page"
    options = "".join(
        f'<option value="{i}">{html_text(name)}</option>'
        for i, name in enumerate(found.sample[0].schema.names[:_MAX_COLUMNS])
    )
    yield f"<h2>Rows <small>{note}</small></h2>"
    yield (
        '<div class="tools"><input id="find" type="search" placeholder="Search these rows" aria-label="Search these rows">'
        f'<select id="by" aria-label="Sort by"><option value="">original order</option>{options}</select>'
        '<button id="turn" type="button" aria-pressed="false" aria-label="Reverse the order">⇅</button>'
        '<span id="count" class="soft" role="status"></span></div><div id="gallery">'
    )
    yield from cards
    yield "</div>"


def _rows(batches: Sequence[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        columns = list(zip(batch.schema.names, batch.columns, strict=True))[:_MAX_COLUMNS]
        sizes = {name: value_sizes(column) for name, column in columns}
        for i in range(batch.num_rows):  # a sample is small, so a loop over rows is fast enough
            row: dict[str, Any] = {}
            for name, column in columns:
                column_sizes = sizes[name]
                size = 0 if column_sizes is None else int(column_sizes[i])
                is_small = size <= MAX_TEXT_VALUE
                row[name] = column[i].as_py() if is_small else f"{format_size(size)}: {_OMITTED}"
            yield row


def _card(number: int, row: dict[str, Any], left: int) -> str:
    """Return the HTML of one row in the gallery."""
    media, cells = "", ""
    for i, (name, value) in enumerate(row.items()):
        sort_key = ""
        if isinstance(value, bytes):
            medium, text = _medium(value, name, left // 2)
            media += medium
            sort_key = f' data-value="{len(value)}"'
        else:
            text = "" if value is None else str(value)
        if len(text) > _MAX_CHARS:
            text = text[:_MAX_CHARS] + "…"
        lines = "\n".join(html_text(line) for line in text.split("\n"))
        style = ' class="long"' if len(text) > _ONE_LINE_CHARS or "\n" in text else ""
        cells += f"<dt{style}>{html_text(name)}</dt>"
        cells += f'<dd{style} data-column="{i}"{sort_key}>{lines}</dd>'
    place = f'<p class="soft">row {number}</p>'
    return f'<article class="row" data-row="{number}">{media}{place}<dl>{cells}</dl></article>'


def _medium(data: bytes, name: str, left: int) -> tuple[str, str]:
    """Return the HTML element that shows or plays a value, and its caption.

    The element is empty if the value is neither an image nor audio, is invalid, or is too large.
    """
    kind = sniff(data[:512])
    caption = f"{kind or 'bytes'}, {format_size(len(data))}"
    if is_image(kind):
        if left < _MIN_IMAGE_BYTES:
            return "", f"{caption}: {_OMITTED}"
        try:
            image = thumbnail(data, _IMAGE_PIXELS, _IMAGE_PIXELS)
        except ValueFitError as error:
            return "", f"{caption}: {error.message}"
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=82)
        data, mime = jpeg.getvalue(), "image/jpeg"
    elif kind in _AUDIO:
        mime = _AUDIO[kind]
    else:
        return "", caption
    if len(data) * 4 // 3 > left:
        return "", f"{caption}: {_OMITTED}"
    url, label = f"data:{mime};base64,{base64.b64encode(data).decode()}", html_text(name)
    if kind in _AUDIO:
        element = f'<audio controls preload="none" aria-label="{label}" src="{url}"></audio>'
    else:
        element = f'<img alt="{label}" src="{url}">'
    return element, caption
