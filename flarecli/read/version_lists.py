"""The playlists and file names in the folder of a dataset with versions; see `write/versions`.

OUT/playlist.yaml            the current version: a copy of the newest numbered playlist
OUT/playlist.000001.yaml     the playlist of each version
OUT/playlist.NAME.yaml       a pin: a copy of a numbered playlist under another name
OUT/fragment.1f3a…/          shards with the rows that a change added
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from flarecli import playlists
from flarecli.errors import FlareError, FormatError, MissingError, UnsafeError
from flarecli.formats import INDEX_FILES, SHARD_INDEX, first_index
from flarecli.model import Playlist, Stream
from flarecli.names import (
    bare,
    check_name,
    is_fragment,
    is_url,
    name_fault,
    scheme_of,
    shell_quoted,
)
from flarecli.playlists import PLAYLIST, pin_of
from flarecli.read.resolve import without_version_index
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = [
    "COMMIT_LOCK",
    "ERASED",
    "REMOVAL",
    "confined",
    "file_names",
    "files_of",
    "files_to_remove",
    "is_failed_copy",
    "is_protected",
    "is_version_file",
    "list_names",
    "listed_files",
    "listed_in_versions",
    "parse_version_list",
]

COMMIT_LOCK = ".flare-commit"  # lock file of a commit
ERASED = ".flare-erased"  # hashes of the keys of erased rows
REMOVAL = ".flare-removal"  # list of the files that a removal deletes
_FAILED_NAME = re.compile(r"failed\.[0-9a-f]{32}\.jsonl", re.ASCII)


def is_failed_copy(name: str) -> bool:
    """Return whether a file name belongs to a copy of `failed.jsonl` that omits erased keys."""
    return _FAILED_NAME.fullmatch(name) is not None


_REPAIR = "Delete this file if you did not interrupt `flare prune` or `flare drop --erase`."


def confined(at: Location) -> Location:
    """Return the location of a folder, restricted to files inside the folder.

    Files are deleted only through such a location, even if the user allows reading other files.
    """
    store = at.store
    if not (isinstance(store, LocalStore) and store.guard.allow_local):
        return at
    guard = replace(store.guard, allow_local=False)
    return replace(at, store=LocalStore(store.root, store.shown, guard, store.maps))


def is_version_file(name: str) -> bool:
    """Return whether a name in a dataset's folder belongs to the dataset's version history."""
    is_index = name in map(first_index, (*INDEX_FILES, SHARD_INDEX))
    is_named = name in (COMMIT_LOCK, ERASED, REMOVAL)
    return is_named or is_index or pin_of(name) is not None or is_fragment(name)


def list_names(at: Location) -> list[str]:
    """Return the names of the current playlist, the numbered playlists and the pins in a folder."""
    return [name for name in at.names() if name == PLAYLIST or pin_of(name) is not None]


def file_names(stream: Stream, known: Container[str] = ()) -> Iterator[tuple[str, int | None]]:
    """Yield the name and the size of each file that a stream lists; the size is None if unknown.

    known  names to omit
    """
    sizes = [-1] * len(stream) if stream.sizes is None else stream.sizes.tolist()
    for url, size in zip(stream.urls, sizes, strict=True):
        if url not in known:
            yield url, None if size < 0 else size
    for file in (*(file for part in stream.parts for file in part), *stream.files.values()):
        if file.name not in known:
            yield file.name, file.size


def listed_files(at: Location, name: str) -> dict[str, int | None]:
    """Return the files in the folder `at` that the playlist `name` lists: file name -> size.

    The size of a file is None if the playlist does not list this size.

    raises  the errors of `parse_version_list`
    """
    at = confined(at)
    return files_of(at, parse_version_list(playlists.stored(at / name), at / name))


def parse_version_list(data: bytes, at: Location) -> Playlist:
    """Parse the playlist of a version or pin, which decides which files a change keeps or deletes.

    raises  FormatError for an invalid playlist; IntegrityError if its last line is not the checksum
            of the lines above
    """
    try:
        return playlists.parse_intact(data, at)
    except FormatError as error:
        file, delete = shell_quoted(str(at)), ""
        if at.name != PLAYLIST:
            delete = ", or delete it if it is not needed"
        hint = (
            f"Replace it with an undamaged copy{delete}."
            f" If you edited it, run `flare playlist {file} -o {file}`."
        )
        raise error.changed(hint=error.hint or hint) from None


def files_of(at: Location, playlist: Playlist, known: Container[str] = ()) -> dict[str, int | None]:
    """Return the files in the folder `at` that a playlist lists: file name -> size.

    The size of a file is None if the playlist does not list this size.

    known  names to omit, as a playlist lists them
    """
    at = confined(at)
    out = {}
    for stream in map(without_version_index, playlist.streams):
        for url, size in file_names(stream, known):
            path = _name_inside(at, url)
            if path is not None:
                out[path] = size
    return out


def _name_inside(at: Location, url: str) -> str | None:
    """Return the name of a listed file relative to the folder `at`; None if it is elsewhere."""
    path = bare(url)
    if not is_url(path) and not name_fault(path):
        return path
    if scheme_of(path) in ("http", "https"):
        return None
    try:
        found = at.join(url)
    except FlareError:
        return None
    start = f"{at.path}/" if at.path else ""
    is_inside = found.store == at.store and found.path.startswith(start)
    return found.path[len(start) :] or None if is_inside else None


def listed_in_versions(at: Location, removed: Iterable[str] = ()) -> set[str]:
    """Return the names of all files that are listed by the playlists of a folder.

    removed  names of playlists that are ignored, because they will be removed
    raises   the errors of `parse_version_list`
    """
    ignored, found = set(removed), set[str]()
    for name in list_names(at):
        if name not in ignored:
            with contextlib.suppress(MissingError):  # another process has removed this playlist
                found.update(listed_files(at, name))
    return found


def is_protected(name: str) -> bool:
    """Return whether a file must be kept: a playlist, an index or a file of the version history."""
    return name == PLAYLIST or name in INDEX_FILES or is_version_file(name)


def files_to_remove(at: Location) -> list[str]:
    """Return the names of the files that an interrupted removal has not deleted yet.

    raises  FormatError for an invalid list of these files; UnsafeError if the list contains a
            playlist, an index or another protected file
    """
    where = at / REMOVAL
    try:
        data = where.read()
    except MissingError:
        return []
    names = []
    for line in data.splitlines():
        try:
            name = json.loads(line)
        except ValueError:
            name = None
        if not isinstance(name, str):
            raise FormatError(
                "expected a file name in quotes on each line", where=where, hint=_REPAIR
            )
        if is_protected(check_name(name, where=where)):
            raise UnsafeError(
                f"the list contains {name!r}, which must not be deleted", where=where, hint=_REPAIR
            )
        names.append(name)
    return names
