"""Notes on the sources of a command: formats, rows, and buckets that are read with credentials."""

from __future__ import annotations

from collections.abc import Sequence

from flarecli.formats import facts
from flarecli.model import Playlist, total
from flarecli.progress import Progress
from flarecli.storage import bucket_in, bucket_note
from flarecli.units import format_count

__all__ = ["note_sources"]


def note_sources(playlists: Sequence[Playlist], progress: Progress) -> None:
    """Report the lists and streams of sources as verbose notes.

    Two notes are reported even without --verbose: the buckets that a local list names, because they
    are read with the user's credentials; and a table that is read as one file, because the user may
    have expected its rows.
    """
    for one in playlists:
        if one.at is not None and one.at.is_local:
            urls = (url for stream in one for url in stream.urls if "://" in url)
            buckets = dict.fromkeys(bucket for url in urls if (bucket := bucket_in(url)))
            if buckets:
                progress.note(bucket_note(one.at, list(buckets)))
    for one in playlists:
        for stream in one:
            if (
                facts(stream.format).is_plain
                and one.at is None
                and not one.requested_format
                and len(stream) == 1
                and _is_index(stream.urls[0])
            ):
                progress.note(
                    f"{stream.chunk(0).at}: reading the table as one file; `flare pack` reads its rows"
                )
            rows = (
                "rows not listed"
                if stream.rows is None
                else format_count(total(stream.rows), "row")
            )
            listed = f"{one.at}: " if one.at is not None else f"{stream.at}: no list, "
            format = f"format {stream.format}" if stream.format else "unknown format"
            shards = format_count(len(stream), "shard")
            text = f"{listed}stream {stream.name!r}: {format}, {rows} in {shards}"
            progress.note(text, verbose=True)


def _is_index(name: str) -> bool:
    from flarecli.ingest import is_index  # imported only here, because it loads the table readers

    return is_index(name)
