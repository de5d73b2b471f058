"""The lists of a changed dataset, and the names of its other files; see `write/versions`.

OUT/playlist.yaml            the current version: a copy of the newest list
OUT/playlist.000001.yaml     one list per version
OUT/playlist.NAME.yaml       a pin: a copy of a list under another name
OUT/fragment.1f3a…/          rows that a change added
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from flarecli import playlists
from flarecli.formats import INDEX_FILES, first_index
from flarecli.model import Stream
from flarecli.names import bare, is_url
from flarecli.playlists import PLAYLIST, pin_of
from flarecli.read.resolve import without_version_index
from flarecli.storage import Location

__all__ = [
    "COMMIT_LOCK",
    "FRAGMENT",
    "REMOVAL",
    "file_names",
    "is_fragment",
    "is_version_file",
    "list_names",
    "listed_files",
    "listed_in_versions",
]

FRAGMENT = "fragment."  # prefix of the folder names of fragments
COMMIT_LOCK = ".flare-commit"  # the lock of a commit
REMOVAL = ".flare-removal"  # the files that a removal deletes
_FRAGMENT_NAME = re.compile(r"fragment\.[0-9a-f]{32}", re.ASCII)


def is_fragment(name: str) -> bool:
    """Return whether a name is that of a fragment's folder."""
    return _FRAGMENT_NAME.fullmatch(name) is not None


def is_version_file(name: str) -> bool:
    """Return whether a name in the folder of a dataset belongs to its versions."""
    is_index = name in map(first_index, INDEX_FILES)
    return (
        name in (COMMIT_LOCK, REMOVAL) or pin_of(name) is not None or is_fragment(name) or is_index
    )


def list_names(at: Location) -> list[str]:
    """Return the names of all lists in a folder: the current list, numbered lists and pins."""
    return [name for name in at.names() if name == PLAYLIST or pin_of(name) is not None]


def file_names(stream: Stream) -> Iterator[tuple[str, int | None]]:
    """Yield the name and the size of each file that a stream lists; the size is None if unknown."""
    sizes = [-1] * len(stream) if stream.sizes is None else stream.sizes.tolist()
    for url, size in zip(stream.urls, sizes, strict=True):
        yield url, None if size < 0 else size
    for file in (*(file for part in stream.parts for file in part), *stream.files.values()):
        yield file.name, file.size


def listed_files(at: Location, name: str) -> dict[str, int | None]:
    """Return the files in the folder `at` that a list names: name -> size.

    raises  FormatError for an invalid list
    """
    out = {}
    for stream in map(without_version_index, playlists.read(at / name).streams):
        for url, size in file_names(stream):
            path = bare(url)
            if not (is_url(path) or path.startswith("/") or ".." in path.split("/")):
                out[path] = size
    return out


def listed_in_versions(at: Location, removed: Iterable[str] = ()) -> set[str]:
    """Return the names of all files that the lists in a folder name.

    removed  names of lists to ignore
    raises   FormatError for an invalid list
    """
    removed = set(removed)
    return {
        file for name in list_names(at) if name not in removed for file in listed_files(at, name)
    }
