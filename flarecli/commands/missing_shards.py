"""Detection of missing shards, and of the program that wrote a dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from flarecli import formats
from flarecli.errors import FlareError, MissingError
from flarecli.model import IntArray, Playlist, Stream
from flarecli.redact import redact

__all__ = ["holes", "missing_shards", "writer_of"]

_MAX_CHECKED = 100_000  # maximum number of shards whose files are checked
_MISSING = "missing"
# matches a shard number; shorter numbers may be parts of words, longer ones may be checksums
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
    """Consecutive shards of a stream that cannot be read, all for the same reason.

    first  number of the first shard
    names  for each shard, the name of its first file that cannot be read
    """

    first: int
    names: list[str]
    reason: str

    @property
    def stop(self) -> int:
        return self.first + len(self.names)


def holes(parts: Sequence[Stream], is_changed: bool = False) -> tuple[str, ...]:
    """Return sentences about missing shards, with their rows, and about gaps in the shard numbers.

    Only local files are checked, because each remote file would require a request.

    parts       one `Stream` per source, which together are one stream; the row counts are known
    is_changed  whether the list was written by a command that changed the dataset, such as `drop`;
                gaps are then not reported, because the command may have removed shards
    """
    urls = [
        url
        for stream in parts
        if not (is_changed or formats.facts(stream.format).is_plain)
        for url in stream.urls
    ]
    missing = (_sentence(one, start, stop) for _, one, start, stop in _missing_rows(parts))
    return (*missing, *_gaps(urls))


def missing_shards(streams: Sequence[Sequence[Stream]], rows: int) -> tuple[list[str], list[range]]:
    """Find the missing shards of a dataset. Only local files are checked.

    streams  for each stream name, a list of one `Stream` per source; the row counts are known
    rows     number of rows of the dataset
    return   address of one missing file of each missing shard; ranges of rows whose shards exist in
             all streams
    """
    addresses, missing_runs = list[str](), list[tuple[int, int]]()
    for stream, one, start, stop in chain.from_iterable(map(_missing_rows, streams)):
        if one.reason == _MISSING:
            addresses += [str(stream.at.join(name)) for name in one.names]
            missing_runs.append((start, stop))
    readable, end = list[range](), 0
    for start, stop in [*sorted(missing_runs), (rows, rows)]:
        if start > end:
            readable.append(range(end, start))
        end = max(end, stop)
    return addresses, readable


def _missing_rows(parts: Sequence[Stream]) -> Iterator[tuple[Stream, _Missing, int, int]]:
    """Yield the missing shards of a stream, with the range of their rows."""
    first = 0
    for stream in parts:
        starts: IntArray = first + np.cumsum([0, *(() if stream.rows is None else stream.rows)])
        first = int(starts[-1])
        for one in _missing(stream):
            yield stream, one, int(starts[one.first]), int(starts[one.stop])


def _sentence(one: _Missing, begin: int, end: int) -> str:
    first, last = redact(one.names[0]), redact(one.names[-1])
    name = first if len(one.names) == 1 else f"{first} to {last}"
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
        name, reason = _unreadable_file(stream, i)
        if reason and run is not None and (run.stop, run.reason) == (i, reason):
            run.names.append(name)
            continue
        if run is not None:
            yield run
        run = _Missing(i, [name], reason) if reason else None
    if run is not None:
        yield run


def _unreadable_file(stream: Stream, i: int) -> tuple[str, str]:
    """Return the first file of a listed shard that cannot be read, and the reason.

    Both are empty if all files exist or are remote.
    """
    for name in (
        stream.urls[i],
        *(file.name for file in (stream.parts[i] if stream.parts else ())),
    ):
        try:
            at = stream.at.join(name)
            if at.is_local:
                at.size()
        except MissingError:
            return name, _MISSING
        except FlareError as error:
            return name, error.message
    return "", ""


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
            numbers.add(int(number))  # fast path: same prefix and suffix as the previous shard
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
