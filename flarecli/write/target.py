"""Targets: folders, on a disk or in a bucket, that a process locks to write output to them.

A policy for each kind of output determines which existing files may be replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from flarecli import playlists
from flarecli.errors import (
    BusyError,
    FlareError,
    IntegrityError,
    MissingError,
    MissingLibraryError,
    UnfinishedError,
    UsageError,
)
from flarecli.formats import INDEX, INDEX_FILES, facts, find
from flarecli.model import Stream
from flarecli.names import bare, is_fragment, is_url
from flarecli.playlists import PLAYLIST
from flarecli.read import parts_hint
from flarecli.read.version_lists import (
    file_names,
    is_failed_copy,
    is_version_file,
    list_names,
    listed_files,
)
from flarecli.storage import Location
from flarecli.storage.local import SCRATCH
from flarecli.write.failures import FAILED

__all__ = [
    "Contents",
    "DatasetContents",
    "Target",
    "changed_error",
    "check_can_pack",
    "check_dataset",
    "check_files",
    "check_streams",
]

_DATASET = (PLAYLIST, *INDEX_FILES)  # a folder with one of these files is a dataset
# file or folder names of shards in any format
_SHARD = re.compile(r"(?:shard\.)?\d{5,}\..+|shardindex\.json|shards")
_PART = re.compile(r"\d{5,}")  # folder name of a part of a pack


class Contents(ABC):
    """Rules for one kind of output: when it counts as finished, and when a folder may be replaced.

    noun  command that writes the output, for messages
    hint  hint of the error for a folder that is not empty
    """

    noun: str
    hint: str

    @abstractmethod
    def is_finished(self, at: Location) -> bool:
        """Return whether a folder contains finished output of this kind."""

    @abstractmethod
    def check_replaceable(
        self, at: Location, names: Iterable[str], shown: str, is_begun: bool
    ) -> None:
        """Raise UsageError if a folder contains a file that is not part of the output.

        The check is necessary because replacing the output removes all files in the folder.

        names     names of the files and folders directly in the folder
        shown     path of the folder, for messages
        is_begun  True if the folder contains unfinished output
        """

    def remove_begun(self, at: Location, folder: str, shown: str) -> None:
        """Remove unfinished output from a local folder. Call `check_replaceable` first.

        folder  absolute path of `at`
        """
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if name == SCRATCH:
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        for name in os.listdir(os.path.join(folder, SCRATCH)):
            os.unlink(os.path.join(folder, SCRATCH, name))


class DatasetContents(Contents):
    """Policy for datasets. The output is a playlist, an index, and the files that they list."""

    noun = "pack"
    hint = "Use --resume to continue an unfinished pack, --append to add rows, --overwrite to replace a dataset, or specify another folder."

    def is_finished(self, at: Location) -> bool:
        return any((at / name).exists() for name in _DATASET)

    def check_replaceable(
        self, at: Location, names: Iterable[str], shown: str, is_begun: bool
    ) -> None:
        """Raise UsageError if a folder contains a file that is not part of the dataset.

        A file is part of the dataset if a playlist or an index lists it. If the dataset is
        unfinished or its playlist cannot be read, all files that are named like a shard are also
        part of the dataset.
        """
        names, listed = list(names), _listed(at)
        own = {*_DATASET, FAILED, SCRATCH, *listed}
        folders = {name.partition("/")[0] for name in listed if "/" in name}
        by_name = is_begun or (not listed and PLAYLIST in names)
        for name in names:
            if is_fragment(name):
                inside = dict.fromkeys((at / name).names())
                self.check_replaceable(
                    at / name, inside, f"{shown.rstrip('/')}/{name}", SCRATCH in inside
                )
                continue
            if (
                name in own
                or is_version_file(name)
                or is_failed_copy(name)
                or (by_name and _SHARD.fullmatch(name))
                or self._is_part(at / name, name, shown)
            ):
                continue
            below = [name]
            if name in folders:
                below = [f"{name}/{entry.name}" for entry in (at / name).list()]
            for other in below:
                if other not in own:
                    raise UsageError(
                        f"contains a file {other!r}, which is not part of the dataset",
                        where=shown,
                        hint="Move this file elsewhere first.",
                    )

    def _is_part(self, at: Location, name: str, shown: str) -> bool:
        """Return whether a folder is a part of a pack, finished or unfinished.

        raises  UsageError if the part contains a file that does not belong to the dataset
        """
        if not _PART.fullmatch(name):
            return False
        inside: dict[str, None] = {}
        with contextlib.suppress(MissingError):
            inside = dict.fromkeys(entry.name.partition("/")[0] for entry in at.list())
        if PLAYLIST not in inside and SCRATCH not in inside:
            return False
        self.check_replaceable(at, inside, f"{shown.rstrip('/')}/{name}", SCRATCH in inside)
        return True


class Target(ABC):
    """A folder for the output of this process. The folder is locked, unless `is_done` is True.

    shown    address of the folder as the user typed it
    at       folder to which files are written; with `overwrite`, a temporary folder
    is_done  True if `resume` is set and the folder already contains finished output
    raises   UsageError if the folder contains other files; UnfinishedError if the folder contains
             unfinished output, and neither `resume` nor `overwrite` is set; BusyError with the
             owner if another process writes to the folder; ReachError if the folder cannot be
             created
    """

    contents: Contents
    shown: str
    at: Location
    is_done: bool
    hint: str

    @property
    def playlist(self) -> str:
        """Return the address of the playlist in the finished output, as a user would type it."""
        return f"{self.shown.rstrip('/')}/{PLAYLIST}"

    @property
    def _is_fragment(self) -> bool:
        return is_fragment(self.shown.rstrip("/").rpartition("/")[2])

    def _check_finished(self, at: Location, is_allowed: bool) -> None:
        """Raise UsageError for a folder that is not empty; accept finished output if `is_allowed`.

        is_allowed  True if an option allows finished output in the folder
        raises      BusyError for a finished fragment, which another process has committed
        """
        is_finished = self.contents.is_finished(at)
        if is_finished and is_allowed:
            return
        if is_finished and self._is_fragment:
            raise changed_error(self.shown)
        raise UsageError("output folder is not empty", where=self.shown, hint=self.hint)

    def _unfinished(self) -> UnfinishedError:
        again = "Run the same command with --resume"
        hint = f"{again}, or use --overwrite to start again."
        return UnfinishedError(
            f"folder contains an unfinished {self.contents.noun}",
            where=self.shown,
            hint=parts_hint(self.at) or (f"{again}." if self._is_fragment else hint),
        )

    @abstractmethod
    def check(self, now: bool = False) -> None:
        """Raise ReachError or BusyError if this process has lost its lock on the folder.

        now  True: renew a lock in a bucket first; False: renew it first only if the last renewal is
             not recent
        """

    @abstractmethod
    def finish(self) -> None:
        """Finish the output after all writes: remove the scratch folder, and unlock the target."""

    @abstractmethod
    def abandon(self, keep: bool) -> None:
        """Unlock the folder after a failure.

        keep  True: keep the written files, so that the output can be resumed; False: remove these
              files, unless the folder contains files that are not part of the output
        """

    @abstractmethod
    def run_finalizer(self, call: Callable[[], None]) -> None:
        """Call a function during garbage collection, without waiting for locks of this process.

        Garbage collection may interrupt code that holds such a lock.
        """

    @abstractmethod
    def release(self) -> None:
        """Unlock the folder."""


def changed_error(where: object) -> BusyError:
    """Return the error for a dataset that another process has changed since it was opened."""
    return BusyError(
        "another process has changed the dataset",
        where=where,
        hint="Run the same command again.",
    )


def check_can_pack() -> None:
    """Raise MissingLibraryError on Windows, where flare only reads datasets.

    To write a dataset, flare locks and syncs folders and calls openat. Windows does not support
    these operations.
    """
    if sys.platform == "win32":
        raise MissingLibraryError(
            "flare cannot write datasets on Windows",
            hint="Run the command in WSL (Windows Subsystem for Linux).",
        )


def check_dataset(at: Location) -> None:
    """Check that all files in a folder's playlist exist with the listed sizes.

    If the playlist cannot be read, nothing is checked.

    raises  the same errors as `check_files`
    """
    try:
        playlist = playlists.read(at / PLAYLIST)
    except FlareError:
        return
    check_streams(at, playlist.streams, "Use --overwrite to pack the dataset again.")


def check_streams(at: Location, streams: Iterable[Stream], hint: str) -> None:
    """Check that a folder contains all files of streams, with the listed sizes.

    raises  the same errors as `check_files`
    """
    check_files(at, (pair for one in streams for pair in _sizes(one)), hint)


def check_files(at: Location, files: Iterable[tuple[str, int | None]], hint: str) -> None:
    """Check that a folder contains the given files.

    files   (name, size in bytes) of each file; None accepts any size
    raises  MissingError for the first missing file; IntegrityError for the first file with another
            size
    """
    sizes: dict[str, int] = {}
    with contextlib.suppress(MissingError):
        sizes = {entry.name: entry.size for entry in at.list()}
    for name, expected in files:
        size = sizes.get(name)
        if size is None:
            listed = "" if expected is None else f", expected {expected} bytes"
            raise MissingError(f"the file is missing{listed}", where=at / name, hint=hint)
        if size < 0:
            raise IntegrityError("not a regular file", where=at / name, hint=hint)
        if expected not in (None, size):
            raise IntegrityError(
                f"file is {size} bytes; expected {expected}", where=at / name, hint=hint
            )


def _sizes(stream: Stream) -> Iterator[tuple[str, int | None]]:
    """Yield the name and size of each file of a stream, except for files outside its folder."""
    for name, size in file_names(stream):
        path = bare(name)
        if not (is_url(path) or path.startswith("/") or ".." in path.split("/")):
            yield path, size


def _listed(at: Location) -> set[str]:
    """Return the names of all files that the playlist and the indexes of a folder list.

    A playlist or index that cannot be read is skipped.
    """
    names: set[str] = set()
    with contextlib.suppress(FlareError):
        playlist = playlists.read(at / PLAYLIST)
        for one in playlist.streams:
            # a pack never writes a plain format, such as a folder of images
            if not facts(one.format).is_plain:
                names.update(bare(name) for name, _ in file_names(one))
        names.update(
            name for one in playlist.streams for name in one.files if name.endswith(f"/{PLAYLIST}")
        )
    for index, format in INDEX_FILES.items():
        with contextlib.suppress(FlareError):
            if (at / index).exists():
                names.update(name for name, _ in file_names(find(format).open_dataset(at)))
    with contextlib.suppress(FlareError):
        for name in list_names(at):
            with contextlib.suppress(FlareError):
                names.update(listed_files(at, name))
    folders = {name.rpartition("/")[0] for name in names} - {""}
    # each part and each fragment has its own index
    names.update([f"{folder}/{INDEX}" for folder in folders])
    return names
