"""Parse http(s) addresses that data names, strictly.

libcurl gets the address put together again from its parsed parts, so that no two parsers can disagree about a host.
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
_USUAL = re.compile(
    r"(https?://[a-z0-9.-]+(?::\d{1,5})?)(/[!$-;=?-\[\]_a-z~]*)", re.ASCII
)  # what most are: nothing to put otherwise
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._-]{0,252}[a-z0-9_.])?", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_UNQUOTED = re.compile(r"[^!#-;=?-\[\]_a-z~]")  # what may not stand in a path or query as it is
_SAFE = "/%:=&?~#+!$,;'@()*[]"
_SAFE_USER = "%:=&~+!$,;'()*"


class Address(NamedTuple):
    """An http(s) address, understood.

    url     `scheme://host[:port]/path?query` as it is asked for: no user info, no fragment, percent-encoded
    origin  `scheme://host:port`, the port always there: what permissions and credentials belong to
    user    `name:password`, still percent-encoded, or empty
    """

    url: str
    origin: str
    user: str


def parse(url: str) -> Address:
    """Take an http(s) address apart.

    raises  UnsafeError for any other scheme; FormatError for what is no address
    """
    match = _USUAL.fullmatch(url)
    if match is not None:
        server, path = match.groups()
        try:
            start, origin = _usual_server(server)
        except FormatError as error:
            raise FormatError(error.message, where=_shown(url)) from None
        return Address(start + path, origin, "")
    url = url.strip(" ")
    match = _PARTS.fullmatch(url)
    if match is None or _CONTROL.search(url) or (match[2] and _CONTROL.search(unquote(match[2]))):
        raise _refused(url)
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
    """Give a server as it is asked, without a port that goes without saying, and its origin."""
    host = _host(host)
    number = int(port) if port else DEFAULT_PORTS[scheme]
    if not 0 < number < 65536:
        raise FormatError("the address has a port that cannot be")
    return f"{scheme}://{host}" + (
        f":{number}" if number != DEFAULT_PORTS[scheme] else ""
    ), f"{scheme}://{host}:{number}"


@functools.lru_cache(maxsize=4096)
def _usual_server(text: str) -> tuple[str, str]:
    scheme, _, server = text.partition("://")
    host, _, port = server.partition(":")
    return _server(scheme, host, port)


def _refused(url: str) -> UnsafeError | FormatError:
    scheme = _SCHEME.match(url)
    if _CONTROL.search(unquote(url)):
        return FormatError("the address holds a control character", where=_shown(url))
    if scheme and scheme[0][:-1].lower() not in DEFAULT_PORTS:
        return UnsafeError(
            f"{scheme[0][:-1].lower()[:20]}: addresses are not followed",
            where=_shown(url),
            hint="Only http and https addresses are fetched.",
        )
    return FormatError("not an http or https address", where=_shown(url))


def _host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            host = ""
        if host and "%" not in host:  # a zone names a network card of this machine
            return host
    elif not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            host = ""
    host = host.lower()
    if not _HOST.fullmatch(host):
        raise FormatError("the address has no host")
    return host


def _shown(url: str) -> str:
    shown = redact(url)
    return shown if len(shown) <= 200 else f"{shown[:199]}…"


def join(base: str, url: str) -> str:
    """Resolve a reference against the address of the file that holds it (RFC 3986, section 5).

    The user info of `base` goes on only with a reference that stays at its host.

    raises  FormatError for a reference that is no address
    """
    if _CONTROL.search(url):  # urljoin would drop them without a word
        raise FormatError("the address holds a control character", where=_shown(url))
    url = url.strip(" ")
    if _SCHEME.match(url):
        return url  # urljoin would take `http:g` and `http:///g` for relative ones
    try:
        return urljoin(base, url)
    except ValueError:  # half of a bracket, or letters that are slashes in another form
        raise FormatError("the address has no host", where=_shown(url)) from None


def redirected(before: Address, location: str) -> Address:
    """Give the address that a redirect leads to. User info goes along only within one origin.

    location  the header as it came, a byte a character
    raises    UnsafeError for anything but http(s); FormatError for what is no address
    """
    target = parse(
        join(before.url, _NOT_ASCII.sub(lambda match: f"%{ord(match[0]):02X}", location))
    )
    if target.origin == before.origin and not target.user:
        return target._replace(user=before.user)
    return target


def folder_of(url: str) -> str:
    """Give the folder of an address: no last part, no query, no slash at the end."""
    return url.partition("?")[0].partition("#")[0].rpartition("/")[0]
