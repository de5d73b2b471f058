"""How many CPUs this process may use."""

from __future__ import annotations

import os

__all__ = ["cpu_count"]


def cpu_count() -> int:
    """Return the number of CPUs this process may use; where the system has no affinity (macOS, Windows), of all CPUs."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
