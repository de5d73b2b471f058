"""Addresses: open the store that serves one, find what matches a pattern, and set what data may reach.

The one module that knows all stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from flarecli.braces import WILDCARDS, compile_pattern, split_pattern
from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.names import is_url, local_path, scheme_of, whole_path
from flarecli.redact import redact
from flarecli.storage.base import MAX_LISTED, Guard, Location, too_many_files

__all__ = ["bucket_in", "bucket_note", "globbed", "locate", "locate_named", "with_reach"]

BUCKET_SCHEMES = ("s3", "gs", "az")
HOST_SCHEMES = ("ftp", "hdfs", "sftp", "smb", "webdav", "webhdfs")  # their address names a host
MAX_NOTED = 20  # buckets that a note names


def locate(
    address: str, guard: Guard | None = None, unknown: type[FlareError] = UsageError
) -> Location:
    """Return the Location of an address that the user typed: a path, `file://`, `http(s)://`, `s3://`, `hf://`, ….

    The address may be private or a symbolic link; addresses that the data below it names may not.

    unknown  the error for a scheme that no store serves
    raises   UsageError for an invalid address, or `unknown`; MissingLibraryError if the library for the scheme is not
             installed
    """
    if not address:
        raise UsageError(
            "the address is empty", hint="Name what to read; `.` is the current folder."
        )
    guard = replace(guard or Guard(), locate=locate_named)
    scheme = scheme_of(address)
    if not is_url(address) or scheme == "file":
        from flarecli.storage.local import LocalStore

        return LocalStore.locate(local_path(address), guard)
    return _cached(_remote(scheme, address, guard, unknown), guard)


def locate_named(address: str, guard: Guard, is_remote: bool = False) -> Location:
    """Return the Location of an address with a scheme that data names.

    A web address may be private only if the guard allows it. Buckets are read with the user's credentials, unless
    `is_remote`: the data came over the network.

    raises  UnsafeError for a scheme that no store serves, or a host that the guard does not allow; FormatError for an
            invalid web address, or the address of a bucket without its name
    """
    scheme = scheme_of(address)
    if scheme in ("http", "https"):
        from flarecli.storage.http.store import HttpStore

        return _cached(HttpStore.named_by_data(address, guard), guard)
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
                hint="Give --allow-host with its host and port if you trust the data that names it.",
            )
    return locate(address, guard, UnsafeError)


def _remote(scheme: str, address: str, guard: Guard, unknown: type[FlareError]) -> Location:
    """Open the store that serves a scheme; s3fs serves S3 only if FLARE_S3=s3fs is set."""
    if scheme in ("http", "https"):
        from flarecli.storage.http.store import HttpStore

        return HttpStore.locate(address, guard)
    if scheme in ("gs", "az") or (scheme == "s3" and os.environ.get("FLARE_S3", "") != "s3fs"):
        from flarecli.storage.cloud.store import ObjectStore

        return ObjectStore.locate(address, guard)
    from flarecli.storage.fsspec_store import FsspecStore

    return FsspecStore.locate(address, guard, unknown)


def _cached(at: Location, guard: Guard) -> Location:
    """Put the cache, if there is one, in front of a remote store."""
    return at if guard.keeper is None else replace(at, store=guard.keeper.over(at.store))


def with_reach(
    guard: Guard, allow_host: str | Sequence[str] = (), sources: Sequence[str] = ()
) -> Guard:
    """Return a guard that also allows some hosts, and the origins of the web addresses among `sources`.

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
    """Return the bucket of an address, such as `s3://bucket`, or the repository of an `hf://` address; else empty."""
    scheme = scheme_of(url)
    if scheme in ("", "file", "http", "https"):
        return ""
    parts = redact(url).partition("://")[2].split("/")
    return f"{scheme}://{'/'.join(parts[: 3 if scheme == 'hf' else 1])}"


def bucket_note(by: object, buckets: Sequence[str]) -> str:
    """Return the note on buckets that local data names, and that are read with the user's credentials."""
    more = f" and {len(buckets) - MAX_NOTED} more" if len(buckets) > MAX_NOTED else ""
    return f"{by} names {', '.join(buckets[:MAX_NOTED])}{more}: read with your credentials, if you have any"


# -- patterns


def globbed(address: str, guard: Guard | None = None) -> list[str]:
    """Return the addresses of the files and folders that match a pattern, in bytewise order.

    A `**` at the end matches files only, and a slash at the end folders only. On a disk, links to folders are followed
    except by `**`. In a bucket, everything below the last folder without a wildcard is listed.

    raises  MissingError if nothing matches; ReachError for a folder that cannot be listed; UsageError for an invalid
            pattern, a wildcard in the name of a bucket, or more than MAX_LISTED files to compare
    """
    is_path = not is_url(address) or scheme_of(address) == "file"
    try:
        head, parts = split_pattern(local_path(address) if is_path else address)
        if is_path:
            matches = _local_matches(head, parts)
        else:
            names = locate(head, guard).matching(parts, folders=True)
            matches = [f"{head}/{name}" for name in names]
    except MissingError as error:
        if is_path:
            raise
        raise MissingError("nothing matches", where=redact(address), hint=error.hint) from None
    except UsageError as error:
        raise error.changed(address=error.address or redact(address)) from None
    if not matches:
        raise MissingError("nothing matches", where=redact(address))
    return sorted(matches, key=os.fsencode)


def _local_matches(head: str, parts: Sequence[str]) -> list[str]:
    """Match a pattern part by part; the paths so far are written as the user would type them."""
    whole_path(head)  # raises an error if the working folder was deleted
    lister = _FolderLister()
    paths: Iterable[str] = [head] if os.path.isdir(head or ".") else []
    for i, part in enumerate(parts):
        is_last = i == len(parts) - 1
        exists = os.path.lexists if is_last and part else os.path.isdir
        if part == "**":
            below = (path for folder in paths for path in lister.below(folder, not is_last))
            paths = dict.fromkeys(below)
        elif any(sign in part for sign in WILDCARDS):
            matches = compile_pattern([part]).fullmatch
            paths = [
                path
                for folder in paths
                for name, path, _ in lister.entries(folder)
                if matches(name) and exists(path)
            ]
        else:
            joined = (os.path.join(folder, part) for folder in paths)
            paths = [path for path in joined if exists(path)]
    return list(paths)


class _FolderLister:
    """Lists folders, up to MAX_LISTED entries in all."""

    def __init__(self) -> None:
        self._count = 0

    def entries(self, folder: str) -> Iterator[tuple[str, str, bool]]:
        """Yield the name and path of each entry, and whether it is a folder and not a link to one."""
        try:
            with os.scandir(folder or ".") as entries:
                for entry in entries:
                    self._count += 1
                    if self._count > MAX_LISTED:
                        raise too_many_files(MAX_LISTED)
                    is_folder = entry.is_dir(follow_symlinks=False)
                    yield entry.name, os.path.join(folder, entry.name), is_folder
        except FileNotFoundError:  # deleted meanwhile
            return
        except OSError as error:
            raise ReachError(
                os.strerror(error.errno or 0).lower(),
                where=folder or ".",
                hint="Name the folders below it without wildcards.",
            ) from None

    def below(self, top: str, folders: bool) -> Iterator[str]:
        """Yield a folder and all folders below it that are not hidden, or the files in them."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            if folders:
                yield folder
            for name, path, is_folder in self.entries(folder):
                if name.startswith("."):
                    continue
                if is_folder:
                    waiting.append(path)
                elif not folders and not os.path.isdir(path):
                    yield path
