"""Checking a tar of samples: every header, what fills blocks up, the end, names, and the index beside it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flarecli.errors import FlareError, MissingError, Place, UnsafeError
from flarecli.formats import byte_ranges as spans
from flarecli.formats.base import Format
from flarecli.formats.bisect import wrong_rows
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.scan import Table, key_text, read_table
from flarecli.lazy import pc
from flarecli.model import Finding, IntArray, Shard, finding_of
from flarecli.names import check_name

__all__ = ["verify"]

_STEP, _STEP_BYTES = 8192, 64 << 20  # rows and bytes checked at once, or a single row
_SHOWN = 100  # names and paddings reported one by one
_SUSPECT = r"^/|^~|(^|/)[A-Za-z]:|//|(^|/)[. ]+(/|$)|[\x00-\x1f\x7f\\]"
_QUIET = ("folder", "label")  # nothing that a sample could lie in
_HINT = "Make the index again by packing the tar again, or delete it."


def verify(form: Format, shard: Shard, values: bool) -> Iterator[Finding]:
    """Read every header again, whatever an index says, and, if asked, hold every value against its encoding."""
    at, seen = shard.chunk.at, tar.Seen(padding=[])
    try:
        view = spans.whole(shard.chunk)
        size = len(view) if view is not None else spans.stored_size(shard.chunk)
        table = read_table(tar.Mapped(view) if view is not None else tar.Ranges(at, size), at, seen)
    except FlareError as error:
        yield finding_of(error)
        return
    for byte in (seen.padding or [])[:_SHOWN]:
        yield Finding(str(at), "format", f"what fills the block up from byte {byte} is not zeros")
    if seen.end < len(tar.END) or size % tar.BLOCK:
        yield Finding(
            str(at),
            "format",
            f"ends with {seen.end} bytes of zeros, {len(tar.END)} or more whole blocks are wanted",
            "Pack it again.",
        )
    for kind, count in sorted(seen.skipped.items()):
        if kind not in _QUIET:
            yield Finding(
                str(at),
                "skipped",
                f"members that are a {kind}: {count}; they are passed over",
                "Pack the files themselves.",
            )
    yield from _names(table, at)
    yield from _index(shard, table, size)
    if values:
        yield from _values(form, shard)


def _names(table: Table, at: object) -> Iterator[Finding]:
    keys = key_text(table.keys, table.ends)
    for row in pc.indices_nonzero(pc.match_substring_regex(keys, _SUSPECT))[:_SHOWN].to_pylist():
        try:
            check_name(keys[row].as_py().removeprefix("./"), where=Place(at, row))
        except UnsafeError as error:
            yield finding_of(error)


def _index(shard: Shard, table: Table, size: int) -> Iterator[Finding]:
    """Hold the index beside a tar against the tar."""
    place = webdataset_index.place(shard.chunk)
    try:
        place.size()
    except MissingError:
        return
    except FlareError as error:
        yield finding_of(error)
        return
    index = webdataset_index.read(shard.chunk, size)
    if index is None:
        yield Finding(
            str(place), "index", "no index of this tar; its headers are read instead", _HINT
        )
    elif not _same(index, table):
        yield Finding(str(place), "index", "says other members than the tar has", _HINT)


def _same(index: Table, table: Table) -> bool:
    return index.extensions == table.extensions and all(
        np.array_equal(getattr(index, name), getattr(table, name))
        for name in ("keys", "ends", "starts", "sizes")
    )


def _values(form: Format, shard: Shard) -> Iterator[Finding]:
    return wrong_rows(_steps(shard), lambda start, stop: form.read_batch(shard, start, stop))


def _steps(shard: Shard) -> Iterator[tuple[int, int]]:
    """Cut the rows of a shard into runs of bounded bytes: (start, stop)."""
    ends, start = _ends(shard), 0
    while start < shard.rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(
            start + 1,
            min(
                start + _STEP, shard.rows, int(np.searchsorted(ends, before + _STEP_BYTES, "right"))
            ),
        )
        yield start, stop
        start = stop


def _ends(shard: Shard) -> IntArray:
    return np.cumsum(np.maximum(shard.layout["sizes"], 0).sum(0))
