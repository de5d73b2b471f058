"""How far a verb may reach, and what it found there, told to whoever asked for details."""

from __future__ import annotations

from collections.abc import Sequence

from flarecli.model import Playlist
from flarecli.progress import Progress
from flarecli.records import replace
from flarecli.storage import Guard, Limits
from flarecli.units import format_count

__all__ = ["bounded", "described"]


def bounded(guard: Guard | None, limits: Limits | None) -> Guard:
    """Put the limits of transfers to what addresses may reach."""
    guard = guard or Guard()
    return guard if limits is None else replace(guard, limits=limits)


def described(found: Sequence[Playlist], progress: Progress) -> None:
    """Tell whoever asked for details what was found, and how: in which list, in which format, how much of it.

    An index that is named where a dataset is wanted is a file like any other, which is told whoever asked.
    """
    for one in found:
        for stream in one:
            if (
                stream.format == "files"
                and one.at is None
                and len(stream) == 1
                and _is_index(stream.urls[0])
            ):
                progress.note(f"{stream.chunk(0).at}: taken as a file; `flare pack` reads its rows")
            rows = (
                "rows not listed"
                if stream.rows is None
                else format_count(int(stream.rows.sum()), "row")
            )
            listed = f"{one.at}: " if one.at is not None else f"{stream.at}: no list, "
            told = f"{listed}stream {stream.name!r} is {stream.format or 'of no known format'}, {rows} in {format_count(len(stream), 'shard')}"
            progress.note(told, verbose=True)


def _is_index(name: str) -> bool:
    from flarecli.ingest import is_index  # with all that reads tables

    return is_index(name)
