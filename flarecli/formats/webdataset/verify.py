"""Verify a tar of samples: headers, padding, end marker, names, and the index of the tar."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flarecli.bisect import findings_of
from flarecli.errors import FlareError, MissingError, Place, UnsafeError
from flarecli.formats import byte_ranges as spans
from flarecli.formats.base import Format
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.scan import Table, key_text, read_table
from flarecli.lazy import pc
from flarecli.model import Finding, IntArray, Shard, finding_of
from flarecli.names import check_name

__all__ = ["verify"]

MAX_STEP_ROWS, MAX_STEP_BYTES = 8192, 64 << 20  # per step; a larger row is a step of its own
MAX_FINDINGS = 100  # of names, and of padding
_SUSPECT = r"^/|^~|(^|/)[A-Za-z]:|//|(^|/)[. ]+(/|$)|[\x00-\x1f\x7f\\]"
_NOT_REPORTED = ("folder", "label")  # skipped members that contain no data
_HINT = "Pack the tar again to rebuild the index, or delete the index."


def verify(form: Format, shard: Shard, values: bool) -> Iterator[Finding]:
    """Read every header, even if there is an index, and, with `values`, check every value in its
    encoding.
    """
    at, seen = shard.chunk.at, tar.Seen(padding=[])
    try:
        view = spans.whole(shard.chunk)
        size = len(view) if view is not None else spans.stored_size(shard.chunk)
        table = read_table(tar.Mapped(view) if view is not None else tar.Ranges(at, size), at, seen)
    except FlareError as error:
        yield finding_of(error)
        return
    for byte in (seen.padding or [])[:MAX_FINDINGS]:
        yield Finding(str(at), "format", f"the padding from byte {byte} is not zeros")
    if seen.end < len(tar.END) or size % tar.BLOCK:
        yield Finding(
            str(at),
            "format",
            f"the end marker is {seen.end} bytes,"
            f" expected whole blocks and at least {len(tar.END)}",
            "Pack it again.",
        )
    for kind, count in sorted(seen.skipped.items()):
        if kind not in _NOT_REPORTED:
            yield Finding(
                str(at),
                "skipped",
                f"skipped members of kind {kind}: {count}",
                "Pack the files themselves.",
            )
    yield from _names(table, at)
    yield from _index(shard, table, size)
    if values:
        yield from _values(form, shard)


def _names(table: Table, at: object) -> Iterator[Finding]:
    keys = key_text(table.keys, table.ends)
    for row in pc.indices_nonzero(pc.match_substring_regex(keys, _SUSPECT))[
        :MAX_FINDINGS
    ].to_pylist():
        try:
            check_name(keys[row].as_py().removeprefix("./"), where=Place(at, row))
        except UnsafeError as error:
            yield finding_of(error)


def _index(shard: Shard, table: Table, size: int) -> Iterator[Finding]:
    """Compare the index of a tar with the tar."""
    location = webdataset_index.location_of(shard.chunk)
    try:
        location.size()
    except MissingError:
        return
    except FlareError as error:
        yield finding_of(error)
        return
    index = webdataset_index.read(shard.chunk, size)
    if index is None:
        yield Finding(
            str(location),
            "index",
            "not a valid index of this tar; the tar headers are read instead",
            _HINT,
        )
    elif not _same(index, table):
        yield Finding(
            str(location), "index", "the index lists other members than the tar contains", _HINT
        )


def _same(index: Table, table: Table) -> bool:
    return index.extensions == table.extensions and all(
        np.array_equal(getattr(index, name), getattr(table, name))
        for name in ("keys", "ends", "starts", "sizes")
    )


def _values(form: Format, shard: Shard) -> Iterator[Finding]:
    return findings_of(_steps(shard), lambda start, stop: form.read_batch(shard, start, stop))


def _steps(shard: Shard) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of steps with bounded rows and bytes."""
    ends, start = _ends(shard), 0
    while start < shard.rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(
            start + 1,
            min(
                start + MAX_STEP_ROWS,
                shard.rows,
                int(np.searchsorted(ends, before + MAX_STEP_BYTES, "right")),
            ),
        )
        yield start, stop
        start = stop


def _ends(shard: Shard) -> IntArray:
    return np.cumsum(np.maximum(shard.layout["sizes"], 0).sum(0))
