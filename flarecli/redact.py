"""Addresses without secrets, to print and to store."""

from __future__ import annotations

import re

from flarecli.names import is_url

__all__ = ["address_key", "redact", "redact_text", "without_user"]

_URL = r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s\"'<>]*[^\s\"'<>.,:;)\]]"
_BROKEN = "(?i)https?:/?[^/]"  # a scheme without its slashes: who knows where the password is
_SECRET = "(?i)sig|token|secret|passw|pwd|auth|cred|key|session|policy|expires|x-amz|x-goog|^(?:s[aeikprv]|st)$"
_SECRET_PART = "(?i)[a-z-]*(?:sig|token|secret|passw|jwt|hmac|hdn|auth|cred)[a-z-]*="  # a part of a path, as some CDNs sign
_OPAQUE = (
    "abfs",
    "az",
    "file",
    "gcs",
    "gs",
    "hf",
    "memory",
    "oci",
    "oss",
    "s3",
)  # schemes whose paths are taken literally


def without_user(url: str) -> str:
    """Give an address without user info and fragment; as it is, if it is none."""
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def redact(address: str) -> str:
    """Return an address without secrets, to print and to store: no user info, query, fragment or path parameters.

    Nobody can list the names that a token may have, so nothing of a query is kept. Keys of buckets are opaque: of those only a
    query with a secret's name goes.
    """
    shown = address_key(address)
    if shown.partition(":")[0].lower() in _OPAQUE or "://" not in shown:
        return shown
    scheme, _, rest = shown.partition("://")
    host, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
    if ";" in path or "=" in path:
        path = "/".join(
            "…" if re.match(_SECRET_PART, part) else part.partition(";")[0]
            for part in path.split("/")
        )
    return f"{scheme}://{host}{slash}{path}"


def address_key(address: str) -> str:
    """Return what tells one address from another, however it is signed: no user info, no fragment, no query that holds a secret.

    It may hold secrets under names that are not known, so it is compared and never shown.
    """
    if re.match(_BROKEN, address):
        return address.partition(":")[0] + "://…"
    if not is_url(address):
        return address
    from urllib.parse import unquote, urlsplit, urlunsplit

    try:
        parts = urlsplit(address)
        _ = parts.port  # a password with a slash in it ends up there
    except ValueError:
        return address.split("://")[0] + "://…"
    host = parts.netloc.rpartition("@")[2]
    named = (one.partition("=") for one in parts.query.replace(";", "&").split("&"))
    query = (
        "redacted"
        if any(equals and re.search(_SECRET, unquote(name)) for name, equals, _ in named)
        else parts.query
    )
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def redact_text(text: str) -> str:
    """Redact every address inside a text, such as a library's own message."""
    return re.sub(_URL, lambda match: redact(match[0]), text)
