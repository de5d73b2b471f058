"""A libcurl handle that runs one transfer at a time, and checks the response.

A transfer ends when all needed bytes have arrived. libcurl is configured not to follow redirects,
decode content encodings, or read cookie and password files. The IP address of each connection is
checked when its socket is created, so that DNS cannot bypass the check.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import pycurl

from flarecli import __version__
from flarecli.errors import FlareError, FormatError
from flarecli.storage.base import SHORT_HINT, Guard, Limits, short_message
from flarecli.storage.http.ip_guard import Permit, check_address
from flarecli.storage.http.request import Request
from flarecli.storage.http.response import (
    ROBOTS_HEADER,
    Fault,
    Response,
    changed_fault,
    curl_fault,
    decode_body,
    header_values,
    private_fault,
    robots_directive,
    robots_fault,
    robots_names,
    status_fault,
)
from flarecli.storage.http.url import Address

if TYPE_CHECKING:
    from flarecli.storage.http.engine import Window

__all__ = ["Handle", "certificates", "short_fault"]

_REDIRECT_HINT = "Pass --allow-private, or replace the link in the data with its redirect target."
CONNECT_S = 10.0
MAX_WHOLE_BYTES = 64 << 20  # maximum size of objects to read whole if a server ignores ranges
_MAX_PROBED_BYTES = 1 << 20  # maximum size of objects to read whole if only the size is needed
_MAX_DECODED_BYTES = 1 << 30  # maximum size of a decoded body in memory
_ERROR_BYTES = 64 << 10  # shorter bodies of error responses are read, to reuse the connection
_SUCCESS = (200, 203, 206)
_ENDED = (16, 52, 55, 56, 92)  # libcurl codes for a connection that ended before the response
_CERTIFICATE_FILES = (  # paths on Debian, Red Hat, Alpine and SUSE
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)
_ABORT = -1  # the write callback returns this value to end the transfer


class Handle:
    """A libcurl easy handle and its current transfer. `window` limits the bytes in memory."""

    def __init__(self, limits: Limits, permit: Permit, window: Window) -> None:
        self.permit, self._limits, self._window = permit, limits, window
        self.lines: list[bytes] = []
        self.parts: list[bytes] = []
        self.paused_at = 0.0
        self._headers: list[str] = []
        self._user, self._fresh = "", False
        easy = self.easy = pycurl.Curl()
        easy.setopt(pycurl.NOSIGNAL, 1)
        easy.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        easy.setopt(pycurl.FOLLOWLOCATION, 0)
        easy.setopt(pycurl.CONNECTTIMEOUT_MS, int(1000 * min(CONNECT_S, limits.timeout_s)))
        user_agent = limits.user_agent or f"flare/{__version__}"
        easy.setopt(pycurl.USERAGENT, user_agent)
        self._client_names = robots_names(user_agent)
        easy.setopt(pycurl.BUFFERSIZE, 128 << 10)
        easy.setopt(pycurl.TCP_KEEPALIVE, 1)
        easy.setopt(pycurl.DNS_CACHE_TIMEOUT, 300)
        easy.setopt(pycurl.WRITEFUNCTION, self._take)
        # A method written in C is used, because libcurl calls this function for each header line.
        easy.setopt(pycurl.HEADERFUNCTION, self.lines.append)
        if certificates():
            easy.setopt(pycurl.CAINFO, certificates())
        easy.setopt(pycurl.OPENSOCKETFUNCTION, self._open)
        if not permit.any_private:
            # No proxy is used, because the address to which a proxy connects cannot be checked.
            easy.setopt(pycurl.PROXY, "")

    def begin(self, request: Request, now: float, fresh: bool = False) -> None:
        """Prepare the handle for a request.

        The caller starts the transfer. `fresh` forces a new connection.
        """
        self.request = request
        if request.response is not None:  # the response of an earlier redirect or attempt
            request.response = request.total = request.whole = None
        self.lines.clear()
        self.parts = []
        self.checked_at = now
        self.checked_bytes = self.got = 0  # received body bytes: at the last speed check, and now
        self._refused: Fault | None = None  # set if the address guard blocked the connection
        self.response: Response | None = None
        self.paused = self._has_all = False
        self._first = 0
        self._last = sys.maxsize  # only bytes _first.._last of the body are kept
        self._limit = self._limits.max_bytes
        self._fault: Fault | None = None
        self.easy.setopt(pycurl.URL, request.address.url)
        headers = _headers_for(request)
        if headers != self._headers:
            self.easy.setopt(pycurl.HTTPHEADER, headers)
            self._headers = headers
        if request.address.user != self._user:
            self._set_user(request.address.user)
        if fresh != self._fresh:
            self.easy.setopt(pycurl.FRESH_CONNECT, fresh)
            self._fresh = fresh

    def rest(self) -> None:
        """Release the buffers of the last transfer, before the handle is stored for reuse."""
        self.request, self.parts, self.response = _NO_REQUEST, [], None

    def _set_user(self, user: str) -> None:
        self._user = user
        name, _, password = user.partition(":")
        for option, value in ((pycurl.USERNAME, name), (pycurl.PASSWORD, password)):
            if user:
                self.easy.setopt(option, unquote_to_bytes(value))
            else:
                self.easy.unsetopt(option)

    # -- called by libcurl, which prints and ignores exceptions

    def _open(self, purpose: int, address: Any) -> socket.socket | int:
        family, kind, protocol, where = address
        ip = where[0] if family in (socket.AF_INET, socket.AF_INET6) else ""
        reason, hint = check_address(self.request.origin, self.permit, ip)
        if reason:
            if self.request.origin != self.request.original.origin:
                hint = _REDIRECT_HINT
            self._refused = private_fault(reason, hint)
            return int(pycurl.SOCKET_BAD)
        return socket.socket(family, kind, protocol)

    def _take(self, data: bytes) -> int | None:
        if self.response is None and self._parse_head() is not None:
            return _ABORT
        size, begin = len(data), self.got
        if begin >= self._last:
            self._has_all = True
            return _ABORT
        if begin + size > self._limit:
            self._fault = _too_large(self._limit, self._limits.max_bytes)
            return _ABORT
        if not self._window.take(self, size):
            self.paused = True
            return int(pycurl.WRITEFUNC_PAUSE)
        self.got += size
        if begin < self._first or self.got > self._last:
            data = data[max(0, self._first - begin) : self._last - begin]
        if self.request.sink is None:
            self.parts.append(data)
        elif self.response is not None and self.response.status in _SUCCESS:
            if self.request.version is None:
                self.request.version = self.response.pin(self.response.total)
                self.request.if_match = self.request.if_match or self.response.etag
            self.request.start += len(data)
            self.request.sink(data)
        return None

    def _parse_head(self) -> Fault | None:
        """Parse the response head, and determine which bytes of the body to keep.

        return  a fault, or None if the head is valid
        """
        request = self.request
        self.response = request.response = response = Response(self.lines)
        request.total = response.total
        if response.status not in _SUCCESS:
            self._last = _ERROR_BYTES
        elif directive := self._disallowing_directive(response):
            self._fault = robots_fault(directive)
        elif (request.if_match and response.etag not in ("", request.if_match)) or (
            request.version is not None and request.version.differs(response.pin(response.total))
        ):
            self._fault = changed_fault()
        elif request.sink is not None and response.coding:
            self._fault = Fault(
                "encoding",
                f"unexpected content encoding {response.coding[:20]!r}",
                error=FormatError,
            )
        elif response.range is not None or response.status == 206:
            self._fault = self._read_range(response)
        elif request.is_range:
            self._read_whole(response)
        elif response.length is not None and response.length > self._limit:
            self._fault = _too_large(self._limit, self._limits.max_bytes)
        return self._fault

    def _disallowing_directive(self, response: Response) -> str:
        """Return the X-Robots-Tag directive that disallows the use of the response, or ""."""
        batch = self.request.batch
        if batch is None or not batch.obeys_robots_tag or ROBOTS_HEADER not in response.headers:
            return ""
        return robots_directive(header_values(self.lines, ROBOTS_HEADER), self._client_names)

    def _read_range(self, response: Response) -> Fault | None:
        """Check the range of the response against the requested range; return a fault or None."""
        request, sent = self.request, response.range
        if not request.is_range:
            return Fault("range", "the server sent a range; the whole file was requested")
        if (
            sent is None
            or sent[0] != request.start
            or not sent[0] < sent[1]
            or (sent[2] is not None and sent[1] > sent[2])
        ):
            return Fault("range", "the server sent a different range than requested")
        if response.length not in (None, sent[1] - sent[0]):
            return Fault("range", "the response length differs from its Content-Range")
        if response.coding:
            return Fault(
                "range", f"the server sent a range with content encoding {response.coding[:20]!r}"
            )
        if request.stop is not None:
            stop = max(request.stop, 1)
        else:
            stop = sent[1] if sent[2] is None else sent[2]
        if sent[1] < stop:
            if sent[2] in (None, sent[1]):
                return short_fault(sent[1], stop)
            return Fault("range", "the server sent a shorter range than requested")
        self._last, self._limit = stop - request.start, sys.maxsize
        return None

    def _read_whole(self, response: Response) -> None:
        """Set the bytes to keep if the server ignores ranges.

        A small object is kept completely; otherwise, only the requested range is kept.
        """
        request, total = self.request, response.total
        is_probe = request.stop == 0  # only the size is requested
        max_whole = _MAX_PROBED_BYTES if is_probe else MAX_WHOLE_BYTES
        is_small = total is not None and total <= max_whole
        if request.sink is None and (response.coding or is_small):
            self._limit = MAX_WHOLE_BYTES
            return
        self._limit = sys.maxsize
        if is_probe:
            self._first = sys.maxsize  # the bytes of the body are counted, but not kept
            self._last = 0 if total is not None else sys.maxsize
        else:
            self._first = request.start
            self._last = sys.maxsize if request.stop is None else request.stop

    # -- the result

    def was_stale(self, code: int) -> bool:
        """Return whether the transfer failed because the server had closed a reused connection.

        Such a request can be repeated safely on a new connection (RFC 9112, section 9.3.1). libcurl
        itself retries a few times, but on other reused connections, which may also be closed.
        """
        return (
            code in _ENDED
            and not self.lines
            and not self._fresh
            and self.easy.getinfo(pycurl.NUM_CONNECTS) == 0
        )

    def slow_fault(self) -> Fault:
        """Return the fault for a transfer that is slower than the minimum speed."""
        return Fault(
            "slow", f"less than 1 kB/s for {self._limits.timeout_s:g} s", is_transient=True
        )

    def deadline_fault(self) -> Fault:
        """Return the fault for a transfer that exceeds its deadline."""
        return Fault("deadline", f"incomplete after {self._limits.deadline_s:g} s")

    def finish(self, code: int) -> Fault | None:
        """Set the data of the request; return a fault if the transfer failed, otherwise None.

        code  result code of libcurl; 0 for success
        """
        request, failed = self.request, code != 0 and not self._has_all
        if failed:
            if self.response is None and self.lines and self._parse_head() is not None:
                return self._fault  # the fault was found in the status or the headers
            return self._fault or (self._refused if code in (7, 28) else None) or curl_fault(code)
        if self.response is None and self._parse_head() is not None:
            return self._fault
        response, parts = self.response, self.parts
        self.parts = []
        if response is None or response.status not in _SUCCESS:
            return self._refusal(Response([]) if response is None else response, parts)
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if response.coding:
            limit = min(self._limits.max_bytes, _MAX_DECODED_BYTES)
            try:
                body = decode_body(response.coding, [body], limit)
            except FlareError as error:
                return Fault("encoding", error.message, error=FormatError)
        request.data = body
        if not request.is_range:
            return None
        if response.range is not None:
            return None if self.got >= self._last else curl_fault(18)
        return self._cut(body)

    def _cut(self, body: bytes) -> Fault | None:
        """Set the data of a range request from a response that contains the whole object.

        Return a fault if the object ends before the end of the range, otherwise None.
        """
        request = self.request
        if not self._has_all and (self._first or request.sink is not None):
            request.total = self.got
        elif not self._has_all and self.got <= self._last:
            request.whole, request.total = body, len(body)
            request.data = body[request.start : request.stop]
        stop = request.stop or 0
        if request.total is not None and max(stop, request.start) > request.total:
            return short_fault(request.total, max(stop, request.start))
        return None

    def _refusal(self, response: Response, parts: list[bytes]) -> Fault | None:
        request = self.request
        if response.status == 416 and request.is_range:
            if request.stop == 0 and not request.total:  # an empty file, which has no byte 0
                request.total = 0
                return None
            return short_fault(request.total, max(request.stop or 0, request.start + 1))
        return status_fault(response, b"".join(parts)[:4096])


def _headers_for(request: Request) -> list[str]:
    """Return the headers of a request, including Range and If-Match where needed."""
    headers = ["Accept-Encoding: identity"]  # libcurl adds `Accept: */*`
    if request.is_range:
        stop = request.stop
        last = "" if stop is None else max(stop, request.start + 1) - 1
        headers.append(f"Range: bytes={request.start}-{last}")
    if request.if_match:
        headers.append(f"If-Match: {request.if_match}")
    return headers


_NO_REQUEST = Request(Address("", "", ""), lambda request: None, Guard())


def _too_large(limit: int, max_bytes: int) -> Fault:
    # No option changes MAX_WHOLE_BYTES, so the error for this limit has no hint.
    hint = "Increase --max-object." if limit == max_bytes else ""
    return Fault("large", f"larger than the limit of {limit} bytes", hint=hint)


def short_fault(size: int | None, stop: int) -> Fault:
    """Return the fault for an object that ends before byte `stop`.

    size  size of the object in bytes, or None if unknown
    """
    message = f"ends before byte {stop}" if size is None else short_message(size, stop)
    return Fault("short", message, hint=SHORT_HINT, error=FormatError)


@cache
def certificates() -> str:
    """Return the path of the CA certificates, or an empty string to use libcurl's built-in path.

    The built-in path may not exist on this system.
    """
    configured = os.environ.get("SSL_CERT_FILE") or os.environ.get("CURL_CA_BUNDLE")
    if configured:
        return configured
    for path in (ssl.get_default_verify_paths().cafile, *_CERTIFICATE_FILES):
        if path and os.path.exists(path):
            return path
    return ""
