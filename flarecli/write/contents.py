"""What lies where a pack is to be written: a dataset that may be replaced, or something else that may not."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator

from flarecli import playlists
from flarecli.errors import FlareError, IntegrityError, MissingError, UsageError
from flarecli.formats import INDEX, INDEX_FILES, facts, find
from flarecli.model import Stream
from flarecli.names import bare, is_url
from flarecli.playlists import PLAYLIST
from flarecli.storage import Location
from flarecli.storage.local import SCRATCH
from flarecli.write.failures import FAILED

__all__ = ["DATASET", "HINT", "check_dataset", "check_files", "check_streams", "refuse_others"]

DATASET = (PLAYLIST, *INDEX_FILES)  # what --overwrite must find before it replaces a folder
_OWN = re.compile(
    r"(?:shard\.)?\d{5,}\..+|shardindex\.json|shards"
)  # what a pack calls its shards and what lies beside them, in any format
_PART = re.compile(r"\d{5,}")  # what `parts.part_name` gives
HINT = "Give --resume to go on with an unfinished pack, --overwrite to replace a dataset, or name another folder."


def refuse_others(at: Location, names: Iterable[str], shown: str, is_begun: bool) -> None:
    """Refuse to replace a folder that holds more than a dataset: replacing removes all of it.

    names     what lies in the folder: its files and folders
    is_begun  an unfinished pack lies there: nothing lists its shards yet, so their names tell, as they do where its playlist cannot
              be read; else what no list there names is somebody else's, whatever it is called
    raises    UsageError for the first that is no part of a dataset
    """
    names = list(names)
    listed = _listed(at)
    own, folders = (
        {*DATASET, FAILED, SCRATCH, *listed},
        {name.partition("/")[0] for name in listed if "/" in name},
    )
    by_name = is_begun or (not listed and PLAYLIST in names)
    for name in names:
        if name in own or (by_name and _OWN.fullmatch(name)) or _is_part(at, name, shown):
            continue
        below = (
            [f"{name}/{entry.name}" for entry in (at / name).list()] if name in folders else [name]
        )
        for other in below:
            if other not in own:
                raise UsageError(
                    f"it holds {other!r}, which is no part of a dataset",
                    where=shown,
                    hint="Move that elsewhere first.",
                )


def check_dataset(at: Location) -> None:
    """Check that every file that a playlist in a folder lists is there with its size.

    Nothing is checked where no playlist can be read.

    raises  what `check_files` raises
    """
    try:
        found = playlists.read(at / PLAYLIST)
    except FlareError:
        return
    check_streams(at, found.streams, "Give --overwrite to pack it again.")


def check_streams(at: Location, streams: Iterable[Stream], hint: str) -> None:
    """Check that all files that streams list are in a folder. Raises what `check_files` raises."""
    check_files(at, (pair for one in streams for pair in _sizes(one)), hint)


def check_files(at: Location, files: Iterable[tuple[str, int | None]], hint: str) -> None:
    """Check that files are in a folder, each with its size; None: any size.

    raises  MissingError for the first that is missing; IntegrityError for the first of another size
    """
    there: dict[str, int] = {}
    with contextlib.suppress(MissingError):
        there = {entry.name: entry.size for entry in at.list()}
    for name, size in files:
        found = there.get(name)
        if found is None:
            listed = "" if size is None else f", expected {size} bytes"
            raise MissingError(f"the file is missing{listed}", where=at / name, hint=hint)
        if found < 0:
            raise IntegrityError("not a regular file", where=at / name, hint=hint)
        if size not in (None, found):
            raise IntegrityError(
                f"the file is {found} bytes, expected {size}", where=at / name, hint=hint
            )


def _sizes(stream: Stream) -> Iterator[tuple[str, int | None]]:
    """Yield the name and the size of each file that a stream lists below its own folder."""
    sizes = itertools.repeat(-1) if stream.sizes is None else stream.sizes.tolist()
    listed = itertools.chain(
        zip(stream.urls, sizes, strict=False),
        ((file.name, file.size) for part in stream.parts for file in part),
        ((file.name, file.size) for file in stream.files.values()),
    )
    for name, size in listed:
        own = bare(name)
        if not (is_url(own) or own.startswith("/") or ".." in own.split("/")):
            yield own, None if size is None or size < 0 else size


def _is_part(at: Location, name: str, shown: str) -> bool:
    """Say whether a folder is a part of a pack in parts, done or not. Raises UsageError for one that holds more than a part."""
    if not _PART.fullmatch(name):
        return False
    inside: dict[str, None] = {}
    with contextlib.suppress(MissingError):
        inside = dict.fromkeys(entry.name.partition("/")[0] for entry in (at / name).list())
    if PLAYLIST not in inside and SCRATCH not in inside:
        return False
    refuse_others(at / name, inside, f"{shown.rstrip('/')}/{name}", SCRATCH in inside)
    return True


def _listed(at: Location) -> set[str]:
    """Name the files that a playlist there lists, an index.json or a spec.json; nothing where none can be read."""
    names: set[str] = set()
    with contextlib.suppress(FlareError):
        found = playlists.read(at / PLAYLIST)
        for one in (
            one for one in found.streams if not facts(one.format).is_plain
        ):  # a playlist may also list what nobody packed
            names.update(bare(name) for name in _files(one))
        names.update(
            name for one in found.streams for name in one.files if name.endswith(f"/{PLAYLIST}")
        )
    for index, format in INDEX_FILES.items():
        with contextlib.suppress(FlareError):
            if (at / index).exists():
                names.update(_files(find(format).open_dataset(at)))
    names.update(
        [f"{folder}/{INDEX}" for folder in {name.rpartition("/")[0] for name in names} if folder]
    )  # of parts that were merged
    return names


def _files(stream: Stream) -> Iterator[str]:
    yield from (*stream.urls, *stream.files)
    yield from (file.name for part in stream.parts for file in part)
