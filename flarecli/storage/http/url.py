"""Strict parser for http(s) addresses.

libcurl receives an address that is built from the parsed fields, so that libcurl's parser cannot
extract a different host.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urljoin

from flarecli.errors import FormatError, UnsafeError
from flarecli.redact import redact

__all__ = [
    "DEFAULT_PORTS",
    "Address",
    "folder_of",
    "join",
    "parse",
    "redirected",
]

DEFAULT_PORTS = {"http": 80, "https": 443}
_PARTS = re.compile(
    r"(https?)://(?:([^@/?#]*)@)?([^/?#@]*?)(?::(\d{0,5}))?(?:([/?][^#]*))?(?:#.*)?",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._-]{0,252}[a-z0-9_.])?", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_UNQUOTED = re.compile(r"[^!#-;=?-\[\]_a-z~]")  # characters to quote in a path or query
_SAFE = "/%:=&?~#+!$,;'@()*[]"
_SAFE_USER = "%:=&~+!$,;'()*"


class Address(NamedTuple):
    """A parsed http(s) address.

    url     `scheme://host[:port]/path?query` for the request: percent-encoded, without user info
            or fragment
    origin  `scheme://host:port`, always with a port; permits and credentials are valid for one
            origin
    user    `name:password`, percent-encoded, or empty
    """

    url: str
    origin: str
    user: str


def parse(url: str) -> Address:
    """Parse an http(s) address.

    raises  UnsafeError for a scheme other than http(s); FormatError for an invalid address
    """
    url = url.strip(" ")
    match = _PARTS.fullmatch(url)
    if match is None or _CONTROL.search(url) or (match[2] and _CONTROL.search(unquote(match[2]))):
        raise _invalid(url)
    scheme, user, host, port, path = match.groups()
    try:
        start, origin = _server(scheme.lower(), host, port)
    except FormatError as error:
        raise FormatError(error.message, where=_shown(url)) from None
    if not path:
        path = "/"
    elif path[0] != "/":
        path = "/" + path
    if _UNQUOTED.search(path):
        path = quote(path, safe=_SAFE, errors="surrogatepass")
    return Address(
        start + path, origin, quote(user, safe=_SAFE_USER, errors="surrogatepass") if user else ""
    )


@functools.lru_cache(maxsize=4096)
def _server(scheme: str, host: str, port: str | None) -> tuple[str, str]:
    """Return the start of a URL, `scheme://host[:port]`, and the origin.

    The start of the URL omits the default port. The origin always contains a port.
    """
    start = f"{scheme}://{_host(host)}"
    number = int(port) if port else DEFAULT_PORTS[scheme]
    if not 0 < number < 65536:
        raise FormatError("the address has an invalid port")
    origin = f"{start}:{number}"
    return start if number == DEFAULT_PORTS[scheme] else origin, origin


def _invalid(url: str) -> UnsafeError | FormatError:
    """Return the error for an invalid http(s) address."""
    scheme = _SCHEME.match(url)
    if _CONTROL.search(unquote(url)):
        return FormatError("the address contains a control character", where=_shown(url))
    if scheme and scheme[0][:-1].lower() not in DEFAULT_PORTS:
        return UnsafeError(
            f"the scheme {scheme[0][:-1].lower()[:20]!r} is not supported",
            where=_shown(url),
            hint="Use an http or https address.",
        )
    return FormatError("not an http or https address", where=_shown(url))


def _host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            host = ""
        if host and "%" not in host:  # a zone after `%` names a network interface of this machine
            return host
    elif not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            host = ""
    host = host.lower()
    if not _HOST.fullmatch(host):
        raise FormatError("the address has no valid host")
    return host


def _shown(url: str) -> str:
    shown = redact(url)
    return shown if len(shown) <= 200 else f"{shown[:199]}…"


def join(base: str, url: str) -> str:
    """Resolve a reference against the address of the file that contains it (RFC 3986, section 5).

    The user info of `base` is kept only if the reference contains no host. Raises FormatError for
    an invalid reference.
    """
    if _CONTROL.search(url):  # urljoin would drop control characters silently
        raise FormatError("the address contains a control character", where=_shown(url))
    url = url.strip(" ")
    if _SCHEME.match(url):
        return url  # urljoin would resolve `http:g` and `http:///g` as relative references
    try:
        return urljoin(base, url)
    except ValueError:  # an unpaired bracket, or characters that NFKC changes to slashes
        raise FormatError("the address has no valid host", where=_shown(url)) from None


def redirected(before: Address, location: str) -> Address:
    """Return the target of a redirect. User info is kept only if the origin is the same.

    location  value of the Location header, decoded as Latin-1
    raises    UnsafeError for a scheme other than http(s); FormatError for an invalid address
    """
    target = parse(
        join(before.url, _NOT_ASCII.sub(lambda match: f"%{ord(match[0]):02X}", location))
    )
    if target.origin == before.origin and not target.user:
        return target._replace(user=before.user)
    return target


def folder_of(url: str) -> str:
    """Return the folder of an address, without a query and without a trailing slash."""
    return url.partition("?")[0].partition("#")[0].rpartition("/")[0]
