"""The folder that a pack writes: claimed by a lock, noted in a journal, finished by its playlist.

    OUT/.flare/          locked (flock) by the process at work; it dies with its process, so no lock is ever stale
    OUT/.flare/lock      who that is: process id, host, start
    OUT/.flare/journal   what is done (`journal.py`); while it is there, no reader takes OUT for a dataset
    OUT/.flare/*.part    files being written

With `overwrite` the new dataset grows in `.NAME.flare-new` beside OUT and takes its place at the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from flarecli.errors import BusyError, FlareError, ReachError, UnfinishedError, UsageError
from flarecli.given import Address, address_text
from flarecli.names import is_url, local_path, redact, scheme_of, whole_path
from flarecli.playlists import PLAYLIST
from flarecli.storage import Guard, Location, locate
from flarecli.storage.flock import flock
from flarecli.storage.local import SCRATCH, LocalStore, made_folder, sync_folder
from flarecli.write.contents import DATASET, HINT, check_dataset, refuse_others

if TYPE_CHECKING:
    from flarecli.write.bucket import BucketTarget

__all__ = ["Target", "bucket_of", "claim", "sweep"]

_NO_LOCKS_HINT = "Write to a local disk or a bucket, then copy the result there."
_claimed: set[int] = set()  # scratch folders that this process holds open


def claim(
    out: Address, *, resume: bool = False, overwrite: bool = False, guard: Guard | None = None
) -> Target | BucketTarget:
    """Claim a folder, on a disk or in a bucket, for a pack.

    raises  UsageError for a place that cannot be written to; what `Target` raises; of a finished
            dataset what `check_files` raises
    """
    out = address_text(out)
    at = bucket_of(out, guard)
    target: Target | BucketTarget
    if at is None:
        target = Target(out, resume=resume, overwrite=overwrite)
    else:
        from flarecli.write.bucket import BucketTarget  # with it comes the client of buckets

        target = BucketTarget(at, resume=resume, overwrite=overwrite)
    if target.is_done:
        check_dataset(target.at)
    return target


def bucket_of(out: str, guard: Guard | None = None) -> Location | None:
    """Give where a target lies that is in a bucket; None for one on a disk. Raises UsageError for a place that cannot be written to."""
    if not is_url(out) or scheme_of(out) == "file":
        return None
    if scheme_of(out) in ("http", "https"):
        raise UsageError(
            "a web server is read, not written to",
            where=redact(out),
            hint="Name a folder, or a bucket such as s3://bucket/folder.",
        )
    return locate(out, replace(guard or Guard(), keeper=None))


class Target:
    """A claimed folder. `at` is where files go; `is_done` says that a finished pack lies there already (with `resume`).

    A subclass says what else may be written: `what` and `hint` are its words, `_holds_dataset` knows a finished one,
    `_refuse_others` what must not be replaced.

    raises  UsageError if something else is there; UnfinishedError for an unfinished pack without `resume`;
            BusyError, naming the owner, while another process is at work there; ReachError if it can't be made
    """

    what = "pack"
    hint = HINT

    def __init__(self, out: str, *, resume: bool = False, overwrite: bool = False) -> None:
        if is_url(out) and not out.startswith("file://"):
            raise UsageError(
                "this is written to local folders only",
                where=redact(out),
                hint="Name a folder; `flare pack` also writes to buckets.",
            )
        if not local_path(out):  # a variable that is not set, and the root folder would be meant
            raise UsageError("the target is an empty name", hint="Name a folder.")
        self.shown = local_path(out).rstrip("/") or "/"
        self.final = os.path.realpath(whole_path(self.shown))
        if os.path.lexists(self.final) and not os.path.isdir(self.final):
            raise UsageError(
                "a file is there, a folder is wanted",
                where=self.shown,
                hint="Name the folder to write, last.",
            )
        if overwrite:
            self.hint = f"Name another folder: --overwrite replaces what was {self.what}ed, and something else is there."
        begun = os.path.exists(
            os.path.join(self.final, SCRATCH, "journal")
        )  # a half pack is emptied where it is, under its lock
        self._swaps = (
            overwrite
            and not begun
            and (self._holds_dataset(self.final) or os.path.isdir(self._beside("new")))
        )
        self._is_swapped = begun and os.path.isfile(
            os.path.join(self.final, PLAYLIST)
        )  # whole, and killed before all was put away
        if self._swaps or (begun and overwrite and not resume):
            self._refuse_others()
        self.folder = self._beside("new") if self._swaps else self.final
        self._made = not os.path.isdir(self.folder)
        self._fd = -1
        self._store = LocalStore(self.folder, self.shown if not self._swaps else None, maps=False)
        self.at = Location(self._store)
        self.is_done = False
        while self._fd < 0 and not self.is_done:
            self._claim(self._store, resume, overwrite)

    def _beside(self, what: str) -> str:
        return os.path.join(
            os.path.dirname(self.final), f".{os.path.basename(self.final)}.flare-{what}"
        )

    @property
    def playlist(self) -> str:
        """The address that the playlist will have, as the user would type it."""
        return f"{self.shown.rstrip('/')}/{PLAYLIST}"

    def _holds_dataset(self, folder: str) -> bool:
        return any(os.path.isfile(os.path.join(folder, name)) for name in DATASET)

    def _refuse_others(self) -> None:
        """Refuse to replace a folder that holds more than a dataset."""
        if os.path.isdir(self.final):
            at, is_begun = (
                Location(LocalStore(self.final, self.shown, maps=False)),
                os.path.exists(os.path.join(self.final, SCRATCH, "journal")),
            )
            refuse_others(at, sorted(os.listdir(self.final)), self.shown, is_begun)

    def _claim(self, store: LocalStore, resume: bool, overwrite: bool) -> None:
        """Try once to lock the folder; nothing is claimed when it was finished or removed meanwhile."""
        scratch, new = os.path.join(self.folder, SCRATCH), list[str]()
        if not os.path.isdir(scratch):
            if self._is_filled():
                if resume and self._holds_dataset(self.folder):
                    self.is_done = True
                    return
                raise UsageError("the folder is not empty", where=self.shown, hint=self.hint)
            new = _missing(scratch)
            made_folder(scratch, store)
        try:
            fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ReachError(os.strerror(error.errno or 0), where=scratch) from None
        try:
            try:
                flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, self.shown, _NO_LOCKS_HINT)
            except BlockingIOError:
                raise BusyError(
                    f"another {self.what} is at work there ({self._owner(scratch)})",
                    where=self.shown,
                    hint="Wait until it ends.",
                ) from None
            except ReachError:
                for folder in new:  # an `rmdir` removes what is empty alone
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)
                raise
            with contextlib.suppress(FileNotFoundError):
                store.pin()
            if not _is_same(fd, scratch):  # asked after pinning: both are of one folder then
                return
            journal = os.path.join(scratch, "journal")
            if os.path.exists(journal) and not resume and not overwrite:
                raise UnfinishedError(
                    f"an unfinished {self.what}",
                    where=self.shown,
                    hint="Run the same command with --resume, or with --overwrite to begin anew.",
                )
            others = [name for name in os.listdir(self.folder) if name != SCRATCH]
            if not os.path.exists(journal) and others:
                if not (resume and self._holds_dataset(self.folder)):
                    raise UsageError("the folder is not empty", where=self.shown, hint=self.hint)
                self.is_done = True
                self._clear(fd, self.folder)
                return
            if overwrite and not resume:
                self._empty()
            _drop_parts(fd)  # of a pack that was killed
            self._sign(scratch, store)
            self._fd, fd = fd, -1
            _claimed.add(self._fd)
        finally:
            if fd >= 0:
                os.close(fd)

    def _is_filled(self) -> bool:
        """Return whether files lie in the folder that no pack at work there can have written.

        A pack makes its scratch folder first. If that is there by now, another pack has begun
        since we looked, and what lies there is its own.
        """
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):  # `made_folder` reports the file
            return False
        return bool(names) and not os.path.isdir(os.path.join(self.folder, SCRATCH))

    def _empty(self) -> None:
        """Begin anew in a folder that holds an unfinished pack."""
        for name in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, name)
            if name != SCRATCH:
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(
                    path
                ) else os.unlink(path)
        for name in os.listdir(os.path.join(self.folder, SCRATCH)):
            os.unlink(os.path.join(self.folder, SCRATCH, name))

    def _sign(self, scratch: str, store: LocalStore) -> None:
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "start": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        path, flags = (
            os.path.join(scratch, "lock"),
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        )
        try:
            if os.path.lexists(
                path
            ):  # a folder that came from elsewhere may have a link there, or a pipe
                os.unlink(path)
            with open(os.open(path, flags, 0o666), "w", encoding="utf-8") as file:
                json.dump(owner, file)
        except OSError as error:
            raise store.error(error, f"{SCRATCH}/lock") from None

    def _owner(self, scratch: str) -> str:
        """Say who holds the lock; it signs right after it locked, so wait for that a moment."""
        for _ in range(20):
            with (
                contextlib.suppress(OSError, ValueError, KeyError),
                open(os.path.join(scratch, "lock"), encoding="utf-8") as file,
            ):
                owner = json.load(file)
                return f"process {int(owner['pid'])} on {str(owner['host'])[:80]}, since {str(owner['start'])[:30]}"
            time.sleep(0.05)
        return "it has not said who it is"

    def check(self, now: bool = False) -> None:
        """Raise ReachError unless the folder is still the one that was locked, by device and inode.

        now  ignored: a disk is always asked
        """
        self._store.check_root()
        if not _is_same(self._fd, os.path.join(self.folder, SCRATCH)):
            raise ReachError(
                "the scratch folder was moved or deleted while it was in use",
                where=os.path.join(self.shown, SCRATCH),
                hint="Name another folder, or empty this one first.",
            )

    def finish(self) -> None:
        """Take the scratch folder away: from here on, OUT is a dataset. Call it when everything else is on the disk."""
        try:
            self.check()
            if self._swaps:
                self._refuse_others()  # what came to lie there meanwhile is nobody's to remove
                self._swap()
            elif self._is_swapped:
                shutil.rmtree(self._beside("old"), ignore_errors=True)
            self._clear(self._fd, self.final)
        except OSError as error:
            if isinstance(error, FlareError):
                raise
            raise ReachError(os.strerror(error.errno or 0), where=self.shown) from None
        finally:
            self.release()

    def _swap(self) -> None:
        """Put the new folder in the place of the old one; a kill in between is finished by the next --overwrite --resume."""
        old = self._beside("old")
        if os.path.isdir(old):  # an earlier swap was cut short after its first step, or its last
            shutil.rmtree(old) if os.path.isdir(self.final) else None
        if os.path.isdir(self.final):
            os.rename(self.final, old)
        os.rename(self.folder, self.final)
        sync_folder(os.path.dirname(self.final))
        shutil.rmtree(old, ignore_errors=True)

    def _clear(self, scratch: int, folder: str) -> None:
        """Remove the scratch folder, its journal last: while that is there, the pack counts as unfinished."""
        for name in sorted(os.listdir(scratch), key=lambda name: (name == "journal", name)):
            os.unlink(name, dir_fd=scratch)
        os.rmdir(os.path.join(folder, SCRATCH))
        sync_folder(folder)

    def abandon(self, keep: bool) -> None:
        """Let go after a failure: with `keep`, what is done stays for --resume; else nothing of it stays, unless something else came to lie there."""
        with contextlib.suppress(OSError, UsageError):
            if not keep:
                self.check()  # what lies in the place of a moved folder is somebody else's
                if not self._swaps:
                    self._refuse_others()
                self._empty()
                os.rmdir(os.path.join(self.folder, SCRATCH))
                if self._made:
                    os.rmdir(self.folder)
        self.release()

    def apart(self, act: Callable[[], None]) -> None:
        """Do what a finalizer has to do here: at once."""
        act()

    def release(self) -> None:
        """Let go of the lock."""
        if self._fd >= 0:
            _claimed.discard(self._fd)
            os.close(self._fd)
            self._fd = -1


def sweep() -> None:
    """Remove what is half written, for a process that ends at once: a thread in the middle of a shard cannot be asked to stop."""
    for scratch in list(_claimed):
        _drop_parts(scratch)


def _missing(path: str) -> list[str]:
    """Return a folder and those above it that do not exist yet, deepest first."""
    out = list[str]()
    while not os.path.lexists(path):
        out.append(path)
        path = os.path.dirname(path)
    return out


def _drop_parts(scratch: int) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(scratch):
            if name.endswith(".part"):
                os.unlink(name, dir_fd=scratch)


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
