"""Open the store that serves an address: the one module that knows all stores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from flarecli.errors import FlareError, FormatError, UnsafeError, UsageError
from flarecli.names import is_url, local_path, scheme_of
from flarecli.redact import redact
from flarecli.storage.base import Guard, Location

__all__ = ["bucket_in", "bucket_note", "locate", "locate_named", "with_reach"]

BUCKET_SCHEMES = ("s3", "gs", "az")
HOST_SCHEMES = ("ftp", "hdfs", "sftp", "smb", "webdav", "webhdfs")  # their address names a host
MAX_NOTED = 20  # buckets that a note names


def locate(
    address: str, guard: Guard | None = None, unknown: type[FlareError] = UsageError
) -> Location:
    """Return the Location of an address that the user typed: a path, `file://`, `http(s)://`, `s3://`, `gs://`, `az://`, `hf://` and the like.

    The user's own address may be private or a symbolic link; what data names below it may not.

    unknown  the error for a scheme that no store serves: UsageError for what the user typed, UnsafeError for what data names
    raises   UsageError for an invalid address, or `unknown`; MissingLibraryError if the library behind it is not installed
    """
    if not address:
        raise UsageError(
            "an address is empty", hint="Name what to read; `.` is the folder you are in."
        )
    guard = replace(guard or Guard(), locate=locate_named)
    scheme = scheme_of(address)
    if not is_url(address) or scheme == "file":
        from flarecli.storage.local import LocalStore

        return LocalStore.locate(local_path(address), guard)
    return _kept(_remote(scheme, address, guard, unknown), guard)


def locate_named(address: str, guard: Guard, is_remote: bool = False) -> Location:
    """Return the Location of an address with a scheme that data names.

    A web address may be private only if the user allowed it. Buckets are read with the user's credentials, unless
    `is_remote`: the data came over the network.

    raises  UnsafeError for a scheme that no store serves, or a host that the user did not allow; FormatError for an
            invalid web address, or a bucket's address without a bucket
    """
    scheme = scheme_of(address)
    if scheme in ("http", "https"):
        from flarecli.storage.http.store import HttpStore

        return _kept(HttpStore.named_by_data(address, guard), guard)
    if is_remote and scheme in BUCKET_SCHEMES:
        try:
            return locate(address, replace(guard, anonymous=True))
        except UsageError as error:
            raise FormatError(error.message, where=error.place) from None
    if scheme in HOST_SCHEMES:
        from flarecli.storage.http.ip_guard import permits_host

        if not permits_host(address, guard.allow_private, guard.allow_hosts):
            raise UnsafeError(
                f"flare cannot check which address {scheme}:// connects to",
                where=redact(address),
                hint="Give --allow-host with its host and port if you trust what names it.",
            )
    return locate(address, guard, UnsafeError)


def _remote(scheme: str, address: str, guard: Guard, unknown: type[FlareError]) -> Location:
    """Open the one store that serves a scheme; s3fs serves S3 only if FLARE_S3=s3fs is set."""
    if scheme in ("http", "https"):
        from flarecli.storage.http.store import HttpStore

        return HttpStore.locate(address, guard)
    if scheme in ("gs", "az") or (scheme == "s3" and os.environ.get("FLARE_S3", "") != "s3fs"):
        from flarecli.storage.cloud.store import ObjectStore

        return ObjectStore.locate(address, guard)
    from flarecli.storage.fsspec_store import AnyStore

    return AnyStore.locate(address, guard, unknown)


def _kept(at: Location, guard: Guard) -> Location:
    """Put the cache, if there is one, in front of a remote store."""
    return at if guard.keeper is None else replace(at, store=guard.keeper.over(at.store))


def with_reach(
    guard: Guard, allow_host: str | Sequence[str] = (), sources: Sequence[str] = ()
) -> Guard:
    """Return a guard that also allows some hosts, and the origins of web addresses among what the user typed.

    raises  UsageError for a value of `allow_host` that is neither a host nor a network
    """
    if allow_host:
        from flarecli.storage.http.ip_guard import check_hosts

        hosts = dict.fromkeys((*guard.allow_hosts, *check_hosts(allow_host)))
        guard = replace(guard, allow_hosts=tuple(hosts))
    if any("://" in source for source in sources):
        from flarecli.storage.http.ip_guard import typed_origins

        guard = replace(guard, named=guard.named | typed_origins(sources))
    return guard


def bucket_in(url: str) -> str:
    """Return the bucket of an address, such as `s3://bucket`, or the repository of an `hf://` one; else an empty text."""
    scheme = scheme_of(url)
    if scheme in ("", "file", "http", "https"):
        return ""
    parts = redact(url).partition("://")[2].split("/")
    return f"{scheme}://{'/'.join(parts[: 3 if scheme == 'hf' else 1])}"


def bucket_note(by: object, buckets: Sequence[str]) -> str:
    """Return the note on buckets that local data names, and that are read with the user's credentials."""
    more = f" and {len(buckets) - MAX_NOTED} more" if len(buckets) > MAX_NOTED else ""
    return f"{by} names {', '.join(buckets[:MAX_NOTED])}{more}: read with your credentials, if you have any"
