"""What a transfer may cost, at most."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of transfers; each has its option on the command line.

    jobs         transfers at a time
    retries      how often a transient error of one object is retried
    timeout_s    a transfer that brings less than 1 kB/s over so long has failed
    deadline_s   the whole object, with redirects, retries and the waits between them
    max_bytes    an object larger than this fails
    ahead_bytes  what may be fetched or under way before it is used; one object larger than that still passes, alone
    """

    jobs: int = 32
    retries: int = 8
    timeout_s: float = 30.0
    deadline_s: float = 600.0
    max_bytes: int = 10**9
    ahead_bytes: int = 64 << 20
