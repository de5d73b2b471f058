"""The lock of a pack into a bucket: an object that its owner writes again every few seconds, so
that a dead one shows.

    OUT/.flare/lock     who that is: process, host, start, a word of its own, and a count that goes
                        up

It is made, and taken over, on condition that nobody else was faster. Nothing is read from a clock
of another machine: who wants a lock that is there watches whether it changes. An owner on the same
machine is looked for among its processes, which takes no time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from typing import Any

from flarecli.errors import BusyError, FlareError
from flarecli.prefetch import start_thread
from flarecli.storage import Location
from flarecli.storage.cloud.store import Snapshot, snapshot, swap

__all__ = ["DEAD_S", "Lease"]

_DELETED = "the lock of this pack was deleted"
BEAT_S = 5.0  # how often the lock is written
_TRIES = 9  # to get a free lock: five seconds in total
DEAD_S = 60.0  # how long a lock must not change before it is taken over


class Lease:
    """A lock on a folder of a bucket, held while its process lives and reaches the bucket.

    waits   watch a lock whose owner may be dead; else it counts as alive
    raises  BusyError, naming the owner, while another process is at work there; ReachError where no
            thread can write it again
    """

    def __init__(self, at: Location, where: str, waits: bool) -> None:
        self._at, self._where = at, where
        self._owner: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "start": time.strftime("%Y-%m-%d %H:%M:%S"),
            "machine": _machine(),
            "ticks": _ticks(os.getpid()),
            "token": uuid.uuid4().hex,
        }
        self._beats, self._lost = 0, ""
        self._mutex, self._ended = threading.Lock(), threading.Event()
        self._held = self._taken(waits)
        self._last = _now()
        self._thread = threading.Thread(target=self._beat_on, name="flare-lease", daemon=True)
        try:
            start_thread(self._thread)
        except BaseException:
            self.release()
            raise

    def _next(self) -> bytes:
        self._beats += 1
        return json.dumps({**self._owner, "beat": self._beats}).encode()

    def _taken(self, waits: bool) -> Snapshot:
        for number in range(_TRIES):
            found = snapshot(self._at)
            if found is not None and not self._is_dead(found, waits):
                continue  # it was released
            with contextlib.suppress(BusyError):
                return swap(self._at, self._next(), found)
            time.sleep(0.01 * 2**number)
        raise BusyError(
            "others were faster each time, or the store refuses every condition",
            where=self._where,
            hint="Try again in a minute.",
        )

    def _is_dead(self, found: Snapshot, waits: bool) -> bool:
        """Find out whether the owner is dead; False if the lock went away meanwhile. Raises
        BusyError if the owner is alive, or may be.
        """
        owner = _parsed(found.data)
        lives = (
            _lives(owner.get("pid"), owner.get("ticks"))
            if owner.get("machine") and owner["machine"] == _machine()
            else None
        )
        if lives is False:
            return True
        if lives:
            raise self._busy(owner, "Wait until it ends.")
        if not waits:
            raise self._busy(
                owner,
                f"Wait until it ends; if it is dead, --resume takes over after {DEAD_S:.0f} seconds.",
            )
        stop = _now() + DEAD_S
        while _now() < stop:
            time.sleep(min(1.0, DEAD_S / 4))
            now = snapshot(self._at)
            if now is None:
                return False
            if now.data != found.data:
                raise self._busy(_parsed(now.data), "Wait until it ends.")
        return True

    def _busy(self, owner: dict[str, Any], hint: str) -> BusyError:
        named = f"process {owner.get('pid', '?')} on {str(owner.get('host', '?'))[:80]}, since {str(owner.get('start', '?'))[:30]}"
        return BusyError(f"another pack is at work there ({named})", where=self._where, hint=hint)

    def _beat_on(self) -> None:
        while not self._ended.wait(BEAT_S):
            with contextlib.suppress(FlareError):  # may be transient; `check` reports it if not
                self._beat()
            if self._lost:
                return

    def _beat(self) -> None:
        with self._mutex:
            if self._ended.is_set() or self._lost:
                return
            try:
                self._held = swap(self._at, self._next(), self._held)
            except BusyError:
                self._lost = (
                    _DELETED if snapshot(self._at) is None else "another pack has taken over"
                )
                return
            self._last = _now()

    def check(self, now: bool = False) -> None:
        """Raise BusyError if the lock is no longer ours, ReachError if that cannot be known.

        now  write the lock first; otherwise the answer may be as old as the last time that it was
             written
        """
        if now or _now() - self._last > BEAT_S * 1.5:
            self._beat()
        if self._lost:
            hint = "Stop one of the two, then run this one again with --resume."
            if self._lost == _DELETED:
                hint = "Run the same command with --resume."
            raise BusyError(self._lost, where=self._where, hint=hint)

    def expire(self) -> None:
        """Stop renewing the lock, without a request: other processes see that its owner is dead."""
        self._ended.set()

    def release(self) -> None:
        """Release the lock, if it is still ours."""
        self._ended.set()
        with self._mutex, contextlib.suppress(FlareError):
            now = None if self._lost else snapshot(self._at)
            if now is not None and _parsed(now.data).get("token") == self._owner["token"]:
                self._at.delete()


def _parsed(data: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(data)
        if isinstance(found, dict):
            return found
    return {}


def _now() -> float:
    """Return monotonic seconds that include the time a machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _machine() -> str:
    """Return the id of the boot and container that process ids belong to; empty where
    that cannot be told.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _lives(pid: object, ticks: object) -> bool | None:
    """Return whether a process of this machine is still the same one; None if that cannot be
    seen.
    """
    if not isinstance(pid, int) or pid < 1:
        return None
    if os.path.exists(f"/proc/{pid}"):
        return _ticks(pid) == ticks
    try:
        os.kill(pid, 0)  # raises if it has ended or is hidden
    except ProcessLookupError:
        return False
    except OSError:
        return None
    return None


def _ticks(pid: object) -> int | None:
    """Return the start of a process in ticks since boot; None if it has ended."""
    try:
        with open(f"/proc/{int(str(pid))}/stat", encoding="utf-8", errors="replace") as file:
            state, *rest = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(rest[18])
