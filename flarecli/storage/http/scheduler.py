"""Which request goes next: by host, so that a slow or crowded one does not hold up the others."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TypeAlias

from flarecli.storage.http.ip_guard import Permit, permit_for
from flarecli.storage.http.request import Request, Wanted

__all__ = ["Hosts"]

_FIRST_S, _LONGEST_S, _EASES = (
    0.02,
    5.0,
    0.9,
)  # between two requests to a crowded host: at first, at most, and what a success makes of it
_REMEMBERED = 1 << 16  # hosts of which it is known whether they answer
_WAVE_S = 1.0  # refusals within so long are one sign of crowding, not many

_Turn: TypeAlias = tuple[
    int, Request | Wanted, int
]  # the order of what waits, and which of many it is


class _Host:
    """Requests to one origin: those that wait, how many are under way, and when the next one may start."""

    __slots__ = ("active", "next_at", "pace", "refused", "served", "waiting", "wave_until")

    def __init__(self) -> None:
        self.waiting: deque[_Turn] = deque()
        self.active, self.next_at, self.pace, self.wave_until = 0, 0.0, 0.0, 0.0
        self.refused = self.served = 0  # answers since the last pause began


class Hosts:
    """The queues of all hosts. One host may get every transfer there is, as long as no other one waits."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._reached: dict[str, None] = {}  # origins that answered, the latest ones
        self._down: dict[str, float] = {}  # origins that cannot be reached, and since when
        self._ready: dict[str, _Host] = {}  # those with requests that wait

    def put(self, request: Request, again: bool = False) -> None:
        """Queue a request behind those of its host; one that is tried `again` goes before them, but for those of lower orders.

        The lowest order always stands first: `pick` looks at no other, and the head of the line may be all that it may take.
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
        """Queue many objects behind those of their hosts, and say how many."""
        count = 0
        for origin, places in wanted.by_origin().items():
            host = self._ready[origin] = self._host(origin)
            host.waiting.extend(zip(map(wanted.first.__add__, places), repeat(wanted), places))
            count += len(places)
        return count

    def pick(self, now: float, head: int | None = None) -> Request | None:
        """Take the request to start: of the host with the fewest under way, and of those the one with the lowest order.

        head  take only a request with an order up to this
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
        """Take the next request of a host whose transfer has just ended, if no other host waits and this one is not crowded."""
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
        """Give the time when the next crowded host with requests may be asked again."""
        due = None
        for host in self._ready.values():
            if host.next_at > now and (due is None or host.next_at < due):
                due = host.next_at
        return due

    def count(self, origin: str, change: int) -> None:
        """Count a transfer that began (1) or ended (-1)."""
        host = self._hosts.get(origin) or self._host(origin)
        host.active += change
        if not (host.active or host.waiting or host.pace or origin in self._down):
            del self._hosts[origin]  # nothing to remember: a run may meet a million hosts

    def hold_back(self, origin: str, now: float, wait: float) -> float:
        """Pause an overloaded host for `wait` seconds; return when the pause is over.

        Answers to requests that were under way together count once: they say the same. Afterwards the host gets requests at
        half the pace if it refused most of them since the last pause; one that refuses some at random is not slowed down further.
        """
        host = self._host(origin)
        host.refused += 1
        if now >= host.wave_until:
            host.next_at = max(host.next_at, now + wait)
            is_most = host.refused > host.served
            host.pace = min(_LONGEST_S, max(_FIRST_S, 2 * host.pace if is_most else 0.0))
            host.refused = host.served = 0
            host.wave_until = now + wait + _WAVE_S
        return host.next_at

    def pause(self, origin: str, until: float) -> None:
        """Start no request to a host before a time."""
        host = self._host(origin)
        host.next_at = max(host.next_at, until)

    def answered(self, origin: str) -> None:
        """Note that a host answered; from any thread."""
        if origin not in self._reached:
            if len(self._reached) >= _REMEMBERED:
                self._reached.clear()
            self._reached[origin] = None
        if self._down.pop(origin, None) is not None:
            host = self._hosts.get(origin)
            if host is not None and not host.pace:
                host.next_at = 0.0

    def was_reached(self, origin: str) -> bool:
        """Return whether a host has answered before."""
        return origin in self._reached

    def unreachable(self, origin: str, now: float) -> float:
        """Note that a host could not be reached; return since when."""
        if len(self._down) >= _REMEMBERED:
            self._down.clear()
        return self._down.setdefault(origin, now)

    def went_well(self, origin: str) -> None:
        """An object came from a host: a crowded one is asked a little faster again."""
        host = self._hosts.get(origin)
        if host is not None and host.pace:
            host.served += 1
            host.pace = host.pace * _EASES if host.pace > _FIRST_S / 4 else 0.0
            if not host.pace:
                host.next_at = 0.0

    def is_crowded(self, origin: str) -> bool:
        """Say whether a host has asked for fewer requests, and not yet shown that it can do with more; from any thread."""
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
