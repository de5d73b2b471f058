"""Files that keep their own names in a folder, such as the shards in the local folder of a streamed
dataset: their size, and which leave first.

The files are the truth, as in `folder`; nothing else is stored. A process lists a folder again only
when the folder's modification time is not the one that the process's own last change left, so a
folder of many files is not listed for each file that is added.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["BATCH_SHARE", "MANY", "NamedFiles", "coldest_first"]

MANY = 512  # above this number of copies, listings are avoided
BATCH_SHARE = 32  # with many copies, limit / BATCH_SHARE bytes are evicted at a time

T = TypeVar("T", str, int)


def coldest_first(copies: Iterable[tuple[float, T, int]]) -> list[tuple[float, T, int]]:
    """Sort copies (time of use, name, bytes) by time of use; a time in the future is from a wrong
    clock and counts as the oldest.
    """
    now = time.time()
    return sorted((used if used <= now + 1 else 0.0, name, size) for used, name, size in copies)


class NamedFiles:
    """The files of one folder that count, as this process sees them; others in the folder are
    ignored.

    sizes  name -> bytes as listed by the dataset that the files belong to
    """

    def __init__(self, path: str, sizes: Mapping[str, int]) -> None:
        self._path, self._sizes = path, sizes
        self._used, self._changed = 0, -1

    def used(self) -> int:
        """Return the bytes of the files that are in the folder, by their listed sizes."""
        changed = self._stamp()
        if changed != self._changed:
            names = os.listdir(self._path) if changed else []
            self._used, self._changed = sum(self._sizes.get(name, 0) for name in names), changed
        return self._used

    def present(self, names: Iterable[str]) -> int:
        """Return the bytes of those of these files that are in the folder, by their listed sizes."""
        return sum(
            self._sizes[name] for name in names if os.path.exists(os.path.join(self._path, name))
        )

    @contextmanager
    def changing(self, names: Iterable[str]) -> Iterator[None]:
        """Add or remove these files inside the block, so that the folder need not be listed for it."""
        names = list(names)
        rest = self.used() - self.present(names)
        yield
        self._used, self._changed = rest + self.present(names), self._stamp()

    def copies(self) -> list[tuple[float, str, int]]:
        """List the files that are in the folder: time of use, name, bytes."""
        found = []
        changed = self._stamp()
        if changed:
            with os.scandir(self._path) as files:
                for file in files:
                    if file.name in self._sizes:
                        try:
                            used = file.stat(follow_symlinks=False).st_mtime
                        except FileNotFoundError:
                            continue
                        found.append((used, file.name, self._sizes[file.name]))
        self._used, self._changed = sum(size for _, _, size in found), changed
        return found

    def _stamp(self) -> int:
        """Return the folder's modification time in ns; 0 if there is no folder."""
        try:
            return os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return 0
