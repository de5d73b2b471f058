"""Which objects a cache's folder has copies of, by what its names begin with."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from flarecli.cache.entries import NAME, PLACE

__all__ = ["Places", "listing"]

_NAMES = (
    1 << 12
)  # from so many files on, looking at all names costs more than asking a server for a version
_BELIEVED_S = 0.25  # how long a listing is believed by a process that is alone at the folder


class Places:
    """The places of copies, as a listing says. This process tells when it adds one; others that come meanwhile cost a fetch at worst."""

    def __init__(self) -> None:
        self._known: set[str] | None = None
        self._listed = 0.0
        self._changes = 0
        self._lock = threading.Lock()

    def added(self, place: str) -> None:
        """Say that there is a copy more: to list all names again for each would cost more than the copy, where there are thousands."""
        with self._lock:
            self._changes += 1
            if self._known is not None:
                self._known.add(place[:PLACE])

    def may_hold(self, folder: int, place: str, is_alone: bool) -> bool:
        """Say whether there may be a copy, of whatever version, whose name begins so. `folder` is open."""
        with self._lock:
            before = self._changes
            if (
                is_alone
                and self._known is not None
                and time.monotonic() - self._listed < _BELIEVED_S
            ):
                return place[:PLACE] in self._known
        listed = time.monotonic()
        try:
            with listing(folder) as own:
                names = os.listdir(own)
        except OSError:
            return True
        if len(names) > _NAMES:
            return True
        known = {name[:PLACE] for name in names if NAME.fullmatch(name)}
        with self._lock:
            if before == self._changes:  # else it may miss what came meanwhile
                self._known, self._listed = known, listed
            return place[:PLACE] in known


@contextlib.contextmanager
def listing(folder: int) -> Iterator[int]:
    """Open an open folder once more, to list it: two listings by one handle share its place, and each would miss what the other was given."""
    own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield own
    finally:
        os.close(own)
