"""Clients of obstore, with a fallback to the next credential source, and retries during outages.

Each process opens its clients on first use. Stores with the same configuration share a client and
its connections, because opening a client takes as long as about a hundred small requests.
"""

from __future__ import annotations

import hashlib
import os
import time
from datetime import timedelta
from typing import Any, NamedTuple

from flarecli import lifetimes
from flarecli.errors import ReachError
from flarecli.storage.base import Limits
from flarecli.storage.cloud import fork_safety
from flarecli.storage.cloud.credentials import CredentialSource, credential_sources
from flarecli.storage.http.scheduler import FIRST_CONTACT_S, OUTAGE_S, outage_delay

__all__ = ["MAX_REPEAT_S", "Clients", "Outage", "outage_of"]


class Retry(NamedTuple):
    """The retry settings of obstore.

    attempts  minimum number of retries, unless the user disabled retries
    seconds   maximum time from the first attempt to the last
    """

    attempts: int
    seconds: float


_SHORT_RETRY, _OUTAGE_RETRY = Retry(0, FIRST_CONTACT_S), Retry(60, OUTAGE_S)
_CONNECT_S = 10
_MAX_BACKOFF_S = 2
# Maximum time from the start of a call until its last request is sent: the time until the last
# attempt (`Outage.wait`), plus the time for the retries by obstore within this attempt. A lock in a
# bucket expires later (`DEAD_S` in write/bucket_target.py), so that the previous owner sends no
# request after a takeover of the lock.
MAX_REPEAT_S = OUTAGE_S + FIRST_CONTACT_S + _MAX_BACKOFF_S + _CONNECT_S
MAX_CLIENTS = 64  # maximum number of shared clients per process
MAX_OUTAGES = 1024  # maximum number of services whose availability is recorded
_shared: dict[tuple[int, bytes], Any] = {}  # (process id, digest of the configuration) -> client
_outages: dict[tuple[str, int, float], Outage] = {}


def close_shared() -> None:
    """Drop the shared clients. A client is closed as soon as no store uses the client."""
    with fork_safety.opening:
        # Clients that were inherited from a parent process are not dropped, because closing them in
        # this process could block.
        for key in [key for key in _shared if key[0] == fork_safety.pid()]:
            del _shared[key]


lifetimes.register("bucket clients", close_shared)


class Clients:
    """The clients for a bucket, shared by all threads of a process.

    home       address of the bucket, such as `s3://bucket/`
    anonymous  whether to ignore the credentials in the environment
    """

    def __init__(self, home: str, limits: Limits, anonymous: bool = False) -> None:
        self._home, self._limits, self._anonymous = home, limits, anonymous
        # Process id, and the clients that this process opened; the last client is in use.
        self._open: tuple[int, list[tuple[CredentialSource, Any]]] = (0, [])
        self._sources: list[CredentialSource] = []

    def current(self) -> tuple[Any, Any]:
        """Return the library and the client of this process.

        Raises ReachError for invalid settings.
        """
        library = fork_safety.compiled()
        pid, clients = self._open
        if pid != fork_safety.pid():
            with fork_safety.opening:  # one thread opens the client for all threads
                pid, clients = self._open
                if pid != fork_safety.pid():
                    # A client of the parent is kept open, because closing it could wait for threads
                    # that do not exist in this process.
                    fork_safety.inherited.append(clients)
                    clients = [self._opened(library, 0)]
                    self._open = fork_safety.pid(), clients
        return library, clients[-1][1]

    def use_next_source(self, denied: Any) -> bool:
        """Switch to the next credential source after a client was denied access.

        denied  the client that was denied access; if another thread has already replaced this
                client, nothing changes
        return  False if there are no more sources
        """
        library = fork_safety.compiled()
        with fork_safety.opening:
            _, clients = self._open
            if clients[-1][1] is not denied:
                return True  # another thread has already switched
            # Stores that are opened later must not share the client whose access was denied. They
            # read the credentials of this source again, because the user may have renewed them.
            for key in [key for key, client in _shared.items() if client is denied]:
                del _shared[key]
            for i in range(len(clients), len(self._sources)):
                if self.source(i).is_open:
                    clients.append(self._opened(library, i))
                    return True
            return False

    def close(self) -> None:
        """Drop the clients of this bucket; the next call opens a new client."""
        with fork_safety.opening:
            if self._open[0] == fork_safety.pid():
                self._open = 0, []

    def source(self, i: int) -> CredentialSource:
        """Return the credential source at index `i`. Raises ReachError for incomplete settings."""
        if not self._sources:
            scheme = self._home.partition(":")[0]
            self._sources = credential_sources(scheme, anonymous=self._anonymous)
        return self._sources[i]

    @property
    def tried(self) -> list[CredentialSource]:
        """The credential sources that were tried; the last source is in use."""
        return [source for source, _ in self._open[1]]

    def outage_client(self, library: Any) -> Any:
        """Return a client that itself retries during an outage.

        This client is for calls that flare cannot repeat.
        """
        with fork_safety.opening:
            return self._client_for(library, self.tried[-1], _OUTAGE_RETRY)

    def _opened(self, library: Any, i: int) -> tuple[CredentialSource, Any]:
        source = self.source(i)
        return source, self._client_for(library, source, _SHORT_RETRY)

    def _client_for(self, library: Any, source: CredentialSource, retry: Retry) -> Any:
        # The environment is part of the key, because the library also reads environment variables.
        settings = (
            self._home,
            sorted(source.config.items()),
            self._limits,
            retry,
            sorted(os.environ.items()),
        )
        key = fork_safety.pid(), hashlib.sha256(repr(settings).encode()).digest()
        if key not in _shared:
            client = _client(library, self._home, source, self._limits, retry)
            # Only clients of this process are dropped. Closing a client that was inherited from the
            # parent process could wait for threads that do not exist in this process.
            own = [one for one in _shared if one[0] == fork_safety.pid()]
            for one in own[: len(own) + 1 - MAX_CLIENTS]:
                del _shared[one]
            _shared[key] = client
        return _shared[key]


def _client(library: Any, home: str, source: CredentialSource, limits: Limits, retry: Retry) -> Any:
    """Open a client for a bucket.

    library  the copy of obstore's compiled module that this process loaded
    home     address of the bucket, such as `s3://bucket/`
    retry    retry settings of obstore
    raises   ReachError if obstore rejects the settings; the error omits obstore's message, because
             the message may contain secrets
    """
    scheme, _, bucket = home.rstrip("/").partition("://")
    endpoint = str(source.config.get("endpoint") or source.config.get("base_url") or "")
    options = {
        # The Azure emulator uses http; the endpoints of real accounts always use https.
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
            "max_backoff": timedelta(seconds=_MAX_BACKOFF_S),
            "base": 2,
        },
    }
    config = {name: value for name, value in source.config.items() if value != ""}
    try:
        return fork_safety.client_classes(library)[scheme](
            bucket, client_options=options, retry_config=retries, **config
        )
    except Exception:
        raise ReachError(
            f"invalid settings for access {source.name}",
            where=home,
            hint="Check the environment variables, and the files to which they refer.",
        ) from None


class Outage:
    """The availability of a service, shared by all threads. Races between threads are harmless.

    obstore itself retries for several seconds. After that, `wait` allows more attempts if the
    service has responded before.

    retries     maximum number of retries by obstore; if it is 0, `wait` allows no more attempts
    deadline_s  maximum time from the first attempt to the last
    """

    def __init__(self, retries: int, deadline_s: float) -> None:
        self._retries, self._deadline_s = retries, deadline_s
        self.was_reached = False
        self._since: float | None = None

    def responded(self) -> None:
        """Record that the service responded."""
        self.was_reached, self._since = True, None

    def wait(self, began: float, is_overload: bool) -> bool:
        """Wait before the next attempt and return True, or return False if the error is final.

        began        monotonic time of the first attempt
        is_overload  whether the service responded that it is overloaded
        """
        now = time.monotonic()
        if not (self.was_reached and self._retries):
            return False
        since = began if is_overload else self._since or now
        if not is_overload:
            self._since = since
        delay = outage_delay(now - since)
        # `since` may be later than `began`, because it is reset when another call succeeds
        stop = min(since + OUTAGE_S, began + min(OUTAGE_S, self._deadline_s))
        if now + delay > stop:
            return False
        time.sleep(delay)
        return time.monotonic() <= stop  # the process may have been suspended for longer


def outage_of(service: str, limits: Limits) -> Outage:
    """Return the availability of a service. All stores of this process share the returned object.

    service  endpoint and bucket
    """
    key = service, limits.retries, limits.deadline_s
    if key not in _outages and len(_outages) >= MAX_OUTAGES:
        _outages.clear()
    return _outages.setdefault(key, Outage(limits.retries, limits.deadline_s))
