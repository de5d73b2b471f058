"""The fetch engine: many transfers on one background thread, by libcurl's multi interface.

Requests wait by host; the host with the fewest transfers goes first, so that a slow one never takes all of them. The
engine follows redirects itself, and checks each hop against the guard. `retry` decides what is tried again.

Connections live in one pool per permit, and pools share nothing: otherwise a transfer could reuse a connection to a
private address that it would not have been allowed to open.

Stores share one engine per process (`shared`). A thread other than the main one makes a first attempt itself
(`transfer_here`), since waking another thread and being woken costs more than a small object; everything else, such as
redirects, retries and overloaded hosts, is left to the engine. The main thread never does: an interrupt could not end it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias
from weakref import WeakSet

import pycurl

from flarecli import lifetimes
from flarecli.errors import FlareError
from flarecli.prefetch import start_thread
from flarecli.storage.http.ip_guard import Permit
from flarecli.storage.http.request import Page, Request, Wanted
from flarecli.storage.http.response import REDIRECTS, UNREACHABLE, Fault, broken
from flarecli.storage.http.retry import Tries
from flarecli.storage.http.scheduler import Hosts
from flarecli.storage.http.transfer import Slot
from flarecli.storage.http.url import redirected
from flarecli.storage.limits import Limits

__all__ = ["Engine", "Fault", "Page", "Request", "Wanted", "shared", "transfer_here"]

_Act: TypeAlias = Callable[[int, int], object]

_EVENTS = {
    pycurl.POLL_IN: select.POLLIN,
    pycurl.POLL_OUT: select.POLLOUT,
    pycurl.POLL_INOUT: select.POLLIN | select.POLLOUT,
}
_REMOVE = pycurl.POLL_REMOVE
_READS, _WRITES = select.POLLIN | select.POLLHUP, select.POLLOUT
_FEW, _GATHER_S = 8, 0.0001  # fewer than one in so many are few; the time for more of them
_BAD = select.POLLERR | select.POLLNVAL


class Sockets:
    """What a thread waits for: the sockets of several pools, and one that wakes it.

    Between two transfers libcurl lets go of a connection's socket and takes it again: with `poll` that costs no call of the
    system, and what it costs to name all sockets at each wait is less, for as many as there are transfers at a time.
    """

    def __init__(self, bell: int) -> None:
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)
        self._bell = bell
        self._watched: dict[
            int, int
        ] = {}  # what is waited for, as a number: of a pool, and of what happens
        self._acts: list[_Act] = []  # of each such number
        self._left = set[
            int
        ]()  # those that libcurl has let go of: in most cases it takes them again before there is a wait

    def watcher(self, act: _Act) -> Callable[[int, int, Any, Any], None]:
        """Make what a multi handle is to call when it wants to wait for a socket or no longer does; `act` is told what happens there."""
        watched, left, number = self._watched, self._left, len(self._acts)
        self._acts += [act] * (pycurl.POLL_REMOVE + 1)

        def watch(what: int, fd: int, multi: Any, data: Any) -> None:  # called twice a transfer
            if what == _REMOVE or not what:  # the latter: it waits for nothing there
                left.add(fd)
                return
            left.discard(fd)
            if watched.get(fd) != number + what:
                watched[fd] = number + what
                self._poll.register(fd, _EVENTS.get(what, 0))

        return watch

    def wait(self, seconds: float | None, busy: int) -> bool:
        """Wait until something happens and hand it to its pool. Say whether the bell rang.

        busy  transfers under way. If only few of many have something, more of them will in a moment: to be woken for each costs more
              than it does, and on few cores takes that of a server that is near
        """
        rang = False
        for fd in self._left:
            if self._watched.pop(fd, None) is not None:
                self._poll.unregister(fd)
        self._left.clear()
        found = self._poll.poll(None if seconds is None else seconds * 1000)
        if 0 < len(found) * _FEW < busy:
            time.sleep(_GATHER_S)
            found = self._poll.poll(0)
        for fd, events in found:
            watched = self._watched.get(fd)
            if watched is not None and fd not in self._left:
                ready = _READY.get(events)
                self._acts[watched](fd, _ready(events) if ready is None else ready)
            elif fd == self._bell:  # else what came before has ended it
                rang = True
        return rang


def _ready(events: int) -> int:
    """Say in libcurl's words what a socket is ready for."""
    ready = (pycurl.CSELECT_IN if events & _READS else 0) | (
        pycurl.CSELECT_OUT if events & _WRITES else 0
    )
    return ready | (pycurl.CSELECT_ERR if events & _BAD else 0)


_READY = {
    events: _ready(events)
    for events in (select.POLLIN, select.POLLOUT, select.POLLIN | select.POLLOUT)
}  # nearly all that come


class Pool:
    """A multi handle with its connections and its idle slots, for one permit; `busy` counts its transfers."""

    def __init__(self, permit: Permit, sockets: Sockets) -> None:
        self.permit = permit
        self.free: list[Slot] = []
        self.slots: dict[pycurl.Curl, Slot] = {}
        self.busy = 0
        multi = self.multi = pycurl.CurlMulti()
        # methods of libcurl's objects are slow to look up
        self.add, self.remove, self.ended, self._act, self._timeout = (
            multi.add_handle,
            multi.remove_handle,
            multi.info_read,
            multi.socket_action,
            multi.timeout,
        )
        multi.setopt(pycurl.M_SOCKETFUNCTION, sockets.watcher(self._act))

    def due(self) -> float | None:
        """Give the seconds until libcurl wants to be called; None: it does not. It is asked once a turn: to be told takes two calls a transfer."""
        milliseconds = self._timeout() if self.busy else -1
        return None if milliseconds < 0 else milliseconds / 1000

    def tick(self) -> bool:
        """Let libcurl do what it wanted to do by now, and say whether there was anything."""
        if not self.busy or self._timeout() != 0:
            return False
        self._act(pycurl.SOCKET_TIMEOUT, 0)
        return True


class Window:
    """The bytes of an engine that are under way, or delivered and not yet released.

    most    bytes at a time: more than there can be, if there is no bound. The request whose order is at most `head` is never held up by it
    held    the bytes now
    paused  transfers that wait for room
    """

    def __init__(self, most: int | None) -> None:
        self.most = sys.maxsize if most is None else most
        self.held = self.head = 0
        self._mean = 0.0  # bytes of an object, lately
        self.paused: list[Slot] = []

    def is_full(self, active: int) -> bool:
        """Say whether there is no room for one more transfer beside so many."""
        return self.held + self._mean * active >= self.most

    def delivered(self, size: int) -> None:
        """Count an object that has come whole."""
        self.held += size
        self._mean += (size - self._mean) / 16

    def take(self, slot: Slot, size: int) -> bool:
        """Say whether a transfer may take so many bytes, and count them; else it is paused."""
        request = slot.request
        if self.held + size > self.most or request.sink is not None:  # nearly always it is neither
            if not self._fits(request, size):
                slot.paused_at = time.monotonic()
                self.paused.append(slot)
                return False
            request.unused += size
        self.held += size
        return True

    def _fits(self, request: Request, size: int) -> bool:
        if request.sink is not None:
            return request.unused < request.window
        return self.held + size <= self.most or request.order <= self.head

    def resume(self, now: float) -> None:
        """Let transfers go on for which there is room again; the pause does not count for their deadlines."""
        for slot in sorted(self.paused, key=lambda one: one.request.order):
            if not self._fits(slot.request, 1):
                continue
            self.paused.remove(slot)
            slot.paused = False
            slot.request.deadline += now - slot.paused_at
            slot.marked, slot.mark = now, slot.got
            with contextlib.suppress(
                pycurl.error
            ):  # what it held was too much: the transfer ends, and says so
                slot.easy.pause(pycurl.PAUSE_CONT)


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
        start_thread(self._thread)
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
            self._deliver(request, broken(3))
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
            for easy in whole:
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
            self._deliver(following, broken(3))
        else:
            pool.add(slot.easy)

    def _outcome(self, request: Request, fault: Fault, now: float) -> None:
        """Find out what a transfer came to that gave no object: another address, another try, or a failure."""
        answer = request.answer
        # A proxy that refuses to connect answers, too.
        if answer is not None and answer.status and fault.kind not in UNREACHABLE:
            self.hosts.answered(request.origin)
        if answer is not None and answer.status in REDIRECTS and answer.get("location"):
            self._redirect(request, answer.get("location"), now)
        else:
            self._again(request, fault, now)

    def _redirect(self, request: Request, location: str, now: float) -> None:
        if request.hops >= HOPS:
            self._deliver(request, Fault("redirect", f"more than {HOPS} redirects"))
            return
        try:
            request.address = redirected(request.address, location)
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


_BUFFER = (
    512 << 10
)  # bytes handed over at once: each time the interpreter is waited for, and here there are few transfers
_MAX_IDLE = 64  # idle handles of an engine, each with its connections, for each kind
_shared_lock = threading.Lock()
_shared: dict[Limits, Engine] = {}


def shared(limits: Limits) -> Engine:
    """Give the process's engine for stores with these limits; it lives as long as the process."""
    engine = _shared.get(limits)
    if engine is None:
        with _shared_lock:
            engine = _shared.get(limits)
            if engine is None:
                engine = _shared[limits] = Engine(limits)
    return engine


def transfer_here(request: Request, engine: Engine) -> bool:
    """Fetch what is wanted and deliver it, or leave it to the engine to do so; False if nothing was done."""
    if threading.current_thread() is threading.main_thread() or engine.hosts.is_crowded(
        request.origin
    ):
        return False
    limits, permit = engine.limits, request.permit
    free = engine.idle[permit]
    try:
        slot = free.pop()
    except IndexError:
        slot = _opened(limits, permit)
    now = time.monotonic()
    request.deadline, request.attempts = now + limits.deadline_s, 1
    try:
        slot.begin(request, now)
    except (pycurl.error, ValueError):  # an address of many megabytes, say
        engine.go_on(request, broken(3))
        return True
    code = 0
    try:
        slot.easy.perform()
    except pycurl.error as error:
        code = error.args[0]
    fault = _late(slot, engine) if code == pycurl.E_OPERATION_TIMEDOUT else None
    fault = fault or slot.finish(code)
    slot.rest()
    if len(free) < _MAX_IDLE:
        free.append(slot)
    if fault is None:
        engine.hosts.answered(request.origin)
        request.done = True
        request.deliver(request)
    else:
        engine.go_on(request, fault)
    return True


def _opened(limits: Limits, permit: Permit) -> Slot:
    slot = Slot(limits, permit, Window(None))
    slot.easy.setopt(pycurl.BUFFERSIZE, _BUFFER)
    slot.easy.setopt(pycurl.LOW_SPEED_LIMIT, SLOW)
    slot.easy.setopt(pycurl.LOW_SPEED_TIME, math.ceil(limits.timeout_s))
    slot.easy.setopt(pycurl.TIMEOUT_MS, min(int(1000 * limits.deadline_s), (1 << 31) - 1))
    return slot


def _late(slot: Slot, engine: Engine) -> Fault | None:
    """Say what came too late, if it was not the connection."""
    if not slot.easy.getinfo(pycurl.PRETRANSFER_TIME):
        return None
    return slot.too_late() if time.monotonic() >= slot.request.deadline else slot.too_slow()


def _close_shared() -> None:
    """Close the engines that stores share; the next request starts new ones."""
    with _shared_lock:
        engines = [*_shared.values()]
        _shared.clear()
    for engine in engines:
        engine.close()
        for slots in engine.idle.values():
            for slot in slots:
                slot.easy.close()
        engine.idle.clear()


lifetimes.register("http connections", _close_shared)


def _forget_shared() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget_shared)
