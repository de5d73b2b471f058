"""What a cache holds, for whoever asks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from flarecli.cache.entries import NAME, read_note
from flarecli.cache.folder import LAYOUT
from flarecli.errors import ReachError

__all__ = ["Kept", "kept"]


class Kept(NamedTuple):
    """A copy in a cache: the address without secrets, what of it, its bytes, and the seconds since it was last used."""

    address: str
    part: str
    size: int
    idle_s: float


def kept(path: str) -> Iterator[Kept]:
    """Give every copy in a cache's folder, in no order; nothing where there is none.

    raises  ReachError for a folder that cannot be looked at
    """
    try:
        folder = os.open(
            os.path.join(path, LAYOUT), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except FileNotFoundError:
        return
    except OSError as error:
        raise ReachError(
            error.strerror or str(error),
            where=path,
            hint="Name a folder that was given as --cache before.",
        ) from None
    try:
        now = time.time()
        for name in os.listdir(folder):
            if not NAME.fullmatch(name):
                continue
            with contextlib.suppress(OSError):
                note = read_note(folder, name)
                idle = max(0.0, now - os.stat(name, dir_fd=folder).st_mtime)
                yield Kept(
                    str(note.get("address", "?")),
                    str(note.get("part", "?")),
                    int(name.partition("-")[2], 16),
                    idle,
                )
    finally:
        os.close(folder)
