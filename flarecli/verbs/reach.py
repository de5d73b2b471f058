"""What a verb may reach on the network, and notes on what it found there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flarecli.formats import facts
from flarecli.model import Playlist, total
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits, bucket_in, bucket_note, with_reach
from flarecli.units import format_count

__all__ = ["bounded", "described"]


def bounded(
    guard: Guard | None,
    limits: Limits | None,
    allow_host: str | Sequence[str] = (),
    sources: Sequence[str] = (),
) -> Guard:
    """Return a guard with the limits of transfers, the allowed hosts and the origins that the user typed.

    raises  UsageError for a value of `allow_host` that is neither a host nor a network
    """
    guard = guard or Guard()
    if limits is not None:
        guard = replace(guard, limits=limits)
    return with_reach(guard, allow_host, sources)


def described(found: Sequence[Playlist], progress: Progress) -> None:
    """Tell whoever asked for details what was found, and how: in which list, in which format, how much of it.

    An index that is named where a dataset is wanted is a file like any other, which is told whoever asked. So are the buckets that
    a local list names, since they are read with the user's credentials.
    """
    for one in found:
        if one.at is not None and one.at.is_local:
            urls = (url for stream in one for url in stream.urls if "://" in url)
            homes = dict.fromkeys(home for url in urls if (home := bucket_in(url)))
            if homes:
                progress.note(bucket_note(one.at, list(homes)))
    for one in found:
        for stream in one:
            if (
                facts(stream.format).is_plain
                and one.at is None
                and len(stream) == 1
                and _is_index(stream.urls[0])
            ):
                progress.note(f"{stream.chunk(0).at}: taken as a file; `flare pack` reads its rows")
            rows = (
                "rows not listed"
                if stream.rows is None
                else format_count(total(stream.rows), "row")
            )
            listed = f"{one.at}: " if one.at is not None else f"{stream.at}: no list, "
            told = f"{listed}stream {stream.name!r} is {stream.format or 'of no known format'}, {rows} in {format_count(len(stream), 'shard')}"
            progress.note(told, verbose=True)


def _is_index(name: str) -> bool:
    from flarecli.ingest import is_index  # with all that reads tables

    return is_index(name)
