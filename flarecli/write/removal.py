"""Deletion of versions, and of the files that no remaining playlist lists.

    OUT/.flare-removal    JSON lines: the names of the files to delete. The file is written before
                          the first deletion, so that an interrupted removal can be completed

Playlists are deleted before files, so that all files in each remaining playlist exist. Callers of
functions that delete files must hold the commit lock.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flarecli.errors import (
    BusyError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.names import name_fault
from flarecli.playlists import PLAYLIST, version_name, version_number
from flarecli.read.version_lists import (
    REMOVAL,
    confined,
    files_to_remove,
    is_failed_copy,
    is_fragment,
    is_protected,
    list_names,
    listed_files,
    listed_in_versions,
)
from flarecli.storage import Location, descriptors
from flarecli.storage.local import SCRATCH, LocalStore

if TYPE_CHECKING:
    from flarecli.write.versions import CommitLock

__all__ = [
    "Removal",
    "copies",
    "erase",
    "refuse_listed",
    "refuse_pins",
    "listed_in_versions",
    "plan_removal",
    "remove",
]


@dataclass(frozen=True, slots=True)
class Removal:
    """The playlists and the other files to delete.

    lists  names of the playlists
    files  (name, size in bytes) of each other file; the size is None if unknown
    """

    lists: tuple[str, ...]
    files: tuple[tuple[str, int | None], ...]

    @property
    def bytes(self) -> int:
        """Return the total size in bytes of the files whose size is known."""
        return sum(size or 0 for _, size in self.files)


def plan_removal(at: Location, lists: Sequence[str]) -> Removal:
    """Plan the removal of playlists, and of the files that only these playlists list.

    raises  any error that reading a remaining playlist raises, because the files in this playlist
            must be kept
    """
    kept = listed_in_versions(at, lists)
    named: dict[str, int | None] = {}
    for name in lists:
        with contextlib.suppress(MissingError):
            named |= listed_files(at, name)
    files = {
        name: size for name, size in named.items() if name not in kept and not is_protected(name)
    }
    return Removal(tuple(lists), tuple(sorted(files.items())))


def lists_of(at: Location, files: Collection[str], newest: int) -> tuple[list[str], list[str]]:
    """Return the playlists that list any of the files: the numbered playlists, and the pins.

    newest  number of the newest version; the playlists of this version are not searched
    """
    kept, found = (PLAYLIST, version_name(newest)), list[str]()
    for name in list_names(at):
        with contextlib.suppress(MissingError):  # another process may have pruned the version
            if name not in kept and not listed_files(at, name).keys().isdisjoint(files):
                found.append(name)
    numbered = [name for name in found if version_number(name) is not None]
    return numbered, [name for name in found if version_number(name) is None]


def refuse_pins(at: Location, files: Collection[str], newest: int) -> None:
    """Raise UsageError if a pin lists any of the files; see `lists_of` for the arguments."""
    _, pins = lists_of(at, files, newest)
    if pins:
        raise UsageError(
            f"the pin {pins[0]} lists files that would be erased",
            where=at,
            hint="Delete the pin, or use --break-pins.",
        )


def refuse_listed(at: Location, files: Collection[str], newest: int) -> None:
    """Raise BusyError if the newest version lists any of the files; see `erase`."""
    at = confined(at)
    if files and not listed_files(at, version_name(newest)).keys().isdisjoint(files):
        raise BusyError(
            f"version {newest} lists files that are being erased",
            where=at,
            hint="Run the same command again.",
        )


def copies(at: Location, lists: Sequence[str], files: Collection[str]) -> set[str]:
    """Return the given files, and all other files that may contain some of the same rows.

    A change may copy rows from any file that it removes to any file that it adds. The removed files
    are only in the playlist before the change, and the added files are only in the playlist after
    the change.

    lists  names of all playlists, in the order of their versions
    """
    named = []
    for name in lists:
        with contextlib.suppress(MissingError):  # another process may have pruned the version
            named.append(listed_files(at, name).keys())
    pairs = [(old - new, new - old) for old, new in itertools.pairwise(named)]
    out, count = set(files), 0
    while len(out) > count:
        count = len(out)
        for removed, added in pairs:
            if removed and added and not out.isdisjoint(removed | added):
                out |= removed | added
    return out


def erase(
    at: Location, files: Collection[str], newest: int, breaks_pins: bool, lock: CommitLock
) -> tuple[int, list[str]]:
    """Delete files, and all playlists that list any of these files.

    newest  number of the newest version, which must not list the files
    return  the number of deleted files; and the names of the fragments that another process is
            writing: these fragments are kept, and may contain copies of the erased rows
    raises  UsageError if `breaks_pins` is False and a pin lists a file; BusyError if the newest
            version lists a file; ReachError if a file still exists after its deletion
    """
    at = confined(at)
    refuse_listed(at, files, newest)
    if not breaks_pins:
        refuse_pins(at, files, newest)
    numbered, pins = lists_of(at, files, newest)
    found = [
        name
        for name in files
        if not (name_fault(name) or is_protected(name)) and (at / name).exists()
    ]
    planned = plan_removal(at, [*numbered, *pins])
    names = dict.fromkeys(found) | dict(planned.files)
    busy = remove(at, Removal(planned.lists, tuple(names.items())), lock)
    for name in found:
        if (at / name).exists():
            raise ReachError("the file still exists", where=at / name)
    return len(found), busy


def remove(at: Location, removal: Removal, lock: CommitLock) -> list[str]:
    """Delete the playlists and files of a removal; return the result of `finish_removal`."""
    at = confined(at)
    # include the files of an interrupted removal, because its playlists may already be deleted
    names = dict.fromkeys((*files_to_remove(at), *(name for name, _ in removal.files)))
    if removal.files:
        (at / REMOVAL).write([(json.dumps(name) + "\n").encode() for name in names])
    lock.check()
    for name in removal.lists:
        (at / name).delete()
    return finish_removal(at, lock)


def finish_removal(at: Location, lock: CommitLock) -> list[str]:
    """Delete the files in `.flare-removal`, and all fragments that no playlist lists.

    return  names of the fragments that another process is writing; these fragments are kept
    raises  any error that reading a playlist raises, before any file is deleted; BusyError if this
            process has lost the commit lock, because another process may then have committed a
            version that lists one of the files to delete
    """
    at = confined(at)
    lists = list_names(at)
    kept = listed_in_versions(at)
    lock.check()
    for name in files_to_remove(at):
        if name not in kept:
            lock.check(now=False)
            (at / name).delete()
    (at / REMOVAL).delete()
    for name in at.names():  # an interrupted erasure may have written copies of `failed.jsonl`
        if is_failed_copy(name) and name not in kept:
            (at / name).delete()
    used, busy = _folders(kept), list[str]()
    for name in at.names():
        if not is_fragment(name) or name in used:
            continue
        lock.check(now=False)
        try:
            with _lock(at / name):
                if (now := list_names(at)) != lists:  # a new version may list this fragment
                    lists, used = now, _folders(listed_in_versions(at))
                if name not in used:
                    _delete_fragment(at / name)
        except BusyError:
            busy.append(name)
    return busy


def _folders(names: Iterable[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}


def _delete_fragment(at: Location) -> None:
    """Delete a fragment. The caller must hold the lock of the fragment."""
    entries: list[str] = []
    with contextlib.suppress(MissingError):
        try:
            entries = [entry.name for entry in at.list()]
        except UnsafeError:
            raise UnsafeError(
                "is a symbolic link, so the files in it are not deleted",
                where=at,
                hint="Delete the link.",
            ) from None
    for name in sorted(entries, key=lambda name: (name.endswith("/journal"), name)):
        (at / name).delete()
    if isinstance(at.store, LocalStore):
        at.store.remove_folders(at.path)


@contextlib.contextmanager
def _lock(at: Location) -> Iterator[None]:
    """Lock a fragment for the `with` block. A pack of the fragment uses the same lock.

    raises  BusyError if another process holds the lock
    """
    store = at.store
    if not isinstance(store, LocalStore):
        # imported late, because `bucket_target` loads a bucket client
        from flarecli.write.bucket_target import Lease

        lease = Lease(at / f"{SCRATCH}/lock", str(at), waits=True)
        try:
            yield
        finally:
            lease.release()
        return
    scratch = os.path.join(store.root, at.path, SCRATCH)
    try:
        fd = os.open(scratch, descriptors.FOLDER)
    except OSError:
        yield  # no scratch folder, so no pack is writing
        return
    try:
        descriptors.lock_or_fail(fd, str(at), "")
        yield
    except BlockingIOError:
        raise BusyError("another process is writing this fragment", where=at) from None
    finally:
        os.close(fd)
