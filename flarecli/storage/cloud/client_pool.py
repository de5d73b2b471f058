"""Clients of obstore: opened on first use in each process, with one credential source after
another.

Stores with the same configuration share a client and its connections, because opening a client
takes as long as about a hundred small requests.
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
    """Retries by the library itself: minimum attempts, and the time limit in seconds."""

    attempts: int
    seconds: float


_HASTY, _PATIENT = Retry(0, FIRST_CONTACT_S), Retry(60, OUTAGE_S)

_CONNECT_S = 10
MAX_CLIENTS = 64  # shared clients per process
_shared: dict[tuple[int, bytes], Any] = {}  # (process id, digest of the configuration) -> client


def close_shared() -> None:
    """Drop the shared clients; each closes when its last user releases it."""
    with fork_safety.opening:
        for key in [key for key in _shared if key[0] == fork_safety.pid()]:  # not a parent's
            del _shared[key]


lifetimes.register("bucket clients", close_shared)


class Clients:
    """The clients of a bucket, for all threads of a process.

    home       `s3://bucket/`
    anonymous  use no credentials, even if the environment has some
    """

    def __init__(self, home: str, limits: Limits, anonymous: bool = False) -> None:
        self._home, self._limits, self._anonymous = home, limits, anonymous
        # Process id and the clients opened there; the last one is in use.
        self._open: tuple[int, list[tuple[Way, Any]]] = (0, [])
        self._ways: list[Way] = []

    def current(self) -> tuple[Any, Any]:
        """Return the library and the client of this process.

        Raises ReachError for invalid settings.
        """
        library = fork_safety.compiled()
        pid, clients = self._open
        if pid != fork_safety.pid():
            with fork_safety.opening:  # one thread opens the client for all
                pid, clients = self._open
                if pid != fork_safety.pid():
                    # Closing a client of the parent could wait for threads that do not exist here.
                    fork_safety.inherited.append(clients)
                    clients = [self._opened(library, 0)]
                    self._open = fork_safety.pid(), clients
        return library, clients[-1][1]

    def otherwise(self, refused: Any) -> bool:
        """Switch to the next credential source after `refused` was denied; False if there is none."""
        library = fork_safety.compiled()
        with fork_safety.opening:
            _, clients = self._open
            if clients[-1][1] is not refused:
                return True  # another thread has switched
            # Not shared any longer: its credentials may be renewed later.
            for key in [key for key, client in _shared.items() if client is refused]:
                del _shared[key]
            for i in range(len(clients), len(self._ways)):
                if self.way(i).is_open:
                    clients.append(self._opened(library, i))
                    return True
            return False

    def close(self) -> None:
        """Drop the clients of this bucket; the next call opens one again."""
        with fork_safety.opening:
            if self._open[0] == fork_safety.pid():
                self._open = 0, []

    def way(self, i: int) -> Way:
        """Return credential source number `i`. Raises ReachError for incomplete settings."""
        self._ways = self._ways or ways(self._home.partition(":")[0], anonymous=self._anonymous)
        return self._ways[i]

    @property
    def tried(self) -> list[Way]:
        """The credential sources tried so far; the last one is in use."""
        return [way for way, _ in self._open[1]]

    def patient(self, library: Any) -> Any:
        """Return a client that retries during an outage by itself, for calls that cannot be
        repeated.
        """
        with fork_safety.opening:
            return self._client_for(library, self.tried[-1], _PATIENT)

    def _opened(self, library: Any, i: int) -> tuple[Way, Any]:
        way = self.way(i)
        return way, self._client_for(library, way, _HASTY)

    def _client_for(self, library: Any, way: Way, retry: Retry) -> Any:
        settings = self._home, sorted(way.config.items()), self._limits, retry
        # the library reads the environment itself
        known = repr((*settings, sorted(os.environ.items())))
        key = fork_safety.pid(), hashlib.sha256(known.encode()).digest()
        if key not in _shared:
            made = _client(library, self._home, way, self._limits, retry)
            # Closing a client of the parent could wait for threads that do not exist here.
            own = [one for one in _shared if one[0] == fork_safety.pid()]
            for one in own[: len(own) + 1 - MAX_CLIENTS]:
                del _shared[one]
            _shared[key] = made
        return _shared[key]


def _client(library: Any, home: str, way: Way, limits: Limits, retry: Retry) -> Any:
    """Open a bucket.

    library  obstore's compiled module, as this process has it
    home     `s3://bucket/`
    retry    how the library itself retries
    raises   ReachError if the library rejects the settings; its message may contain secrets, so
             it is not shown
    """
    scheme, _, bucket = home.rstrip("/").partition("://")
    endpoint = str(way.config.get("endpoint") or way.config.get("base_url") or "")
    options = {
        # The Azure emulator uses http; the address of a real account is https.
        "allow_http": endpoint.startswith("http://") or scheme == "az",
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
        hint = "Check the environment variables and the files that they name."
        raise ReachError(
            f"what is set cannot be used, tried {way.words}", where=home, hint=hint
        ) from None
