"""A target in a bucket. A lease locks it, a journal records progress, and the playlist commits it.

    OUT/.flare/lock            the owner (`lease.py`)
    OUT/.flare/journal/…       completed steps, one object each (`storage/append_log.py`)
    OUT/.flare/failed.jsonl/…  failed rows
    OUT/.flare/new/…           with `overwrite`: the new dataset with its own journal, which
                               `finish` copies to OUT
    OUT/.flare/done            marks a complete copy, after which `.flare` can be deleted

Objects cannot be renamed, so the playlist is the commit. If the playlist exists, all listed files
are complete, regardless of the contents of `.flare`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

from flarecli.errors import FlareError, MissingError, UsageError
from flarecli.playlists import PLAYLIST
from flarecli.prefetch import ordered_map, start_thread
from flarecli.storage import Entry, Location
from flarecli.storage.local import SCRATCH
from flarecli.write.lease import Lease
from flarecli.write.target import DatasetContents, Target, check_dataset

__all__ = ["BucketTarget"]

_PARALLEL_REQUESTS = 32  # parallel requests for small objects


class BucketTarget(Target):
    """A pack target that is a folder in a bucket."""

    def __init__(self, out: Location, *, resume: bool = False, overwrite: bool = False) -> None:
        self.contents = DatasetContents()
        self.hint = self.contents.hint
        self._out, self.shown, self.at = out, str(out), out
        self._new, self._done = out / f"{SCRATCH}/new", out / f"{SCRATCH}/done"
        self.is_done = False
        if not _has_objects(out / SCRATCH):
            try:
                self._admit(resume, overwrite)
            except UsageError:
                # if scratch objects of another pack exist, the lease below reports that pack
                if not _has_objects(out / SCRATCH):
                    raise
            if self.is_done:
                return
        self._lease = Lease(out / f"{SCRATCH}/lock", self.shown, resume or overwrite)
        try:
            self._begin(resume, overwrite)
        except BaseException:
            self._lease.release()
            raise
        if self.is_done:
            self._lease.release()

    def _final_objects(self) -> Iterator[Entry]:
        """Yield the objects outside the scratch folder."""
        with contextlib.suppress(MissingError):
            yield from (
                entry for entry in self._out.list() if not entry.name.startswith(f"{SCRATCH}/")
            )

    def _check_replaceable(self, is_begun: bool = False) -> None:
        names = dict.fromkeys(entry.name.partition("/")[0] for entry in self._final_objects())
        self.contents.check_replaceable(self._out, names, self.shown, is_begun)

    def _admit(self, resume: bool, overwrite: bool) -> None:
        """Check that the folder is empty, or is finished output that may be resumed or replaced.

        raises  UsageError if the folder has any other contents
        """
        if next(self._final_objects(), None) is None:
            return
        self._check_finished(self._out, resume or overwrite)
        if overwrite:
            self._check_replaceable()
            self.at = self._new
        else:
            self.is_done = True

    def _begin(self, resume: bool, overwrite: bool) -> None:
        """Continue from the state of an earlier process, which may have been killed at any time."""
        if _has_objects(self._new):
            if not resume and not overwrite:
                raise self._unfinished()
            if self._done.exists():
                self._clear()
            elif (self._new / PLAYLIST).exists() and self._is_new_complete():
                # the old playlist exists until `_replace` deletes it
                if (self._out / PLAYLIST).exists():
                    self._check_replaceable()
                self._replace()
                self._clear()
            else:
                if not resume:
                    _remove(self._new, self._new.list())
                self.at = self._new
                return
        elif _has_objects(self._out / f"{SCRATCH}/journal") and not (self._out / PLAYLIST).exists():
            if resume:
                return
            if not overwrite:
                raise self._unfinished()
            self._check_replaceable(is_begun=True)
            self._empty()
            return
        else:
            self._clear()
        self._admit(resume, overwrite)

    def _is_new_complete(self) -> bool:
        """Return whether all files of the new dataset exist.

        If a file is missing, delete the playlist, so that the new dataset is unfinished again.
        """
        try:
            check_dataset(self._new)
        except FlareError:
            (self._new / PLAYLIST).delete()
            return False
        return True

    def _empty(self) -> None:
        _remove(self._out, self._final_objects())
        self._clear()

    def _clear(self) -> None:
        """Delete all scratch objects except the lock.

        `done` is deleted last, because it indicates that the other objects can be deleted.
        """
        inside = self._out / SCRATCH
        with contextlib.suppress(MissingError):
            _remove(
                inside, (entry for entry in inside.list() if entry.name not in ("lock", "done"))
            )
        self._done.delete()

    def _replace(self) -> None:
        """Replace the old dataset with a copy of the new dataset, and write the playlist last.

        A second call completes an interrupted replacement.
        """
        fresh = [
            entry.name for entry in self._new.list() if not entry.name.startswith(f"{SCRATCH}/")
        ]
        (self._out / PLAYLIST).delete()
        _remove(
            self._out, [entry for entry in self._final_objects() if entry.name not in set(fresh)]
        )
        for name in sorted(fresh, key=lambda name: name == PLAYLIST):
            self.check()
            (self._out / name).write((self._new / name).blocks())
        self._done.write([b"done\n"])

    def check(self, now: bool = False) -> None:
        self._lease.check(now)

    def finish(self) -> None:
        try:
            if self.at is self._new:
                self._check_replaceable()  # check again, because objects may have been added
                self._replace()
            self._clear()
        finally:
            self.release()

    def abandon(self, keep: bool) -> None:
        try:
            if not keep:
                self.check()
                if self.at is self._new:
                    self._clear()
                else:
                    self._check_replaceable(is_begun=True)
                    self._empty()
        except FlareError:
            pass
        finally:
            self.release()

    def run_finalizer(self, call: Callable[[], None]) -> None:
        """Run the call in a thread, because the interrupted code may hold locks that a request needs.

        If no thread can be started, let the lease expire.
        """
        try:
            start_thread(threading.Thread(target=call, name="flare-dropped", daemon=True))
        except FlareError:
            self._lease.expire()

    def release(self) -> None:
        self._lease.release()


def _has_objects(at: Location) -> bool:
    try:
        return next(iter(at.list()), None) is not None
    except MissingError:
        return False


def _remove(at: Location, entries: Iterable[Entry]) -> None:
    """Delete objects in parallel, the last first, so that a kill leaves the lowest numbers."""
    names = [entry.name for entry in entries][::-1]
    for i in range(0, len(names), _PARALLEL_REQUESTS):
        some = names[i : i + _PARALLEL_REQUESTS]
        for _ in ordered_map(lambda name: (at / name).delete(), some, workers=_PARALLEL_REQUESTS):
            pass
