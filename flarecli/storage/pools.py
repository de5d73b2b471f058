"""libcurl's multi handle, driven by a selector: any number of sockets, no polling of those that are quiet."""

from __future__ import annotations

import contextlib
import selectors
import time
from typing import Any

import pycurl

from flarecli.storage.slots import Slot

__all__ = ["Pool"]


class Pool:
    """A multi handle with its connections, its idle slots, and the time when it wants to be called."""

    def __init__(self, permitted: bool, selector: selectors.BaseSelector) -> None:
        self.permitted, self._selector = permitted, selector
        self.due: float | None = None
        self.free: list[Slot] = []
        self.multi = pycurl.CurlMulti()
        self.multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self.multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)

    def _set_timer(self, milliseconds: int) -> None:
        self.due = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def _watch(self, what: int, fd: int, multi: Any, data: Any) -> None:
        events = (selectors.EVENT_READ if what & pycurl.POLL_IN else 0) | (selectors.EVENT_WRITE if what & pycurl.POLL_OUT else 0)
        if what == pycurl.POLL_REMOVE or not events:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(fd)
            return
        try:
            self._selector.modify(fd, events, self)
        except KeyError:
            self._selector.register(fd, events, self)

    def act(self, fd: int, events: int) -> None:
        """Tell libcurl that a socket is ready."""
        ready = (pycurl.CSELECT_IN if events & selectors.EVENT_READ else 0) | (pycurl.CSELECT_OUT if events & selectors.EVENT_WRITE else 0)
        self.multi.socket_action(fd, ready)

    def tick(self, now: float) -> None:
        """Let libcurl do what it wanted to do by now."""
        if self.due is not None and self.due <= now:
            self.due = None
            self.multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
