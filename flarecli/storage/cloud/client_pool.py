"""Clients of obstore: opened when they are needed, for each process anew, one way to be let in after another.

What is set where, what they may cost, and an error of ours when they cannot be made. Stores that would open the same client
share one, with its connections: to open one takes as long as a hundred small objects.
"""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from typing import Any, NamedTuple

from flarecli import lifetimes
from flarecli.errors import ReachError
from flarecli.storage.cloud import fork_safety
from flarecli.storage.cloud.credentials import Way, ways
from flarecli.storage.http.retry import FIRST_CONTACT_S, OUTAGE_S
from flarecli.storage.limits import Limits

__all__ = ["Clients"]


class Retry(NamedTuple):
    """How the library retries by itself: at least so many times, for so many seconds."""

    attempts: int
    seconds: float


_HASTY, _PATIENT = Retry(0, FIRST_CONTACT_S), Retry(60, OUTAGE_S)

_CONNECT_S = 10
_MOST = 64  # clients of a process that are kept for whoever would open the same
_shared: dict[tuple[int, bytes], Any] = {}  # by process, and by what a client depends on


def close_shared() -> None:
    """Forget the clients that stores share; each closes when its last user is done with it."""
    with fork_safety.opening:
        for key in [key for key in _shared if key[0] == fork_safety.pid()]:  # not a parent's
            del _shared[key]


lifetimes.register("bucket clients", close_shared)


class Clients:
    """The clients of a bucket, for all threads of a process.

    home       `s3://bucket/`
    anonymous  whether no credentials are used, whatever the environment has
    """

    def __init__(self, home: str, limits: Limits, anonymous: bool = False) -> None:
        self._home, self._limits, self._anonymous = home, limits, anonymous
        self._open: tuple[int, list[tuple[Way, Any]]] = (
            0,
            [],
        )  # of this process; the last one is in use
        self._ways: list[Way] = []

    def current(self) -> tuple[Any, Any]:
        """Give the library and the client of this process. Raises ReachError if what is set cannot be used."""
        library = fork_safety.compiled()
        pid, clients = self._open
        if pid != fork_safety.pid():
            with fork_safety.opening:  # of threads that begin together one opens it for all: it takes as long as a hundred small objects
                pid, clients = self._open
                if pid != fork_safety.pid():
                    fork_safety.inherited.append(
                        clients
                    )  # ending a parent's client could wait for threads that are not here
                    clients = [self._opened(library, 0)]
                    self._open = fork_safety.pid(), clients
        return library, clients[-1][1]

    def otherwise(self, refused: Any) -> bool:
        """Go on to the next way to be let in, after the client `refused` was not; False when there is none."""
        library = fork_safety.compiled()
        with fork_safety.opening:
            _, clients = self._open
            if clients[-1][1] is not refused:
                return True  # another thread has
            for key in [
                key for key, client in _shared.items() if client is refused
            ]:  # what let it in may be renewed
                del _shared[key]
            for i in range(len(clients), len(self._ways)):
                if self.way(i).is_open:
                    clients.append(self._opened(library, i))
                    return True
            return False

    def close(self) -> None:
        """Forget the clients of this bucket; the next call opens one again."""
        with fork_safety.opening:
            if self._open[0] == fork_safety.pid():
                self._open = 0, []

    def way(self, i: int) -> Way:
        """Give one of the ways to be let in. Raises ReachError for settings that are only half there."""
        self._ways = self._ways or ways(self._home.partition(":")[0], anonymous=self._anonymous)
        return self._ways[i]

    @property
    def tried(self) -> list[Way]:
        """The ways tried so far; the last one is in use."""
        return [way for way, _ in self._open[1]]

    def patient(self, library: Any) -> Any:
        """Return a client like the current one that rides out an outage by itself, for calls that cannot be repeated."""
        with fork_safety.opening:
            return self._client_for(library, self.tried[-1], _PATIENT)

    def _opened(self, library: Any, i: int) -> tuple[Way, Any]:
        way = self.way(i)
        return way, self._client_for(library, way, _HASTY)

    def _client_for(self, library: Any, way: Way, retry: Retry) -> Any:
        settings = self._home, sorted(way.config.items()), self._limits, retry
        known = repr((*settings, sorted(os.environ.items())))  # the library looks there itself
        key = fork_safety.pid(), hashlib.sha256(known.encode()).digest()
        if key not in _shared:
            made = _client(library, self._home, way, self._limits, retry)
            own = [
                one for one in _shared if one[0] == fork_safety.pid()
            ]  # ending a parent's client could wait for threads that are not here
            for one in own[: len(own) + 1 - _MOST]:
                del _shared[one]
            _shared[key] = made
        return _shared[key]


def _client(library: Any, home: str, way: Way, limits: Limits, retry: Retry) -> Any:
    """Open a bucket.

    library  obstore's compiled module, as this process has it
    home     `s3://bucket/`
    retry    how the library itself retries
    raises   ReachError if the library does not take what is set; its own words may hold what it could not read
    """
    scheme, _, bucket = home.rstrip("/").partition("://")
    endpoint = str(way.config.get("endpoint") or way.config.get("base_url") or "")
    options = {
        "allow_http": endpoint.startswith("http://")
        or scheme == "az",  # the emulator's is http; a real account's address is https
        "timeout": timedelta(seconds=limits.deadline_s),
        "read_timeout": timedelta(seconds=limits.timeout_s),
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "user_agent": "flare",
        "pool_max_idle_per_host": str(2 * limits.jobs),
    }
    retries = {
        "max_retries": max(limits.retries, retry.attempts) if limits.retries else 0,
        "retry_timeout": timedelta(seconds=min(limits.deadline_s, retry.seconds)),
        "backoff": {
            "init_backoff": timedelta(seconds=0.1),
            "max_backoff": timedelta(seconds=2),
            "base": 2,
        },
    }
    config = {name: value for name, value in way.config.items() if value != ""}
    try:
        return fork_safety.client_classes(library)[scheme](
            bucket, client_options=options, retry_config=retries, **config
        )
    except Exception:
        hint = "Check the variables of the environment, and the files that they name."
        raise ReachError(
            f"what is set cannot be used, tried {way.words}", where=home, hint=hint
        ) from None
