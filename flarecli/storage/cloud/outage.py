"""Outages of object stores: a call is repeated while its store cannot be reached or asks for fewer requests.

The store's library retries for some seconds by itself; this goes on from there, and only after the store answered once.
"""

from __future__ import annotations

import time

from flarecli.storage.http.retry import OUTAGE_S, outage_delay
from flarecli.storage.limits import Limits

__all__ = ["Outage", "outage_of"]

_REMEMBERED = 1024  # stores
_shared: dict[tuple[str, Limits], Outage] = {}


class Outage:
    """What is known of a store's availability; shared by the threads that call it, which may race without harm."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.was_reached = False
        self._since: float | None = None

    def answered(self) -> None:
        """Note that the store answered."""
        self.was_reached, self._since = True, None

    def wait(self, began: float, is_overload: bool) -> bool:
        """Wait before the next attempt and return True, or return False if the error is final.

        began        when the call was made first, by the monotonic clock
        is_overload  the store answered, and asked for fewer requests
        """
        now = time.monotonic()
        if not (self.was_reached and self._limits.retries):
            return False
        since = began if is_overload else self._since or now
        if not is_overload:
            self._since = since
        delay = outage_delay(now - since)
        if now + delay > min(since + OUTAGE_S, began + self._limits.deadline_s):
            return False
        time.sleep(delay)
        return True


def outage_of(service: str, limits: Limits) -> Outage:
    """Return what this process knows of a service's availability: rows that name one bucket each open a store of their own.

    service  endpoint and bucket
    """
    found = _shared.get((service, limits))
    if found is None:
        if len(_shared) >= _REMEMBERED:
            _shared.clear()
        found = _shared.setdefault((service, limits), Outage(limits))
    return found
