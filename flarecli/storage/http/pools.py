"""libcurl's multi handle and the sockets that it waits for: any number, no polling of those that are quiet."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pycurl

from flarecli.storage.http.ip_guard import Permit
from flarecli.storage.http.transfer import Slot

__all__ = ["Pool", "Sockets"]

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
