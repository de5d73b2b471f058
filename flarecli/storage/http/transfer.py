"""A libcurl handle that runs one transfer at a time: request, response, and when to stop reading.

libcurl does not follow redirects, decode content encodings or read cookie and password files here.
The IP address of each connection is checked when its socket is created, so that DNS cannot bypass
the check.
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
from flarecli.storage.http.ip_guard import Permit, check_address
from flarecli.storage.http.request import Request
from flarecli.storage.http.response import (
    Answer,
    Fault,
    broken,
    changed,
    decoded,
    private,
    refused,
)
from flarecli.storage.http.url import Address
from flarecli.storage.limits import Limits

if TYPE_CHECKING:
    from flarecli.storage.http.engine import Window

__all__ = ["Slot", "certificates", "short"]

_REDIRECT_HINT = "Give --allow-private, or name the address that it redirects to in the data."
CONNECT_S = 10.0
WHOLE = 64 << 20  # if a server ignores a range, an object up to this size is read whole
_PEEKED = 1 << 20  # the same, if only its size is needed
_DECODED = 1 << 30  # maximum size of a decoded body, which is in memory
_ERROR_BYTES = 64 << 10  # maximum size of an error's body; reading all of it keeps the connection
_PLAIN: tuple[str, ...] = ("Accept-Encoding: identity",)  # `Accept: */*` is libcurl's own
_GOOD = (200, 203, 206)
_ENDED = (16, 52, 55, 56, 92)  # libcurl codes: the connection ended before the response
_ABORT = -1  # returned by a write callback to end the transfer


class Slot:
    """A libcurl handle and its transfer. `window` bounds and counts the bytes in memory."""

    def __init__(self, limits: Limits, permit: Permit, window: Window) -> None:
        self.permit, self._limits, self._window = permit, limits, window
        self.lines: list[bytes] = []
        self.parts: list[bytes] = []
        self.paused_at = 0.0
        self._headers: tuple[str, ...] = ()
        self._user, self._fresh = "", False
        easy = self.easy = pycurl.Curl()
        self.set = easy.setopt  # cached: attribute access on libcurl objects is slow
        easy.setopt(pycurl.NOSIGNAL, 1)
        easy.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        easy.setopt(pycurl.FOLLOWLOCATION, 0)
        easy.setopt(pycurl.CONNECTTIMEOUT_MS, int(1000 * min(CONNECT_S, limits.timeout_s)))
        easy.setopt(pycurl.USERAGENT, f"flare/{__version__}")
        easy.setopt(pycurl.BUFFERSIZE, 128 << 10)
        easy.setopt(pycurl.TCP_KEEPALIVE, 1)
        easy.setopt(pycurl.DNS_CACHE_TIMEOUT, 300)
        easy.setopt(pycurl.WRITEFUNCTION, self._take)
        # Called for every header line: a method in C is fastest.
        easy.setopt(pycurl.HEADERFUNCTION, self.lines.append)
        if certificates():
            easy.setopt(pycurl.CAINFO, certificates())
        easy.setopt(pycurl.OPENSOCKETFUNCTION, self._open)
        if not permit.any_private:
            # A proxy would connect in our place, where no address can be checked.
            easy.setopt(pycurl.PROXY, "")

    def begin(self, request: Request, now: float, fresh: bool = False) -> None:
        """Prepare the handle for a request; the caller adds it to its loop. `fresh`: open a new
        connection.
        """
        self.request = request
        if request.answer is not None:  # from an earlier redirect or attempt
            request.answer = request.total = request.whole = None
        self.lines.clear()
        self.parts = []
        self.marked = now
        self.mark = self.got = 0  # bytes of the body: at the last speed check, now
        self.calm = 0  # bytes of the body that need no further check
        self._refused: Fault | None = None  # the connection was blocked
        self.answer: Answer | None = None
        self.paused = self._enough = False
        self._first = 0
        self._last = sys.maxsize  # bytes _first.._last of the body are kept
        self._limit = self._limits.max_bytes
        self._fault: Fault | None = None
        self.set(pycurl.URL, request.url)
        headers = (
            _PLAIN
            if not request.start and request.stop is None and not request.if_match
            else _headers_for(request)
        )
        if headers != self._headers:
            self.set(pycurl.HTTPHEADER, list(headers))
            self._headers = headers
        if request.user != self._user:
            self._set_user(request.user)
        if fresh != self._fresh:
            self.set(pycurl.FRESH_CONNECT, fresh)
            self._fresh = fresh

    def rest(self) -> None:
        """Release the buffers of the last transfer."""
        self.request, self.parts, self.answer = _NOTHING, [], None

    def _set_user(self, user: str) -> None:
        self._user = user
        name, _, password = user.partition(":")
        for option, value in ((pycurl.USERNAME, name), (pycurl.PASSWORD, password)):
            if user:
                self.easy.setopt(option, unquote_to_bytes(value))
            else:
                self.easy.unsetopt(option)

    # -- called by libcurl: an exception here would be printed and lost

    def _open(self, purpose: int, address: Any) -> socket.socket | int:
        family, kind, protocol, where = address
        ip = where[0] if family in (socket.AF_INET, socket.AF_INET6) else ""
        reason, hint = check_address(self.request.origin, self.permit, ip)
        if reason:
            if self.request.origin != self.request.asked.origin:
                hint = _REDIRECT_HINT
            self._refused = private(reason, hint)
            return int(pycurl.SOCKET_BAD)
        return socket.socket(family, kind, protocol)

    def _take(self, data: bytes) -> int | None:
        if not self.calm and self.answer is None and self._read_head() is not None:
            return _ABORT
        size, begin, window = len(data), self.got, self._window
        if begin + size <= self.calm:
            if window.held + size <= window.most:  # inlined from `take` for speed
                window.held += size
            elif not window.take(self, size):
                self.paused = True
                return int(pycurl.WRITEFUNC_PAUSE)
            self.got = begin + size
            self.parts.append(data)
            return None
        if begin >= self._last:
            self._enough = True
            return _ABORT
        if begin + size > self._limit:
            self._fault = _large(self._limit, self._limits.max_bytes)
            return _ABORT
        if not window.take(self, size):
            self.paused = True
            return int(pycurl.WRITEFUNC_PAUSE)
        self.got += size
        if begin < self._first or self.got > self._last:
            data = data[max(0, self._first - begin) : self._last - begin]
        if self.request.sink is None:
            self.parts.append(data)
        elif self.answer is not None and self.answer.status in _GOOD:
            if self.request.of is None:
                self.request.of, self.request.if_match = (
                    self.answer.pin(self.answer.total),
                    self.request.if_match or self.answer.etag,
                )
            self.request.start += len(data)
            self.request.sink(data)
        return None

    def _read_head(self) -> Fault | None:
        """Look at the head of the answer, once it is whole, and decide what of the body is wanted."""
        request = self.request
        self.answer = request.answer = answer = Answer(self.lines)
        request.total = answer.total
        if answer.status not in _GOOD:
            self._last = _ERROR_BYTES
        elif (request.if_match and answer.etag not in ("", request.if_match)) or (
            request.of is not None and request.of.differs(answer.pin(answer.total))
        ):
            self._fault = changed()
        elif request.sink is not None and answer.coding:
            self._fault = Fault(
                "encoding",
                f"sent with content encoding {answer.coding[:20]!r}, which was not asked for",
                error=FormatError,
            )
        elif answer.range is not None or answer.status == 206:
            self._fault = self._read_range(answer)
        elif request.ranged:
            self._read_whole(answer)
        elif answer.length is not None and answer.length > self._limit:
            self._fault = _large(self._limit, self._limits.max_bytes)
        elif request.sink is None:
            self.calm = self._limit
        return self._fault

    def _read_range(self, answer: Answer) -> Fault | None:
        """Check the range of the response against the requested one; return a fault or None."""
        request, came = self.request, answer.range
        if not request.ranged:
            return Fault("range", "the server sent a range; the whole file was requested")
        if (
            came is None
            or came[0] != request.start
            or not came[0] < came[1]
            or (came[2] is not None and came[1] > came[2])
        ):
            return Fault("range", "the server sent another range than requested")
        if answer.length not in (None, came[1] - came[0]):
            return Fault("range", "the server sent a range whose length differs from Content-Range")
        if answer.coding:
            return Fault(
                "range", f"the server sent a range with content encoding {answer.coding[:20]!r}"
            )
        wanted = (
            (came[1] if came[2] is None else came[2])
            if request.stop is None
            else max(request.stop, 1)
        )
        if came[1] < wanted:
            return (
                short(came[1], wanted)
                if came[2] in (None, came[1])
                else Fault("range", "the server sent less than requested")
            )
        self._last, self._limit = wanted - request.start, sys.maxsize
        return None

    def _read_whole(self, answer: Answer) -> None:
        """Handle a server that ignores ranges: keep a small object whole, of a large one the range."""
        request, total = self.request, answer.total
        probing = request.stop == 0
        if request.sink is None and (
            answer.coding or (total is not None and total <= (_PEEKED if probing else WHOLE))
        ):
            self._limit = WHOLE
        elif probing:
            self._first = sys.maxsize  # count the bytes, keep none
            self._last = 0 if total is not None else sys.maxsize
            self._limit = sys.maxsize
        else:
            self._first, self._limit = request.start, sys.maxsize
            self._last = sys.maxsize if request.stop is None else request.stop

    # -- the result

    def unheard(self, code: int) -> bool:
        """Return whether the transfer failed only because the server closed reused connections.

        Such a request is safe to repeat on a new connection (RFC 9112, section 9.3.1). libcurl
        retries a few times by itself, but those connections may be closed too.
        """
        return (
            code in _ENDED
            and not self.lines
            and not self._fresh
            and self.easy.getinfo(pycurl.NUM_CONNECTS) == 0
        )

    def too_slow(self) -> Fault:
        """Return the fault of a transfer below the minimum speed."""
        return Fault("slow", f"less than 1 kB/s for {self._limits.timeout_s:g} s", passing=True)

    def too_late(self) -> Fault:
        """Return the fault of a transfer that exceeds its deadline."""
        return Fault("deadline", f"incomplete after {self._limits.deadline_s:g} s")

    def finish(self, code: int) -> Fault | None:
        """Set the data of the request, or return the fault.

        `code` is libcurl's result, 0 for success.
        """
        request, failed = self.request, code != 0 and not self._enough
        if failed:
            if self.answer is None and self.lines and self._read_head() is not None:
                return self._fault  # the status or headers are the fault
            return self._fault or (self._refused if code in (7, 28) else None) or broken(code)
        if self.answer is None and self._read_head() is not None:
            return self._fault
        answer, parts = self.answer, self.parts
        self.parts = []
        if self.calm and answer is not None and not answer.coding:
            request.data = parts[0] if len(parts) == 1 else b"".join(parts)
            return None
        if answer is None or answer.status not in _GOOD:
            return self._refusal(Answer([]) if answer is None else answer, parts)
        try:
            most = min(self._limits.max_bytes, _DECODED)
            body = (
                decoded(answer.coding, parts, most)
                if answer.coding
                else parts[0]
                if len(parts) == 1
                else b"".join(parts)
            )
        except FlareError as error:
            return Fault("encoding", error.message, error=FormatError)
        request.data = body
        if not request.ranged:
            return None
        if answer.range is not None:
            return None if self.got >= self._last else broken(18)
        return self._cut(body)

    def _cut(self, body: bytes) -> Fault | None:
        """Set the data of a range request from a response with the whole object."""
        request = self.request
        if not self._enough and (self._first or request.sink is not None):
            request.total = self.got
        elif not self._enough and self.got <= self._last:
            request.whole, request.total = body, len(body)
            request.data = body[request.start : request.stop]
        stop = request.stop or 0
        if request.total is not None and max(stop, request.start) > request.total:
            return short(request.total, max(stop, request.start))
        return None

    def _refusal(self, answer: Answer, parts: list[bytes]) -> Fault | None:
        request = self.request
        if answer.status == 416 and request.ranged:
            if request.stop == 0 and not request.total:  # an empty file has no first byte
                request.total = 0
                return None
            return short(request.total, max(request.stop or 0, request.start + 1))
        return refused(answer, b"".join(parts)[:4096])


def _headers_for(request: Request) -> tuple[str, ...]:
    """Return the headers of a request: Range and If-Match, where needed."""
    headers = _PLAIN
    if request.ranged:
        stop = request.stop
        headers += (
            f"Range: bytes={request.start}-{'' if stop is None else max(stop, request.start + 1) - 1}",
        )
    if request.if_match:
        headers += (f"If-Match: {request.if_match}",)
    return headers


_NOTHING = Request(Address("", "", ""), lambda request: None)


def _large(limit: int, most: int) -> Fault:
    # Another limit applies where a server ignores ranges; the option does not change that one.
    hint = "Raise --max-object." if limit == most else ""
    return Fault("large", f"larger than the limit of {limit} bytes", hint=hint)


def short(end: int | None, wanted: int) -> Fault:
    """Return the fault of an object that ends before the requested bytes."""
    message = (
        f"ends at byte {end}, {wanted} are needed"
        if end is not None
        else f"ends before byte {wanted}"
    )
    return Fault(
        "short", message, hint="The file was cut short; fetch or pack it again.", error=FormatError
    )


@cache
def certificates() -> str:
    """Return the path of the CA certificates; the path built into libcurl may not exist here."""
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("CURL_CA_BUNDLE")
    if named:
        return named
    usual = (
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
        "/etc/ssl/ca-bundle.pem",
    )
    return next(
        (
            path
            for path in (ssl.get_default_verify_paths().cafile, *usual)
            if path and os.path.exists(path)
        ),
        "",
    )
