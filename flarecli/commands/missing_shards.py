"""Who wrote a dataset, and what is missing from it: as far as its lists, the names in them and its folder say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flarecli import formats
from flarecli.errors import FlareError, MissingError
from flarecli.model import IntArray, Playlist, Stream
from flarecli.redact import redact

__all__ = ["holes", "lost", "writer_of"]

_LOOKED = 100_000  # shards whose files are looked for: a second's work
_GONE = "not there"
_NUMBER = re.compile(
    r"\d{3,18}", re.ASCII
)  # of a shard; shorter ones are parts of words, longer ones are sums


def writer_of(stream: Stream, of: Playlist) -> str | None:
    """Say what wrote a stream, where its playlist, its index or its layout tells; None where nothing does."""
    told = stream.headers.get("writer")
    if isinstance(told, str):
        return told[:200]
    if of.protected:  # only flare ends a playlist with its sum
        return "flare"
    return formats.facts(stream.format).written_by("" if of.at is None else of.at.name)


class _Missing(NamedTuple):
    """Shards first..last of a stream that are listed and not there."""

    first: int
    last: int
    why: str


def holes(parts: Sequence[Stream]) -> tuple[str, ...]:
    """Say which listed shards are not there and which rows those are, and which numbers no shard has.

    parts  with rows known. Files are looked for on a local disk alone: a request for each would cost more than it tells.
    """
    first, out = 0, list[str]()
    for stream in parts:
        starts: IntArray = first + np.cumsum([0, *(() if stream.rows is None else stream.rows)])
        first = int(starts[-1])
        out += (_told(stream, one, starts) for one in _missing(stream))
    return (
        *out,
        *_gaps(
            [
                url
                for stream in parts
                if not formats.facts(stream.format).is_plain
                for url in stream.urls
            ]
        ),
    )


def lost(streams: Sequence[Sequence[Stream]]) -> tuple[list[str], list[range]]:
    """Give the addresses of listed shards whose files are gone, and the runs of rows that are there in all streams side by side.

    streams  the parts of each, with rows known; files are looked for as `holes` does, and what data may not name is not among them
    """
    total, gone, spans = 0, list[str](), list[tuple[int, int]]()
    for parts in streams:
        first = 0
        for stream in parts:
            starts: IntArray = first + np.cumsum([0, *(() if stream.rows is None else stream.rows)])
            first = int(starts[-1])
            for one in _missing(stream):
                if one.why == _GONE:
                    gone += [
                        str(stream.at.join(stream.urls[i])) for i in range(one.first, one.last + 1)
                    ]
                    spans.append((int(starts[one.first]), int(starts[one.last + 1])))
        total = max(total, first)
    there, at = list[range](), 0
    for start, stop in [*sorted(spans), (total, total)]:
        if start > at:
            there.append(range(at, start))
        at = max(at, stop)
    return gone, there


def _told(stream: Stream, one: _Missing, starts: IntArray) -> str:
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
    return f"{name}: {one.why}, {rows}"


def _missing(stream: Stream) -> Iterator[_Missing]:
    """Give runs of neighbouring shards that are not there, or that data may not name."""
    run: _Missing | None = None
    for i in range(min(len(stream), _LOOKED) if stream.at.is_local else 0):
        why = _lacks(stream, i)
        if why and run is not None and (run.last, run.why) == (i - 1, why):
            run = run._replace(last=i)
            continue
        if run is not None:
            yield run
        run = _Missing(i, i, why) if why else None
    if run is not None:
        yield run


def _lacks(stream: Stream, i: int) -> str:
    """Say what keeps a listed shard from being read; empty if it is there, or lies on the network."""
    try:
        names = [stream.urls[i], *(file.name for file in (stream.parts[i] if stream.parts else ()))]
        for at in map(stream.at.join, names):
            if at.is_local:
                at.size()
    except MissingError:
        return _GONE
    except FlareError as error:
        return error.message
    return ""


def _gaps(urls: Sequence[str]) -> list[str]:
    """Name the numbers that are missing between the least and the greatest of shards that are called alike."""
    found: dict[tuple[str, int, str], set[int]] = {}
    before, width, after, have = "", 0, "", set[int]()
    for url in urls:
        number = url[len(before) : len(before) + width]
        if (
            len(url) == len(before) + width + len(after)
            and number.isdecimal()
            and url.startswith(before)
            and url.endswith(after)
        ):
            have.add(int(number))  # called as the one before: of a million shards nearly all are
            continue
        path = url.partition("?")[0] if "://" in url else url
        numbers = list(_NUMBER.finditer(path))
        if numbers:
            at = max(numbers, key=lambda one: (len(one[0]), one.start()))
            before, width, after = path[: at.start()], len(at[0]), path[at.end() :]
            have = found.setdefault((before, width, after), set())
            have.add(int(at[0]))
    out = []
    for (before, width, after), have in sorted(found.items()):
        order = np.array(sorted(have), np.int64)
        steps = np.flatnonzero(np.diff(order) > 1)
        if order[-1] - order[0] > 4 * len(order):  # days, sums, keys: these are no counted shards
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
