"""Request scheduler: a queue per host, and retries with exponential backoff and full jitter.

A slow or overloaded host does not delay other hosts. A retry counts toward the retry limit of its
request and toward the retry budget of the run, with two exceptions. Retries to an overloaded host
do not count toward the budget, and the host is paused. Retries during an outage count toward
neither the limit nor the budget. An outage begins if a host that has responded before becomes
unreachable. If the outage lasts too long, the requests to the host fail.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter, deque
from itertools import repeat
from typing import TypeAlias

from flarecli.storage.http.ip_guard import host_of
from flarecli.storage.http.request import BatchRequest, Request
from flarecli.storage.http.response import UNREACHABLE, Fault

__all__ = ["FIRST_CONTACT_S", "OUTAGE_S", "HostQueues", "RetryQueue", "outage_delay"]

MIN_PACE_S, MAX_PACE_S = 0.02, 5.0  # bounds of the delay between requests to an overloaded host
PACE_FACTOR = 0.9  # each success multiplies the delay between requests by this factor
MAX_HOSTS = 1 << 16  # maximum number of hosts whose state (reached, unreachable) is kept
OVERLOAD_WINDOW_S = 1.0  # within this time after a pause, a refusal causes no further pause

# Retries per run: the larger of 100 and half the number of requests.
MIN_RETRY_BUDGET, RETRY_BUDGET_SHARE = 100, 0.5
# Delay before retry n: random in [0, min(MAX_DELAY_S, BASE_DELAY_S * 2**n)].
BASE_DELAY_S, MAX_DELAY_S = 0.5, 20.0
# After an overload, BASE_DELAY_S is multiplied by this factor, because the pause of the host also
# delays the retry.
OVERLOAD_SHARE = 0.1
MAX_RETRY_AFTER_S = 60.0  # upper bound on a server's Retry-After
OUTAGE_S = 90.0  # maximum time to retry an unreachable host that has responded before
FIRST_CONTACT_S = 8.0  # maximum time to retry an unreachable host that has never responded
_OUTAGE_DELAYS_S = (0.25, 5.0)  # shortest and longest delay between attempts during an outage

# (sequence number as in `Request`, request or batch, position in the batch)
_Turn: TypeAlias = tuple[int, Request | BatchRequest, int]


class _Host:
    """The queued requests of one origin, and the state that decides when the next request starts.

    name    host name without scheme and port
    active  number of requests in flight
    pace    delay in seconds between requests if the host is overloaded, otherwise 0
    """

    __slots__ = ("active", "name", "next_at", "pace", "refused", "served", "waiting", "wave_until")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[_Turn] = deque()
        self.active, self.next_at, self.pace, self.wave_until = 0, 0.0, 0.0, 0.0
        self.refused = self.served = 0  # refusals and successes since the last pause began


class HostQueues:
    """The queues of all hosts. A host may use all transfers as long as no other host has requests.

    per_host  maximum number of transfers from one host name, over all schemes and ports; None for
              no limit
    """

    def __init__(self, per_host: int | None = None) -> None:
        self._per_host = per_host
        # Host name -> number of transfers in flight, if there is a limit.
        self._transfers = Counter[str]()
        self._hosts: dict[str, _Host] = {}
        self._reached: dict[str, None] = {}  # origins that have responded
        self._down: dict[str, float] = {}  # unreachable origin -> time of the first fault
        self._ready: dict[str, _Host] = {}  # hosts with queued requests

    def put(self, request: Request, is_retry: bool = False) -> None:
        """Add a request to the queue of its host.

        A new request is added at the end. A retry is inserted before all requests with a higher
        sequence number. The request with the lowest sequence number must be first, because `pick`
        compares only the first request of each queue.
        """
        host, turn = self._host(request.origin), (request.order, request, 0)
        if is_retry:
            index = next(
                (i for i, other in enumerate(host.waiting) if other[0] >= request.order),
                len(host.waiting),
            )
            host.waiting.insert(index, turn)
        else:
            host.waiting.append(turn)
        self._ready[request.origin] = host

    def put_batch(self, batch: BatchRequest) -> int:
        """Add each request of a batch to the queue of its host; return the number of requests."""
        count = 0
        for origin, indices in batch.by_origin().items():
            host = self._ready[origin] = self._host(origin)
            host.waiting.extend(zip(map(batch.first.__add__, indices), repeat(batch), indices))
            count += len(indices)
        return count

    def pick(self, now: float, head: int | None = None) -> Request | None:
        """Remove and return the request to start next; return None if no request may start now.

        Prefer the host with the fewest requests in flight. If several hosts have equally few,
        prefer the request with the lowest sequence number.

        head  requests with a higher sequence number than `head` may not start; None: no limit
        """
        best, fewest, lowest = None, 0, 0
        is_limited = self._per_host is not None
        for host in self._ready.values():
            order = host.waiting[0][0]
            if host.next_at > now or (head is not None and order > head):
                continue
            if is_limited and self._is_full(host.name):
                continue
            if best is None or host.active < fewest or (host.active == fewest and order < lowest):
                best, fewest, lowest = host, host.active, order
        if best is None:
            return None
        request = _request(best.waiting.popleft())
        if not best.waiting:
            del self._ready[request.origin]
        if best.pace:
            best.next_at = now + best.pace
        return request

    def next_due(self, now: float) -> float | None:
        """Return the earliest time after `now` at which the delay of a host ends, or None."""
        due = None
        for host in self._ready.values():
            if host.next_at > now and (due is None or host.next_at < due):
                due = host.next_at
        return due

    def count(self, origin: str, change: int) -> None:
        """Count a started transfer (`change` is 1) or an ended transfer (-1) of an origin."""
        host = self._hosts.get(origin) or self._host(origin)
        host.active += change
        if self._per_host is not None:
            self._transfers[host.name] += change
            if not self._transfers[host.name]:
                del self._transfers[host.name]
        if not (host.active or host.waiting or host.pace or origin in self._down):
            del self._hosts[origin]  # saves memory, because a run may use a million hosts

    def has_room(self, origin: str) -> bool:
        """Return whether another transfer from the host of an origin may start."""
        return not self._is_full(host_of(origin)[0])

    def blocked_host(self, now: float, head: int) -> str | None:
        """Return the name of a host whose next request must wait, because the host is at its limit.

        head    requests with a higher sequence number than `head` are ignored
        return  None if there is no such host
        """
        for host in self._ready.values() if self._per_host is not None else ():
            if host.waiting[0][0] <= head and host.next_at <= now and self._is_full(host.name):
                return host.name
        return None

    def _is_full(self, name: str) -> bool:
        """Return whether the host with this name has the maximum number of transfers in flight."""
        return self._per_host is not None and self._transfers[name] >= self._per_host

    def slow_down(self, origin: str, now: float, wait: float) -> float:
        """Pause an overloaded host for `wait` seconds; return the end time of the pause.

        Several refusals of requests that were in flight at the same time cause only one pause. If
        the host has refused most requests since the last pause, the delay between requests is
        doubled. Otherwise, the delay is set to MIN_PACE_S.
        """
        host = self._host(origin)
        host.refused += 1
        if now >= host.wave_until:
            host.next_at = max(host.next_at, now + wait)
            is_most = host.refused > host.served
            host.pace = min(MAX_PACE_S, max(MIN_PACE_S, 2 * host.pace if is_most else 0.0))
            host.refused = host.served = 0
            host.wave_until = now + wait + OVERLOAD_WINDOW_S
        return host.next_at

    def pause(self, origin: str, until: float) -> None:
        """Delay all requests to a host until the time `until`."""
        host = self._host(origin)
        host.next_at = max(host.next_at, until)

    def responded(self, origin: str) -> None:
        """Record that a host responded. Thread-safe."""
        if origin not in self._reached:
            if len(self._reached) >= MAX_HOSTS:
                self._reached.clear()
            self._reached[origin] = None
        if self._down.pop(origin, None) is not None:
            host = self._hosts.get(origin)
            if host is not None and not host.pace:
                host.next_at = 0.0

    def was_reached(self, origin: str) -> bool:
        """Return whether a host has responded before."""
        return origin in self._reached

    def unreachable(self, origin: str, now: float) -> float:
        """Record that a host is unreachable; return the time at which the outage began."""
        if len(self._down) >= MAX_HOSTS:
            self._down.clear()
        return self._down.setdefault(origin, now)

    def succeeded(self, origin: str) -> None:
        """Record a success. If the host was overloaded, shorten the delay between its requests."""
        host = self._hosts.get(origin)
        if host is not None and host.pace:
            host.served += 1
            host.pace = host.pace * PACE_FACTOR if host.pace > MIN_PACE_S / 4 else 0.0
            if not host.pace:
                host.next_at = 0.0

    def is_overloaded(self, origin: str) -> bool:
        """Return whether a host is overloaded or unreachable. Thread-safe."""
        host = self._hosts.get(origin)
        return (host is not None and host.pace > 0) or origin in self._down

    def _host(self, origin: str) -> _Host:
        host = self._hosts.get(origin)
        if host is None:
            host = self._hosts[origin] = _Host(host_of(origin)[0])
        return host


def _request(turn: _Turn) -> Request:
    _, request, index = turn
    return request if isinstance(request, Request) else request.request(index)


def outage_delay(lasted: float) -> float:
    """Return the delay in seconds before the next attempt to reach a host.

    lasted  time in seconds since the host became unreachable
    """
    shortest, longest = _OUTAGE_DELAYS_S
    return random.uniform(0.5, 1.0) * min(longest, max(shortest, lasted / 2))


class RetryQueue:
    """A queue of failed requests that wait for their next attempt.

    Each request is retried at most `retries` times; retries during an outage are not counted.

    request_count     number of requests started, without retries
    budget_exhausted  True if a transient error was not retried because the budget was used up
    """

    def __init__(self, retries: int, hosts: HostQueues) -> None:
        self._max_retries, self._hosts = retries, hosts
        self._scheduled: list[tuple[float, int, Request]] = []
        self._number = itertools.count()
        self.request_count = self._retry_count = 0
        self.budget_exhausted = False

    def schedule(self, request: Request, fault: Fault, now: float) -> bool:
        """Schedule a retry and return True, or return False if the fault is final.

        A fault is final if it is not transient, if the request has no attempts or time left, or if
        the retry budget is used up.
        """
        if not fault.is_transient:
            return False
        is_outage = fault.kind in UNREACHABLE and self._hosts.was_reached(request.origin)
        if fault.kind in UNREACHABLE:
            delay = self._delay_if_unreachable(request, now, is_outage)
        else:
            delay = self._delay_after_response(request, fault, now)
        if delay is None or now + delay >= request.deadline:
            return False
        if not fault.is_overload and not is_outage:
            if self._retry_count >= max(MIN_RETRY_BUDGET, RETRY_BUDGET_SHARE * self.request_count):
                self.budget_exhausted = True
                return False
            self._retry_count += 1
        request.address, request.hops = request.original, 0
        request.fault = fault
        heapq.heappush(self._scheduled, (now + delay, next(self._number), request))
        return True

    def _delay_after_response(self, request: Request, fault: Fault, now: float) -> float | None:
        """Return the delay in seconds after an error response; None if no attempts are left."""
        base = BASE_DELAY_S * OVERLOAD_SHARE if fault.is_overload else BASE_DELAY_S
        delay = random.random() * min(MAX_DELAY_S, base * 2**request.attempts)
        response = request.response
        retry_after = None if response is None else response.retry_after(time.time())
        if retry_after is not None:
            delay = min(retry_after, MAX_RETRY_AFTER_S) + delay * (0.5 if retry_after else 0.1)
        if fault.is_overload:
            pause = min(delay, max(0.0, request.deadline - now))
            until = self._hosts.slow_down(request.origin, now, pause)
            if retry_after is not None and now < until < now + delay:
                # An earlier response has already paused the host, so the same Retry-After is not
                # added again.
                delay = until - now + random.random() * BASE_DELAY_S
        return None if request.attempts > self._max_retries else delay

    def _delay_if_unreachable(self, request: Request, now: float, is_outage: bool) -> float | None:
        """Return the delay in seconds after a failed connection.

        The result is None if no attempts are left, or if the outage has lasted too long.
        """
        since = self._hosts.unreachable(request.origin, now)
        if not self._max_retries:
            return None
        if not is_outage:
            delay = random.random() * min(MAX_DELAY_S, BASE_DELAY_S * 2**request.attempts)
            is_over = request.attempts > self._max_retries or now + delay > since + FIRST_CONTACT_S
            return None if is_over else delay
        delay = outage_delay(now - since)
        if now + delay > since + OUTAGE_S:
            return None
        request.attempts -= 1
        self._hosts.pause(request.origin, now + delay)
        return delay

    def release_due(self, now: float) -> None:
        """Put the requests whose delay has ended back into the queues of their hosts."""
        while self._scheduled and self._scheduled[0][0] <= now:
            self._hosts.put(heapq.heappop(self._scheduled)[2], is_retry=True)

    def next_due(self) -> float | None:
        """Return the time at which the next delay ends, or None."""
        return self._scheduled[0][0] if self._scheduled else None
