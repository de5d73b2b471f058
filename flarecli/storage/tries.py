"""Whether a transfer that failed is tried again: for passing faults only, after a random and growing pause, within a budget for all of a run."""

from __future__ import annotations

import heapq
import itertools
import random
import time

from flarecli.storage.answers import Fault
from flarecli.storage.hosts import Hosts
from flarecli.storage.request import Request

__all__ = ["Tries"]

BUDGET, BUDGET_SHARE = 100, 0.1  # retries of a run: so many, or this share of its requests
WAIT_S, LONGEST_S = 0.5, 20.0  # the pause before a retry is random below WAIT_S * 2^attempts
RETRY_AFTER_S = 60.0  # what a server asks to wait is honoured up to this


class Tries:
    """The requests that wait to be tried again, each at most `retries` times.

    requests  how many there were, retries left out
    spent     whether a passing fault was not tried again for want of budget
    """

    def __init__(self, retries: int, hosts: Hosts) -> None:
        self._each, self._hosts = retries, hosts
        self._later: list[tuple[float, int, Request]] = []
        self._number = itertools.count()
        self.requests = self._made = 0
        self.spent = False

    def again(self, request: Request, fault: Fault, now: float) -> bool:
        """Let a request wait for another try, if that can help and may be done; say so. A crowded host is held back."""
        wait = random.random() * min(LONGEST_S, WAIT_S * 2**request.attempts)
        asked = (
            request.answer.retry_after(time.time())
            if request.answer is not None and fault.passing
            else None
        )
        if asked is not None:
            wait = min(asked, RETRY_AFTER_S) + wait * (0.5 if asked else 0.1)
        if fault.crowded:
            self._hosts.hold_back(request.origin, now, wait)
        if not fault.passing or request.attempts > self._each or now + wait >= request.deadline:
            return False
        if self._made >= max(BUDGET, BUDGET_SHARE * self.requests):
            self.spent = True
            return False
        self._made += 1
        request.address, request.hops = request.asked, 0
        request.fault = fault
        heapq.heappush(self._later, (now + wait, next(self._number), request))
        return True

    def put_back(self, now: float) -> None:
        """Queue those whose pause is over."""
        while self._later and self._later[0][0] <= now:
            self._hosts.put(heapq.heappop(self._later)[2], again=True)

    def next_due(self) -> float | None:
        """Give the time when the next pause is over."""
        return self._later[0][0] if self._later else None
