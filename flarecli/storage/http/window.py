"""How many bytes may be under way at a time; transfers for which there is no room are paused, and go on when there is."""

from __future__ import annotations

import contextlib
import sys
import time

import pycurl

from flarecli.storage.http.request import Request
from flarecli.storage.http.transfer import Slot

__all__ = ["Window"]


class Window:
    """The bytes of an engine that are under way, or delivered and not yet released.

    most    bytes at a time: more than there can be, if there is no bound. The request whose order is at most `head` is never held up by it
    held    the bytes now
    paused  transfers that wait for room
    """

    def __init__(self, most: int | None) -> None:
        self.most = sys.maxsize if most is None else most
        self.held = self.head = 0
        self._mean = 0.0  # bytes of an object, lately
        self.paused: list[Slot] = []

    def is_full(self, active: int) -> bool:
        """Say whether there is no room for one more transfer beside so many."""
        return self.held + self._mean * active >= self.most

    def delivered(self, size: int) -> None:
        """Count an object that has come whole."""
        self.held += size
        self.met(size)

    def met(self, size: int) -> None:
        """Learn how large objects are."""
        self._mean += (size - self._mean) / 16

    def take(self, slot: Slot, size: int) -> bool:
        """Say whether a transfer may take so many bytes, and count them; else it is paused."""
        request = slot.request
        if self.held + size > self.most or request.sink is not None:  # nearly always it is neither
            if not self._fits(request, size):
                slot.paused_at = time.monotonic()
                self.paused.append(slot)
                return False
            request.unused += size
        self.held += size
        return True

    def _fits(self, request: Request, size: int) -> bool:
        if request.sink is not None:
            return request.unused < request.window
        return self.held + size <= self.most or request.order <= self.head

    def resume(self, now: float) -> None:
        """Let transfers go on for which there is room again; the pause does not count for their deadlines."""
        for slot in sorted(self.paused, key=lambda one: one.request.order):
            if not self._fits(slot.request, 1):
                continue
            self.paused.remove(slot)
            slot.paused = False
            slot.request.deadline += now - slot.paused_at
            slot.marked, slot.mark = now, slot.got
            with contextlib.suppress(
                pycurl.error
            ):  # what it held was too much: the transfer ends, and says so
                slot.easy.pause(pycurl.PAUSE_CONT)
