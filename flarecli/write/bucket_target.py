"""A folder in a bucket as the target of a pack, with a lease, a journal and a playlist.

    OUT/.flare/lock            the owner: process id, host, start time, random token, renewal count
    OUT/.flare/journal/…       completed steps, one object for each step (`storage/append_log.py`)
    OUT/.flare/failed.jsonl/…  failed rows
    OUT/.flare/new/…           with `overwrite`: the new dataset and its journal; `finish` copies
                               the dataset to OUT
    OUT/.flare/done            exists after this copy is complete; `.flare` can then be deleted

Objects cannot be renamed, so the creation of the playlist commits the dataset. If the playlist
exists, all listed files are complete, regardless of the contents of `.flare`. A fragment of a
dataset is an exception: the commit of the fragment follows its playlist (`versions.py`).

The lock is a lease: an object that its owner renews regularly. A process creates or takes over the
object with a conditional put, so only one process succeeds. A process that finds an existing lock
may wait for DEAD_S, and then take over the lock if the object has not changed in this time. The
clocks of different machines are never compared. If the owner is on the same machine, the process
checks whether the owner is running, instead of waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flarecli.errors import BusyError, FlareError, MissingError, ReachError, UsageError
from flarecli.names import is_fragment
from flarecli.playlists import PLAYLIST
from flarecli.prefetch import ordered_map, start_thread
from flarecli.read.version_lists import COMMIT_LOCK
from flarecli.storage import Entry, Location
from flarecli.storage.cloud.client_pool import MAX_REPEAT_S
from flarecli.storage.cloud.store import Snapshot, snapshot, swap
from flarecli.storage.local import SCRATCH
from flarecli.write.target import DatasetContents, Target, check_dataset

__all__ = ["BucketTarget", "Lease"]

_DELETED = "the lock was deleted"
BEAT_S = 5.0  # interval between renewals of the lock
# maximum number of attempts to acquire a lock that no running process owns; with the delays between
# the attempts, they take about five seconds
_MAX_ATTEMPTS = 9
# A process may take over a lock that has not changed for this long. The previous owner may be alive
# but unable to reach the bucket. When it can reach the bucket again, it must not repeat a request
# that it started while it owned the lock. `check` accepts a renewal that is less than 2 * BEAT_S
# old, and the requests after the check are repeated for at most MAX_REPEAT_S.
DEAD_S = MAX_REPEAT_S + 2 * BEAT_S
_PARALLEL_REQUESTS = 32  # maximum number of objects to delete in parallel


class Lease:
    """A lock on a folder in a bucket. It expires if its owner ends or cannot reach the bucket.

    waits   True: wait for DEAD_S to find out whether the owner of an existing lock is alive; False:
            assume that an owner on another machine is alive
    hint    hint of the error for a lost lock; empty: the hint for a pack
    raises  BusyError with the owner if another process has the lock; ReachError if the thread that
            renews the lock cannot be started
    """

    def __init__(self, at: Location, where: str, waits: bool, hint: str = "") -> None:
        self._at, self._where, self._hint = at, where, hint
        self._owner: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "start": time.strftime("%Y-%m-%d %H:%M:%S"),
            "machine": _machine(),
            "ticks": _start_ticks(os.getpid()),
            "token": uuid.uuid4().hex,
        }
        self._renewals, self._lost = 0, ""
        self._mutex, self._ended = threading.Lock(), threading.Event()
        self._last = _now()  # start of the last successful renewal
        self._snapshot = self._acquire(waits)
        self._thread = threading.Thread(
            target=self._renew_until_ended, name="flare-lease", daemon=True
        )
        try:
            start_thread(self._thread)
        except BaseException:
            self.release()
            raise

    def _next(self) -> bytes:
        self._renewals += 1
        return json.dumps({**self._owner, "beat": self._renewals}).encode()

    def _acquire(self, waits: bool) -> Snapshot:
        for number in range(_MAX_ATTEMPTS):
            current = snapshot(self._at)
            if current is not None and not self._is_dead(current, waits):
                continue  # the owner has released the lock
            self._last = _now()
            with contextlib.suppress(BusyError):
                return swap(self._at, self._next(), current)
            time.sleep(0.01 * 2**number)
        raise BusyError(
            "cannot create the lock: other processes created it first, or the store rejects conditional writes",
            where=self._where,
            hint="Try again in a minute.",
        )

    def _is_dead(self, current: Snapshot, waits: bool) -> bool:
        """Return True if the owner is dead, or False if the owner has released the lock.

        raises  BusyError if the owner may be alive
        """
        owner = _parsed(current.data)
        is_alive = (
            _is_alive(owner.get("pid"), owner.get("ticks"))
            if owner.get("machine") and owner["machine"] == _machine()
            else None
        )
        if is_alive is False:
            return True
        if is_alive:
            raise self._busy(owner, "Wait until the other process ends.")
        if not waits:
            raise self._busy(
                owner,
                f"Wait until the other process ends. If it was killed, --resume takes over the lock after {DEAD_S:.0f} seconds.",
            )
        stop = _now() + DEAD_S
        while _now() < stop:
            time.sleep(min(1.0, DEAD_S / 4))
            now = snapshot(self._at)
            if now is None:
                return False
            if now.data != current.data:
                raise self._busy(_parsed(now.data), "Wait until the other process ends.")
        return True

    def _busy(self, owner: dict[str, Any], hint: str) -> BusyError:
        process = f"process {owner.get('pid', '?')} on {str(owner.get('host', '?'))[:80]}, since {str(owner.get('start', '?'))[:30]}"
        return BusyError(
            f"another pack is writing to this folder ({process})", where=self._where, hint=hint
        )

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(BEAT_S):
            # If the error is permanent, the next call of `check` raises it in the calling thread.
            with contextlib.suppress(FlareError):
                self._renew()
            if self._lost:
                return

    def _renew(self) -> None:
        with self._mutex:
            if self._ended.is_set() or self._lost:
                return
            for number in range(_MAX_ATTEMPTS):
                began = _now()  # before the request, because the process may be suspended after it
                try:
                    self._snapshot = swap(self._at, self._next(), self._snapshot)
                    self._last = began
                    return
                except BusyError:
                    current = snapshot(self._at)
                if current is None or _parsed(current.data).get("token") != self._owner["token"]:
                    self._lost = (
                        _DELETED if current is None else "another process took over the lock"
                    )
                    return
                # The store rejected the write, although no other process has changed the lock. S3
                # also answers 409 (ConditionalRequestConflict) if two requests overlap.
                self._snapshot = current
                time.sleep(0.01 * 2**number)
            raise ReachError("the store rejects the renewal of the lock", where=self._where)

    def check(self, now: bool = False) -> None:
        """Raise BusyError if the lock is lost, or ReachError if the bucket cannot be reached.

        now  True: renew the lock first; False: renew it first only if the last renewal is not
             recent
        """
        if now or _now() - self._last > BEAT_S * 1.5:
            self._renew()
        if self._lost:
            hint = "Stop one of the two packs, then run this pack again with --resume."
            if self._lost == _DELETED:
                hint = "Run the same command with --resume."
            raise BusyError(self._lost, where=self._where, hint=self._hint or hint)

    def check_store(self, named: Location | None = None) -> None:
        """Check that the store supports conditional writes: creating the existing lock must fail.

        named   file to name in the error; None: the lock
        raises  UsageError if the store rejects conditional writes; ReachError if the store ignores
                their condition
        """
        named = named or self._at
        with self._mutex:
            try:
                self._at.create(self._snapshot.data)
            except BusyError:
                return
            except UsageError as error:
                raise error.changed(address=str(named)) from None
        raise ReachError(
            "the store accepted a conditional write (If-None-Match) of an existing file",
            where=named,
            hint="Use a store with conditional writes (If-None-Match), or a local folder.",
        )

    def expire(self) -> None:
        """Stop renewing the lock, so that it expires. This method sends no request."""
        self._ended.set()

    def release(self) -> None:
        """Delete the lock object if this process still owns the lock."""
        self._ended.set()
        with self._mutex, contextlib.suppress(FlareError):
            now = None if self._lost else snapshot(self._at)
            if now is not None and _parsed(now.data).get("token") == self._owner["token"]:
                self._at.delete()


def _parsed(data: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        owner = json.loads(data)
        if isinstance(owner, dict):
            return owner
    return {}


def _now() -> float:
    """Return a monotonic time in seconds. On Linux, it also advances during system suspend."""
    if sys.platform == "win32":
        return time.monotonic()
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _machine() -> str:
    """Return an id of this machine: the boot id and the PID namespace; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_alive(pid: object, ticks: object) -> bool | None:
    """Return whether a process on this machine is running; None if unknown.

    ticks  start time of the process, to detect a later process with the same id
    """
    if not isinstance(pid, int) or pid < 1:
        return None
    if os.path.exists(f"/proc/{pid}"):
        return _start_ticks(pid) == ticks
    try:
        os.kill(pid, 0)  # also finds a process that /proc hides from this user
    except ProcessLookupError:
        return False
    except OSError:
        return None
    return None


def _start_ticks(pid: object) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it is not running."""
    try:
        with open(f"/proc/{int(str(pid))}/stat", encoding="utf-8", errors="replace") as file:
            state, *rest = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(rest[18])


class BucketTarget(Target):
    """A folder in a bucket as the target of a pack."""

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
                # if another pack has started since the first check, `Lease` reports that pack
                if not _has_objects(out / SCRATCH):
                    raise
            if self.is_done:
                return
        self._lease = Lease(out / f"{SCRATCH}/lock", self.shown, resume or overwrite)
        try:
            if is_fragment(out.name):
                # Check before the upload that the store supports the conditional writes of the
                # commit. The error names the lock file of the commit, because the lock file of the
                # fragment is deleted before the user sees the error.
                self._lease.check_store(out.folder / COMMIT_LOCK)
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
        """Check that the folder is empty, or contains finished output that an option accepts.

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
        """Continue the unfinished output of a process (`resume`), or remove it (`overwrite`)."""
        if _has_objects(self._new):
            if not resume and not overwrite:
                raise self._unfinished()
            if self._done.exists():
                self._clear()
            elif (self._new / PLAYLIST).exists() and self._is_new_complete():
                # If the old playlist is missing, an earlier call of `_replace` was interrupted. The
                # check succeeded before that call, so it is not repeated.
                if (self._out / PLAYLIST).exists():
                    self._check_replaceable()
                self._replace()
                self._clear()
            else:
                if not resume:
                    _remove(self._new, self._new.list())
                self.at = self._new
                return
        elif _has_objects(self._out / f"{SCRATCH}/journal") and not self._is_complete():
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

    def _is_complete(self) -> bool:
        """Return whether the folder contains a playlist, which marks a finished dataset.

        For a fragment, the result is always False, because its commit follows its playlist.
        """
        return not is_fragment(self._out.name) and (self._out / PLAYLIST).exists()

    def _is_new_complete(self) -> bool:
        """Return whether all files of the new dataset exist.

        If a file is missing, delete the new playlist, so that the new dataset counts as unfinished.
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

        `done` is deleted last, so that the next process completes an interrupted deletion.
        """
        inside = self._out / SCRATCH
        with contextlib.suppress(MissingError):
            _remove(
                inside, (entry for entry in inside.list() if entry.name not in ("lock", "done"))
            )
        self._done.delete()

    def _replace(self) -> None:
        """Replace the old dataset with a copy of the new dataset. The playlist is written last.

        If an earlier call was interrupted, this call completes the replacement.
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
                self._check_replaceable()  # objects may have been added since the first check
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
        """Run `call` in another thread.

        Garbage collection may interrupt this thread while it holds a lock that the requests of
        `call` need. If no other thread can be started, stop renewing the lease, so that it expires.
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
    """Delete objects in batches, from the last object to the first, and each batch in parallel.

    If the deletion is interrupted, all objects before the interrupted batch in `entries` still
    exist.
    """
    names = [entry.name for entry in entries][::-1]
    for i in range(0, len(names), _PARALLEL_REQUESTS):
        some = names[i : i + _PARALLEL_REQUESTS]
        for _ in ordered_map(lambda name: (at / name).delete(), some, workers=_PARALLEL_REQUESTS):
            pass
