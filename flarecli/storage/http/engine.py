"""Engine that runs many transfers on one background thread, with libcurl's multi interface.

Each host has its own queue of requests (see `scheduler`). The engine follows redirects itself, and
checks the address of each redirect.

Each permit (see `ip_guard`) has its own connection pool. With a shared pool, a transfer could reuse
a connection to a private address that the permit of the transfer does not include.

All stores with the same limits share one engine (`shared`). Threads other than the main thread make
the first attempt of a request themselves (`transfer_here`), because waking two threads costs more
than fetching a small object. Redirects, retries and requests to overloaded hosts always run in the
engine. Requests by the main thread also run in the engine, because an interrupt cannot end a
transfer in the calling thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
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
from flarecli.storage.base import Limits
from flarecli.storage.http.ip_guard import Permit, host_of
from flarecli.storage.http.request import BatchRequest, Page, Request
from flarecli.storage.http.response import REDIRECTS, UNREACHABLE, Fault, curl_fault
from flarecli.storage.http.scheduler import HostQueues, RetryQueue
from flarecli.storage.http.transfer import Handle
from flarecli.storage.http.url import redirected

__all__ = ["BatchRequest", "Engine", "Fault", "Page", "Request", "shared", "transfer_here"]

SocketAction: TypeAlias = Callable[[int, int], object]

MAX_REDIRECTS = 5
MIN_SPEED = 1000  # bytes per second; a transfer fails if it is slower for `timeout_s`
_TICK_S = 0.2  # interval between two checks of deadlines and speeds
# If the number of ready sockets is below 1/_FEW_SHARE of the number of transfers in flight,
# `Sockets.wait` sleeps for _GATHER_S seconds, so that more sockets become ready.
_FEW_SHARE, _GATHER_S = 8, 0.0001
# Buffer size of a transfer in the caller's thread; a large buffer causes fewer waits for the
# interpreter lock.
_BUFFER_BYTES = 512 << 10
# Maximum number of idle handles that an engine keeps for each permit (see `ip_guard`). Idle handles
# keep their connections open.
_MAX_IDLE = 64


class Sockets:
    """The sockets for which the thread of the engine waits.

    These are the sockets of all pools, and `wakeup`, to which other threads write to end a wait.
    libcurl removes the socket of a connection after each transfer, and adds it again for the next
    transfer. With `poll`, neither step needs a system call.
    """

    def __init__(self, wakeup: int) -> None:
        # Windows has no `poll`. Its default selector is `select`, which supports up to 512 sockets.
        selector = getattr(selectors, "PollSelector", selectors.DefaultSelector)
        self._selector: selectors.BaseSelector = selector()
        self._selector.register(wakeup, selectors.EVENT_READ)
        self._wakeup = wakeup
        self._watched: dict[int, tuple[SocketAction, int]] = {}  # socket -> action and events
        self._released = set[int]()  # libcurl adds most of these sockets again before the next wait

    def watcher(self, action: SocketAction) -> Callable[[int, int, Any, Any], None]:
        """Return the socket callback for a multi handle.

        action  function that `wait` calls if a socket of the handle is ready
        """

        # This function is called twice per transfer, so it makes as few system calls as possible.
        # libcurl and `selectors` use the same numbers for reading (1) and writing (2).
        def watch(what: int, fd: int, multi: Any, data: Any) -> None:
            if what in (pycurl.POLL_REMOVE, pycurl.POLL_NONE):
                self._released.add(fd)
                return
            self._released.discard(fd)
            if fd not in self._watched:
                self._selector.register(fd, what)
            elif self._watched[fd][1] != what:
                self._selector.modify(fd, what)
            self._watched[fd] = action, what

        return watch

    def wait(self, seconds: float | None, active: int) -> bool:
        """Wait until a socket is ready, and call the action of each ready socket.

        If only a few sockets are ready, this method sleeps for _GATHER_S seconds and checks again,
        because separate wake-ups cost more than this delay.

        active  number of transfers in flight
        return  True if `wakeup` was signaled
        """
        is_woken = False
        for fd in self._released:
            if self._watched.pop(fd, None) is not None:
                self._selector.unregister(fd)
        self._released.clear()
        ready = self._selector.select(seconds)
        if 0 < len(ready) * _FEW_SHARE < active:
            time.sleep(_GATHER_S)
            ready = self._selector.select(0)
        for key, events in ready:
            if key.fd == self._wakeup:
                is_woken = True
            elif key.fd in self._watched and key.fd not in self._released:
                self._watched[key.fd][0](key.fd, events)
        return is_woken


class Pool:
    """A libcurl multi handle for all transfers with the same `Permit`, and their handles.

    free     idle handles
    handles  libcurl handle -> Handle, for all handles
    active   number of transfers in flight
    """

    def __init__(self, sockets: Sockets) -> None:
        self.free: list[Handle] = []
        self.handles: dict[pycurl.Curl, Handle] = {}
        self.active = 0
        self.multi = pycurl.CurlMulti()
        watch = sockets.watcher(self.multi.socket_action)
        self.multi.setopt(pycurl.M_SOCKETFUNCTION, watch)

    def due(self) -> float | None:
        """Return the seconds until libcurl's next timer, or None without a timer.

        The engine calls this method once per loop, because a timer callback would cost two calls
        per transfer.
        """
        milliseconds = self.multi.timeout() if self.active else -1
        return None if milliseconds < 0 else milliseconds / 1000

    def run_timer(self) -> bool:
        """Run libcurl's timer if it is due; return True if it ran."""
        if not self.active or self.multi.timeout() != 0:
            return False
        self.multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        return True


class Window:
    """A limit on the bytes in flight, and on delivered bytes that the caller has not released.

    limit   maximum bytes, or None for no limit
    head    sequence number of the request whose data is needed next; this request may exceed the
            limit
    held    bytes that currently count toward the limit
    paused  transfers that wait until bytes are released
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = sys.maxsize if limit is None else limit
        self.held = self.head = 0
        self._mean = 0.0  # moving average of object sizes in bytes
        self.paused: list[Handle] = []

    def is_full(self, active: int) -> bool:
        """Return whether one more transfer would probably exceed the limit.

        active  number of transfers in flight
        """
        return self.held + self._mean * active >= self.limit

    def delivered(self, size: int) -> None:
        """Add the size of a delivered object to `held` and to the moving average."""
        self.held += size
        self._mean += (size - self._mean) / 16

    def take(self, handle: Handle, size: int) -> bool:
        """Add `size` bytes of a transfer to `held`, or pause the transfer.

        return  False if the transfer was paused
        """
        request = handle.request
        if self.held + size > self.limit or request.sink is not None:
            if not self._fits(request, size):
                handle.paused_at = time.monotonic()
                self.paused.append(handle)
                return False
            request.unused += size
        self.held += size
        return True

    def _fits(self, request: Request, size: int) -> bool:
        if request.sink is not None:
            return request.unused < request.window
        return self.held + size <= self.limit or request.order <= self.head

    def resume(self, now: float) -> None:
        """Resume the paused transfers that the limit now allows.

        The deadline of each transfer is extended by the duration of its pause.
        """
        for handle in sorted(self.paused, key=lambda one: one.request.order):
            if not self._fits(handle.request, 1):
                continue
            self.paused.remove(handle)
            handle.paused = False
            handle.request.deadline += now - handle.paused_at
            handle.checked_at, handle.checked_bytes = now, handle.got
            # The call fails if the buffered bytes of the transfer exceed a limit; libcurl then ends
            # the transfer with an error.
            with contextlib.suppress(pycurl.error):
                handle.easy.pause(pycurl.PAUSE_CONT)


class Engine:
    """A background thread that runs requests in parallel, and calls `deliver` of each request once.

    limits          limits for the transfers
    ahead_bytes     maximum bytes in flight or not yet released by the caller; None for no limit
    without_length  number of responses without a length; flare cannot detect that such a response
                    is truncated
    """

    def __init__(self, limits: Limits, ahead_bytes: int | None = None) -> None:
        self.limits, self._window = limits, Window(ahead_bytes)
        self.pid, self.without_length = os.getpid(), 0
        self._calls: deque[tuple[Any, Any]] = deque()
        self._is_woken = self._is_closing = False
        self._crash: BaseException | None = None
        self._open: set[Request] = set()
        self._batches = WeakSet[BatchRequest]()  # weak references, because callers own the batches
        self.hosts = HostQueues(limits.per_host)
        self._retries = RetryQueue(limits.retries, self.hosts)
        self._active: set[Handle] = set()
        # Times at which deadlines and speeds were last checked, and at which requests were last
        # started.
        self._checked = self._now = 0.0
        self.idle = defaultdict[Permit, list[Handle]](list)  # handles that `transfer_here` reuses
        self._waker, self._wakeup = socket.socketpair()
        self._waker.setblocking(False)
        self._wakeup.setblocking(False)
        self._sockets = Sockets(self._wakeup.fileno())
        self._pools = dict[Permit, Pool]()
        self._tick_s = min(_TICK_S, limits.timeout_s / 4)
        self._thread = threading.Thread(target=self._run, name="flare-transfers", daemon=True)
        start_thread(self._thread)
        _engines.add(self)

    @property
    def budget_exhausted(self) -> bool:
        """True if a transient error was not retried because the retry budget was used up."""
        return self._retries.budget_exhausted

    # -- called by other threads

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests. `HostQueues.pick` defines the order in which the requests start."""
        self._call(self._queue, list(requests))

    def submit_batch(self, batch: BatchRequest) -> None:
        """Queue the requests of a batch."""
        self._call(self._queue_batch, batch)

    def release(self, size: int, head: int) -> None:
        """Report that the caller released `size` delivered bytes.

        head  sequence number of the request whose data is needed next
        """
        self._call(self._release, (size, head))

    def consumed(self, request: Request, size: int) -> None:
        """Report that the caller used `size` bytes that the request's sink received."""
        self._call(self._consume, (request, size))

    def take_over(self, request: Request, fault: Fault) -> None:
        """Redirect or retry a request after a failed attempt in `transfer_here`.

        If neither is possible, the request ends with the fault, and its `deliver` is called.
        """
        self._call(self._continue, (request, fault))

    def cancel(self, requests: Iterable[Request]) -> None:
        """Drop requests without calling their `deliver`."""
        self._call(self._drop, list(requests))

    def close(self) -> None:
        """End the thread and close its connections.

        The call takes at most one second. Unfinished requests are dropped: the engine does not call
        their `deliver`.
        """
        if self.pid != os.getpid():
            return  # this process is a forked child, and the connections still belong to the parent
        self._is_closing = True
        self._wake()
        self._thread.join(1)  # a name lookup may block the daemon thread for longer
        _engines.discard(self)

    def _call(self, method: Any, argument: Any) -> None:
        self._calls.append((method, argument))
        # The call is queued before `_crash` is checked. If the engine's thread crashes at the same
        # time, either this thread raises the error, or `_run` handles the call.
        if self._crash is not None:
            raise RuntimeError("the transfer thread has crashed") from self._crash
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):
                self._waker.send(b"\0")

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._turn()
        except BaseException as error:  # all requests must fail, because callers wait for outcomes
            self._crash = error
            while self._calls:
                method, argument = self._calls.popleft()
                if method == self._queue:
                    self._open.update(argument)
                elif method == self._queue_batch:
                    self._batches.add(argument)
                elif method == self._continue:
                    self._open.add(argument[0])
            bug = Fault("bug", f"{type(error).__name__}: {error}", error=FlareError)
            for request in list(self._open):
                self._deliver(request, bug)
            for batch in self._batches:
                batch.fail(bug)
        finally:
            self._end()

    def _end(self) -> None:
        for handle in self._active:
            with contextlib.suppress(pycurl.error):
                self._pools[handle.permit].multi.remove_handle(handle.easy)
            handle.easy.close()
        for pool in self._pools.values():
            for handle in pool.free:
                handle.easy.close()
            pool.multi.close()
        self._waker.close()
        self._wakeup.close()

    def _turn(self) -> None:
        """Wait for an event and handle it.

        An event is a call, a finished transfer, a deadline, a retry or a new request.
        """
        if self._sockets.wait(self._timeout(), len(self._active)):
            self._wakeup.recv(64)
            self._is_woken = False
        while self._calls:
            method, argument = self._calls.popleft()
            method(argument)
        now = self._now = time.monotonic()
        for pool in [*self._pools.values()]:
            if pool.active:
                self._collect(pool, now)
        if now - self._checked >= self._tick_s:
            self._checked = now
            self._check(now)
        self._retries.release_due(now)
        self._start(now)
        for pool in [*self._pools.values()]:  # send new requests before the next wait
            if pool.run_timer() and self._collect(pool, now):
                self._start(now)

    def _timeout(self) -> float | None:
        now = time.monotonic()
        # `self._now` is the time at which requests were last started. Hosts whose delay has ended
        # since then must be included.
        times = [self._retries.next_due(), self.hosts.next_due(self._now)]
        if self._active:
            times.append(self._checked + self._tick_s)
        pauses = [max(0.0, due - now) for due in times if due is not None]
        pauses += [pause for pool in self._pools.values() if (pause := pool.due()) is not None]
        return min(pauses, default=None)

    def _queue(self, requests: list[Request]) -> None:
        self._open.update(requests)
        self._retries.request_count += len(requests)
        for request in requests:
            self.hosts.put(request)

    def _queue_batch(self, batch: BatchRequest) -> None:
        self._batches.add(batch)
        self._retries.request_count += self.hosts.put_batch(batch)

    def _continue(self, failed: tuple[Request, Fault]) -> None:
        self._open.add(failed[0])
        self._retries.request_count += 1
        self._failed(*failed, time.monotonic())

    def _release(self, freed: tuple[int, int]) -> None:
        window = self._window
        window.held -= freed[0]
        window.head = max(window.head, freed[1])
        if window.paused:
            window.resume(time.monotonic())

    def _consume(self, consumed: tuple[Request, int]) -> None:
        consumed[0].unused -= consumed[1]
        if self._window.paused:
            self._window.resume(time.monotonic())

    def _drop(self, requests: list[Request]) -> None:
        dropped = {request for request in requests if not request.done}
        for handle in [handle for handle in self._active if handle.request in dropped]:
            self._stop(handle)
        for request in dropped:
            request.cancelled = True
            self._open.discard(request)

    # -- transfers

    def _start(self, now: float) -> None:
        active, window = self._active, self._window
        # Paused transfers are not counted, because they could prevent the request with the lowest
        # sequence number from starting.
        while len(active) - len(window.paused) < self.limits.jobs:
            request = self.hosts.pick(now, window.head if window.is_full(len(active)) else None)
            if request is None:
                if self._displace_paused(now):
                    continue
                return
            if request.cancelled:
                continue
            self._count_attempt(request, now)
            self._begin(request, now)

    def _displace_paused(self, now: float) -> bool:
        """Requeue a paused transfer if the request that is needed next waits for the same host.

        Without this step, the paused transfers of the host would wait for the request, and the
        request would wait for one of the paused transfers.

        return  whether a transfer was requeued
        """
        paused = self._window.paused
        name = self.hosts.blocked_host(now, self._window.head) if paused else None
        if name is None:
            return False
        held = [handle for handle in paused if host_of(handle.request.origin)[0] == name]
        if not held:
            return False
        handle = max(held, key=lambda one: one.request.order)
        request = handle.request
        self._stop(handle)
        self._requeue(request, now)
        return True

    def _count_attempt(self, request: Request, now: float) -> None:
        """Count an attempt of a request.

        The first attempt sets the deadline. The time in the queue after `_requeue` extends the
        deadline.
        """
        if request.requeued_at:
            request.deadline += now - request.requeued_at
            request.requeued_at = 0.0
        request.deadline = request.deadline or now + self.limits.deadline_s
        request.attempts += 1

    def _requeue(self, request: Request, now: float) -> None:
        """Queue a started request again, because the host is at its limit.

        The second start does not count as another attempt.
        """
        request.attempts -= 1
        request.requeued_at = now
        self.hosts.put(request, is_retry=True)

    def _begin(self, request: Request, now: float, fresh: bool = False) -> None:
        permit = request.permit
        pool = self._pools.get(permit)
        if pool is None:
            pool = self._pools[permit] = Pool(self._sockets)
        if pool.free:
            handle = pool.free.pop()
        else:
            handle = Handle(self.limits, permit, self._window)
            pool.handles[handle.easy] = handle
        try:
            handle.begin(request, now, fresh)
        except (pycurl.error, ValueError):  # for example, if the address is several megabytes long
            del pool.handles[handle.easy]
            handle.easy.close()
            self._deliver(request, curl_fault(3))
            return
        self.hosts.count(request.origin, 1)
        self._active.add(handle)
        pool.active += 1
        pool.multi.add_handle(handle.easy)

    def _stop(self, handle: Handle) -> None:
        """End a transfer and free its handle."""
        pool = self._pools[handle.permit]
        pool.multi.remove_handle(handle.easy)
        pool.active -= 1
        self._active.discard(handle)
        if handle.paused:
            self._window.paused.remove(handle)
        self.hosts.count(handle.request.origin, -1)
        self._window.held -= handle.got
        handle.parts = []
        pool.free.append(handle)

    def _collect(self, pool: Pool, now: float) -> bool:
        """Handle all finished transfers of a pool; return False if there were none."""
        waiting, any_ended, handles = 1, False, pool.handles
        while waiting:
            waiting, complete, failed = pool.multi.info_read()
            for easy in complete:
                self._ended(pool, handles[easy], 0, now)
            for easy, code, _ in failed:
                self._ended(pool, handles[easy], code, now)
            any_ended = any_ended or bool(complete or failed)
        return any_ended

    def _ended(self, pool: Pool, handle: Handle, code: int, now: float) -> None:
        request, was_stale = handle.request, code != 0 and handle.was_stale(code)
        fault = handle.finish(code)
        # The success is counted first, because `_stop` removes the state of an idle host.
        if fault is None:
            self._succeeded(request)
        self._stop(handle)
        if fault is None:
            self._deliver(request, None)
        elif was_stale:
            self._begin(request, now, fresh=True)
        else:
            self._failed(request, fault, now)

    def _succeeded(self, request: Request) -> None:
        response = request.response
        if response is not None and response.length is None:
            self.without_length += not response.detects_truncation
        self.hosts.responded(request.origin)
        self.hosts.succeeded(request.origin)

    def _failed(self, request: Request, fault: Fault, now: float) -> None:
        """Redirect or retry a failed request. If neither is possible, end it with the fault."""
        response = request.response
        # A response does not always mean that the host responded, because a proxy may have refused
        # to connect.
        if response is not None and response.status and fault.kind not in UNREACHABLE:
            self.hosts.responded(request.origin)
        if response is not None and response.status in REDIRECTS and response.get("location"):
            self._redirect(request, response.get("location"), now)
        else:
            self._retry(request, fault, now)

    def _redirect(self, request: Request, location: str, now: float) -> None:
        if request.hops >= MAX_REDIRECTS:
            self._deliver(request, Fault("redirect", f"more than {MAX_REDIRECTS} redirects"))
            return
        try:
            request.address = redirected(request.address, location)
        except FlareError as error:
            fault = Fault(
                "unsafe" if error.kind == "unsafe" else "redirect",
                f"redirects to {error.where}: {error.message}",
                hint=error.hint,
                error=type(error),
            )
            self._deliver(request, fault)
            return
        request.hops += 1
        if self.hosts.has_room(request.origin):
            self._begin(request, now)
        else:
            self._requeue(request, now)

    def _retry(self, request: Request, fault: Fault, now: float) -> None:
        if not self._retries.schedule(request, fault, now):
            self._deliver(request, fault)

    def _deliver(self, request: Request, fault: Fault | None) -> None:
        if request.cancelled:
            return
        if request.batch is None:
            self._open.discard(request)
        request.fault, request.done = fault, True
        if fault is None:
            self._window.delivered(len(request.data))
        request.deliver(request)

    def _check(self, now: float) -> None:
        """Stop all transfers that exceed their deadline or are too slow."""
        for handle in [handle for handle in self._active if not handle.paused]:
            if now >= handle.request.deadline:
                # If an earlier attempt failed, its fault is reported instead of the exceeded
                # deadline. Whether a retry exceeds the deadline depends on the random delays.
                self._abort(handle, handle.request.fault or handle.deadline_fault(), now)
            elif now - handle.checked_at >= self.limits.timeout_s:
                if handle.got - handle.checked_bytes < MIN_SPEED * self.limits.timeout_s:
                    self._abort(handle, handle.slow_fault(), now)
                else:
                    handle.checked_at, handle.checked_bytes = now, handle.got

    def _abort(self, handle: Handle, fault: Fault, now: float) -> None:
        request = handle.request
        self._stop(handle)
        self._retry(request, fault, now)


_engines: set[Engine] = set()
_inherited: list[Engine] = []
_shared_lock = threading.Lock()
_shared: dict[Limits, Engine] = {}


def shared(limits: Limits) -> Engine:
    """Return the engine for these limits. All stores of this process share the returned object."""
    with _shared_lock:
        engine = _shared.get(limits)
        if engine is None:
            engine = _shared[limits] = Engine(limits)
        return engine


def transfer_here(request: Request, engine: Engine) -> bool:
    """Run a request in this thread, and call its `deliver`.

    If the transfer fails, the engine takes over the request, and may redirect or retry it.

    return  False if no transfer was started; the caller must then submit the request to the engine
    """
    if threading.current_thread() is threading.main_thread() or engine.hosts.is_overloaded(
        request.origin
    ):
        return False
    limits, permit = engine.limits, request.permit
    free = engine.idle[permit]
    try:
        handle = free.pop()
    except IndexError:
        handle = _blocking_handle(limits, permit)
    now = time.monotonic()
    request.deadline, request.attempts = now + limits.deadline_s, 1
    try:
        handle.begin(request, now)
    except (pycurl.error, ValueError):  # for example, if the address is several megabytes long
        engine.take_over(request, curl_fault(3))
        return True
    code = 0
    try:
        handle.easy.perform()
    except pycurl.error as error:
        code = error.args[0]
    fault = _timeout_fault(handle) if code == pycurl.E_OPERATION_TIMEDOUT else None
    fault = fault or handle.finish(code)
    handle.rest()
    if len(free) < _MAX_IDLE:
        free.append(handle)
    if fault is None:
        engine.hosts.responded(request.origin)
        request.done = True
        request.deliver(request)
    else:
        engine.take_over(request, fault)
    return True


def _blocking_handle(limits: Limits, permit: Permit) -> Handle:
    handle = Handle(limits, permit, Window(None))
    handle.easy.setopt(pycurl.BUFFERSIZE, _BUFFER_BYTES)
    handle.easy.setopt(pycurl.LOW_SPEED_LIMIT, MIN_SPEED)
    handle.easy.setopt(pycurl.LOW_SPEED_TIME, math.ceil(limits.timeout_s))
    handle.easy.setopt(pycurl.TIMEOUT_MS, min(int(1000 * limits.deadline_s), (1 << 31) - 1))
    return handle


def _timeout_fault(handle: Handle) -> Fault | None:
    """Return the fault for a transfer that timed out in libcurl.

    The result is None if the timeout occurred before the connection was established.
    """
    if not handle.easy.getinfo(pycurl.PRETRANSFER_TIME):
        return None
    is_late = time.monotonic() >= handle.request.deadline
    return handle.deadline_fault() if is_late else handle.slow_fault()


def _close_shared() -> None:
    """Close all shared engines; the next request starts a new engine."""
    with _shared_lock:
        engines = [*_shared.values()]
        _shared.clear()
    for engine in engines:
        engine.close()
        for handles in engine.idle.values():
            for handle in handles:
                handle.easy.close()
        engine.idle.clear()


lifetimes.register("http connections", _close_shared)


def _forked() -> None:
    """Drop the engines in a forked child without closing them.

    Closing an engine would end the connections of the parent process.
    """
    global _shared_lock
    _inherited.extend(_engines)
    _engines.clear()
    _shared_lock = threading.Lock()
    _shared.clear()


lifetimes.after_fork(_forked)
