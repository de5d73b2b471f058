"""The number of CPUs that this process may use."""

from __future__ import annotations

import os

__all__ = ["cpu_count"]


def cpu_count() -> int:
    """Return the number of CPUs that this process may use.

    On systems without CPU affinity (macOS, Windows), this is the number of all CPUs.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
