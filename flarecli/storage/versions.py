"""Pin the version of a remote object, so that no two versions are ever mixed.

The first response about an object pins its version; every later one must be of the same. An object that changes while
nothing of it was returned yet is read again, once; otherwise that is an IntegrityError.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from flarecli.errors import IntegrityError

__all__ = ["NO_PIN", "SETTLED_S", "ObjectPin", "Pins", "changed"]

T = TypeVar("T")
MAX_PINS = 1 << 16  # per store
SETTLED_S = 60  # a modification time this old distinguishes versions: most are in whole seconds


class ObjectPin(NamedTuple):
    """One version of an object, as far as a response identifies it.

    token      changes with the content, such as a strong ETag; empty if the response has none
    size       bytes of the object; -1 if the response does not say
    is_strong  whether any later change would be seen: a modification time is not, until it is old enough
    modified   modification time, compared where a response has no token
    """

    token: str
    size: int
    is_strong: bool = True
    modified: str = ""

    @property
    def version(self) -> str:
        """A token to name copies by, or empty if a change could go unnoticed."""
        return (self.token or self.modified) if self.is_strong else ""

    def differs(self, other: ObjectPin) -> bool:
        """Return whether two responses are of different versions, by everything that both of them say."""
        return bool(
            (self.token and other.token and self.token != other.token)
            or (self.modified and other.modified and self.modified != other.modified)
            or (self.size >= 0 and other.size >= 0 and self.size != other.size)
        )


NO_PIN = ObjectPin("", -1, False)


class Pins:
    """The pinned versions of a store's objects by path; the least recently used are forgotten.

    Takes no lock, which a fork could copy while it is held: single operations of a dict are atomic.

    show  returns the address of a path for messages
    """

    def __init__(self, show: Callable[[str], str]) -> None:
        self._show = show
        self._pins: OrderedDict[str, ObjectPin] = OrderedDict()

    def __contains__(self, path: str) -> bool:
        return path in self._pins

    def get(self, path: str) -> ObjectPin | None:
        """Return the pinned version of an object, or None."""
        pin = self._pins.get(path)
        if pin is not None:
            with contextlib.suppress(KeyError):  # forgotten meanwhile
                self._pins.move_to_end(path)
        return pin

    def pin(self, path: str, seen: ObjectPin) -> ObjectPin:
        """Pin a version, for all threads; return the pinned one. Raises IntegrityError if another one is pinned."""
        pin = self.check(path, self._pins.setdefault(path, seen), seen)
        while len(self._pins) > MAX_PINS:
            with contextlib.suppress(KeyError):
                self._pins.popitem(last=False)
        return pin

    def check(self, path: str, pin: ObjectPin | None, seen: ObjectPin) -> ObjectPin:
        """Return the pin, or what was seen if there is none. Raises IntegrityError if they differ."""
        if pin is None:
            return seen
        if pin.differs(seen):
            raise changed(self._show(path))
        return pin

    def read(self, path: str, read: Callable[[ObjectPin | None], tuple[T, ObjectPin]]) -> T:
        """Read at the pinned version, and pin what was read.

        read  gets the pin, or None, and returns the data and the version that it is of
        """
        pin = self.get(path)
        try:
            data, seen = read(pin)
        except IntegrityError:
            if pin is not None or path in self._pins:  # something was returned before
                raise
            data, seen = read(None)
        self.pin(path, seen)
        return data

    def drop(self, path: str) -> None:
        """Forget the version of an object, which was written or deleted."""
        self._pins.pop(path, None)

    def clear(self) -> None:
        """Forget all versions."""
        self._pins.clear()


def changed(where: object) -> IntegrityError:
    """Return the error of an object that is not the version that was read before."""
    return IntegrityError("changed while it was read", where=where, hint="Run the command again.")
