"""Removal of secrets from addresses that are printed or stored."""

from __future__ import annotations

import re

from flarecli.names import escape, is_url

__all__ = ["one_line", "address_key", "redact", "redact_text", "without_user"]

_URL = r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s\"'<>]*[^\s\"'<>.,:;)\]]"
_BROKEN = "(?i)https?:/?[^/]"  # without `//`, a password can be anywhere in the text
_SECRET = (
    "(?i)sig|token|secret|passw|pwd|auth|cred|key|session|policy|expires|x-amz|x-goog"
    "|^(?:s[aeikprv]|st)$"
)
# some CDNs put signatures into the path
_SECRET_PART = "(?i)[a-z-]*(?:sig|token|secret|passw|jwt|hmac|hdn|auth|cred)[a-z-]*="
# schemes whose paths are object keys, without parameters
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
)


def without_user(url: str) -> str:
    """Return a URL without user info and fragment. Other text is returned unchanged."""
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def redact(address: str) -> str:
    """Return an address without secrets, to print or to store.

    User info, fragment and path parameters are removed. The complete query is removed too, because
    a token may have any name. For object stores, the query remains unless the name of one of its
    parameters suggests a secret, such as `token`; then `redacted` replaces the query.
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
    """Return a key that is equal for two addresses that differ only in their signature.

    The key has no user info and no fragment. If the name of a query parameter suggests a secret,
    such as `token`, `redacted` replaces the complete query. A secret with another name remains in
    the key, so the key must not be printed.
    """
    if re.match(_BROKEN, address):
        return address.partition(":")[0] + "://…"
    if not is_url(address):
        return address
    from urllib.parse import unquote, urlsplit, urlunsplit

    try:
        parts = urlsplit(address)
        _ = parts.port  # raises ValueError for an invalid port, for example a part of a password
    except ValueError:
        return address.split("://")[0] + "://…"
    host = parts.netloc.rpartition("@")[2]
    items = (item.partition("=") for item in parts.query.replace(";", "&").split("&"))
    query = (
        "redacted"
        if any(equals and re.search(_SECRET, unquote(name)) for name, equals, _ in items)
        else parts.query
    )
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def redact_text(text: str) -> str:
    """Return a text, such as a library's message, with every address redacted."""
    return re.sub(_URL, lambda match: redact(match[0]), text)


def one_line(text: str) -> str:
    """Return text as one line, with addresses redacted and control characters escaped."""
    return escape(redact_text(text))
