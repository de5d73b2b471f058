"""Clients of obstore: what is set where, what they may cost, and an error of ours when they cannot be made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flarecli.errors import ReachError
from flarecli.storage.credentials import Way
from flarecli.storage.limits import Limits

__all__ = ["client"]

_KINDS = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_CONNECT_S = 10


def client(library: Any, home: str, way: Way, limits: Limits) -> Any:
    """Open a bucket.

    library  obstore's compiled module, as this process has it
    home     `s3://bucket/`
    raises   ReachError if the library does not take what is set; its own words may hold what it could not read
    """
    scheme, _, bucket = home.rstrip("/").partition("://")
    endpoint = str(way.config.get("endpoint") or way.config.get("base_url") or "")
    options = {
        "allow_http": endpoint.startswith("http://") or scheme == "az",  # the emulator's is http; a real account's address is https
        "timeout": timedelta(seconds=limits.deadline_s),
        "read_timeout": timedelta(seconds=limits.timeout_s),
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "user_agent": "flare",
        "pool_max_idle_per_host": str(2 * limits.jobs),
    }
    retries = {"max_retries": limits.retries, "retry_timeout": timedelta(seconds=limits.deadline_s)}
    config = {name: value for name, value in way.config.items() if value != ""}
    try:
        return getattr(library._store, _KINDS[scheme])(bucket, client_options=options, retry_config=retries, **config)
    except Exception:
        hint = "Check the variables of the environment, and the files that they name."
        raise ReachError(f"what is set cannot be used, tried {way.words}", where=home, hint=hint) from None
