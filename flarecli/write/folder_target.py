"""A local folder as the target of a pack or an unpack, with a lock and a journal.

    OUT/.flare/          locked with flock while a process writes; the lock ends with the process;
                         Windows locks .OUT.flare-lock instead, because it cannot lock a folder
    OUT/.flare/lock      the owner: process id, host, start time
    OUT/.flare/journal   completed steps; while the journal exists, readers reject OUT
    OUT/.flare/*.part    files that are being written

With `overwrite`, new files are written to the folder `.OUT.flare-new` next to OUT. `finish` renames
this folder to OUT.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from flarecli.arguments import Address, address_text
from flarecli.errors import BusyError, FlareError, MissingError, ReachError, UsageError
from flarecli.names import is_url, local_path, scheme_of, whole_path
from flarecli.playlists import PLAYLIST
from flarecli.redact import redact
from flarecli.storage import Guard, Location, descriptors, locate
from flarecli.storage.descriptors import OpenFolder
from flarecli.storage.local import SCRATCH, LocalStore, made_folder, sync_folder
from flarecli.write.target import (
    Contents,
    DatasetContents,
    Target,
    check_can_pack,
    check_dataset,
)

__all__ = ["FolderTarget", "bucket_of", "check_target", "claim", "remove_unfinished_files"]

# `flare prune`, and a change that follows an interrupted change, hold the lock of a fragment for
# milliseconds. A pack that creates this fragment at the same time must not fail, so it tries for
# _BRIEF_S seconds to lock the fragment.
_BRIEF_S, _POLL_S = 0.5, 0.01
_MAX_ATTEMPTS = 8  # maximum number of attempts to create a folder that other processes remove
_NO_LOCKS_HINT = "Write to a local disk or a bucket, then copy the result to this folder."
_LOCK = os.O_WRONLY | descriptors.CREATE
_claimed: dict[int, str] = {}  # file descriptor of a lock -> path of the scratch folder


class FolderTarget(Target):
    """A target that is a local folder.

    folder  path of the folder to which files are written
    final   path of this folder after `finish`
    locks   True: create and lock the folder; False: only check the folder
    """

    def __init__(
        self,
        out: str,
        contents: Contents | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        locks: bool = True,
    ) -> None:
        self.contents = contents or DatasetContents()
        noun, self.hint = self.contents.noun, self.contents.hint
        if is_url(out) and not out.startswith("file://"):
            raise UsageError(
                "cannot write to this address: expected a local folder",
                where=redact(out),
                hint="Specify a local folder. To write to a bucket, use `flare pack`.",
            )
        if not local_path(out):  # an empty shell variable must not select the root folder
            raise UsageError("the name of the output folder is empty", hint="Specify a folder.")
        self.shown = local_path(out).rstrip("/") or "/"
        self.final = os.path.realpath(whole_path(self.shown))
        if os.path.lexists(self.final) and not os.path.isdir(self.final):
            raise UsageError(
                "expected a folder, got a file",
                where=self.shown,
                hint="Specify the output folder as the last argument.",
            )
        if overwrite:
            self.hint = (
                f"Specify another folder: --overwrite replaces only output of `flare {noun}`."
            )
        final = Location(LocalStore(self.final, self.shown, maps=False))
        # With `overwrite`, finished output is replaced by a new folder. The folder of unfinished
        # output is used again: it is locked first, and its files are then deleted.
        is_begun = self._is_begun()
        self._replaces = (
            overwrite
            and not is_begun
            and (self.contents.is_finished(final) or os.path.isdir(self._sibling("new")))
        )
        # True: an earlier process wrote all files, but was killed before it removed the scratch
        # folder
        self._is_replaced = is_begun and os.path.isfile(os.path.join(self.final, PLAYLIST))
        if self._replaces or (is_begun and overwrite and not resume):
            self._check_replaceable()
        self.folder = self._sibling("new") if self._replaces else self.final
        self._is_new = not os.path.isdir(self.folder)
        self._fd = -1
        shown = None if self._replaces else self.shown
        self._store = LocalStore(self.folder, shown, maps=False)
        self.at = Location(self._store)
        self.is_done = False
        if not locks:
            self._check_contents(resume, overwrite)
            return
        while self._fd < 0 and not self.is_done:
            self._claim(resume, overwrite)

    def _sibling(self, purpose: str) -> str:
        folder, name = os.path.split(self.final)
        return os.path.join(folder, f".{name}.flare-{purpose}")

    def _is_begun(self) -> bool:
        return os.path.exists(os.path.join(self.final, SCRATCH, "journal"))

    def _check_replaceable(self) -> None:
        if os.path.isdir(self.final):
            at = Location(LocalStore(self.final, self.shown, maps=False))
            names = sorted(os.listdir(self.final))
            self.contents.check_replaceable(at, names, self.shown, self._is_begun())

    def _claim(self, resume: bool, overwrite: bool) -> None:
        """Try once to lock the folder.

        If another process finishes or removes the folder at the same time, this method returns
        without the lock.
        """
        scratch, created = os.path.join(self.folder, SCRATCH), list[str]()
        if not os.path.isdir(scratch):
            if self._has_files():
                self._check_finished(self.at, resume)
                self.is_done = True
                return
            created = _missing_folders(scratch)
            self._make_scratch(scratch)
        try:
            fd = descriptors.open_lock(scratch, self._sibling("lock"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise ReachError(os.strerror(error.errno or 0), where=scratch) from None
        try:
            self._lock(fd, scratch, created)
            with contextlib.suppress(FileNotFoundError):
                self._store.pin()
            # compare after `pin`, so that the lock and the store refer to the same folder
            if not _is_same(fd, scratch):
                return
            self._check_contents(resume, overwrite)
            if self.is_done:
                self._remove_scratch(fd, self.folder)
                return
            if overwrite and not resume:
                self.contents.remove_begun(self.at, self.folder, self.shown)
            _remove_parts(fd, scratch)
            self._write_owner(scratch)
            self._fd, fd = fd, -1
            _claimed[self._fd] = scratch
        finally:
            if fd >= 0:
                self._close_lock(fd)

    def _make_scratch(self, path: str) -> None:
        """Create the scratch folder.

        `flare prune` may remove the folder of a fragment before the scratch folder is created in
        it. In this case, both folders are created again.
        """
        for _ in range(_MAX_ATTEMPTS - 1):
            with contextlib.suppress(MissingError):
                made_folder(path, self._store)
                return
        made_folder(path, self._store)

    def _check_contents(self, resume: bool, overwrite: bool) -> None:
        """Check the files in the folder, and set `is_done` if they are finished output."""
        if os.path.exists(os.path.join(self.folder, SCRATCH, "journal")):
            if not resume and not overwrite:
                raise self._unfinished()
        elif os.path.isdir(self.folder) and any(
            name != SCRATCH for name in os.listdir(self.folder)
        ):
            self._check_finished(self.at, resume)
            self.is_done = True

    def _lock(self, fd: int, scratch: str, created: list[str]) -> None:
        stop = time.monotonic() + _BRIEF_S
        try:
            while True:
                try:
                    descriptors.lock_or_fail(fd, self.shown, _NO_LOCKS_HINT)
                    return
                except BlockingIOError:
                    if time.monotonic() > stop:
                        break
                time.sleep(_POLL_S)
        except ReachError:
            for folder in created:
                with contextlib.suppress(OSError):  # another process may have written to the folder
                    os.rmdir(folder)
            raise
        raise BusyError(
            f"another {self.contents.noun} is writing to this folder ({_owner(scratch)})",
            where=self.shown,
            hint="Wait until the other process ends.",
        )

    def _has_files(self) -> bool:
        """Return whether the folder contains files but no scratch folder.

        The caller found no scratch folder. This method lists the files, and then checks again for a
        scratch folder: if another process has created one in the meantime, the files are the output
        of that process. A listed scratch folder does not count as a file, because that process may
        remove it before this check.
        """
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return False  # if a file is at this path, `made_folder` raises an error later
        has_others = any(name != SCRATCH for name in names)
        return has_others and not os.path.isdir(os.path.join(self.folder, SCRATCH))

    def _write_owner(self, scratch: str) -> None:
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "start": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        path = os.path.join(scratch, "lock")
        try:
            if os.path.lexists(path):  # writing to a link or a pipe at this path would be unsafe
                os.unlink(path)
            with open(os.open(path, _LOCK, 0o666), "w", encoding="utf-8") as file:
                json.dump(owner, file)
        except OSError as error:
            raise self._store.error(error, f"{SCRATCH}/lock") from None

    def check(self, now: bool = False) -> None:
        """Raise ReachError if another folder is at the path of the locked folder."""
        self._store.check_root()
        if not _is_same(self._fd, os.path.join(self.folder, SCRATCH)):
            raise ReachError(
                "the scratch folder was moved or deleted during the run",
                where=os.path.join(self.shown, SCRATCH),
                hint="Specify another folder, or empty this folder first.",
            )

    def finish(self) -> None:
        try:
            self.check()
            if self._replaces:
                self._check_replaceable()  # files may have been added since the first check
                self._replace()
            elif self._is_replaced:
                shutil.rmtree(self._sibling("old"), ignore_errors=True)
            self._remove_scratch(self._fd, self.final)
        except OSError as error:
            if isinstance(error, FlareError):
                raise
            raise ReachError(os.strerror(error.errno or 0), where=self.shown) from None
        finally:
            self.release()

    def _replace(self) -> None:
        """Rename the new folder to the final path, and remove the old folder.

        If an earlier call was interrupted, this call completes the replacement.
        """
        old = self._sibling("old")
        # an interrupted call may have left the old folder
        if os.path.isdir(old) and os.path.isdir(self.final):
            shutil.rmtree(old)
        if os.path.isdir(self.final):
            os.rename(self.final, old)
        os.rename(self.folder, self.final)
        sync_folder(os.path.dirname(self.final))
        shutil.rmtree(old, ignore_errors=True)

    def _remove_scratch(self, fd: int, folder: str) -> None:
        """Remove the scratch folder.

        The journal is removed last, because it marks unfinished output.
        """
        path = os.path.join(folder, SCRATCH)
        scratch = _open_scratch(fd, path)
        for name in sorted(os.listdir(scratch), key=lambda name: (name == "journal", name)):
            at, dir_fd = descriptors.in_folder(scratch, name)
            os.unlink(at, dir_fd=dir_fd)
        os.rmdir(path)
        sync_folder(folder)

    def abandon(self, keep: bool) -> None:
        with contextlib.suppress(OSError, UsageError):
            if not keep:
                self.check()  # another folder at this path must not be removed
                if not self._replaces:
                    self._check_replaceable()
                self.contents.remove_begun(self.at, self.folder, self.shown)
                os.rmdir(os.path.join(self.folder, SCRATCH))
                if self._is_new:
                    os.rmdir(self.folder)
        self.release()

    def run_finalizer(self, call: Callable[[], None]) -> None:
        call()

    def release(self) -> None:
        if self._fd >= 0:
            _claimed.pop(self._fd, None)
            self._close_lock(self._fd)
            self._fd = -1

    def _close_lock(self, fd: int) -> None:
        os.close(fd)
        if not descriptors.HAS_OPENAT:
            with contextlib.suppress(OSError):  # Windows cannot delete an open file
                os.unlink(self._sibling("lock"))


def remove_unfinished_files() -> None:
    """Remove the unfinished files of this process before an exit that does not wait for threads."""
    for fd, scratch in list(_claimed.items()):
        _remove_parts(fd, scratch)


def _owner(scratch: str) -> str:
    """Return the owner of a lock, for messages.

    The owner locks the folder before it writes the lock file, so reads are retried for a second.
    """
    for _ in range(20):
        with (
            contextlib.suppress(OSError, ValueError, KeyError),
            open(os.path.join(scratch, "lock"), encoding="utf-8") as file,
        ):
            owner = json.load(file)
            return f"process {int(owner['pid'])} on {str(owner['host'])[:80]}, since {str(owner['start'])[:30]}"
        time.sleep(0.05)
    return "unknown process"


def _missing_folders(path: str) -> list[str]:
    """Return the missing folders among `path` and its parents, with the deepest folder first."""
    out = list[str]()
    while not os.path.lexists(path):
        out.append(path)
        path = os.path.dirname(path)
    return out


def _open_scratch(fd: int, path: str) -> OpenFolder:
    """Return the scratch folder for use with `descriptors.in_folder`.

    On Windows, `fd` is not the scratch folder but a lock file, so the result is the path.
    """
    return fd if descriptors.HAS_OPENAT else path


def _remove_parts(fd: int, path: str) -> None:
    """Remove unfinished files from the scratch folder at `path`; `fd` is the lock of the folder."""
    scratch = _open_scratch(fd, path)
    with contextlib.suppress(OSError):
        for name in os.listdir(scratch):
            if name.endswith(".part"):
                at, dir_fd = descriptors.in_folder(scratch, name)
                os.unlink(at, dir_fd=dir_fd)


def _is_same(fd: int, path: str) -> bool:
    """Return whether the open folder `fd` is the folder at `path`."""
    if not descriptors.HAS_OPENAT:
        return os.path.isdir(path)
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def claim(
    out: Address, *, resume: bool = False, overwrite: bool = False, guard: Guard | None = None
) -> Target:
    """Lock a folder, on a disk or in a bucket, for a pack.

    raises  UsageError if flare cannot write to `out`; the errors of `Target`; for a finished
            dataset, also the errors of `check_files`
    """
    out = address_text(out)
    check_can_pack()
    at = bucket_of(out, guard)
    target: Target
    if at is None:
        target = FolderTarget(out, resume=resume, overwrite=overwrite)
    else:
        # imported late, because `bucket_target` loads a bucket client
        from flarecli.write.bucket_target import BucketTarget

        target = BucketTarget(at, resume=resume, overwrite=overwrite)
    if target.is_done:
        check_dataset(target.at)
    return target


def check_target(
    out: Address, *, resume: bool = False, overwrite: bool = False, guard: Guard | None = None
) -> None:
    """Check whether `claim` would accept a target. For a bucket, check only the address.

    This function writes nothing.

    raises  the errors of `claim`
    """
    out = address_text(out)
    check_can_pack()
    if bucket_of(out, guard) is None:
        target = FolderTarget(out, resume=resume, overwrite=overwrite, locks=False)
        if target.is_done:
            check_dataset(target.at)


def bucket_of(out: str, guard: Guard | None = None) -> Location | None:
    """Return the location of a target in a bucket; None for a local folder.

    raises  UsageError if flare cannot write to `out`
    """
    if not is_url(out) or scheme_of(out) == "file":
        return None
    if scheme_of(out) in ("http", "https"):
        raise UsageError(
            "cannot write to a web server",
            where=redact(out),
            hint="Specify a folder, or a bucket such as s3://bucket/folder.",
        )
    return locate(out, replace(guard or Guard(), keeper=None))
