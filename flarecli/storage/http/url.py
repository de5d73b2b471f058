"""HTTP addresses as data gives them: taken apart once, strictly, and the numeric addresses that they may lead to.

libcurl gets what was understood here, put together again, so that no two parsers can differ about a host. Which
address a name leads to is only known when a connection opens; `reserved` is asked about that one, never about a name.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote, urljoin

from flarecli.errors import FormatError, UnsafeError
from flarecli.names import redact

__all__ = [
    "DEFAULT_PORTS",
    "Address",
    "folder_of",
    "join",
    "parse",
    "redirected",
    "reserved",
    "unwrapped",
    "usual",
]

DEFAULT_PORTS = {"http": 80, "https": 443}
_PARTS = re.compile(
    r"(https?)://(?:([^@/?#]*)@)?([^/?#@]*?)(?::(\d{0,5}))?(?:([/?][^#]*))?(?:#.*)?",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_USUAL = re.compile(
    r"(https?://[a-z0-9.-]+(?::\d{1,5})?)(/[!$-;=?-\[\]_a-z~]*)", re.ASCII
)  # what most are: nothing to put otherwise
_PATHS = re.compile(r"[!$-;=?-\[\]_a-z~]*", re.ASCII)  # of those, any number
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._-]{0,252}[a-z0-9_.])?", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_UNQUOTED = re.compile(r"[^!#-;=?-\[\]_a-z~]")  # what may not stand in a path or query as it is
_SAFE = "/%:=&?~#+!$,;'@()*[]"
_SAFE_USER = "%:=&~+!$,;'()*"

# IANA special-purpose address registries; what is not in them is public
_V4 = {
    "0.0.0.0/8": "unspecified",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "carrier-grade NAT",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "reserved",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_V6 = {
    "::/128": "unspecified",
    "::1/128": "loopback",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "private",
    "ff00::/8": "multicast",
    "2001::/23": "reserved",  # Teredo, ORCHID, benchmarking
    "2001:db8::/32": "documentation",
    "3fff::/20": "documentation",
}
_V4_NETWORKS = [(ipaddress.IPv4Network(network), word) for network, word in _V4.items()]
_V6_NETWORKS = [(ipaddress.IPv6Network(network), word) for network, word in _V6.items()]
_V6_PUBLIC = ipaddress.IPv6Network("2000::/3")  # all that is given out so far
_TRANSLATED = (  # an IPv4 address inside an IPv6 one, and how many bits stand behind it: mapped, NAT64, 6to4
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)


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


def usual(urls: Sequence[str | None]) -> tuple[list[str], list[str]] | None:
    """Take many addresses apart at once: the `url` and the `origin` of each, if all of them are as most are; else None, whatever they are."""
    if None in urls:
        return None
    found = _of_one_server([url for url in urls if url is not None])
    if found is not None:
        return found
    ends = [url.find("/", 8) for url in urls if url is not None]
    paths = [url[end:] for url, end in zip(urls, ends, strict=True) if url is not None]
    if -1 in ends or not _PATHS.fullmatch("".join(paths)):
        return None
    try:
        servers = [
            _all_usual(url[:end]) for url, end in zip(urls, ends, strict=True) if url is not None
        ]
    except FormatError:
        return None
    return [start + path for (start, _), path in zip(servers, paths, strict=True)], [
        origin for _, origin in servers
    ]


def _of_one_server(urls: list[str]) -> tuple[list[str], list[str]] | None:
    """Do so where all of them name one server, in the words in which it is asked: then they need not be taken apart one by one."""
    server = urls[0][: urls[0].find("/", 8) + 1] if urls else ""
    paths = ("\n" + "\n".join(urls)).split("\n" + server)
    if (
        not server
        or paths[0]
        or len(paths) != len(urls) + 1
        or not _PATHS.fullmatch("".join(paths))
    ):  # a line's end is no part of a path
        return None
    try:
        start, origin = _all_usual(server[:-1])
    except FormatError:
        return None
    return (urls, [origin] * len(urls)) if start + "/" == server else None


@functools.lru_cache(maxsize=4096)
def _all_usual(text: str) -> tuple[str, str]:
    match = _USUAL.fullmatch(text + "/")
    if match is None or match[1] != text:
        raise FormatError("the address is not a usual one")
    return _usual_server(text)


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


@functools.lru_cache(maxsize=4096)
def reserved(ip: str) -> str:
    """Say in a word why a numeric address is not a public one, such as `loopback`; empty if it is public.

    An IPv6 address that carries an IPv4 one is judged by that.
    """
    address = unwrapped(ip)
    if address is None:
        return "unknown"
    if isinstance(address, ipaddress.IPv4Address):
        return next((word for network, word in _V4_NETWORKS if address in network), "")
    word = next((word for network, word in _V6_NETWORKS if address in network), "")
    return word or ("" if address in _V6_PUBLIC else "reserved")


def unwrapped(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse a numeric address; return the IPv4 address that an IPv6 one carries, or None for invalid text."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        for network, behind in _TRANSLATED:
            if address in network:
                return ipaddress.IPv4Address(int(address) >> behind & 0xFFFFFFFF)
    return address
