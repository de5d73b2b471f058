"""Targets: a claimed folder, on a disk or in a bucket, and the policy that decides what it may
replace.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from flarecli import playlists
from flarecli.errors import (
    FlareError,
    IntegrityError,
    MissingError,
    UnfinishedError,
    UsageError,
)
from flarecli.formats import INDEX, INDEX_FILES, facts, find
from flarecli.model import Stream
from flarecli.names import bare, is_url
from flarecli.playlists import PLAYLIST
from flarecli.storage import Location
from flarecli.storage.local import SCRATCH
from flarecli.write.failures import FAILED

__all__ = [
    "Contents",
    "DatasetContents",
    "Target",
    "check_dataset",
    "check_files",
    "check_streams",
]

_DATASET = (PLAYLIST, *INDEX_FILES)  # a folder with one of these is a dataset
_SHARD = re.compile(r"(?:shard\.)?\d{5,}\..+|shardindex\.json|shards")  # of any format
_PART = re.compile(r"\d{5,}")  # the name of a part of a pack


class Contents(ABC):
    """The policy for one kind of output: which folders are finished, and which may be replaced.

    noun         what writes it, for messages
    hint         what to do about a folder that holds something else
    """

    noun: str
    hint: str

    @abstractmethod
    def is_finished(self, at: Location) -> bool:
        """Return whether a folder holds finished output of this kind."""

    @abstractmethod
    def check_replaceable(
        self, at: Location, names: Iterable[str], shown: str, is_begun: bool
    ) -> None:
        """Raise UsageError for the first file in a folder that is not ours: replacing removes all.

        names     files and folders directly in the folder
        shown     the folder, for messages
        is_begun  unfinished output lies there
        """

    def remove_begun(self, at: Location, folder: str, shown: str) -> None:
        """Remove unfinished output from a local folder, after `check_replaceable` accepted it.

        folder  the path of `at`
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
    """Datasets: a playlist or the index of a format, and the files that they list."""

    noun = "pack"
    hint = "Give --resume to go on with an unfinished pack, --overwrite to replace a dataset, or name another folder."

    def is_finished(self, at: Location) -> bool:
        return any((at / name).exists() for name in _DATASET)

    def check_replaceable(
        self, at: Location, names: Iterable[str], shown: str, is_begun: bool
    ) -> None:
        """Raise UsageError for the first file that is not part of the dataset.

        Files are ours if a list names them. The shards of an unfinished dataset, and of one whose
        playlist cannot be read, are known by their names.
        """
        names, listed = list(names), _listed(at)
        own = {*_DATASET, FAILED, SCRATCH, *listed}
        folders = {name.partition("/")[0] for name in listed if "/" in name}
        by_name = is_begun or (not listed and PLAYLIST in names)
        for name in names:
            if (
                name in own
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
                        f"it holds {other!r}, which is no part of a dataset",
                        where=shown,
                        hint="Move that elsewhere first.",
                    )

    def _is_part(self, at: Location, name: str, shown: str) -> bool:
        """Return whether a folder is a part of a pack, finished or not.

        raises  UsageError for a part with other files in it
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
    """A folder that this process has claimed: no other process writes there.

    shown    the address as the user typed it
    at       where files are written: with `overwrite` this is not the final folder
    is_done  a finished output is there already and `resume` was given; nothing is claimed
    raises   UsageError if something else is there; UnfinishedError for unfinished output without
             `resume`; BusyError, naming the owner, while another process works there; ReachError
             if the folder cannot be made
    """

    contents: Contents
    shown: str
    at: Location
    is_done: bool
    hint: str

    @property
    def playlist(self) -> str:
        """The address that the playlist will have, as the user would type it."""
        return f"{self.shown.rstrip('/')}/{PLAYLIST}"

    def _check_finished(self, at: Location, is_allowed: bool) -> None:
        """Raise UsageError unless a folder with files holds finished output.

        is_allowed  `resume` or `overwrite` was given; otherwise finished output is refused too
        """
        if not (is_allowed and self.contents.is_finished(at)):
            raise UsageError("the folder is not empty", where=self.shown, hint=self.hint)

    def _unfinished(self) -> UnfinishedError:
        return UnfinishedError(
            f"an unfinished {self.contents.noun}",
            where=self.shown,
            hint="Run the same command with --resume, or with --overwrite to begin anew.",
        )

    @abstractmethod
    def check(self, now: bool = False) -> None:
        """Raise ReachError or BusyError if this process no longer holds the folder.

        now  ask the store; otherwise the answer for a bucket may be some seconds old
        """

    @abstractmethod
    def finish(self) -> None:
        """Remove the scratch folder: the output is complete. Call it after everything is written."""

    @abstractmethod
    def abandon(self, keep: bool) -> None:
        """Release the folder after a failure.

        keep  leave what is done for `resume`; otherwise remove it, unless other files are there
        """

    @abstractmethod
    def run_finalizer(self, call: Callable[[], None]) -> None:
        """Run a call of a garbage collector's finalizer, where it cannot wait for itself."""

    @abstractmethod
    def release(self) -> None:
        """Release the lock."""


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


def _listed(at: Location) -> set[str]:
    """Name the files that a playlist there lists, an index.json or a spec.json; nothing where none
    can be read.
    """
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
