"""The folder of a bucket that a pack writes: claimed by a lock, noted in a journal, finished by its playlist.

    OUT/.flare/lock          who is at work there (`lease.py`)
    OUT/.flare/journal/…     what is done, an object for each step (`storage/append_log.py`)
    OUT/.flare/failed.jsonl/…  rows left out
    OUT/.flare/new/…         with `overwrite`, a whole dataset with a journal of its own: it takes the place of the old one at the end
    OUT/.flare/done          it has: what is left in `.flare` is to be deleted

Nothing can be renamed there. A playlist is the commit: where one is, what it lists is whole, whatever else lies in `.flare`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

from flarecli.errors import FlareError, MissingError, UnfinishedError, UsageError
from flarecli.playlists import PLAYLIST
from flarecli.storage import Entry, Location, side_by_side
from flarecli.storage.local import SCRATCH
from flarecli.storage.threads import start
from flarecli.write.contents import DATASET, HINT, check_dataset, refuse_others
from flarecli.write.lease import Lease

__all__ = ["BucketTarget"]

_SIDE_BY_SIDE = 32  # requests for small objects at a time


class BucketTarget:
    """A claimed folder of a bucket; `Target` has the same fields, verbs and errors for one on a disk."""

    def __init__(self, out: Location, *, resume: bool = False, overwrite: bool = False) -> None:
        self._out, self.shown, self.at = out, str(out), out
        self._new, self._done = out / f"{SCRATCH}/new", out / f"{SCRATCH}/done"
        self.is_done = False
        if not _has(out / SCRATCH):
            try:
                self._refuse_what_is_there(resume, overwrite)
            except UsageError:
                if not _has(out / SCRATCH):  # else another pack has begun since: the lock names it
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

    @property
    def playlist(self) -> str:
        """The address that the playlist will have, as the user would type it."""
        return f"{self.shown.rstrip('/')}/{PLAYLIST}"

    def _holds_dataset(self) -> bool:
        return any((self._out / name).exists() for name in DATASET)

    def _others(self) -> Iterator[Entry]:
        """Give what lies there besides flare's own."""
        with contextlib.suppress(MissingError):
            yield from (
                entry for entry in self._out.list() if not entry.name.startswith(f"{SCRATCH}/")
            )

    def _refuse_others(self, is_begun: bool = False) -> None:
        """Refuse to replace a folder that holds more than a dataset."""
        refuse_others(
            self._out,
            dict.fromkeys(entry.name.partition("/")[0] for entry in self._others()),
            self.shown,
            is_begun,
        )

    def _refuse_what_is_there(self, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that was not begun here and is not empty, unless it is a dataset and may be replaced."""
        if next(self._others(), None) is None:
            return
        is_dataset = (resume or overwrite) and self._holds_dataset()
        if overwrite and is_dataset:
            self._refuse_others()
            self.at = self._new
        elif is_dataset:
            self.is_done = True
        else:
            raise UsageError("the folder is not empty", where=self.shown, hint=HINT)

    def _begin(self, resume: bool, overwrite: bool) -> None:
        """Go on from whatever is there, now that nobody else is at work: a kill may have come at any time."""
        if _has(self._new):
            if not resume and not overwrite:
                raise self._unfinished()
            if self._done.exists():
                self._clear()
            elif (self._new / PLAYLIST).exists() and self._is_new_complete():
                if (
                    self._out / PLAYLIST
                ).exists():  # the old one's, which goes first: nothing was swapped yet
                    self._refuse_others()
                self._swap()
                self._clear()
            elif not resume:
                _remove(self._new, self._new.list())
                self.at = self._new
                return
            else:
                self.at = self._new
                return
        elif _has(self._out / f"{SCRATCH}/journal") and not (self._out / PLAYLIST).exists():
            if resume:
                return
            if not overwrite:
                raise self._unfinished()
            self._refuse_others(is_begun=True)
            self._empty()
            return
        else:
            self._clear()
        self._refuse_what_is_there(resume, overwrite)

    def _is_new_complete(self) -> bool:
        """Return whether the dataset that is to replace the old one still has all its files.

        If not, its playlist is deleted: it counts as unfinished again.
        """
        try:
            check_dataset(self._new)
        except FlareError:
            (self._new / PLAYLIST).delete()
            return False
        return True

    def _unfinished(self) -> UnfinishedError:
        return UnfinishedError(
            "an unfinished pack",
            where=self.shown,
            hint="Run the same command with --resume, or with --overwrite to begin anew.",
        )

    def _empty(self) -> None:
        _remove(self._out, self._others())
        self._clear()

    def _clear(self) -> None:
        """Delete flare's own objects but the lock, last the note that they are of no use any more."""
        inside = self._out / SCRATCH
        with contextlib.suppress(MissingError):
            _remove(
                inside, (entry for entry in inside.list() if entry.name not in ("lock", "done"))
            )
        self._done.delete()

    def _swap(self) -> None:
        """Put the new dataset in the place of the old one, its playlist last; begun again, it ends the same."""
        fresh = [
            entry.name for entry in self._new.list() if not entry.name.startswith(f"{SCRATCH}/")
        ]
        (self._out / PLAYLIST).delete()
        _remove(self._out, [entry for entry in self._others() if entry.name not in set(fresh)])
        for name in sorted(fresh, key=lambda name: name == PLAYLIST):
            self.check()
            (self._out / name).write((self._new / name).blocks())
        self._done.write([b"done\n"])

    def check(self, now: bool = False) -> None:
        """Raise BusyError if the lock was taken over or deleted, ReachError if that cannot be known.

        now  ask the bucket; otherwise the answer may be some seconds old
        """
        self._lease.check(now)

    def finish(self) -> None:
        """Take the scratch objects away. Call it when everything else is in the bucket."""
        try:
            if self.at is self._new:
                self._refuse_others()  # again: much may have come to lie there meanwhile
                self._swap()
            self._clear()
        finally:
            self.release()

    def abandon(self, keep: bool) -> None:
        """Let go after a failure: with `keep`, what is done stays for --resume; else nothing of it stays, unless something else came to lie there."""
        try:
            if not keep:
                self.check()
                if self.at is self._new:
                    self._clear()
                else:
                    self._refuse_others(is_begun=True)
                    self._empty()
        except FlareError:
            pass
        finally:
            self.release()

    def apart(self, act: Callable[[], None]) -> None:
        """Do what a finalizer has to do here: in a thread, for what it came in between may hold the locks that requests need.

        Where no thread can be started, nothing is done but that the lock grows old.
        """
        try:
            start(threading.Thread(target=act, name="flare-dropped", daemon=True))
        except FlareError:
            self._lease.leave()

    def release(self) -> None:
        """Let go of the lock."""
        self._lease.release()


def _has(at: Location) -> bool:
    try:
        return next(iter(at.list()), None) is not None
    except MissingError:
        return False


def _remove(at: Location, entries: Iterable[Entry]) -> None:
    """Delete objects, from the last to the first, some at a time: what a kill leaves of numbered ones is their beginning."""
    names = [entry.name for entry in entries][::-1]
    for i in range(0, len(names), _SIDE_BY_SIDE):
        side_by_side(lambda name: (at / name).delete(), names[i : i + _SIDE_BY_SIDE], _SIDE_BY_SIDE)
