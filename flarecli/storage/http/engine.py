"""The fetch engine: many transfers on one background thread, by libcurl's multi interface.

Requests wait by host; the host with the fewest transfers goes first, so that a slow one never holds all of them. Only
passing faults are tried again, after a random and growing pause, within a budget for the whole run; a host that asks
for fewer requests gets fewer. Redirects are followed here, each hop held against the guard.

Connections live in one pool for each permit, and pools share nothing: otherwise a transfer could reuse a connection
to a private address that it would not have been allowed to open.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import pycurl

from flarecli.errors import FlareError
from flarecli.storage.http import response as answers
from flarecli.storage.http import url as addresses
from flarecli.storage.http.ip_guard import Permit
from flarecli.storage.http.lane import Lane
from flarecli.storage.http.pools import Pool, Sockets
from flarecli.storage.http.request import Request
from flarecli.storage.http.response import Fault
from flarecli.storage.http.retry import Tries
from flarecli.storage.http.scheduler import Hosts
from flarecli.storage.http.transfer import Slot
from flarecli.storage.http.wanted import Page, Wanted
from flarecli.storage.http.window import Window
from flarecli.storage.limits import Limits
from flarecli.storage.threads import start

__all__ = ["Engine", "Fault", "Page", "Request", "Wanted"]

HOPS = 5
SLOW = 1000  # bytes a second: a transfer that brings less for `timeout_s` has failed
_TICK_S = 0.2  # how often deadlines and rates are looked at


class Engine:
    """Fetches what is submitted, many at a time; each request's `deliver` is called on the engine's thread, once.

    limits       what a transfer may cost
    ahead_bytes  bytes that may be under way or delivered and not yet released; None: no bound. The request whose
                 order is at most `head` is never held up by it.

    unproven  objects that came without a length: were one cut short, nothing would show it
    """

    def __init__(self, limits: Limits, ahead_bytes: int | None = None) -> None:
        self.limits, self._window = limits, Window(ahead_bytes)
        self.pid, self.unproven = os.getpid(), 0
        self._calls: deque[tuple[Any, Any]] = deque()
        self._woken = self._closing = False
        self._crash: BaseException | None = None
        self._open: set[Request] = set()
        self._wanted = WeakSet[Wanted]()  # who waits for them has them
        self.hosts = Hosts()
        self._lane = Lane(limits, self._window, self.hosts)
        self._tries = Tries(limits.retries, self.hosts)
        self._active: set[Slot] = set()
        self._checked = self._now = (
            0.0  # when slow transfers were looked for; when requests could last be started
        )
        # handles of transfers that are made elsewhere, see `direct`
        self.idle = defaultdict[Permit, list[Slot]](list)
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._sockets = Sockets(self._ear.fileno())
        self._pools = dict[Permit, Pool]()
        self._tick_s = min(_TICK_S, limits.timeout_s / 4)
        self._thread = threading.Thread(target=self._run, name="flare-transfers", daemon=True)
        start(self._thread)
        _engines.add(self)

    @property
    def spent(self) -> bool:
        """Whether a passing fault was not tried again for want of budget."""
        return self._tries.spent

    # -- from other threads

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests. They start in their order as far as their hosts allow."""
        self._call(self._take, list(requests))

    def want(self, wanted: Wanted) -> None:
        """Queue many whole objects, as `submit` does requests; those of the same order may be under way only once."""
        self._call(self._take_all, wanted)

    def release(self, size: int, head: int) -> None:
        """Say that delivered bytes are used, and which order is needed next."""
        self._call(self._released, (size, head))

    def used(self, request: Request, size: int) -> None:
        """Say that bytes which a sink got are used."""
        self._call(self._drained, (request, size))

    def go_on(self, request: Request, fault: Fault) -> None:
        """Take over a request whose first try failed elsewhere: it is redirected, tried again or delivered as failed."""
        self._call(self._taken_over, (request, fault))

    def cancel(self, requests: Iterable[Request]) -> None:
        """Drop requests whose outcome nobody waits for; they are not delivered."""
        self._call(self._drop, list(requests))

    def close(self) -> None:
        """End the thread and drop its connections, within a second; nothing more is delivered."""
        if self.pid != os.getpid():
            return  # a fork's copy: the connections are the parent's
        self._closing = True
        self._ring()
        self._thread.join(1)  # a look-up of a name that hangs may keep it; it is a daemon
        _engines.discard(self)

    def _call(self, what: Any, argument: Any) -> None:
        self._calls.append((what, argument))
        if (
            self._crash is not None
        ):  # looked at after the call is queued: then either we see it, or the thread sees the call
            raise RuntimeError("the transfer thread has died") from self._crash
        self._ring()

    def _ring(self) -> None:
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._bell.send(b"\0")

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:  # nobody may wait for ever for what will never come
            self._crash = error
            while self._calls:
                what, argument = self._calls.popleft()
                if what == self._take:
                    self._open.update(argument)
                elif what == self._take_all:
                    self._wanted.add(argument)
                elif what == self._taken_over:
                    self._open.add(argument[0])
            bug = Fault("bug", f"{type(error).__name__}: {error}", error=FlareError)
            for request in list(self._open):
                self._deliver(request, bug)
            for wanted in self._wanted:
                wanted.fail(bug)
        finally:
            self._end()

    def _end(self) -> None:
        for slot in self._active:
            with contextlib.suppress(pycurl.error):
                self._pools[slot.permit].multi.remove_handle(slot.easy)
            slot.easy.close()
        for pool in self._pools.values():
            for slot in pool.free:
                slot.easy.close()
            pool.multi.close()
        self._bell.close()
        self._ear.close()

    def _turn(self) -> None:
        """Wait for something to happen, and do what follows from it."""
        if self._sockets.wait(self._timeout(), len(self._active)):
            self._ear.recv(64)
            self._woken = False
        while self._calls:
            what, argument = self._calls.popleft()
            what(argument)
        now = self._now = time.monotonic()
        for pool in [*self._pools.values()]:
            if pool.busy:
                self._collect(pool, now)
        if now - self._checked >= self._tick_s:
            self._checked = now
            self._check(now)
        self._tries.put_back(now)
        self._start(now)
        for pool in [*self._pools.values()]:  # what was just started is sent before we wait
            if pool.tick() and self._collect(pool, now):
                self._start(now)

    def _timeout(self) -> float | None:
        now = time.monotonic()
        dues = [self._checked + self._tick_s] if self._active else []
        dues += [
            due
            for due in (self._tries.next_due(), self.hosts.next_due(self._now))
            if due is not None
        ]  # not `now`: it may be due since
        pauses = [pause for pool in self._pools.values() if (pause := pool.due()) is not None]
        if dues:
            pauses.append(max(0.0, min(dues) - now))
        return min(pauses) if pauses else None

    def _take(self, requests: list[Request]) -> None:
        self._open.update(requests)
        self._tries.requests += len(requests)
        for request in requests:
            self.hosts.put(request)

    def _take_all(self, wanted: Wanted) -> None:
        self._wanted.add(wanted)
        self._tries.requests += self.hosts.put_all(wanted)

    def _taken_over(self, failed: tuple[Request, Fault]) -> None:
        self._open.add(failed[0])
        self._tries.requests += 1
        self._outcome(*failed, time.monotonic())

    def _released(self, freed: tuple[int, int]) -> None:
        window = self._window
        window.held -= freed[0]
        window.head = max(window.head, freed[1])
        if window.paused:
            window.resume(time.monotonic())

    def _drained(self, drained: tuple[Request, int]) -> None:
        drained[0].unused -= drained[1]
        if self._window.paused:
            self._window.resume(time.monotonic())

    def _drop(self, requests: list[Request]) -> None:
        gone = {request for request in requests if not request.done}
        for slot in [slot for slot in self._active if slot.request in gone]:
            self._stop(slot)
        for request in gone:
            request.cancelled = True
            self._open.discard(request)

    # -- one transfer after another

    def _start(self, now: float) -> None:
        active, window = self._active, self._window
        while (
            len(active) - len(window.paused) < self.limits.jobs
        ):  # else paused ones could keep the head from starting
            request = self.hosts.pick(now, window.head if window.is_full(len(active)) else None)
            if request is None:
                return
            if request.cancelled:
                continue
            if not request.deadline:
                request.deadline = now + self.limits.deadline_s
            request.attempts += 1
            self._begin(request, now)

    def _begin(self, request: Request, now: float, fresh: bool = False) -> None:
        permit = request.permit
        pool = self._pools.get(permit)
        if pool is None:
            pool = self._pools[permit] = Pool(permit, self._sockets)
        if pool.free:
            slot = pool.free.pop()
        else:
            slot = Slot(self.limits, permit, self._window)
            pool.slots[slot.easy] = slot
        try:
            slot.begin(request, now, fresh)
        except (pycurl.error, ValueError):  # an address of many megabytes, say
            del pool.slots[slot.easy]
            slot.easy.close()
            self._deliver(request, answers.broken(3))
            return
        self.hosts.count(request.origin, 1)
        self._active.add(slot)
        pool.busy += 1
        pool.add(slot.easy)

    def _stop(self, slot: Slot) -> None:
        """Take a transfer off its loop; its slot is free again."""
        self._pools[slot.permit].remove(slot.easy)
        self._free(slot)

    def _free(self, slot: Slot) -> None:
        pool = self._pools[slot.permit]
        pool.busy -= 1
        self._active.discard(slot)
        if slot.paused:
            self._window.paused.remove(slot)
        self.hosts.count(slot.request.origin, -1)
        self._window.held -= slot.got
        if slot.parts:
            slot.parts = []
        pool.free.append(slot)

    def _collect(self, pool: Pool, now: float) -> bool:
        """Take what has ended off a pool, and say whether anything had."""
        waiting, has_ended, slots = 1, False, pool.slots
        while waiting:
            waiting, whole, failed = pool.ended()
            for easy in self._lane.follow(pool, whole, len(self._active), now):
                self._ended(pool, slots[easy], 0, now)
            for easy, code, _ in failed:
                self._ended(pool, slots[easy], code, now)
            has_ended = has_ended or bool(whole or failed)
        return has_ended

    def _ended(self, pool: Pool, slot: Slot, code: int, now: float) -> None:
        request, unheard = slot.request, code != 0 and slot.unheard(code)
        fault = slot.finish(code)
        if fault is None:
            self._whole(pool, slot, request, now)
            return
        self._stop(slot)
        if unheard:
            self._begin(request, now, fresh=True)
        else:
            self._outcome(request, fault, now)

    def _whole(self, pool: Pool, slot: Slot, request: Request, now: float) -> None:
        """Deliver an object; where nothing else is to be decided, the next one of its host follows on the same slot."""
        window, active = self._window, len(self._active)
        pool.remove(slot.easy)
        window.held -= slot.got
        slot.got = 0
        answer = request.answer
        if answer is not None and answer.length is None:
            self.unproven += not answer.proven
        self.hosts.answered(request.origin)
        self._deliver(request, None)
        following = None  # a crowded host has none
        if not (
            slot.paused or window.is_full(active) or active - len(window.paused) > self.limits.jobs
        ):
            following = self.hosts.follow(request.origin, slot.permit)
        if following is None:
            self.hosts.went_well(request.origin)
            self._free(slot)
            return
        following.deadline = following.deadline or now + self.limits.deadline_s
        following.attempts += 1
        try:
            slot.begin(following, now)
        except (pycurl.error, ValueError):
            self._free(slot)
            self._deliver(following, answers.broken(3))
        else:
            pool.add(slot.easy)

    def _outcome(self, request: Request, fault: Fault, now: float) -> None:
        """Find out what a transfer came to that gave no object: another address, another try, or a failure."""
        answer = request.answer
        # A proxy that refuses to connect answers, too.
        if answer is not None and answer.status and fault.kind not in answers.UNREACHABLE:
            self.hosts.answered(request.origin)
        if answer is not None and answer.status in answers.REDIRECTS and answer.get("location"):
            self._redirect(request, answer.get("location"), now)
        else:
            self._again(request, fault, now)

    def _redirect(self, request: Request, location: str, now: float) -> None:
        if request.hops >= HOPS:
            self._deliver(request, Fault("redirect", f"more than {HOPS} redirects"))
            return
        try:
            request.address = addresses.redirected(request.address, location)
        except FlareError as error:
            message = f"redirects to {error.where}: {error.message}"
            self._deliver(
                request,
                Fault(
                    "unsafe" if error.kind == "unsafe" else "redirect",
                    message,
                    hint=error.hint,
                    error=type(error),
                ),
            )
            return
        request.hops += 1
        self._begin(request, now)

    def _again(self, request: Request, fault: Fault, now: float) -> None:
        if not self._tries.again(request, fault, now):
            self._deliver(request, fault)

    def _deliver(self, request: Request, fault: Fault | None) -> None:
        if request.cancelled:
            return
        if request.wanted is None:
            self._open.discard(request)
        request.fault, request.done = fault, True
        if fault is None:
            self._window.delivered(len(request.data))
        request.deliver(request)

    # -- bounds

    def _check(self, now: float) -> None:
        """Stop transfers that are past their deadline or too slow."""
        for slot in [slot for slot in self._active if not slot.paused]:
            if now >= slot.request.deadline:
                # a retry that is cut off says what went wrong before, so that the pauses, which are random, do not show in reasons
                self._fail(slot, slot.request.fault or slot.too_late(), now)
            elif now - slot.marked >= self.limits.timeout_s:
                if slot.got - slot.mark < SLOW * self.limits.timeout_s:
                    self._fail(slot, slot.too_slow(), now)
                else:
                    slot.marked, slot.mark = now, slot.got

    def _fail(self, slot: Slot, fault: Fault, now: float) -> None:
        request = slot.request
        self._stop(slot)
        self._again(request, fault, now)


_engines: set[Engine] = set()
_inherited: list[Engine] = []


def _forked() -> None:
    """In a child the threads are gone and the connections are the parent's: forget them, and never end them, which would say goodbye on them."""
    _inherited.extend(_engines)
    _engines.clear()


os.register_at_fork(after_in_child=_forked)
