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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flarecli.errors import (
    BusyError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.formats import INDEX_FILES
from flarecli.names import is_fragment, name_fault
from flarecli.playlists import PLAYLIST, version_name, version_number
from flarecli.read.version_lists import (
    REMOVAL,
    confined,
    files_to_remove,
    is_failed_copy,
    is_protected,
    list_names,
    listed_files,
    listed_in_versions,
)
from flarecli.storage import Location, descriptors
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.write.versions import finish_fragment

if TYPE_CHECKING:
    from flarecli.write.bucket_target import Lease
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

_LOCK = f"{SCRATCH}/lock"  # lock file of a fragment
_MAX_FRAGMENT_LOCKS = 64  # maximum number of fragments that are locked at the same time


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


def plan_removal(at: Location, lists: Sequence[str], unused: Sequence[str] = ()) -> Removal:
    """Plan the removal of playlists, and of the files that only these playlists list.

    unused  names of playlists that remain, but whose files need not be kept
    raises  any error that reading a remaining playlist raises, because the files in this playlist
            must be kept
    """
    kept = listed_in_versions(at, (*lists, *unused))
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
    lock.check()
    if removal.files:
        (at / REMOVAL).write([(json.dumps(name) + "\n").encode() for name in names])
    for name in removal.lists:
        _delete(at / name, lock)
    return finish_removal(at, lock)


def finish_removal(at: Location, lock: CommitLock) -> list[str]:
    """Delete the files in `.flare-removal`, and all fragments that no playlist lists.

    This function also deletes the scratch folders of listed fragments.

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
            _delete(at / name, lock)
    _delete(at / REMOVAL, lock)
    for name in at.names():  # an interrupted erasure may have written copies of `failed.jsonl`
        if is_failed_copy(name) and name not in kept:
            _delete(at / name, lock)
    used, busy = _folders(kept), list[str]()
    unlisted = [name for name in at.names() if is_fragment(name) and name not in used]
    for start in range(0, len(unlisted), _MAX_FRAGMENT_LOCKS):
        lock.check(now=False)
        names = unlisted[start : start + _MAX_FRAGMENT_LOCKS]
        with _locks(at, names) as locked:
            lock.check(now=False)  # the wait for the locks may have been long
            if (now := list_names(at)) != lists:  # a new version may list one of these fragments
                lists, used = now, _folders(listed_in_versions(at))
            for name in names:
                if name not in locked:
                    busy.append(name)
                elif name not in used:
                    try:
                        _delete_fragment(at / name, lock, locked[name])
                    except BusyError:
                        lock.check(now=False)  # the error is final if the commit lock is lost
                        busy.append(name)
    _finish_fragments(at, used, lock)
    return busy


def _finish_fragments(at: Location, names: Collection[str], lock: CommitLock) -> None:
    """Delete the scratch folders of listed fragments.

    A scratch folder remains if a process was killed after its commit. Readers of the fragment then
    regard it as unfinished.
    """
    # one listing, because a request for each fragment would be slow in a bucket
    begun = {
        folder
        for folder, _, rest in (entry.name.partition("/") for entry in at.list())
        if is_fragment(folder) and folder in names and rest.startswith(f"{SCRATCH}/journal")
    }
    for fragment in (at / name for name in sorted(begun)):
        lock.check(now=False)
        finish_fragment(_address(fragment), fragment.store.guard)


def _address(at: Location) -> str:
    store = at.store
    return os.path.join(store.root, at.path) if isinstance(store, LocalStore) else str(at)


def _folders(names: Iterable[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}


def _delete(at: Location, *locks: CommitLock | Lease | None) -> None:
    """Delete a file. Raises BusyError if this process has lost one of the locks.

    If the process is suspended between the check and the request, the request is sent even if the
    locks were lost in the meantime, because `Location.delete` is unconditional. The check precedes
    each request, so at most one file is deleted without the locks.
    """
    for lock in locks:
        if lock is not None:
            lock.check(now=False)
    at.delete()


def _delete_fragment(at: Location, lock: CommitLock, lease: Lease | None) -> None:
    """Delete a fragment. The caller must hold the commit lock and the lock of the fragment.

    lease  the lock of a fragment in a bucket; its object is not deleted, because `Lease.release`
           deletes it
    """
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
    for name in _deletion_order(entries):
        if lease is None or name != _LOCK:
            _delete(at / name, lock, lease)
    if isinstance(at.store, LocalStore):
        at.store.remove_folders(at.path)


def _deletion_order(names: Iterable[str]) -> list[str]:
    """Return the names of the files in a fragment in the order of their deletion.

    After an interrupted deletion, the pack can be resumed only if a journal exists, so the journals
    are deleted last, from their last entries to their first. Indexes and playlists are deleted
    first, because they can be created again if one file is deleted without the locks.
    """

    def rank(name: str) -> int:
        folders = name.split("/")
        if SCRATCH in folders:
            return 3 if "journal" in folders else 2
        return 0 if folders[-1] in (*INDEX_FILES, PLAYLIST) else 1

    first_to_last = sorted(name for name in names if rank(name) < 3)
    journals = sorted((name for name in names if rank(name) == 3), reverse=True)
    return [*sorted(first_to_last, key=rank), *journals]


@contextlib.contextmanager
def _locks(at: Location, names: Sequence[str]) -> Iterator[dict[str, Lease | None]]:
    """Lock fragments for the `with` block. Fragments that another process has locked are omitted.

    In a bucket, the lock of a killed process is taken over after a wait. Locks are acquired in
    parallel, so the waits overlap.

    return  name of each locked fragment -> its lock; see `_lock`
    """
    locked: dict[str, Lease | None] = {}
    with contextlib.ExitStack() as stack:

        def lock(name: str) -> None:
            with contextlib.suppress(BusyError):
                locked[name] = stack.enter_context(_lock(at / name))

        with ThreadPoolExecutor(max(1, len(names))) as pool:
            list(pool.map(lock, names))
        yield locked


@contextlib.contextmanager
def _lock(at: Location) -> Iterator[Lease | None]:
    """Lock a fragment for the `with` block. A pack of the fragment uses the same lock.

    return  the lock of a fragment in a bucket, which may be lost; None for a local folder
    raises  BusyError if another process holds the lock
    """
    store = at.store
    if not isinstance(store, LocalStore):
        # imported late, because `bucket_target` loads a bucket client
        from flarecli.write.bucket_target import Lease

        lease = Lease(at / _LOCK, str(at), waits=True)
        try:
            yield lease
        finally:
            lease.release()
        return
    scratch = os.path.join(store.root, at.path, SCRATCH)
    try:
        fd = os.open(scratch, descriptors.FOLDER)
    except OSError:
        yield None  # no scratch folder, so no pack is writing
        return
    try:
        descriptors.lock_or_fail(fd, str(at), "")
        yield None
    except BlockingIOError:
        raise BusyError("another process is writing this fragment", where=at) from None
    finally:
        os.close(fd)
