"""A file that grows while a pack runs: what was added is safe before the next step counts on it, and a resume cuts off the rest.

On a disk it is the file itself. Nothing can be added to an object in a bucket, so there each addition is an object of its own:

    OUT/.flare/journal/00000.json …        the journal
    OUT/.flare/failed.jsonl/00000.json …   what becomes OUT/failed.jsonl, in one piece, when the pack ends
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Protocol

from flarecli.errors import BusyError, FormatError, MissingError, UsageError
from flarecli.storage import Location, read_each
from flarecli.storage.local import SCRATCH, LocalStore

__all__ = ["Growing", "growing"]

_PIECE = re.compile(r"(\d{1,9})\.json", re.ASCII)
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SIDE_BY_SIDE = 32  # requests for small objects at a time


class Growing(Protocol):
    """Bytes that are added to and never changed; one process at a time holds them.

    size     bytes there
    blocks   gives them, in order
    append   adds some; when it returns they survive a kill
    cut      leaves the first `size` bytes
    publish  makes the whole of it a file under its own name, where it is not one yet
    """

    @property
    def size(self) -> int: ...
    def blocks(self) -> Iterator[bytes]: ...
    def append(self, data: bytes) -> None: ...
    def cut(self, size: int) -> None: ...
    def publish(self) -> None: ...
    def close(self) -> None: ...


def growing(at: Location) -> Growing:
    """Open what grows to the file `at`, which may not be there yet. Raises ReachError if it can't be read."""
    return _OnDisk(at, at.store) if isinstance(at.store, LocalStore) else _InPieces(at)


class _OnDisk:
    def __init__(self, at: Location, store: LocalStore) -> None:
        self._at, self._store = at, store
        self._fd = -1

    @property
    def size(self) -> int:
        return self._at.size() if self._at.exists() else 0

    def blocks(self) -> Iterator[bytes]:
        if self._at.exists():
            yield from self._at.blocks()

    def _open(self) -> None:
        with self._store.opened(self._at.path, _APPEND) as fd:
            self._fd = os.dup(fd)
        self._store.sync_names(os.path.dirname(self._at.path))

    def append(self, data: bytes) -> None:
        if self._fd < 0:
            self._open()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        except OSError as error:
            raise self._store.error(error, self._at.path) from None

    def cut(self, size: int) -> None:
        if not size:
            self.close()
            self._at.delete()
            return
        if self._fd < 0:
            self._open()
        try:
            os.ftruncate(self._fd, size)
            os.fsync(
                self._fd
            )  # nothing may be added, and then what counts on the rest would come first
        except OSError as error:
            raise self._store.error(error, self._at.path) from None

    def publish(self) -> None:
        """It lies under its name from the start."""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _InPieces:
    def __init__(self, at: Location) -> None:
        self._at, self._is_own = at, at.folder.name == SCRATCH
        self._folder = at if self._is_own else at.folder / f"{SCRATCH}/{at.name}"
        self._sizes: list[int] = []
        found = {}
        with contextlib.suppress(MissingError):
            found = {
                int(named[1]): entry
                for entry in self._folder.list()
                if (named := _PIECE.fullmatch(entry.name))
            }
        for number in range(len(found)):
            if number not in found:  # one was lost: what follows it will be noted again
                break
            self._sizes.append(found.pop(number).size)
        self._drop([entry.name for entry in found.values()])

    def _name(self, number: int) -> str:
        return f"{number:05d}.json"

    def _drop(self, names: list[str]) -> None:
        for name in sorted(
            names, reverse=True
        ):  # from the end, so that what a kill leaves is a beginning
            (self._folder / name).delete()

    @property
    def size(self) -> int:
        return sum(self._sizes)

    def blocks(self) -> Iterator[bytes]:
        yield from map(
            bytes,
            read_each([self._folder / self._name(number) for number in range(len(self._sizes))]),
        )

    def append(self, data: bytes) -> None:
        at = self._folder / self._name(len(self._sizes))
        try:
            at.write([data], replace=False)
        except (
            UsageError
        ):  # something is there: our own, of a request whose answer was lost, or another pack's
            if at.read() != data:
                raise BusyError(
                    "another pack writes there",
                    where=at,
                    hint="Stop one of the two, then run this one again with --resume.",
                ) from None
        self._sizes.append(len(data))

    def cut(self, size: int) -> None:
        number, ends = 0, 0
        while number < len(self._sizes) and ends < size:
            ends += self._sizes[number]
            number += 1
        if ends != size:
            raise FormatError(
                "it does not end where the journal says",
                where=self._folder,
                hint="Give --overwrite to begin anew.",
            )
        self._drop([self._name(at) for at in range(number, len(self._sizes))])
        del self._sizes[number:]

    def publish(self) -> None:
        if self._sizes and not self._is_own:
            self._at.write(self.blocks())

    def close(self) -> None:
        """Nothing is open."""
