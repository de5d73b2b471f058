"""Small objects of which only one writer may win: written on condition that nobody wrote there since they were read.

Object stores check that themselves (`If-None-Match`, `If-Match`); where one cannot, it is looked before and after, which leaves
a moment in which two writers can both go on until they look the next time.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from typing import NamedTuple

from flarecli.errors import BusyError, MissingError
from flarecli.storage.base import Location
from flarecli.storage.cloud.store import ObjectStore, Unconditional

__all__ = ["Held", "held", "swap"]


class Held(NamedTuple):
    """A small object as it was read: its bytes, and what the store calls this version of it, or nothing."""

    data: bytes
    version: dict[str, str] | None = None


def held(at: Location) -> Held | None:
    """Read a small object as it is now, not as it was; None if nothing is there."""
    try:
        if isinstance(at.store, ObjectStore):
            return Held(*at.store.current(at.path))
        return Held(
            replace(at, store=copy.copy(at.store)).read()
        )  # a copy of a store remembers nothing
    except MissingError:
        return None


def swap(at: Location, data: bytes, old: Held | None) -> Held:
    """Write a small object in the place of `old`, or where nothing is. Raises BusyError if something else is there by now."""
    if isinstance(at.store, ObjectStore):
        with contextlib.suppress(Unconditional):
            try:
                return Held(
                    data,
                    at.store.exchange(at.path, data, None if old is None else old.version or {}),
                )
            except BusyError:
                now = held(at)
                if (
                    now is None or now.data != data
                ):  # else it was our own request, whose answer was lost
                    raise
                return now
    now = held(at)
    if (now and now.data) != (old and old.data):
        raise BusyError("somebody else has written there", where=at)
    at.write([data])
    now = held(at)
    if now is None or now.data != data:
        raise BusyError("somebody else has written there", where=at)
    return now
