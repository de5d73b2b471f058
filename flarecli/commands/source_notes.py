"""Notes on the sources of a command: format, rows, and buckets that are read with credentials."""

from __future__ import annotations

from collections.abc import Sequence

from flarecli.formats import facts
from flarecli.model import Playlist, total
from flarecli.progress import Progress
from flarecli.storage import bucket_in, bucket_note
from flarecli.units import format_count

__all__ = ["note_sources"]


def note_sources(found: Sequence[Playlist], progress: Progress) -> None:
    """Report which lists and streams were found. Streams are verbose notes.

    Two notes are always reported: buckets that a local list names, since they are read with the
    user's credentials, and an index that is read as a file because a dataset was expected.
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
    from flarecli.ingest import is_index  # loads the readers of tables

    return is_index(name)
