"""Version pins for remote objects. A pin prevents reads from mixing two versions of an object.

The first response for an object pins its version, and all later responses must have the same
version. If the object changes before any of its data has been returned, it is read again once. Any
later change raises an IntegrityError.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from flarecli.errors import IntegrityError

__all__ = ["NO_PIN", "SETTLED_S", "ObjectPin", "Pins", "changed"]

T = TypeVar("T")
MAX_PINS = 1 << 16  # maximum number of pins per store
# Minimum age of a modification time that identifies a version. A file can change several times
# within one second, and most servers report whole seconds.
SETTLED_S = 60


class ObjectPin(NamedTuple):
    """The version of an object according to a response.

    token      string that changes with the content, such as a strong ETag; empty if the response
               contains none
    size       bytes of the object; -1 if unknown
    is_strong  whether the token or the modification time identifies the version; a modification
               time does so only if it is at least SETTLED_S seconds old
    modified   modification time, compared in addition to the token
    """

    token: str
    size: int
    is_strong: bool = True
    modified: str = ""

    @property
    def version(self) -> str:
        """The version from which the names of cached copies are computed.

        The version is empty if a change of the object could remain undetected.
        """
        return (self.token or self.modified) if self.is_strong else ""

    def differs(self, other: ObjectPin) -> bool:
        """Return whether the versions differ in a field that is set in both."""
        return bool(
            (self.token and other.token and self.token != other.token)
            or (self.modified and other.modified and self.modified != other.modified)
            or (self.size >= 0 and other.size >= 0 and self.size != other.size)
        )


NO_PIN = ObjectPin("", -1, False)


class Pins:
    """An LRU mapping from the path of an object to its pinned version, for one store.

    No lock is used, because single dict operations are atomic, and a fork could copy a lock in its
    locked state.

    show  function that returns the address of a path for messages
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
            with contextlib.suppress(KeyError):  # another thread dropped the pin
                self._pins.move_to_end(path)
        return pin

    def pin(self, path: str, seen: ObjectPin) -> ObjectPin:
        """Pin a version for all threads and return it.

        Raises IntegrityError if a different version is pinned.
        """
        pin = self.check(path, self._pins.setdefault(path, seen), seen)
        while len(self._pins) > MAX_PINS:
            with contextlib.suppress(KeyError):
                self._pins.popitem(last=False)
        return pin

    def check(self, path: str, pin: ObjectPin | None, seen: ObjectPin) -> ObjectPin:
        """Return `pin`, or `seen` if `pin` is None.

        Raises IntegrityError if the two versions differ.
        """
        if pin is None:
            return seen
        if pin.differs(seen):
            raise changed(self._show(path))
        return pin

    def read(self, path: str, read: Callable[[ObjectPin | None], tuple[T, ObjectPin]]) -> T:
        """Call `read`, pin the version of the data, and return the data.

        If the object changed before a pin existed, `read` is called again.

        read  function that takes the pin, or None without a pin, and returns the data and the
              version of the data
        """
        pin = self.get(path)
        try:
            data, seen = read(pin)
        except IntegrityError:
            if pin is not None or path in self._pins:  # data of the pinned version may be in use
                raise
            data, seen = read(None)
        self.pin(path, seen)
        return data

    def drop(self, path: str) -> None:
        """Drop the pin of an object that was written or deleted."""
        self._pins.pop(path, None)

    def clear(self) -> None:
        """Drop all pins."""
        self._pins.clear()


def changed(where: object) -> IntegrityError:
    """Return the error for an object whose version differs from the pin."""
    return IntegrityError(
        "changed while it was being read", where=where, hint="Run the command again."
    )
