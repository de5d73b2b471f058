"""Detection of missing shards, and of the program that wrote a dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flarecli import formats
from flarecli.errors import FlareError, MissingError
from flarecli.model import IntArray, Playlist, Stream
from flarecli.redact import redact

__all__ = ["holes", "missing_shards", "writer_of"]

_MAX_CHECKED = 100_000  # maximum number of shards whose files are checked
_MISSING = "missing"
# matches a shard number; shorter numbers may be parts of words, and longer numbers checksums
_NUMBER = re.compile(r"\d{3,18}", re.ASCII)


def writer_of(stream: Stream, of: Playlist) -> str | None:
    """Return the name of the program that wrote a stream, or None if it is unknown."""
    name = stream.headers.get("writer")
    if isinstance(name, str):
        return name[:200]
    if of.protected:  # only flare writes a checksum as the last line
        return "flare"
    return formats.facts(stream.format).written_by("" if of.at is None else of.at.name)


class _Missing(NamedTuple):
    """Shards `first` to `last` of a stream, which cannot be read for the same reason."""

    first: int
    last: int
    reason: str


def holes(parts: Sequence[Stream], is_changed: bool = False) -> tuple[str, ...]:
    """Return sentences about missing shards, with their rows, and about gaps in the shard numbers.

    Only local files are checked, because each remote file would require a request.

    parts       parts of a stream, with known rows
    is_changed  whether a change created the list; if so, gaps are not reported, because the change
                may have removed these shards
    """
    first, out = 0, list[str]()
    for stream in parts:
        starts: IntArray = first + np.cumsum([0, *(() if stream.rows is None else stream.rows)])
        first = int(starts[-1])
        out += (_sentence(stream, one, starts) for one in _missing(stream))
    return (
        *out,
        *_gaps(
            [
                url
                for stream in parts
                if not (is_changed or formats.facts(stream.format).is_plain)
                for url in stream.urls
            ]
        ),
    )


def missing_shards(streams: Sequence[Sequence[Stream]]) -> tuple[list[str], list[range]]:
    """Return the addresses of missing shards, and the ranges of rows without a missing shard.

    The rows in a range can be read in all streams. Only local files are checked.

    streams  parts of each stream, whose row counts are known
    """
    total, addresses, missing_runs = 0, list[str](), list[tuple[int, int]]()
    for parts in streams:
        first = 0
        for stream in parts:
            starts: IntArray = first + np.cumsum([0, *(() if stream.rows is None else stream.rows)])
            first = int(starts[-1])
            for one in _missing(stream):
                if one.reason == _MISSING:
                    addresses += [
                        str(stream.at.join(stream.urls[i])) for i in range(one.first, one.last + 1)
                    ]
                    missing_runs.append((int(starts[one.first]), int(starts[one.last + 1])))
        total = max(total, first)
    readable, end = list[range](), 0
    for start, stop in [*sorted(missing_runs), (total, total)]:
        if start > end:
            readable.append(range(end, start))
        end = max(end, stop)
    return addresses, readable


def _sentence(stream: Stream, one: _Missing, starts: IntArray) -> str:
    first, last = redact(stream.urls[one.first]), redact(stream.urls[one.last])
    begin, end = int(starts[one.first]), int(starts[one.last + 1])
    name = first if one.first == one.last else f"{first} to {last}"
    rows = (
        "no row"
        if end == begin
        else f"row {begin}"
        if end - begin == 1
        else f"rows {begin} to {end - 1}"
    )
    return f"{name}: {one.reason}, {rows}"


def _missing(stream: Stream) -> Iterator[_Missing]:
    """Yield each run of consecutive shards that cannot be read, for example missing shards."""
    run: _Missing | None = None
    for i in range(min(len(stream), _MAX_CHECKED) if stream.at.is_local else 0):
        reason = _why_unreadable(stream, i)
        if reason and run is not None and (run.last, run.reason) == (i - 1, reason):
            run = run._replace(last=i)
            continue
        if run is not None:
            yield run
        run = _Missing(i, i, reason) if reason else None
    if run is not None:
        yield run


def _why_unreadable(stream: Stream, i: int) -> str:
    """Return the reason why a listed shard cannot be read; empty if it exists or is remote."""
    try:
        names = [stream.urls[i], *(file.name for file in (stream.parts[i] if stream.parts else ()))]
        for at in map(stream.at.join, names):
            if at.is_local:
                at.size()
    except MissingError:
        return _MISSING
    except FlareError as error:
        return error.message
    return ""


def _gaps(urls: Sequence[str]) -> list[str]:
    """Return the gaps between shard numbers, for shards with the same prefix and suffix."""
    series: dict[tuple[str, int, str], set[int]] = {}
    before, width, after, numbers = "", 0, "", set[int]()
    for url in urls:
        number = url[len(before) : len(before) + width]
        if (
            len(url) == len(before) + width + len(after)
            and number.isdecimal()
            and url.startswith(before)
            and url.endswith(after)
        ):
            numbers.add(int(number))  # fast path: only the number differs
            continue
        path = url.partition("?")[0] if "://" in url else url
        matches = list(_NUMBER.finditer(path))
        if matches:
            at = max(matches, key=lambda one: (len(one[0]), one.start()))
            before, width, after = path[: at.start()], len(at[0]), path[at.end() :]
            numbers = series.setdefault((before, width, after), set())
            numbers.add(int(at[0]))
    out = []
    for (before, width, after), numbers in sorted(series.items()):
        order = np.array(sorted(numbers), np.int64)
        steps = np.flatnonzero(np.diff(order) > 1)
        if order[-1] - order[0] > 4 * len(order):  # dates, checksums or keys, not shard numbers
            continue
        for k in steps.tolist():
            first, last = (
                f"{redact(before)}{number:0{width}d}{after}"
                for number in (order[k] + 1, order[k + 1] - 1)
            )
            out.append(
                f"{first}: not listed" if first == last else f"{first} to {last}: not listed"
            )
    return out
