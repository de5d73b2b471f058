"""Versions of a dataset, and the commit that adds a version.

    OUT/playlist.yaml            the current version: a copy of the newest numbered playlist
    OUT/playlist.000001.yaml     the playlist of each version, created once and never changed
    OUT/playlist.NAME.yaml       a pin: a copy of a numbered playlist under another name
    OUT/index.000001.json        the format's index before the first change, if changes replace it
    OUT/fragment.1f3a…/          the rows that a change added, as a separate dataset
    OUT/.flare-commit            the commit lock

A file that a playlist lists never changes, and its name is never used again. The creation of the
next numbered playlist is the commit. Only one process can create it, so correctness does not depend
on the lock. Afterwards, `playlist.yaml` and the format's index are derived from the numbered
playlist. If the process is killed in between, readers see the previous version until the next
commit.

A change is applied to the newest version. It raises BusyError if the newest version no longer
contains the shards from which the change was computed.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from flarecli import playlists
from flarecli.errors import (
    BusyError,
    FlareError,
    FormatError,
    IntegrityError,
    MissingBucketError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.formats import INDEX_FILES, find, first_index, refuse_existing
from flarecli.hashes import DEFAULT, digest
from flarecli.model import File, IntArray, Playlist, Stream
from flarecli.names import FRAGMENT, is_fragment, shell_quoted
from flarecli.playlists import (
    MAX_PIN_LENGTH,
    MAX_VERSION,
    PLAYLIST,
    SAME_ROWS,
    VERSION,
    pin_of,
    same_rows,
    version_name,
    version_number,
    version_of,
)
from flarecli.read import Dataset
from flarecli.read.resolve import refuse_unfinished, without_version_index
from flarecli.read.version_lists import (
    COMMIT_LOCK,
    confined,
    files_of,
    parse_version_list,
)
from flarecli.storage import Guard, Location, descriptors, locate
from flarecli.storage.append_log import first_entry
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.write.folder_target import bucket_of, claim
from flarecli.write.target import Target, changed_error, check_can_pack, check_files

if TYPE_CHECKING:
    from flarecli.write.bucket_target import Lease

__all__ = [
    "Change",
    "CommitLock",
    "Version",
    "check_fragment",
    "check_unchanged",
    "commit",
    "fragment_name",
    "concatenated",
    "count_versions",
    "create_once",
    "finish_fragment",
    "fragment_files",
    "is_same_source",
    "joined",
    "moved",
    "sliced",
    "version_from",
    "version_of_fragment",
    "without_unused_files",
    "write_newest_index",
    "newest",
    "numbers",
    "open_for_change",
    "pin_name",
    "pins",
    "publish",
    "read_version",
    "read_versions",
]

REQUIRES = 1  # version of the playlist format that a reader must support
_PARTIAL = re.compile(
    r"\.(?:playlist|index|shardindex|failed|\.flare-removal|\.flare-erased)\..*\.part"
)
# hint after the commit lock is lost, for commands with and without --resume
_RERUN_HINT = "Run the same command again, with --resume if the command has this option."
_AGAIN_HINT = "Run the same command again."
MAX_WAIT_S = 600.0  # maximum wait for the commit lock
_POLL_S = 0.02, 1.0  # shortest and longest wait between two attempts to get the commit lock
_MAX_SAME_ROWS = 64  # maximum number of versions in the list `same_rows` of a playlist
_MAX_ATTEMPTS = 8  # maximum number of attempts to commit a change or to create a playlist


@dataclass(frozen=True)
class Version:
    """A version of a dataset.

    at      location of the playlist
    number  number of the version; the dataset before the first change is version 1
    data    bytes of the playlist
    parsed  the parsed playlist; None: it is parsed on first use
    """

    at: Location
    number: int
    data: bytes = field(repr=False)
    parsed: Playlist | None = field(default=None, repr=False, compare=False)

    @cached_property
    def playlist(self) -> Playlist:
        """Return the playlist. Raises the errors of `parse_version_list`."""
        return self.parsed or parse_version_list(self.data, self.at)

    @cached_property
    def dataset(self) -> Dataset:
        """Return the dataset that the playlist describes, with its streams joined row by row."""
        return Dataset([[stream] for stream in self.streams], [self.playlist])

    @cached_property
    def checksum(self) -> str:
        """Return the xxh3_128 of the playlist."""
        return digest(self.data)

    @property
    def header(self) -> Mapping[str, Any]:
        """Return the header `version`; empty for the first version."""
        streams = self.playlist.streams
        header = streams[0].headers.get(VERSION) if streams else None
        return header if isinstance(header, Mapping) else {}

    @property
    def fragments(self) -> tuple[str, ...]:
        """Return the names of the folders with the rows that this version added."""
        return tuple(filter(is_fragment, self._names("fragments")))

    @property
    def erases(self) -> tuple[str, ...]:
        """Return the names of the files to delete after the commit of this version."""
        return self._names("erases")

    def _names(self, key: str) -> tuple[str, ...]:
        names = self.header.get(key)
        is_valid = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return tuple(names) if is_valid and names is not None else ()

    @property
    def added(self) -> int:
        """Return the number of rows that this version added."""
        return self._count("added", self.rows)

    @property
    def removed(self) -> int:
        """Return the number of rows that this version removed."""
        return self._count("removed", 0)

    def _count(self, key: str, default: int) -> int:
        count = self.header.get(key)
        return count if type(count) is int and count >= 0 else default

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Return the streams of the playlist."""
        return self.playlist.streams

    @property
    def rows(self) -> int:
        """Return the number of rows; 0 if the playlist does not list row counts."""
        streams = self.playlist.streams
        rows = streams[0].rows if streams else None
        return 0 if rows is None else int(rows.sum())


class Change(ABC):
    """A change to a dataset.

    verb       kind of change, such as `append`
    fragments  names of the folders with the new rows; empty if the change adds no rows
    source     description of the source of the new rows, for the playlist; None without a source
    erases     names of the files to delete after the commit
    copied     number of rows that were copied from removed shards to new shards; None: the number
               of rows in the new shards or in the removed shards, whichever is smaller
    keeps_rows True if all rows and their order remain the same
    """

    verb: str
    fragments: tuple[str, ...]
    source: Mapping[str, Any] | None
    erases: tuple[str, ...] = ()
    copied: int | None = None
    keeps_rows: bool = False

    @abstractmethod
    def apply(self, base: Version) -> tuple[Stream, ...]:
        """Return the streams of the next version.

        raises  BusyError if `base` does not contain the shards that the change replaces;
                FormatError if the columns of the new rows differ from the columns of `base`
        """

    def prepare(self, lock: CommitLock) -> None:  # noqa: B027 - most changes write nothing here
        """Write the files that must exist before the playlist of the next version is created.

        lock  the commit lock, which this process holds
        """


def fragment_name(parts: Sequence[Any]) -> str:
    """Return the folder name of a fragment. It contains a digest of `parts`.

    parts  all inputs that determine the rows of the fragment
    """
    text = json.dumps(list(parts), sort_keys=True)
    return FRAGMENT + hashlib.sha256(text.encode()).hexdigest()[:32]


def check_fragment(at: Location, name: str) -> None:
    """Raise UnsafeError if a fragment is a symbolic link, which may point outside of `at`."""
    if not at.is_local:
        return
    try:
        (confined(at) / f"{name}/{PLAYLIST}").exists()
    except UnsafeError:
        raise UnsafeError(
            "is a symbolic link, so no rows are written to it",
            where=at / name,
            hint="Delete the link.",
        ) from None


def pin_name(name: str) -> str:
    """Return the file name of a pin. Raises UsageError for an invalid name."""
    file = f"playlist.{name}.yaml"
    if len(name) > MAX_PIN_LENGTH:
        raise UsageError(
            f"a pin name may have at most {MAX_PIN_LENGTH} characters, got {len(name)}",
            hint="Use a shorter name.",
        )
    if name.isdigit() or pin_of(file) is None:
        raise UsageError(
            f"invalid pin name {name!r:.60}",
            hint="Use letters, digits, `-`, `_` and `.`, with at least one letter.",
        )
    return file


def pins(at: Location) -> dict[str, Version]:
    """Return the pins in a folder: name of the pin -> version.

    raises  the errors of `parse_version_list`
    """
    out = {}
    for file in at.names():
        name = pin_of(file)
        if name is not None and version_number(file) is None:
            with contextlib.suppress(MissingError):  # another process has deleted the pin
                data = playlists.stored(at / file)
                playlist = parse_version_list(data, at / file)
                out[name] = Version(at / file, version_of(playlist) or 1, data, playlist)
    return out


def numbers(at: Location) -> list[int]:
    """Return the numbers of all versions of a dataset, ascending; empty before the first change."""
    found = map(version_number, _names(at))
    return sorted(number for number in found if number is not None)


def _names(at: Location) -> Sequence[str]:
    """Return the names of the files and folders in a folder; empty if the folder is missing.

    raises  MissingBucketError if the bucket does not exist
    """
    try:
        return at.names()
    except MissingBucketError:
        raise
    except MissingError:
        return ()


def count_versions(out: str, guard: Guard) -> tuple[int, int]:
    """Return the number of versions and the number of pins of a dataset, without reading them."""
    at = bucket_of(out, guard) or locate(out, guard).unmapped()
    found = [name for name in _names(at) if pin_of(name) is not None]
    numbered = sum(version_number(name) is not None for name in found)
    return numbered, len(found) - numbered


def read_version(at: Location, number: int) -> Version:
    """Read a version by its number. Raises MissingError if the version does not exist."""
    where = at / version_name(number)
    return Version(where, number, playlists.stored(where))


def read_versions(at: Location, numbers: Iterable[int]) -> Iterator[Version]:
    """Yield the versions with these numbers. A version that another process removes is omitted."""
    for number in numbers:
        with contextlib.suppress(MissingError):
            yield read_version(at, number)


def newest(at: Location) -> Version:
    """Read the newest version of a dataset.

    raises  UsageError if the folder contains no playlist; UnfinishedError if it contains an
            unfinished pack
    """
    at = _fresh(at)
    found = numbers(at)
    while found:
        try:
            return read_version(at, found[-1])
        except MissingError:
            again = numbers(at)
            if again == found:
                raise
            found = again  # another process has added a version, and pruned the previous version
    where = at / PLAYLIST
    try:
        return Version(where, 1, playlists.stored(where))
    except MissingError:
        if at.path and _is_file(at):
            raise UsageError(
                "expected the folder of a dataset, got a file",
                where=at,
                hint="Specify the folder that contains playlist.yaml.",
            ) from None
        refuse_unfinished(at)
        if not _names(at):
            raise UsageError(
                "no dataset in this folder",
                where=at,
                hint="Run `flare pack SOURCE FOLDER` to create a dataset.",
            ) from None
        raise UsageError(
            "no dataset with a playlist in this folder",
            where=at,
            hint="Run `flare playlist FOLDER -o FOLDER/playlist.yaml` for a dataset without a playlist.",
        ) from None


def _is_file(at: Location) -> bool:
    try:
        at.size()
    except FlareError:
        return False
    return True


def open_for_change(out: str, guard: Guard, dry_run: bool = False) -> tuple[Location, Version]:
    """Return the folder of a dataset, and its newest version.

    The process that committed this version may have been killed after the commit. In this case,
    this function first completes the remaining steps of that process. With `dry_run`, it writes
    nothing.

    raises  UsageError if flare cannot write to the folder, or if it contains no dataset with a
            playlist; the errors of `parse_version_list` for the newest version; MissingError if its
            numbered playlist is missing; MissingError or IntegrityError if the newest version is
            not published and one of its files is missing or has another size
    """
    if not dry_run:
        check_can_pack()
    at = bucket_of(out, guard) or locate(out, guard).unmapped()
    base = newest(at)
    is_current = is_published(at, base)
    if not is_current or base.at.name == PLAYLIST:
        _check_numbered(at, base)
    if dry_run:
        return at, base
    if not is_current or partial_files(at):
        with CommitLock(at):
            for name in partial_files(at):
                (at / name).delete()
            base = newest(at)
            if not is_published(at, base):
                earlier = numbers(at)[:-1]
                folder = shell_quoted(out.rstrip("/"))
                hint = f"Run `flare log {folder} --restore {earlier[-1]}`." if earlier else ""
                _check_fragments(at, base, hint)
                check_files(at, files_of(at, base.playlist).items(), "")
                publish(at, base)
    for name in base.fragments:
        if _has_journal(at / name):
            finish_fragment(f"{out.rstrip('/')}/{name}", guard)
    return at, base


def _check_numbered(at: Location, base: Version) -> None:
    """Check that the numbered playlist of the current version exists and is undamaged.

    A change to an earlier version would otherwise remove the rows of the current version.

    base    the newest version with a numbered playlist
    raises  MissingError if this playlist is missing; the errors of `parse_version_list`
    """
    if base.at.name == PLAYLIST:
        number = version_of(base.playlist) or 1
    else:
        number = _number_of(_stored(at / PLAYLIST), at) or 0
    hint = f"Copy {PLAYLIST} to {version_name(number)}."
    if number > max(base.number, *numbers(_fresh(at)), 1):
        raise MissingError(
            f"the file is missing, but {PLAYLIST} is version {number}",
            where=at / version_name(number),
            hint=hint,
        )
    try:
        base.playlist  # noqa: B018 - parses the playlist
    except FormatError as error:
        raise error.changed(hint=hint) if number == base.number else error from None


def _number_of(current: bytes | None, at: Location) -> int | None:
    """Return the version number of `playlist.yaml`; 1 before the first change.

    A damaged `playlist.yaml` is not an error, because the next commit replaces it with a copy of
    the newest numbered playlist.

    current  the bytes of the file; None if it is missing
    return   None if the file is missing or damaged
    """
    if current is not None:
        with contextlib.suppress(FormatError):
            return version_of(playlists.parse_intact(current, at / PLAYLIST)) or 1
    return None


def finish_fragment(fragment: str, guard: Guard) -> None:
    """Delete the scratch folder of a committed fragment, unless another process has locked it."""
    # BusyError means that the process that committed this fragment is still running
    with contextlib.suppress(BusyError):
        target = claim(fragment, resume=True, guard=guard)
        if not target.is_done:
            target.finish()


class CommitLock:
    """Commit lock on a dataset: `flock` in a local folder, or a lease in a bucket.

    The `with` statement waits for the lock.

    raises  BusyError after MAX_WAIT_S if other processes still hold the lock; ReachError if the
            file system does not support locks
    """

    def __init__(self, at: Location) -> None:
        self._at = at
        self._fd = -1
        self._lease: Lease | None = None

    def __enter__(self) -> CommitLock:
        stop, wait = time.monotonic() + MAX_WAIT_S, _POLL_S[0]
        while True:
            try:
                self._acquire()
                return self
            except BusyError:
                if time.monotonic() > stop:
                    raise
            # jitter, so that waiting processes do not retry at the same time
            time.sleep(wait * (0.5 + random.random()))
            wait = min(wait * 1.5, _POLL_S[1])

    def _acquire(self) -> None:
        store = self._at.store
        if not isinstance(store, LocalStore):
            # imported late, because `bucket_target` loads a bucket client
            from flarecli.write.bucket_target import Lease

            self._lease = Lease(self._at / COMMIT_LOCK, str(self._at), waits=True, hint=_RERUN_HINT)
            return
        path = os.path.join(store.root, self._at.path, COMMIT_LOCK)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | descriptors.FILE, 0o666)
        except OSError as error:
            raise store.error(error, COMMIT_LOCK) from None
        try:
            descriptors.lock_or_fail(
                fd, str(self._at), "Use a file system with locks, or a bucket."
            )
        except BlockingIOError:
            os.close(fd)
            raise BusyError(
                "another process is changing this dataset",
                where=self._at,
                hint="Wait until the other process ends.",
            ) from None
        except FlareError:
            os.close(fd)
            raise
        self._fd = fd

    def check(self, now: bool = True) -> None:
        """Raise BusyError if this process has lost the lock.

        now  True: renew a lock in a bucket first; False: renew it first only if the last renewal is
             not recent
        """
        if self._lease is not None:
            self._lease.check(now)

    def check_store(self) -> None:
        """In a bucket, check that the store supports conditional writes (`Lease.check_store`)."""
        if self._lease is not None:
            self._lease.check_store()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lease is not None:
            self._lease.release()
            self._lease = None


def _is_lost(lock: CommitLock) -> bool:
    """Return whether this process has lost the lock. A lock in a bucket is renewed first."""
    try:
        lock.check()
    except BusyError:
        return True
    return False


def commit(at: Location, change: Change, base: Version, targets: Sequence[Target] = ()) -> Version:
    """Apply a change to the newest version, and return the version that the change created.

    If an interrupted commit of this change has already created a version, that version is returned.
    Such a version lists the fragments of the change. If that version was pruned, the newest version
    is returned.

    base     the version from which the change was computed
    targets  the targets of the new fragments. Each must still be locked: otherwise, another process
             may be deleting its files, or may have committed it
    raises   the errors of `Change.apply`, `CommitLock` and `Target.check`; MissingError or
             IntegrityError if a new file is missing or has another size, for example because
             another process deleted the fragment while this process was suspended
    """
    with CommitLock(at) as lock:
        lock.check_store()
        current = newest(at)
        is_first = current.at.name == PLAYLIST  # no numbered playlist exists
        if current.data == base.data:
            current = base  # the playlist of `base` is already parsed
        done = _committed(at, change, base, current)
        if done is not None and done is not current:
            _check_fragments(at, done)
        if current.data != base.data:
            _check_fragments(at, current)
        if done is not None:
            change.prepare(lock)
            publish(at, current)
            return done
        if is_first:
            _keep_first(at, current)
        for target in targets:
            target.check(now=True)
        for _ in range(_MAX_ATTEMPTS):
            new = _next_version(at, change, current)
            _check_listed(at, new, known=_listed(current))
            change.prepare(lock)
            if _created(at, new, lock):
                break
            current = newest(at)
        else:
            raise ReachError("cannot create the playlist of the next version", where=at)
        with _created_before(new):
            _check_newest(at, new)
            if not _is_lost(lock):
                publish(at, new, current)
                return new
    with _created_before(new):
        _settle(at, change, current, new)
    return new


def _committed(at: Location, change: Change, base: Version, current: Version) -> Version | None:
    """Return the version that an earlier commit of a change created; None if there is none."""
    if not change.fragments or current.number == base.number:
        return None
    for one in read_versions(at, range(base.number + 1, current.number + 1)):
        # `data` is searched first, because `fragments` parses the playlist, which is slower
        if change.fragments[0].encode() in one.data and one.fragments == change.fragments:
            return one
    folders = {url.partition("/")[0] for stream in current.streams for url in stream.urls}
    return current if folders.issuperset(change.fragments) else None


def _listed(version: Version) -> set[str]:
    """Return the names of all files that a version lists."""
    names = set[str]()
    for stream in version.streams:
        companions = (file.name for part in stream.parts for file in part)
        names.update(stream.urls, companions, stream.files)
    return names


def _check_fragments(at: Location, version: Version, hint: str = _AGAIN_HINT) -> None:
    """Check the files that a version added.

    The process that created the version may not have checked them in `_settle` yet.
    """
    own = set(version.fragments)
    names = _listed(version)
    known = {name for name in names if name.partition("/")[0] not in own}
    _check_listed(at, version, known, hint)


def _check_listed(
    at: Location, version: Version, known: Container[str], hint: str = _AGAIN_HINT
) -> None:
    """Check the files that a version lists, except for the files with known names.

    raises  the errors of `check_files`
    """
    added: dict[str, list[tuple[str, int | None]]] = {}  # folder -> its files
    for name, size in files_of(at, version.playlist, known).items():
        folder, _, file = name.partition("/")
        key, own = (folder, file) if is_fragment(folder) else ("", name)
        added.setdefault(key, []).append((own, size))
    for folder, files in added.items():
        where = _fresh(at) / folder if folder else _fresh(at)
        check_files(where, files, hint)


@contextlib.contextmanager
def _created_before(new: Version) -> Iterator[None]:
    """Add to the message of an error that the version was already created."""
    try:
        yield
    except BusyError:
        raise
    except FlareError as error:
        raise error.changed(
            message=f"{error.message}; version {new.number} was created before this error",
            hint=error.hint or _again(new),
        ) from None


def _again(new: Version) -> str:
    return f"Run the same command {'with --resume' if new.fragments else 'again'}."


def _settle(at: Location, change: Change, before: Version, new: Version) -> None:
    """Publish a version whose playlist was created after this process may have lost the lock.

    Between the last check of the lock and the creation, another process may have deleted files that
    the version lists, or erased keys of its rows. In this case, a version that restores the
    previous shards is created, and the playlist of the invalid version is deleted.

    before  version to which the change was applied
    raises  BusyError if the version is invalid
    """
    for _ in range(_MAX_ATTEMPTS):
        with CommitLock(at) as lock:
            _check_newest(at, new)
            fault = _fault(at, change, before, new)
            if not fault:
                publish(at, newest(at))
                return
            if newest(at).number == new.number:
                restored = _next_version(at, _Undo(before), new)
                try:
                    is_created = _created(at, restored, lock)
                except BusyError:  # the lock was lost again
                    continue
                if is_created:
                    publish(at, restored)
                    (at / version_name(new.number)).delete()
            raise BusyError(
                f"another process changed the dataset after this process had lost the lock: {fault}",
                where=at,
                hint="Run the same command again.",
            )
    raise ReachError("this process repeatedly lost the lock", where=at)


def _fault(at: Location, change: Change, before: Version, new: Version) -> str:
    """Return why a version that this process has created is invalid; empty if it is valid."""
    try:
        change.apply(before)
        _check_listed(at, new, known=_listed(before))
    except FlareError as error:
        if isinstance(error, ReachError) and not isinstance(error, (BusyError, MissingError)):
            raise
        return error.message
    return ""


@dataclass(frozen=True)
class _Undo(Change):
    """The change that restores the shards of a version whose successor is invalid."""

    version: Version
    verb: str = field(default="restore", init=False)
    fragments: tuple[str, ...] = field(default=(), init=False)
    source: Mapping[str, Any] | None = field(default=None, init=False)

    def apply(self, base: Version) -> tuple[Stream, ...]:
        return self.version.streams


def is_same_source(found: object, source: Mapping[str, Any]) -> bool:
    """Return whether a source in a playlist has the checksum and the options of `source`."""
    return isinstance(found, Mapping) and all(
        found.get(key) == source.get(key) for key in (DEFAULT, "options")
    )


def version_from(at: Location, source: Mapping[str, Any]) -> Version | None:
    """Return the newest version whose source has the same checksum and options, or None.

    source  checksum, if the change has one, and checksum of the options
    """
    for one in read_versions(at, reversed(numbers(at))):
        # searching the bytes is faster than parsing the list
        if source["options"].encode() in one.data and is_same_source(
            one.header.get("source"), source
        ):
            # a version that lost its files is not in effect; see `_settle`
            with contextlib.suppress(MissingError, IntegrityError):
                _check_fragments(at, one)
                return one
    return None


def version_of_fragment(at: Location, base: Version, fragment: str) -> Version:
    """Return the version after `base` in which another process has committed a fragment.

    raises  BusyError if no such version exists, for example because it was pruned
    """
    later = [number for number in numbers(at) if number > base.number]
    for one in read_versions(at, later):
        if fragment in one.fragments:
            return one
    raise changed_error(base.at)


@contextlib.contextmanager
def check_unchanged(at: Location, base: Version) -> Iterator[None]:
    """If a file is missing in the `with` block, check that `base` is still the newest version.

    raises  BusyError if another process has created a later version, and may have erased the file
    """
    try:
        yield
    except MissingError:
        if newest(at).number == base.number:
            raise
        raise changed_error(base.at) from None


def _next_version(at: Location, change: Change, base: Version) -> Version:
    streams = tuple(map(without_version_index, change.apply(base)))
    if len({int(one.rows.sum()) for one in streams if one.rows is not None}) > 1:
        # another process has added a stream, for which the change has no rows
        raise changed_error(at)
    number = base.number + 1
    if number > MAX_VERSION:
        raise FormatError(f"more than {MAX_VERSION} versions", where=at)
    header: dict[str, Any] = {
        "number": number,
        "before": base.checksum,
        "verb": change.verb,
        "fragments": list(change.fragments),
        **_difference(base.streams, streams, change.copied),
        "source": None if change.source is None else dict(change.source),
        **({"erases": list(change.erases)} if change.erases else {}),
        **({SAME_ROWS: _same_rows(base)} if change.keeps_rows else {}),
    }
    headers = {
        **{key: value for key, value in streams[0].headers.items() if key != VERSION},
        "requires": REQUIRES,
        VERSION: header,
    }
    streams = (replace(streams[0], headers=headers), *streams[1:])
    where = at / version_name(number)
    playlist = Playlist(streams, where, True)
    return Version(where, number, playlists.text(playlist), playlist)


def _same_rows(base: Version) -> list[dict[str, str]]:
    """Return the shard list checksums of `base` and of earlier versions with the same rows."""
    earlier = [dict(one) for one in same_rows(base.playlist)]
    return [*earlier, base.dataset.stream_checksums][-_MAX_SAME_ROWS:]


def _difference(old: Sequence[Stream], new: Sequence[Stream], copied: int | None) -> dict[str, int]:
    """Return the number of rows that a change added, and the number of rows that it removed.

    copied  see `Change`; copied rows are neither added nor removed
    """
    before, after = _shard_rows(old), _shard_rows(new)
    added = sum(rows for url, rows in after.items() if url not in before)
    removed = sum(rows for url, rows in before.items() if url not in after)
    copied = min(added, removed) if copied is None else copied
    return {"added": added - copied, "removed": removed - copied}


def _shard_rows(streams: Sequence[Stream]) -> dict[str, int]:
    stream = streams[0]
    rows = np.zeros(len(stream), np.int64) if stream.rows is None else stream.rows
    return dict(zip(stream.urls, rows.tolist(), strict=True))


def _created(at: Location, new: Version, lock: CommitLock) -> bool:
    """Create the playlist of a version; return False if another process has created it first.

    After an error, the playlist is read back: if only the response was lost, the playlist exists.

    raises  BusyError if this process has lost the lock; ReachError if it is unknown whether the
            playlist was created
    """
    where = at / version_name(new.number)
    for attempt in range(_MAX_ATTEMPTS):
        lock.check()
        try:
            where.create(new.data)
            return True
        except FlareError as error:
            try:
                stored = _stored(where)
            except ReachError as unknown:
                raise unknown.changed(
                    message=f"{unknown.message}; it is unknown whether version {new.number} was created",
                    hint=_again(new),
                ) from None
            if stored is not None:
                return stored == new.data
            # If the playlist existed but was pruned meanwhile, this process has lost the lock.
            lock.check()
            if not isinstance(error, ReachError) or attempt == _MAX_ATTEMPTS - 1:
                raise
            time.sleep(0.05 * 2**attempt)
    return False


def _check_newest(at: Location, new: Version) -> None:
    """Check that the next version, if there is one, is based on the version `new`.

    If a process is suspended between the lock check and the creation, it may lose the lock.
    Meanwhile, other processes may commit a version with the same number, commit later versions, and
    prune the version with this number. The creation then succeeds, although later versions exist.
    In this case, the created playlist is deleted.

    raises  BusyError if the next version is based on another version
    """
    later = [number for number in numbers(_fresh(at)) if number > new.number]
    if not later:
        return
    with contextlib.suppress(MissingError):  # the next version may have been pruned
        if read_version(_fresh(at), new.number + 1).header.get("before") == new.checksum:
            return
    (at / version_name(new.number)).delete()
    raise BusyError(
        "other processes changed the dataset after this process had lost the lock",
        where=at,
        hint="Run the same command with --resume.",
    )


def _fresh(at: Location) -> Location:
    """Return a location with a new store, so that each file is read in its current version."""
    return replace(at, store=copy.copy(at.store))


def _stored(where: Location) -> bytes | None:
    try:
        return playlists.stored(_fresh(where))
    except MissingError:
        return None


def _keep_first(at: Location, first: Version) -> None:
    """Before the first change, copy the playlist and the format's index to numbered files."""
    formats = {stream.format for stream in first.streams} - {None}
    for index in {find(str(name)).version_index for name in formats} - {""}:
        data = _stored(at / index)
        if data is not None:
            create_once(at / first_index(index), data)
    create_once(at / version_name(first.number), first.data)


def create_once(where: Location, data: bytes) -> None:
    """Create a file. If the file exists with the same bytes, do nothing."""
    try:
        where.create(data)
    except FlareError:
        if _stored(where) != data:
            raise


def partial_files(at: Location) -> list[str]:
    """Return the names of incomplete files that a killed process wrote during a commit.

    To delete these files, the caller must hold the commit lock, because another commit may be
    writing them.
    """
    return [name for name in at.names() if _PARTIAL.fullmatch(name)]


def is_published(at: Location, version: Version) -> bool:
    """Return whether `playlist.yaml` is a copy of the playlist of a version."""
    return _stored(at / PLAYLIST) == version.data


def publish(at: Location, version: Version, before: Version | None = None) -> None:
    """Write the index and `playlist.yaml` of a version, unless a later version was published.

    before  the previous version; if `playlist.yaml` is still a copy of that version, no playlist is
            parsed
    """
    is_index_old = False
    for _ in range(_MAX_ATTEMPTS):
        current = _stored(at / PLAYLIST)
        if current == version.data and not is_index_old:
            return
        if current is not None and (before is None or current != before.data):
            number = _number_of(current, at)
            if number is None or number > version.number:
                if number is not None and not is_index_old:
                    return
                version = newest(at)
        # an index covers one stream, because MosaicML cannot join streams
        for stream in version.streams[:1]:
            if stream.format is not None:
                find(stream.format).write_version_index(_fresh(at), stream)
        try:
            _replace(at / PLAYLIST, current, version.data)
            return
        except BusyError:
            # Another process has published a version, but this process has overwritten the index of
            # that version. Therefore, the newest version is published again.
            version, before, is_index_old = newest(at), None, True
    raise ReachError("cannot replace the playlist", where=at / PLAYLIST)


def write_newest_index(at: Location, replace: bool) -> Location | None:
    """Rewrite the format's index for the newest version, and return its location.

    replace  replace an existing index, which may be damaged
    return   None if changes of this format replace no index
    raises   UsageError if the index exists and `replace` is False; MissingError or IntegrityError
             if a file of the version is missing or has another size; the errors of `CommitLock`
             and `newest`
    """
    with CommitLock(at):
        version = newest(at)
        stream = version.streams[0]
        format = find(str(stream.format))
        if not format.version_index:
            return None
        index = at / format.version_index
        if not replace:
            refuse_existing(index)
        check_files(at, files_of(at, version.playlist).items(), "")
        before = _stored(index)
        index.delete()  # because `write_version_index` copies entries of an existing index
        try:
            format.write_version_index(_fresh(at), stream)
        except FlareError:
            if before is not None:
                index.write([before])
            raise
    return index


def _replace(where: Location, old: bytes | None, new: bytes) -> None:
    """Replace the bytes of a file. Raises BusyError if the file no longer contains `old`."""
    if isinstance(where.store, LocalStore):  # in a local folder, the commit lock cannot be lost
        where.write([new])
        return
    # imported late, because `cloud.store` loads a bucket client
    from flarecli.storage.cloud.store import snapshot, swap

    current = snapshot(where)
    if (current.data if current is not None else None) != old:
        raise BusyError("another process has changed this file", where=where)
    swap(where, new, current)


# -- streams of versions and fragments


def joined(at: Location, parts: Sequence[tuple[str, Stream]], base: Stream) -> Stream:
    """Append the shards of fragments to the shards of a stream.

    parts   (folder name, stream) of each fragment; file names in the stream are relative to this
            folder
    raises  FormatError if a fragment has other columns than `base`, or another format
    """
    streams = [base]
    for name, part in parts:
        if len(part) and (part.columns, part.format) != (base.columns, base.format):
            raise FormatError(
                "the columns of the new rows differ from the columns of the dataset",
                where=at / name,
            )
        streams.append(moved(name, part))
    return concatenated(at, streams)


def moved(folder: str, stream: Stream) -> Stream:
    """Prepend the folder name to all file names of a stream."""

    def renamed(file: File) -> File:
        return replace(file, name=f"{folder}/{file.name}")

    files = {f"{folder}/{name}": renamed(file) for name, file in stream.files.items()}
    return replace(
        stream,
        urls=[f"{folder}/{url}" for url in stream.urls],
        parts=[tuple(map(renamed, part)) for part in stream.parts],
        files=files,
    )


def concatenated(at: Location, streams: Sequence[Stream]) -> Stream:
    """Concatenate the shards of streams.

    The result has the headers of the first stream. It omits the header `compression` if the streams
    have different values of this header.
    """
    first = streams[0]
    names = sorted({name for one in streams for name in one.hashes})
    headers = dict(first.headers)
    for one in streams[1:]:
        if len(one) and one.headers.get("compression") != headers.get("compression"):
            headers.pop("compression", None)
    parts = [part for one in streams for part in (one.parts or [()] * len(one))]
    files: dict[str, File] = {}
    for one in streams:
        files |= one.files
    has_raw = any(one.raw_sizes is not None for one in streams)
    return Stream(
        first.name,
        at,
        first.format,
        [url for one in streams for url in one.urls],
        first.columns,
        np.concatenate([_counts(one, one.rows) for one in streams]),
        np.concatenate([_counts(one, one.sizes) for one in streams]),
        {name: [h for one in streams for h in _hashes(one, name)] for name in names},
        np.concatenate([_counts(one, one.raw_sizes) for one in streams]) if has_raw else None,
        {},
        headers,
        {name: file for name, file in files.items() if name not in INDEX_FILES},
        parts if any(parts) else (),
    )


def sliced(stream: Stream, start: int, stop: int) -> Stream:
    """Return a copy of a stream with only shards `start` to `stop` - 1, but with all `files`."""

    def part(values: Any) -> Any:
        return None if values is None else values[start:stop]

    return replace(
        stream,
        urls=list(stream.urls[start:stop]),
        rows=part(stream.rows),
        sizes=part(stream.sizes),
        raw_sizes=part(stream.raw_sizes),
        hashes={name: part(values) for name, values in stream.hashes.items()},
        raw_hashes={name: part(values) for name, values in stream.raw_hashes.items()},
        parts=part(stream.parts) if stream.parts else (),
    )


def without_unused_files(stream: Stream) -> Stream:
    """Return a stream whose `files` omits the files of fragments without a listed shard."""
    used = {url.partition("/")[0] for url in stream.urls}
    files = {
        name: file
        for name, file in stream.files.items()
        if not is_fragment(name.partition("/")[0]) or name.partition("/")[0] in used
    }
    return replace(stream, files=files)


def _counts(stream: Stream, counts: IntArray | None) -> IntArray:
    return np.full(len(stream), -1, np.int64) if counts is None else counts


def _hashes(stream: Stream, name: str) -> Sequence[str]:
    return stream.hashes.get(name) or [""] * len(stream)


def fragment_files(name: str, at: Location, stream: Stream) -> Stream:
    """Add the playlist of a fragment to the files in the fragment's stream."""
    data = playlists.stored(at / f"{name}/{PLAYLIST}")
    own = File(PLAYLIST, len(data), {DEFAULT: digest(data)})
    return replace(stream, files={**stream.files, PLAYLIST: own})


def unfinished_fragments(at: Location, base: Version) -> list[str]:
    """Return the names of the fragments that have a journal, but no shard in `base`."""
    listed = {url.partition("/")[0] for stream in base.streams for url in stream.urls}
    return [
        name
        for name in at.names()
        if is_fragment(name) and name not in listed and _has_journal(at / name)
    ]


def _has_journal(at: Location) -> bool:
    """Return whether a fragment has a journal.

    A journal is deleted after the commit, so a committed fragment has one if its process was killed
    or is still running.

    The result is False for a symbolic link, which `check_fragment` reports before a write to the
    fragment.
    """
    # a journal in a bucket consists of several objects
    return bool(first_entry(at / f"{SCRATCH}/journal"))
