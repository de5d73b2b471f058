"""Which request goes next: by host, so that a slow or crowded one does not hold up the others."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flarecli.storage.slots import Request

__all__ = ["Hosts"]


class _Host:
    """Requests to one origin: those that wait, how many are under way and may be, and until when it wants rest."""

    __slots__ = ("active", "most", "rest_until", "waiting")

    def __init__(self, most: int) -> None:
        self.waiting: deque[Request] = deque()
        self.active, self.most, self.rest_until = 0, float(most), 0.0


class Hosts:
    """The queues of all hosts. `jobs` is the most that one host gets, when no other one waits."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._hosts: dict[str, _Host] = {}
        self._ready: dict[str, _Host] = {}  # those with requests that wait

    def put(self, request: Request, again: bool = False) -> None:
        """Queue a request behind those of its host; one that is tried `again` goes before them."""
        host = self._host(request.address.origin)
        if again:
            host.waiting.appendleft(request)
        else:
            host.waiting.append(request)
        self._ready[request.address.origin] = host

    def pick(self, now: float, head: int | None = None) -> Request | None:
        """Take the request to start: of the host with the fewest under way, and of those the one with the lowest order.

        head  take only a request with an order up to this
        """
        best, least = "", (1 << 62, 1 << 62)
        for origin, host in self._ready.items():
            order = host.waiting[0].order
            if host.rest_until > now or (head is not None and order > head):
                continue
            if host.active >= host.most and head is None:
                continue
            if (host.active, order) < least:
                best, least = origin, (host.active, order)
                if not host.active and len(self._ready) > self._jobs:
                    break  # many hosts: the first idle one will do
        if not best:
            return None
        host = self._ready[best]
        request = host.waiting.popleft()
        if not host.waiting:
            del self._ready[best]
        return request

    def next_due(self, now: float) -> float | None:
        """Give the time when the next resting host with requests may be asked again."""
        return min((host.rest_until for host in self._ready.values() if host.rest_until > now), default=None)

    def count(self, origin: str, change: int) -> None:
        """Count a transfer that began (1) or ended (-1)."""
        host = self._host(origin)
        host.active += change
        if not host.active and not host.waiting and host.most >= self._jobs:
            del self._hosts[origin]  # nothing to remember: a run may meet a million hosts

    def hold_back(self, origin: str, until: float) -> None:
        """A host is crowded: nothing more before `until`, and then half as many at a time."""
        host = self._host(origin)
        host.rest_until = max(host.rest_until, until)
        host.most = max(1.0, min(host.most, host.active + 1) / 2)

    def went_well(self, origin: str) -> None:
        """An object came from a host: a crowded one gets a little more again."""
        host = self._hosts.get(origin)
        if host is not None and host.most < self._jobs:
            host.most = min(float(self._jobs), host.most + 1 / host.most)

    def _host(self, origin: str) -> _Host:
        host = self._hosts.get(origin)
        if host is None:
            host = self._hosts[origin] = _Host(self._jobs)
        return host
