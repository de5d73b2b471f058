"""What links name that no engine fetches: files beside the index, and objects of buckets, which are read ahead."""

from __future__ import annotations

from concurrent.futures import Future

from flarecli.errors import MissingError, ReachError
from flarecli.storage import Limits, Location
from flarecli.storage.workers import Workers
from flarecli.write.asking import Flaw, Found

__all__ = ["LinkedFiles"]

_OBJECTS = 16  # objects of buckets that are read at a time


class LinkedFiles:
    """Reads files and objects whole; an object that is large waits for its row. `at`: the folder of the index."""

    def __init__(self, at: Location, limits: Limits) -> None:
        self._at, self._limits = at, limits
        self._pool: Workers | None = None

    def read_ahead(self, found: list[Found], begin: int, width: int) -> None:
        """Begin to read the objects of buckets that a row names, and the next few."""
        for place in range(begin, min(begin + max(width, _OBJECTS), len(found))):
            want = found[place]
            if isinstance(want, Location) and not want.is_local:
                self._pool = self._pool or Workers(_OBJECTS, "objects")
                found[place] = self._pool.submit(self._small, want)

    def _small(self, at: Location) -> bytes | Flaw | None:
        """Read an object unless it is large: then its row reads it when it comes."""
        size = _size(at)
        return (
            None
            if self._limits.ahead_bytes // _OBJECTS < size <= self._limits.max_bytes
            else self._whole(at, size)
        )

    def read(self, want: Location | Future[bytes | Flaw | None], text: str) -> bytes | Flaw:
        """Give a file or an object; `text` is what the row calls it."""
        if isinstance(want, Location):
            return self._whole(want)
        found = want.result()
        return self._whole(self._at.join(text)) if found is None else found

    def _whole(self, at: Location, size: int | None = None) -> bytes | Flaw:
        size = _size(at) if size is None else size
        if size > self._limits.max_bytes:
            return Flaw("large", f"larger than the limit of {self._limits.max_bytes} bytes")
        return at.read(0, size)

    def close(self) -> None:
        """Wait for what is being read, and begin no more."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _size(at: Location) -> int:
    """Give the bytes of a file or an object. Where that is refused, a byte of it is asked for: only such an answer says why."""
    try:
        return at.size()
    except MissingError:
        raise
    except ReachError:
        if not at.is_local:
            at.read(0, 1)
        raise
