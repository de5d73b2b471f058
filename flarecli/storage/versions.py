"""Version pins of remote objects, so that versions are never mixed.

The first response for an object pins its version; all later responses must be of the same version. If an object changes
before any of its data was returned, it is read again, once; otherwise an IntegrityError is raised.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from flarecli.errors import IntegrityError

__all__ = ["NO_PIN", "SETTLED_S", "ObjectPin", "Pins", "changed"]

T = TypeVar("T")
MAX_PINS = 1 << 16  # of each store
SETTLED_S = (
    60  # age at which a modification time identifies a version: most times are whole seconds
)


class ObjectPin(NamedTuple):
    """A version of an object, as far as a response identifies it.

    token      changes with the content, such as a strong ETag; empty if the response has none
    size       bytes of the object; -1 if unknown
    is_strong  whether it identifies the version; a modification time does only if it is SETTLED_S old
    modified   modification time, compared in addition to the token
    """

    token: str
    size: int
    is_strong: bool = True
    modified: str = ""

    @property
    def version(self) -> str:
        """A token for the names of copies, or empty if a change could go unnoticed."""
        return (self.token or self.modified) if self.is_strong else ""

    def differs(self, other: ObjectPin) -> bool:
        """Return whether two responses are of different versions, by the fields that both have."""
        return bool(
            (self.token and other.token and self.token != other.token)
            or (self.modified and other.modified and self.modified != other.modified)
            or (self.size >= 0 and other.size >= 0 and self.size != other.size)
        )


NO_PIN = ObjectPin("", -1, False)


class Pins:
    """The pinned versions of the objects of a store by path; the least recently used ones are dropped.

    Uses no lock, which a fork could copy while it is held: single operations of a dict are atomic.

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
            with contextlib.suppress(KeyError):  # dropped meanwhile
                self._pins.move_to_end(path)
        return pin

    def pin(self, path: str, seen: ObjectPin) -> ObjectPin:
        """Pin a version for all threads and return it. Raises IntegrityError if another version is pinned."""
        pin = self.check(path, self._pins.setdefault(path, seen), seen)
        while len(self._pins) > MAX_PINS:
            with contextlib.suppress(KeyError):
                self._pins.popitem(last=False)
        return pin

    def check(self, path: str, pin: ObjectPin | None, seen: ObjectPin) -> ObjectPin:
        """Return `pin`, or `seen` if it is None. Raises IntegrityError if they differ."""
        if pin is None:
            return seen
        if pin.differs(seen):
            raise changed(self._show(path))
        return pin

    def read(self, path: str, read: Callable[[ObjectPin | None], tuple[T, ObjectPin]]) -> T:
        """Read data of the pinned version, and pin its version.

        read  called with the pin or None; returns the data and its version
        """
        pin = self.get(path)
        try:
            data, seen = read(pin)
        except IntegrityError:
            if pin is not None or path in self._pins:  # data was returned before
                raise
            data, seen = read(None)
        self.pin(path, seen)
        return data

    def drop(self, path: str) -> None:
        """Drop the pin of an object, because it was written or deleted."""
        self._pins.pop(path, None)

    def clear(self) -> None:
        """Drop all pins."""
        self._pins.clear()


def changed(where: object) -> IntegrityError:
    """Return the error for an object that is not of the pinned version."""
    return IntegrityError("changed while it was read", where=where, hint="Run the command again.")
