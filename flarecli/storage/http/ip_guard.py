"""Check the IP address of each connection, and decide which private addresses requests may reach.

The IP address is checked because a public host name may resolve to a private address. Public
addresses are always allowed. A private address is allowed only if the user typed its origin, or
passed `--allow-host` or `--allow-private`. These permissions are a `Permit`.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from flarecli.errors import FlareError, UsageError
from flarecli.storage.base import Guard
from flarecli.storage.http.url import DEFAULT_PORTS, parse

__all__ = [
    "Permit",
    "check_address",
    "check_hosts",
    "host_of",
    "permit_for",
    "permits_host",
    "redirect_permit",
    "reserved",
    "typed_origins",
]

# Cloud metadata services return credentials to any client. Only a permit for the exact IP address
# of such a service allows access to the service.
METADATA = (ipaddress.ip_network("169.254.0.0/16"), ipaddress.ip_network("fd00:ec2::254/128"))
_HINT = "Use a value such as data.example.com:8080, [::1]:8080 or 10.1.0.0/16."
_ENTRY = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?", re.ASCII)
_TYPED = re.compile(r"(?i)(?:[^/:?=]+=)?(https?://.+)", re.DOTALL)  # SOURCE or NAME=SOURCE

# Non-public networks (source: IANA special-purpose address registries). All other IPv4 addresses
# are public.
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
_V6_PUBLIC = ipaddress.IPv6Network("2000::/3")  # the only public range that IANA has assigned
# IPv6 networks whose addresses contain an IPv4 address (mapped, NAT64, 6to4), and the number of
# bits after the IPv4 address.
_TRANSLATED = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AllowedHost(NamedTuple):
    """A value of `--allow-host`: a host or a network.

    host     host name or IP address in lower case, an IPv6 address in brackets; empty for a network
    network  network such as 10.1.0.0/16; None for a host
    port     allowed port; None allows ports 80 and 443 of a host, or any port in a network
    """

    host: str
    network: Network | None
    port: int | None

    def matches(self, host: str, port: int) -> bool:
        """Return whether this value allows a port of a host."""
        ports = DEFAULT_PORTS.values() if self.port is None else (self.port,)
        return self.host == host and port in ports


class Permit(NamedTuple):
    """The private addresses that connections to one origin may reach.

    any_private  whether all private addresses are allowed (`--allow-private`)
    by_name      whether the user allowed the host by name; if the first connection to the host used
                 a private IP address, later connections may then also use private IP addresses
    metadata     whether the host is the IP address of a metadata service, and the user allowed this
                 exact address
    networks     networks that the user allowed for the port of the origin
    """

    any_private: bool = False
    by_name: bool = False
    metadata: bool = False
    networks: tuple[Network, ...] = ()


PUBLIC = Permit()


@functools.lru_cache(maxsize=1024)
def parse_host(text: str) -> AllowedHost:
    """Parse a value of `--allow-host`.

    Raises UsageError for a value that is neither a host nor a network.
    """
    entry, port = text.strip(), None
    match = _ENTRY.fullmatch(entry)
    if match is not None:
        entry, port = match[1], None if match[2] is None else int(match[2])
    bare = entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"--allow-host: port {port} is not between 1 and 65535", hint=_HINT)
    try:
        if "/" in bare:
            return AllowedHost("", ipaddress.ip_network(bare), port)
        if ":" in bare:
            bare = f"[{ipaddress.IPv6Address(bare)}]"
        if "@" in bare:
            raise ValueError
        origin = parse(f"http://{bare}/").origin
    except (ValueError, FlareError):
        raise UsageError(
            f"--allow-host: expected HOST, HOST:PORT or a network, got {text!r:.80}", hint=_HINT
        ) from None
    return AllowedHost(host_of(origin)[0], None, port)


def check_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the values of `--allow-host` without duplicates.

    Raises UsageError for an invalid value.
    """
    values = dict.fromkeys((hosts,) if isinstance(hosts, str) else hosts)
    for value in values:
        parse_host(value)
    return tuple(values)


def typed_origins(sources: Iterable[str]) -> frozenset[str]:
    """Return the origins of all http(s) addresses in the sources that the user typed."""
    found = set()
    for source in sources:
        match = _TYPED.fullmatch(source)
        if match is not None:
            try:
                found.add(parse(match[1]).origin)
            except FlareError:  # opening the source reports the error
                continue
    return frozenset(found)


def host_of(origin: str) -> tuple[str, int]:
    """Return the host and port of an origin; every origin contains a port."""
    host, _, port = origin.partition("://")[2].rpartition(":")
    return host, int(port)


def permit_for(origin: str, guard: Guard) -> Permit:
    """Return the permit for connections to an origin."""
    if not guard.allow_private and not guard.allow_hosts and origin not in guard.named:
        return PUBLIC
    return _permit(origin, origin in guard.named, guard.allow_private, guard.allow_hosts)


@functools.lru_cache(maxsize=4096)
def _permit(origin: str, is_typed: bool, private: bool, hosts: tuple[str, ...]) -> Permit:
    host, port = host_of(origin)
    entries = [parse_host(one) for one in hosts]
    by_name = is_typed or any(one.matches(host, port) for one in entries)
    if _is_metadata(_literal(host)):
        return Permit(by_name=by_name, metadata=by_name and _is_exact(host))
    networks = tuple(one.network for one in entries if one.network and one.port in (None, port))
    return Permit(private, by_name, False, networks)


def redirect_permit(origin: str, guard: Guard) -> Permit:
    """Return the permit for a redirect to a different origin.

    Only `--allow-private` applies to the redirect target, because the server selects the target,
    not the user.
    """
    return _permit(origin, False, True, ()) if guard.allow_private else PUBLIC


def _literal(host: str) -> str:
    """Return the IP address of a numeric host such as `127.1`, or an empty string for a host name.

    All numeric forms that libcurl accepts are recognized.
    """
    if host.startswith("["):
        return host[1:-1]
    try:
        return socket.inet_ntoa(socket.inet_aton(host)) if host[:1].isdigit() else ""
    except OSError:
        return ""


def _is_exact(host: str) -> bool:
    return host.strip("[]") == _literal(host)


def _is_metadata(ip: str) -> bool:
    address = unwrapped(ip)
    return address is not None and any(address in network for network in METADATA)


# Host that the user allowed -> whether the first connection to the host used a public IP address.
# If so, later connections must not use private IP addresses, because the owner of the name could
# redirect the name to this machine or the local network (DNS rebinding). The dict has no lock,
# because `setdefault` is atomic, and a fork could copy a lock in its locked state.
_first_is_public: dict[str, bool] = {}


def check_address(origin: str, permit: Permit, ip: str) -> tuple[str, str]:
    """Check the IP address of a new connection to an origin.

    return  (reason, hint) if the address is forbidden; two empty strings if it is allowed
    """
    word = reserved(ip)
    host, port = host_of(origin)
    if not word:
        if permit.by_name:
            _first_is_public.setdefault(host, True)
        return "", ""
    message = f"leads to {ip}, {'an' if word[0] in 'aeiou' else 'a'} {word} address"
    if _is_metadata(ip):
        if permit.metadata:
            return "", ""
        return message, f"To allow this metadata service, pass {host_option(ip, port)}."
    if permit.any_private:
        return "", ""
    if permit.by_name:
        if not _first_is_public.setdefault(host, False):
            return "", ""
        return f"{message}; an earlier connection to the host used a public address", (
            "The host has public and private addresses; use the IP address if you trust the host."
        )
    address = unwrapped(ip)
    if address is not None and any(address in network for network in permit.networks):
        return "", ""
    return message, f"Pass {host_option(host, port)} if you trust the data that links to it."


def host_option(host: str, port: int) -> str:
    """Return the `--allow-host` option that allows a host, and no other host.

    The option contains the port unless the port is 80 or 443.
    """
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"--allow-host {host}" + ("" if port in DEFAULT_PORTS.values() else f":{port}")


def permits_host(url: str, private: bool, hosts: Iterable[str]) -> bool:
    """Return whether the user allowed the host of an address such as ftp://HOST/x (not http(s)).

    Networks in `hosts` do not apply, because flare cannot check the IP addresses to which another
    library connects.

    private  whether all private addresses are allowed
    hosts    values of `--allow-host`
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    if ":" in host:
        host = f"[{host}]"
    if _is_metadata(_literal(host)):
        private = False
    entries = map(parse_host, hosts)
    return private or any(one.host == host and one.port == port for one in entries)


@functools.lru_cache(maxsize=4096)
def reserved(ip: str) -> str:
    """Return the kind of a non-public IP address, such as `loopback`.

    The result is empty for a public address. For an IPv6 address that contains an IPv4 address, the
    IPv4 address is classified.
    """
    address = unwrapped(ip)
    if address is None:
        return "unknown"
    if isinstance(address, ipaddress.IPv4Address):
        return next((word for network, word in _V4_NETWORKS if address in network), "")
    word = next((word for network, word in _V6_NETWORKS if address in network), "")
    return word or ("" if address in _V6_PUBLIC else "reserved")


def unwrapped(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; return None for invalid text.

    If an IPv6 address contains an IPv4 address, return the IPv4 address.
    """
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        for network, behind in _TRANSLATED:
            if address in network:
                return ipaddress.IPv4Address(int(address) >> behind & 0xFFFFFFFF)
    return address
