"""Histograms as SVG: values of numbers, lengths of texts and bytes, frequent words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from flarecli.encodings import value_sizes
from flarecli.expansion import MAX_TEXT_VALUE
from flarecli.report.result import shown
from flarecli.units import format_count, format_size

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["plot", "plots"]

_BINS, _WORDS, _HEIGHT = 32, 12, 100


def plots(batches: Sequence[pa.RecordBatch]) -> Iterator[str]:
    """Yield a histogram for each column that has values to count."""
    import pyarrow as pa

    table = pa.Table.from_batches(batches)
    drawn = [
        text
        for name in table.schema.names
        if (text := _column(name, table.column(name).combine_chunks()))
    ]
    if drawn:
        yield f'<h2>Values <small>over {format_count(table.num_rows, "row")} at random</small></h2><div class="plots">'
        yield from drawn
        yield "</div>"


def _column(name: str, array: pa.Array) -> str:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if isinstance(array, pa.ChunkedArray):  # too large for one Arrow array
        return ""
    own = value_sizes(array)
    is_small = own is None or own.max(initial=0) <= MAX_TEXT_VALUE
    if is_small and (
        pa.types.is_boolean(kind) or pa.types.is_large_string(kind) or pa.types.is_string(kind)
    ):
        words = pc.value_counts(array.drop_null())
        if 0 < len(words) <= _WORDS and len(words) < max(3, len(array)):
            return _words(name, words)
        if pa.types.is_boolean(kind):
            return ""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = array.drop_null().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return _histogram(name, values[np.isfinite(values)], lambda value: f"{value:.6g}")
    try:
        sizes = (
            pc.binary_length(array).drop_null().cast(pa.float64()).to_numpy(zero_copy_only=False)
        )
    except pa.ArrowNotImplementedError:
        return ""
    return _histogram(f"{name}, size", sizes, lambda value: format_size(int(value)))


def _words(name: str, counts: pa.Array) -> str:
    import numpy as np

    found = sorted(
        ((str(one["values"]), one["counts"]) for one in counts.to_pylist()),
        key=lambda pair: (-pair[1], pair[0]),
    )
    labels = [f"{word[:80]}: {count}" for word, count in found]
    return plot(
        name,
        np.array([count for _, count in found]),
        labels,
        found[0][0][:24],
        found[-1][0][:24] if len(found) > 1 else "",
    )


def _histogram(name: str, values: Any, told: Any) -> str:
    import numpy as np

    if not len(values):
        return ""
    with np.errstate(over="ignore", invalid="ignore"):
        least, most = float(values.min()), float(values.max())
        if not np.isfinite(most - least):
            return ""
        counts, edges = np.histogram(values, _BINS if most > least else 1, (least, most))
    labels = [
        f"{told(edges[i])} to {told(edges[i + 1])}: {count}"
        for i, count in enumerate(counts.tolist())
    ]
    return plot(name, counts, labels, told(least), told(most) if most > least else "")


def plot(name: str, heights: Any, labels: Sequence[str], first: str, last: str) -> str:
    """Draw labelled bars under a name.

    heights  numpy [bars], at least 0
    """
    tops = heights / max(1, heights.max()) * _HEIGHT
    bars = "".join(
        f'<rect x="{i + 0.06:.2f}" y="{_HEIGHT - top:.1f}" width=".88" height="{top:.1f}"><title>{_text(label)}</title></rect>'
        for i, (top, label) in enumerate(zip(tops.tolist(), labels, strict=True))
    )
    drawing = f'<svg viewBox="0 0 {len(heights)} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{_text(name)}">{bars}</svg>'
    ends = f'<div class="ends soft"><span>{_text(first)}</span><span>{_text(last)}</span></div>'
    return f"<figure><figcaption>{_text(name)}</figcaption>{drawing}{ends}</figure>"


def _text(text: str) -> str:
    return escape(shown(text))
