"""Open addresses, and find the files that match an address pattern.

This is the only module that imports all stores.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
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
from flarecli.storage.base import (
    BUCKET_SCHEMES,
    HOST_SCHEMES,
    MAX_LISTED,
    Guard,
    Location,
    too_many_files,
)

__all__ = [
    "STDIN",
    "bucket_in",
    "bucket_note",
    "globbed",
    "is_stdin",
    "is_stream",
    "locate",
    "stream_name",
    "with_reach",
]

STDIN = "-"
_STDIN = r"-|/dev/stdin|(?:/dev|/proc/self)/fd/0"
_DESCRIPTOR = r"(?:/dev|/proc/self)/fd/\d+"
MAX_NOTED = 20  # maximum number of buckets in a note


def locate(
    address: str, guard: Guard | None = None, unknown: type[FlareError] = UsageError
) -> Location:
    """Return the Location for an address that the user typed.

    The address is a path or a URL such as `file://…`, `https://…`, `s3://…` or `hf://…`. Private
    addresses and symbolic links are allowed. (In data, both need the permission of the guard.)

    unknown  exception class for an unsupported scheme
    raises   UsageError for an invalid address; `unknown` for an unsupported scheme;
             MissingLibraryError if the library for the scheme is not installed
    """
    if not address:
        raise UsageError(
            "the address is empty", hint="Pass a path or an address; `.` is the current folder."
        )
    guard = replace(guard or Guard(), locate=locate_named)
    scheme = scheme_of(address)
    if not is_url(address) or scheme == "file":
        from flarecli.storage.local import LocalStore

        return LocalStore.locate(local_path(address), guard)
    return _cached(_remote(scheme, address, guard, unknown), guard)


def locate_named(address: str, guard: Guard, is_remote: bool = False) -> Location:
    """Return the Location for an address that was found in data and has a scheme.

    A web address may be private only if the guard allows private addresses. Buckets in local data
    are read with the user's credentials.

    is_remote  whether the data came over the network; if so, buckets are read without credentials
    raises     UnsafeError for an unsupported scheme, or a host that the guard forbids; FormatError
               for an invalid web address, or a bucket address without a bucket name
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
                f"flare cannot check which IP address the {scheme}:// client connects to",
                where=redact(address),
                hint="Pass --allow-host with the host and port, if you trust the data.",
            )
    return locate(address, guard, UnsafeError)


def _remote(scheme: str, address: str, guard: Guard, unknown: type[FlareError]) -> Location:
    """Open the store for a remote address. S3 uses s3fs only if FLARE_S3=s3fs is set."""
    if scheme in ("http", "https"):
        from flarecli.storage.http.store import HttpStore

        return HttpStore.locate(address, guard)
    if scheme in ("gs", "az") or (scheme == "s3" and os.environ.get("FLARE_S3", "") != "s3fs"):
        from flarecli.storage.cloud.store import ObjectStore

        return ObjectStore.locate(address, guard)
    from flarecli.storage.fsspec_store import FsspecStore

    return FsspecStore.locate(address, guard, unknown)


def _cached(at: Location, guard: Guard) -> Location:
    """Return a location that is read through the guard's cache; without a cache, return `at`."""
    return at if guard.keeper is None else replace(at, store=guard.keeper.over(at.store))


def with_reach(
    guard: Guard, allow_host: str | Sequence[str] = (), sources: Sequence[str] = ()
) -> Guard:
    """Return a guard that also allows more hosts and origins.

    allow_host  values of `--allow-host`
    sources     addresses that the user typed; the origins of web addresses are allowed
    raises      UsageError for a value in `allow_host` that is neither a host nor a network
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
    """Return the bucket or the Hugging Face repository in an address, such as `s3://bucket`.

    The result is empty for a path or a web address.
    """
    scheme = scheme_of(url)
    if scheme in ("", "file", "http", "https"):
        return ""
    parts = redact(url).partition("://")[2].split("/")
    return f"{scheme}://{'/'.join(parts[: 3 if scheme == 'hf' else 1])}"


def bucket_note(by: object, buckets: Sequence[str]) -> str:
    """Return a note about the buckets to which local data refers.

    These buckets are read with the user's credentials.

    by  the table or file that refers to the buckets
    """
    more = f" and {len(buckets) - MAX_NOTED} more" if len(buckets) > MAX_NOTED else ""
    return f"{by} refers to {', '.join(buckets[:MAX_NOTED])}{more}: read with your credentials, if you have any"


# -- streams


def is_stdin(address: str) -> bool:
    """Return whether an address from the user is standard input."""
    return re.fullmatch(_STDIN, address) is not None


def is_stream(address: str) -> bool:
    """Return whether an address from the user is a stream.

    A stream is standard input, a descriptor such as /dev/fd/3, or a FIFO.
    """
    if is_stdin(address) or re.fullmatch(_DESCRIPTOR, address):
        return True
    if is_url(address) and scheme_of(address) != "file":
        return False
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISFIFO(os.stat(local_path(address)).st_mode)
    return False


def stream_name(address: str) -> str:
    """Return the address of a source as it is recorded in outputs.

    Standard input and file descriptors are recorded as `-`, because the number of a descriptor may
    differ in each run. Other addresses are returned unchanged.
    """
    return STDIN if is_stdin(address) or re.fullmatch(_DESCRIPTOR, address) else address


# -- patterns


def globbed(address: str, guard: Guard | None = None) -> list[str]:
    """Return the addresses of the files and folders that match a pattern, in bytewise order.

    A trailing `**` matches only files, and a trailing slash matches only folders. On a disk, all
    wildcards except `**` follow links to folders. In a bucket, all files below the folder before
    the first wildcard are listed.

    raises  MissingError if there is no match; ReachError for a folder that cannot be listed;
            UsageError for an invalid pattern, a wildcard in a bucket name, or more than MAX_LISTED
            files to compare
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
        raise MissingError("no matches found", where=redact(address), hint=error.hint) from None
    except UsageError as error:
        raise error.changed(address=error.address or redact(address)) from None
    if not matches:
        raise MissingError("no matches found", where=redact(address))
    return sorted(matches, key=os.fsencode)


def _local_matches(head: str, parts: Sequence[str]) -> list[str]:
    """Return the local paths that match a pattern.

    head  the path before the first wildcard, as the user typed it; each result starts with it
    """
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
    """A folder lister that raises UsageError after MAX_LISTED entries in total."""

    def __init__(self) -> None:
        self._count = 0

    def entries(self, folder: str) -> Iterator[tuple[str, str, bool]]:
        """Yield the name and path of each entry, and whether the entry is a folder.

        A link to a folder does not count as a folder. Raises ReachError if the folder cannot be
        listed.
        """
        try:
            with os.scandir(folder or ".") as entries:
                for entry in entries:
                    self._count += 1
                    if self._count > MAX_LISTED:
                        raise too_many_files(MAX_LISTED)
                    is_folder = entry.is_dir(follow_symlinks=False)
                    yield entry.name, os.path.join(folder, entry.name), is_folder
        except FileNotFoundError:  # the folder was deleted in the meantime
            return
        except OSError as error:
            raise ReachError(
                os.strerror(error.errno or 0).lower(),
                where=folder or ".",
                hint="Replace the wildcard with the names of the folders.",
            ) from None

    def below(self, top: str, folders: bool) -> Iterator[str]:
        """Yield a folder and all folders below it, or all files in these folders.

        Hidden files and folders are skipped.

        folders  whether to yield the folders instead of the files
        """
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
