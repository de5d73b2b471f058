"""Memory that this process may still fill, as the system and the groups it is in tell."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["spare_memory"]

_NAMES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)  # of the second and the first kind of group


def spare_memory() -> int:
    """Give the bytes that can be had without swapping; what files take in memory counts as free, in a group it does not. 0 where nothing tells."""
    from pathlib import Path

    try:
        text = Path("/proc/meminfo").read_text("ascii")
    except (OSError, ValueError):
        return 0
    found = re.search(r"^MemAvailable: *(\d+) kB", text, re.M)
    return min([int(found[1]) << 10, *_of_groups()]) if found else 0


def _of_groups() -> Iterator[int]:
    for limit, used in _groups():
        try:
            yield max(0, int(limit.read_text("ascii")) - int(used.read_text("ascii")))
        except (OSError, ValueError):  # "max"
            continue


@functools.cache
def _groups() -> tuple[tuple[Path, Path], ...]:
    """Give the files that bound the memory of the groups of this process, from its own up to the root."""
    from pathlib import Path

    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return ()
    out = []
    for line in lines:
        _, kinds, own = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top, names = (
            (Path("/sys/fs/cgroup/memory"), _NAMES[1])
            if kinds
            else (Path("/sys/fs/cgroup"), _NAMES[0])
        )
        group = top / own.lstrip("/")
        for folder in (group, *(one for one in group.parents if one.is_relative_to(top))):
            if (folder / names[0]).exists():
                out.append((folder / names[0], folder / names[1]))
    return tuple(out)
