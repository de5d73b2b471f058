"""Addresses of objects: scheme, bucket and key; and the addresses that data in an object may name.

A key is opaque: `%20`, `?` and `#` in it are themselves. What a playlist or an index names is a plain path below its own
folder, an object of a bucket by its whole address, or an http(s) address; anything else only the user may name.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from flarecli.errors import UnsafeError, UsageError
from flarecli.names import bare, check_name, is_url, scheme_of
from flarecli.redact import redact
from flarecli.storage.base import Guard, Location, Store

__all__ = ["Object", "check_key", "parse_address", "resolve", "user_info"]

_ALLOW = "Give --allow-local to read it, if you trust this dataset."


class Object(NamedTuple):
    """An object's address: `s3`, the bucket, the key."""

    scheme: str
    bucket: str
    key: str


def parse_address(address: str) -> Object:
    """Parse `SCHEME://BUCKET/KEY`; the key is not decoded, slashes at its end are dropped.

    raises  UsageError for an address without a bucket, or with user info: secrets belong in the environment
    """
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    shown = redact(address)
    if "@" in bucket:
        raise UsageError(
            "the address holds user info",
            where=f"{scheme}://…",
            hint="Give credentials in the environment, such as AWS_ACCESS_KEY_ID.",
        )
    if not bucket or not bucket.isprintable() or any(sign in bucket for sign in "?#%\\ :"):
        raise UsageError(
            "the address names no bucket",
            where=shown,
            hint=f"Write it like {scheme}://bucket/folder.",
        )
    return Object(scheme.lower(), bucket, key.strip("/"))


def resolve(store: Store, home: str, path: str, url: str, guard: Guard) -> Location:
    """Resolve an address that data in the folder `path` names.

    home    the address of everything that this store holds, such as `s3://bucket/`
    Another bucket is read without credentials: what came over the network must not use them where it likes.

    raises  UnsafeError for `file://`, another store, or a path out of the folder, unless the guard allows it
    """
    where = store.show(path)
    scheme = scheme_of(url)
    if scheme in ("http", "https"):
        return guard.locate(url, guard)
    if is_url(url):
        own = url.partition("://")[0].lower() + url[len(scheme) :]
        if own.startswith(home) and own != home:
            return Location(store, check_key(own[len(home) :], where))
        if scheme in ("s3", "gs", "az"):
            return guard.locate(url, guard, is_remote=True)
        if not guard.allow_local:
            what = (
                "file:// in what came over the network"
                if scheme == "file"
                else f"{redact(url)} is not in {home.rstrip('/')}"
            )
            raise UnsafeError(what, where=where, hint=_ALLOW)
        return guard.locate(url, guard)
    if guard.allow_local and (url.startswith("/") or ".." in url.split("/")):
        return Location(store, posixpath.normpath(posixpath.join("/", path, url)).lstrip("/"))
    return Location(store, store.child(path, check_name(bare(url), where=where)))


def check_key(key: str, where: str) -> str:
    """Return a key that data names, if it is a plain path. Raises UnsafeError."""
    return check_name(key, where=where)


def user_info(address: str) -> str:
    """Return the `name:password` of an address, or an empty text."""
    return address.partition("://")[2].partition("/")[0].rpartition("@")[0]
