"""Retry policy for transfers: exponential backoff with full jitter, a retry budget per run, and outages of hosts.

Errors of one object count towards its retries and the budget. What concerns the whole host does not use up the budget: an
overloaded host is paused, and one that cannot be reached is retried until its outage has lasted too long.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time

from flarecli.storage.http.request import Request
from flarecli.storage.http.response import UNREACHABLE, Fault
from flarecli.storage.http.scheduler import Hosts

__all__ = ["FIRST_CONTACT_S", "OUTAGE_S", "Tries", "outage_delay"]

BUDGET, BUDGET_SHARE = 100, 0.5  # retries per run: the larger of the two
WAIT_S, LONGEST_S = 0.5, 20.0  # delay before retry n: random in [0, WAIT_S * 2**n]
OVERLOAD_SHARE = 0.1  # of WAIT_S after SlowDown and the like: the pace of the host is lowered, too
RETRY_AFTER_S = 60.0  # upper bound on a server's Retry-After
OUTAGE_S = 90.0  # a host that was reached before is retried for so long
FIRST_CONTACT_S = 8.0  # one that was not, for so long
_OUTAGE_DELAYS_S = (0.25, 5.0)  # shortest and longest delay in an outage


def outage_delay(lasted: float) -> float:
    """Return the delay before the next attempt at a host that has been unreachable for so many seconds."""
    shortest, longest = _OUTAGE_DELAYS_S
    return random.uniform(0.5, 1.0) * min(longest, max(shortest, lasted / 2))


class Tries:
    """Failed requests that wait for their next attempt, each at most `retries` times.

    requests  requests started, retries not counted
    spent     True if a transient error was not retried because the budget was used up
    """

    def __init__(self, retries: int, hosts: Hosts) -> None:
        self._each, self._hosts = retries, hosts
        self._later: list[tuple[float, int, Request]] = []
        self._number = itertools.count()
        self.requests = self._made = 0
        self.spent = False

    def again(self, request: Request, fault: Fault, now: float) -> bool:
        """Schedule a retry and return True, or return False if the error is final.

        An error is final if it is not transient, or if the request has no attempts or time left, or the run no budget.
        """
        if not fault.passing:
            return False
        is_outage = fault.kind in UNREACHABLE and self._hosts.was_reached(request.origin)
        if fault.kind in UNREACHABLE:
            delay = self._unreachable(request, now, is_outage)
        else:
            delay = self._refused(request, fault, now)
        if delay is None or now + delay >= request.deadline:
            return False
        if not fault.crowded and not is_outage:
            if self._made >= max(BUDGET, BUDGET_SHARE * self.requests):
                self.spent = True
                return False
            self._made += 1
        request.address, request.hops = request.asked, 0
        request.fault = fault
        heapq.heappush(self._later, (now + delay, next(self._number), request))
        return True

    def _refused(self, request: Request, fault: Fault, now: float) -> float | None:
        """Return the delay after an answer that is no object, or None if the request has no attempts left."""
        base = WAIT_S * OVERLOAD_SHARE if fault.crowded else WAIT_S
        delay = random.random() * min(LONGEST_S, base * 2**request.attempts)
        answer = request.answer
        asked = None if answer is None else answer.retry_after(time.time())
        if asked is not None:
            delay = min(asked, RETRY_AFTER_S) + delay * (0.5 if asked else 0.1)
        if fault.crowded:
            pause = min(delay, max(0.0, request.deadline - now))
            until = self._hosts.hold_back(request.origin, now, pause)
            if asked is not None and now < until < now + delay:
                # An earlier answer has paused the host already: the server's wish counts once.
                delay = until - now + random.random() * WAIT_S
        return None if request.attempts > self._each else delay

    def _unreachable(self, request: Request, now: float, is_outage: bool) -> float | None:
        """Return the delay after a connection that could not be opened, or None if the host has been tried for too long."""
        since = self._hosts.unreachable(request.origin, now)
        if not self._each:
            return None
        if not is_outage:
            delay = random.random() * min(LONGEST_S, WAIT_S * 2**request.attempts)
            is_over = request.attempts > self._each or now + delay > since + FIRST_CONTACT_S
            return None if is_over else delay
        delay = outage_delay(now - since)
        if now + delay > since + OUTAGE_S:
            return None
        request.attempts -= 1
        self._hosts.pause(request.origin, now + delay)
        return delay

    def put_back(self, now: float) -> None:
        """Queue those whose pause is over."""
        while self._later and self._later[0][0] <= now:
            self._hosts.put(heapq.heappop(self._later)[2], again=True)

    def next_due(self) -> float | None:
        """Give the time when the next pause is over."""
        return self._later[0][0] if self._later else None
