"""Request scheduler: queues per host, so that a slow or overloaded host does not delay the others."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TypeAlias

from flarecli.storage.http.ip_guard import Permit, permit_for
from flarecli.storage.http.request import Request, Wanted

__all__ = ["Hosts"]

MIN_PACE_S, MAX_PACE_S = 0.02, 5.0  # delay between two requests to an overloaded host
PACE_FACTOR = 0.9  # applied to the delay after each success
MAX_HOSTS = 1 << 16  # hosts whose state (reached, unreachable) is kept
OVERLOAD_WINDOW_S = 1.0  # refusals within this time count as one

# order, request or list of objects, position in the list
_Turn: TypeAlias = tuple[int, Request | Wanted, int]


class _Host:
    """The requests to one origin: the queue, the number in flight, and when the next may start."""

    __slots__ = ("active", "next_at", "pace", "refused", "served", "waiting", "wave_until")

    def __init__(self) -> None:
        self.waiting: deque[_Turn] = deque()
        self.active, self.next_at, self.pace, self.wave_until = 0, 0.0, 0.0, 0.0
        self.refused = self.served = 0  # responses since the last pause began


class Hosts:
    """The queues of all hosts. One host may use all transfers while no other host has requests."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._reached: dict[str, None] = {}  # origins that have responded
        self._down: dict[str, float] = {}  # unreachable origins -> since when
        self._ready: dict[str, _Host] = {}  # hosts with queued requests

    def put(self, request: Request, again: bool = False) -> None:
        """Queue a request after the others of its host; a retry (`again`) goes before them.

        The request with the lowest order stays first, because `pick` compares only the first ones.
        """
        host, turn = self._host(request.origin), (request.order, request, 0)
        if again:
            place = next(
                (i for i, other in enumerate(host.waiting) if other[0] >= request.order),
                len(host.waiting),
            )
            host.waiting.insert(place, turn)
        else:
            host.waiting.append(turn)
        self._ready[request.origin] = host

    def put_all(self, wanted: Wanted) -> int:
        """Queue many objects after the others of their hosts; return how many."""
        count = 0
        for origin, places in wanted.by_origin().items():
            host = self._ready[origin] = self._host(origin)
            host.waiting.extend(zip(map(wanted.first.__add__, places), repeat(wanted), places))
            count += len(places)
        return count

    def pick(self, now: float, head: int | None = None) -> Request | None:
        """Remove and return the request to start next, or None.

        The host with the fewest requests in flight is first, then the lowest order.

        head  highest order that may start
        """
        best, fewest, lowest = None, 0, 0
        for host in self._ready.values():
            order = host.waiting[0][0]
            if host.next_at > now or (head is not None and order > head):
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

    def follow(self, origin: str, permit: Permit) -> Request | None:
        """Return the next request of a host whose transfer has just ended, to reuse its connection.

        None if another host has requests, or if this one is overloaded.
        """
        host = self._ready.get(origin)
        if host is None or host.pace or host.next_at or len(self._ready) > 1:
            return None
        waiting = host.waiting
        what = waiting[0][1]
        if what.cancelled or permit != permit_for(origin, what.named, what.private, what.hosts):
            return None
        turn = waiting.popleft()
        if not waiting:
            del self._ready[origin]
        return _request(turn)

    def next_due(self, now: float) -> float | None:
        """Return when the next overloaded host with queued requests may get one."""
        due = None
        for host in self._ready.values():
            if host.next_at > now and (due is None or host.next_at < due):
                due = host.next_at
        return due

    def count(self, origin: str, change: int) -> None:
        """Count a transfer that started (1) or ended (-1)."""
        host = self._hosts.get(origin) or self._host(origin)
        host.active += change
        if not (host.active or host.waiting or host.pace or origin in self._down):
            del self._hosts[origin]  # a run may use a million hosts

    def hold_back(self, origin: str, now: float, wait: float) -> float:
        """Pause an overloaded host for `wait` seconds; return when the pause is over.

        Refusals of requests that were in flight together count once. If the host refused most
        requests since the last pause, the delay between requests doubles afterwards.
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
        """Start no request to a host before a time."""
        host = self._host(origin)
        host.next_at = max(host.next_at, until)

    def answered(self, origin: str) -> None:
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
        """Record that a host could not be reached; return since when."""
        if len(self._down) >= MAX_HOSTS:
            self._down.clear()
        return self._down.setdefault(origin, now)

    def went_well(self, origin: str) -> None:
        """Record a success: shorten the delay between requests to an overloaded host."""
        host = self._hosts.get(origin)
        if host is not None and host.pace:
            host.served += 1
            host.pace = host.pace * PACE_FACTOR if host.pace > MIN_PACE_S / 4 else 0.0
            if not host.pace:
                host.next_at = 0.0

    def is_crowded(self, origin: str) -> bool:
        """Return whether requests to a host are slowed down, or it is unreachable. Thread-safe."""
        host = self._hosts.get(origin)
        return (host is not None and host.pace > 0) or origin in self._down

    def _host(self, origin: str) -> _Host:
        host = self._hosts.get(origin)
        if host is None:
            host = self._hosts[origin] = _Host()
        return host


def _request(turn: _Turn) -> Request:
    _, what, place = turn
    return what if isinstance(what, Request) else what.request(place)
