"""Parse the heads of HTTP responses, decode their bodies, and classify faults.

This module does no I/O.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus

from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    ReachError,
    UnsafeError,
)
from flarecli.storage.versions import SETTLED_S, ObjectPin

__all__ = [
    "Fault",
    "OVERLOAD",
    "OVERLOAD_CODES",
    "REDIRECTS",
    "ROBOTS_HEADER",
    "Response",
    "UNREACHABLE",
    "changed_fault",
    "curl_fault",
    "decode_body",
    "header_values",
    "private_fault",
    "robots_directive",
    "robots_fault",
    "robots_names",
    "status_fault",
    "status_phrase",
]

UNREACHABLE = frozenset({"connect", "dns", "timeout"})  # faults before a connection exists
MAX_INFLATION = 100  # maximum ratio of decoded to encoded bytes of a body
MIN_INFLATION_LIMIT = 16 << 20  # bodies up to this decoded size may exceed MAX_INFLATION
_STEP_BYTES = 1 << 14  # encoded bytes that `decode_body` decodes per step
_INFLATED_BYTES = 1 << 20  # maximum decoded bytes per call of zlib
_MAX_CACHED_LINE = 200  # bytes; longer header lines are not cached, because they could fill memory
REDIRECTS = (301, 302, 303, 307, 308)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
OVERLOAD = (429, 503)
# Error codes in S3 response bodies that mark a transient error, even if the response has status 400
# or 403.
OVERLOAD_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"}
_TRANSIENT_CODES = OVERLOAD_CODES | {"RequestTimeout", "InternalError", "ServiceUnavailable"}
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,40})</Code>")
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)", re.ASCII)
_ETAG = re.compile(r'"[!#-~]{1,200}"', re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
# Several libcurl codes stand for this fault: the code depends only on the time at which libcurl
# detects the closed connection.
_CUT = ("cut", "the connection ended before the response was complete", True)
# libcurl error code -> kind, message, and whether the error is transient
_CODES = {
    1: ("protocol", "the response is not HTTP", False),
    3: ("address", "libcurl cannot parse the address", False),
    5: ("dns", "cannot resolve the host name of the proxy", True),
    6: ("dns", "cannot resolve the host name", True),
    7: ("connect", "cannot connect", True),
    8: ("protocol", "the response is not HTTP", False),
    16: _CUT,
    18: _CUT,
    28: ("timeout", "timed out while connecting", True),
    35: ("tls", "the TLS handshake failed", True),
    52: _CUT,
    55: _CUT,
    56: _CUT,
    60: ("tls", "the TLS certificate is not trusted", False),
    77: ("tls", "cannot read the CA certificates", False),
    92: _CUT,
    95: _CUT,
    100: ("protocol", "the head of the response is too long", False),
    97: ("connect", "the proxy refused the connection", True),
}
ROBOTS_HEADER = "x-robots-tag"
_DISALLOWING = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
# Directives that have a value after a colon; the text before the colon is not the name of a client.
_WITH_VALUE = frozenset(
    {"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"}
)
# Client names in X-Robots-Tag whose directives apply to every request of flare.
_ROBOTS_NAMES = frozenset({"*", "flare", "img2dataset"})
_ROBOTS_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,100}")


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for a failed transfer.

    kind          stable identifier for scripts, such as `missing`, `cut` or `unsafe`
    is_transient  whether a retry may succeed
    is_overload   whether the server is overloaded and needs a lower request rate
    """

    kind: str
    message: str
    is_transient: bool = False
    is_overload: bool = False
    hint: str = ""
    error: type[FlareError] = ReachError

    def raised(self, where: object) -> FlareError:
        """Return the exception for this fault."""
        return self.error(self.message, where=where, hint=self.hint)


@lru_cache(maxsize=1024)
def _field(line: bytes) -> tuple[str, str]:
    """Parse a header line into its lower-case name and its value.

    The name of a status line is `HTTP`. Results are cached, because most lines are the same in
    every response.
    """
    text = line.decode("latin-1")
    if text.startswith("HTTP/"):
        return "HTTP", text[5:].strip()
    name, colon, value = text.partition(":")
    return (name.lower(), value.strip()) if colon else ("", "")


class Response:
    """The head of a response.

    lines    lines of the head as received, with their line ends

    Attributes:

    version  HTTP version in the status line, such as `1.1`; empty if missing
    status   HTTP status code; 0 if invalid
    headers  lower-case name -> value; the last header replaces earlier headers with the same name
    length   bytes of the body as sent, or None if unknown
    coding   content encoding; empty without an encoding
    range    (start, stop, total) of the sent range, or None if the body is the whole object
    total    bytes of the whole object, or None if unknown
    is_page  whether the content type indicates a web page
    """

    __slots__ = ("coding", "headers", "is_page", "length", "range", "status", "total", "version")

    def __init__(self, lines: Sequence[bytes]) -> None:
        headers: dict[str, str] = {}
        self.headers, self.version, self.status = headers, "", 0
        for line in lines:
            name, value = (
                _field(line) if len(line) <= _MAX_CACHED_LINE else _field.__wrapped__(line)
            )
            if name == "HTTP":  # a status line, possibly after an interim response (100 Continue)
                headers.clear()
                self.version, _, code = value.partition(" ")
                code = code[:3]
                self.status = int(code) if code.isascii() and code.isdigit() else 0
            elif name:
                headers[name] = value
        self.is_page = (
            headers.get("content-type", "").lower().startswith(("text/html", "application/xhtml"))
        )
        coding = headers.get("content-encoding", "").lower()
        self.coding = "" if coding == "identity" else coding
        text = headers.get("content-length", "")
        counted = (
            text.isascii()
            and text.isdigit()
            and len(text) <= 18
            and not headers.get("transfer-encoding")
        )
        self.length: int | None = int(text) if counted else None
        self.total: int | None = self.length if self.status == 200 and not self.coding else None
        text = headers.get("content-range", "")
        match = _RANGE.fullmatch(text) if text else None
        self.range: tuple[int, int, int | None] | None = None
        if match is not None:
            self.total = None if match[3] == "*" else int(match[3])
            self.range = (
                None if match[1] is None else (int(match[1]), int(match[2]) + 1, self.total)
            )

    def get(self, name: str) -> str:
        """Return the value of a header, or an empty string."""
        return self.headers.get(name, "")

    @property
    def detects_truncation(self) -> bool:
        """True if libcurl or flare can detect a truncated body of this response."""
        return (
            self.length is not None
            or "content-length" in self.headers
            or "transfer-encoding" in self.headers
            or self.version[:1] > "1"
            or bool(self.coding)
        )

    @property
    def etag(self) -> str:
        """The strong ETag, or an empty string.

        Weak ETags do not identify bytes, and invalid ETags must not be sent back.
        """
        etag = self.get("etag")
        return etag if _ETAG.fullmatch(etag) else ""

    @property
    def modified(self) -> str:
        """The value of Last-Modified, or an empty string."""
        return self.get("last-modified")[:100]

    def pin(self, total: int | None) -> ObjectPin:
        """Return the version of the object in this response.

        total  size of the object in bytes, or None if unknown
        """
        etag, modified = self.etag, self.modified
        is_strong = bool(etag) or is_settled(modified, self.get("date")[:100])
        return ObjectPin(etag, -1 if total is None else total, is_strong, modified)

    def retry_after(self, now: float) -> float | None:
        """Return the value of Retry-After in seconds, or None.

        now  current time in seconds since the epoch, for a value that is a date
        """
        text = self.get("retry-after")
        if _NUMBER.fullmatch(text):
            return float(text)
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - now) if text else None
        except (ValueError, OverflowError):
            return None


def is_settled(modified: str, date: str) -> bool:
    """Return whether a Last-Modified time is old enough to identify a version.

    Last-Modified has a resolution of one second, so two versions of a file could have the same time
    (RFC 9110, section 8.8.2.2).
    """
    try:
        return (
            parsedate_to_datetime(date) - parsedate_to_datetime(modified)
        ).total_seconds() >= SETTLED_S
    except (ValueError, TypeError, OverflowError):
        return False


def status_fault(response: Response, body: bytes) -> Fault:
    """Return the fault for an error response.

    body  first bytes of the response body; S3 sends an error code in the body
    """
    status = response.status
    match = _CODE.search(body) if b"<" in body[:64] else None
    code = match[1].decode() if match else ""
    message = status_phrase(status, code)
    if status in _TRANSIENT or code in _TRANSIENT_CODES:
        is_overload = status in OVERLOAD or code in OVERLOAD_CODES
        kind = "busy" if is_overload else "server"
        return Fault(kind, message, is_transient=True, is_overload=is_overload)
    if status in (404, 410):
        return Fault("missing", message, error=MissingError)
    if status in (401, 403, 407):
        return Fault("denied", message)
    if status == 412:
        return changed_fault()
    if status in REDIRECTS:
        return Fault("redirect", f"{message} without a target")
    return Fault("status", message)


def status_phrase(status: int, code: str) -> str:
    """Return a status with its standard phrase and the error code of the service, if any."""
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = f"status {status}"
    return f"{phrase} ({code})" if code else phrase


def changed_fault() -> Fault:
    """Return the fault for an object whose version differs from the pin."""
    return Fault(
        "changed",
        "changed while it was being read",
        hint="Run the command again.",
        error=IntegrityError,
    )


def header_values(lines: Sequence[bytes], name: str) -> list[str]:
    """Return the values of all headers with a name.

    lines  lines of a response head
    name   name of the header in lower case
    """
    values: list[str] = []
    for line in lines:
        one, value = _field.__wrapped__(line)
        if one == "HTTP":  # a status line, possibly after an interim response
            values.clear()
        elif one == name:
            values.append(value)
    return values


def robots_fault(directive: str) -> Fault:
    """Return the fault for an object whose use is disallowed by a directive of X-Robots-Tag."""
    return Fault(
        "robots",
        f"the server disallows the use of this object (X-Robots-Tag: {directive})",
        hint="Use --ignore-robots-tag to download such objects.",
    )


def private_fault(reason: str, hint: str) -> Fault:
    """Return the fault for a host name or a redirect that leads to a private address."""
    return Fault("unsafe", reason, hint=hint, error=UnsafeError)


def curl_fault(code: int) -> Fault:
    """Return the fault for a libcurl error code."""
    kind, message, is_transient = _CODES.get(code, ("network", f"libcurl error {code}", False))
    hint = "Set SSL_CERT_FILE to the path of a CA certificate file." if code in (60, 77) else ""
    return Fault(kind, message, is_transient=is_transient, hint=hint)


def decode_body(coding: str, parts: Iterable[bytes], limit: int) -> bytes:
    """Decode a body with the content encoding gzip or deflate.

    Some servers send an encoded body although the request accepts only `identity`. The limits are
    checked after each step, because all other transfers wait during the decoding.

    limit   maximum number of decoded bytes
    raises  FormatError for any other encoding, a truncated body, bytes after its end, or a body
            that exceeds the limit or MAX_INFLATION
    """
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise FormatError(f"unexpected content encoding {coding[:20]!r}")
    data, out = memoryview(b"".join(parts)), bytearray()
    if coding != "deflate":
        wbits = 31
    else:  # some servers send deflate without the zlib header
        wbits = 15 if data[:1] and (data[0] & 0x0F) == 8 else -15
    member = zlib.decompressobj(wbits)
    try:
        # The body is decoded in steps of a fixed size. Therefore, the limits do not depend on the
        # sizes of the received parts.
        for start in range(0, len(data), _STEP_BYTES):
            piece: bytes | memoryview = data[start : start + _STEP_BYTES]
            while True:
                if member.eof and piece:  # a gzip file may have several members
                    if wbits != 31:
                        raise FormatError(f"bytes follow the end of the {coding} body")
                    member = zlib.decompressobj(wbits)
                got = member.decompress(piece, _INFLATED_BYTES)
                out += got
                if len(out) > limit:
                    raise FormatError(f"decodes to more than {limit} bytes")
                if len(out) > max(MIN_INFLATION_LIMIT, MAX_INFLATION * (start + _STEP_BYTES)):
                    raise FormatError(f"decodes to more than {MAX_INFLATION} times its size")
                piece = member.unused_data if member.eof else member.unconsumed_tail
                if not piece and len(got) < _INFLATED_BYTES:
                    break
    except zlib.error:
        raise FormatError(f"the {coding} body is damaged") from None
    if data and not member.eof:
        raise FormatError(f"the {coding} body is truncated")
    return bytes(out)


def robots_names(user_agent: str) -> frozenset[str]:
    """Return the lower-case names of the clients whose directives apply to this User-Agent.

    These names are _ROBOTS_NAMES, and the words of the User-Agent without their versions.
    """
    words = re.split(r"[\s();,]+", user_agent.lower())
    return _ROBOTS_NAMES | {word.partition("/")[0] for word in words} - {""}


def robots_directive(values: Iterable[str], names: frozenset[str]) -> str:
    """Return the first directive that disallows the use of an object, or an empty string.

    An X-Robots-Tag header is a list of directives, separated by commas. A name with a colon before
    a directive limits this directive and all following directives of the header to the client with
    this name: `X-Robots-Tag: img2dataset: noai, noimageai`. The result includes the name.

    `noindex`, `noimageindex` and `none` are directives of search engines (source: Google Search
    Central, "Robots meta tag, data-nosnippet, and X-Robots-Tag specifications"). `noai` and
    `noimageai` are conventions that disallow the training of models.

    values  values of the X-Robots-Tag headers of a response
    names   return value of `robots_names`
    """
    for value in values:
        name = ""
        for part in value.lower().split(","):
            before, colon, directive = part.partition(":")
            before = before.strip()
            if not colon:
                directive = before
            elif before in _WITH_VALUE:
                continue
            elif _ROBOTS_NAME.fullmatch(before):
                name, directive = before, directive.strip()
            if directive in _DISALLOWING and (not name or name in names):
                return f"{name}: {directive}" if name else directive
    return ""
