"""The short way from one object of many to the next: on the same handle, where an answer was a plain one and nothing is to be decided.

So it is for nearly all that an index names on one server, and each object's share of the engine is then what this loop does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pycurl

from flarecli.storage.http.pools import Pool
from flarecli.storage.http.scheduler import Hosts
from flarecli.storage.http.window import Window
from flarecli.storage.limits import Limits

__all__ = ["Lane"]


class Lane:
    """Delivers plain objects of many, and lets their handles go on."""

    def __init__(self, limits: Limits, window: Window, hosts: Hosts) -> None:
        self._limits, self._window, self._hosts = limits, window, hosts

    def follow(
        self, pool: Pool, whole: Sequence[pycurl.Curl], active: int, now: float
    ) -> Iterable[pycurl.Curl]:
        """Let the handles go on to whose objects others follow at once. Give those that are left: nothing was done about them.

        whole   handles whose transfers have ended well
        active  transfers under way, these among them
        """
        window, alone = self._window, self._hosts.alone()
        if alone is None or window.paused or window.is_full(active) or active > self._limits.jobs:
            return whole
        origin, waiting = alone
        if whole:
            self._hosts.answered(origin)
        slots, add, remove, deadline = (
            pool.slots,
            pool.add,
            pool.remove,
            now + self._limits.deadline_s,
        )
        left = []
        for easy in whole:
            slot = slots[easy]
            request = slot.request
            wanted = request.wanted
            if (
                not slot.plain
                or not waiting
                or waiting[0][1] is not wanted
                or request.origin != origin
                or request.was_redirected
                or wanted.users
            ):
                left.append(easy)
                continue
            order, _, place = waiting[0]
            url = wanted.urls[place]
            try:
                slot.set(pycurl.URL, url)
            except (pycurl.error, ValueError):  # an address of many megabytes, say
                left.append(easy)
                continue
            waiting.popleft()
            remove(easy)
            parts, at = slot.parts, request.place
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            window.met(len(body))
            wanted.found[at] = body
            if at == wanted.awaited:
                wanted.arrived()
            request.url, request.place, request.order = url, place, order
            request.attempts, request.deadline, request.fault = 1, deadline, None
            slot.clear(now)
            add(easy)
        if not waiting:
            self._hosts.ran_out(origin)
        return left
