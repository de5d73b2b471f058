"""What an HTTP answer means: whether its body is what was asked for, and if not, whether asking again could help.

Pure: it sees header lines, numbers and bytes, and opens nothing.
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
    "REDIRECTS",
    "UNREACHABLE",
    "Answer",
    "Fault",
    "broken",
    "changed",
    "decoded",
    "private",
    "refused",
    "settled",
]

UNREACHABLE = frozenset({"connect", "dns", "timeout"})  # kinds of faults: no connection
INFLATION = 100  # a body may inflate to so many times what was sent, and
INFLATION_FLOOR = 16 << 20  # to this size in any case
_STEP, _INFLATED = 1 << 14, 1 << 20  # bytes inflated at a time, and what comes of them
_MAX_CACHED_LINE = 200  # bytes of a header line; bounds the memory that a hostile server can fill
REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_CROWDED = (429, 503)
# what S3 and its like say in an error's body when asking again helps; some of it comes as 400 or 403
_PASSING_CODES = {
    "SlowDown",
    "RequestTimeout",
    "InternalError",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
}
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,40})</Code>")
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)", re.ASCII)
_ETAG = re.compile(r'"[!#-~]{1,200}"', re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a transfer failed.

    kind     a word that scripts match on, such as `missing`, `cut`, `unsafe`
    passing  asking again may help
    crowded  the server asks for fewer requests
    """

    kind: str
    message: str
    passing: bool = False
    crowded: bool = False
    hint: str = ""
    error: type[FlareError] = ReachError

    def raised(self, where: object) -> FlareError:
        """Make the error to raise."""
        return self.error(self.message, where=where, hint=self.hint)


@lru_cache(maxsize=1024)
def _field(line: bytes) -> tuple[str, str]:
    """Read a header line: name in lower case and value; of a status line `HTTP` and what follows. Most are the same in every answer."""
    text = line.decode("latin-1")
    if text.startswith("HTTP/"):
        return "HTTP", text[5:].strip()
    name, colon, value = text.partition(":")
    return (name.lower(), value.strip()) if colon else ("", "")


class Answer:
    """The head of an answer: the status, and header name in lower case -> value; the last one counts.

    lines   the lines of the head as they came, with their ends

    length  bytes of the body as sent, when the answer says
    coding  how the body is compressed; empty when it is not
    range   start, stop and total of the bytes sent, or None when the body is the whole object
    total   bytes of the whole object, when the answer says
    page    whether the body is called a web page
    """

    __slots__ = ("coding", "headers", "length", "page", "range", "status", "total", "version")

    def __init__(self, lines: Sequence[bytes]) -> None:
        headers: dict[str, str] = {}
        self.headers, self.version, self.status = headers, "", 0
        for line in lines:
            name, value = (
                _field(line) if len(line) <= _MAX_CACHED_LINE else _field.__wrapped__(line)
            )
            if name == "HTTP":  # 100 Continue and the like have heads of their own
                headers.clear()
                self.version, _, code = value.partition(" ")
                code = code[:3]
                self.status = int(code) if code.isascii() and code.isdigit() else 0
            elif name:
                headers[name] = value
        self.page = (
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
        """Give a header's value, or an empty text."""
        return self.headers.get(name, "")

    @property
    def proven(self) -> bool:
        """Whether a body that was cut short would have been noticed."""
        return (
            self.length is not None
            or "content-length" in self.headers
            or "transfer-encoding" in self.headers
            or self.version[:1] > "1"
            or bool(self.coding)
        )

    @property
    def etag(self) -> str:
        """The strong ETag; a weak one says nothing about bytes, and a malformed one is never sent back."""
        etag = self.get("etag")
        return etag if _ETAG.fullmatch(etag) else ""

    @property
    def modified(self) -> str:
        """When the file last changed, as the server says it."""
        return self.get("last-modified")[:100]

    def pin(self, total: int | None) -> ObjectPin:
        """Return the version of the object that this response is about; `total` is its size, if known."""
        etag, modified = self.etag, self.modified
        is_strong = bool(etag) or settled(modified, self.get("date")[:100])
        return ObjectPin(etag, -1 if total is None else total, is_strong, modified)

    def retry_after(self, now: float) -> float | None:
        """Seconds that the server asks to wait; `now` is the wall clock, for those that name a date."""
        text = self.get("retry-after")
        if _NUMBER.fullmatch(text):
            return float(text)
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - now) if text else None
        except (ValueError, OverflowError):
            return None


def settled(modified: str, date: str) -> bool:
    """Say whether a file last changed so long before an answer that a change since would show: both are whole seconds (RFC 9110, 8.8.2.2)."""
    try:
        return (
            parsedate_to_datetime(date) - parsedate_to_datetime(modified)
        ).total_seconds() >= SETTLED_S
    except (ValueError, TypeError, OverflowError):
        return False


def refused(answer: Answer, body: bytes) -> Fault:
    """Say what an answer means that is not the object; `body` is its beginning, where S3 and its like say why."""
    status = answer.status
    code = _CODE.search(body) if b"<" in body[:64] else None
    named = code[1].decode() if code else ""
    try:
        message = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        message = f"status {status}"
    message += f" ({named})" if named else ""
    if status in _PASSING or named in _PASSING_CODES:
        crowded = status in _CROWDED or named in (
            "SlowDown",
            "Throttling",
            "ThrottlingException",
            "RequestLimitExceeded",
        )
        return Fault("busy" if crowded else "server", message, passing=True, crowded=crowded)
    if status in (404, 410):
        return Fault("missing", message, error=MissingError)
    if status in (401, 403, 407):
        return Fault("denied", message)
    if status == 412:
        return changed()
    if status in REDIRECTS:
        return Fault("redirect", f"{message}, and no address to go on to")
    return Fault("status", message)


def changed() -> Fault:
    """Say that the object is not the one that was read from before."""
    return Fault(
        "changed", "changed while it was read", hint="Run the command again.", error=IntegrityError
    )


def private(reason: str, hint: str) -> Fault:
    """Return the fault of a name or a redirect that leads to an address that is not allowed."""
    return Fault("unsafe", reason, hint=hint, error=UnsafeError)


# which of these it is depends on when the end of a connection is noticed, so they share their words
_CUT = ("cut", "the connection ended before the answer was whole", True)
# libcurl's error codes: kind, what is said, and whether it may pass
_CODES = {
    1: ("protocol", "the answer is not HTTP", False),
    3: ("address", "not an address that can be asked", False),
    5: ("dns", "the proxy's host name is not known", True),
    6: ("dns", "the host name is not known", True),
    7: ("connect", "no connection", True),
    8: ("protocol", "the answer is not HTTP", False),
    16: _CUT,
    18: _CUT,
    28: ("timeout", "no connection in time", True),
    35: ("tls", "the TLS handshake failed", True),
    52: _CUT,
    55: _CUT,
    56: _CUT,
    60: ("tls", "the TLS certificate is not trusted", False),
    77: ("tls", "there are no certificates to check TLS with", False),
    92: _CUT,
    95: _CUT,
    100: ("protocol", "the head of the answer is too long", False),
    97: ("connect", "the proxy refused", True),
}


def broken(code: int) -> Fault:
    """Say what an error of libcurl means."""
    kind, message, passing = _CODES.get(code, ("network", f"libcurl error {code}", False))
    hint = "Name a file of certificates in SSL_CERT_FILE." if code in (60, 77) else ""
    return Fault(kind, message, passing=passing, hint=hint)


def decoded(coding: str, parts: Iterable[bytes], limit: int) -> bytes:
    """Undo gzip or deflate, which some servers send although they were asked not to.

    What inflates too far is noticed on the way, not at its end: this runs where every other transfer waits for it.

    limit   bytes at most; beyond INFLATION_FLOOR so are INFLATION times the bytes inflated so far
    raises  FormatError for another coding, a body that ends early or goes on, one that inflates too far
    """
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise FormatError(f"sent with content encoding {coding[:20]!r}, which was not asked for")
    data, out = memoryview(b"".join(parts)), bytearray()
    wbits = (
        31 if coding != "deflate" else 15 if data[:1] and (data[0] & 0x0F) == 8 else -15
    )  # some send deflate without its wrapper
    member = zlib.decompressobj(wbits)
    try:
        for start in range(
            0, len(data), _STEP
        ):  # always the same pieces, however they came: so is the place where it ends
            piece: bytes | memoryview = data[start : start + _STEP]
            while True:
                if member.eof and piece:  # gzip members may follow one another
                    if wbits != 31:
                        raise FormatError(f"bytes follow its {coding} encoding")
                    member = zlib.decompressobj(wbits)
                got = member.decompress(piece, _INFLATED)
                out += got
                if len(out) > limit:
                    raise FormatError(f"inflates to more than {limit} bytes")
                if len(out) > max(INFLATION_FLOOR, INFLATION * (start + _STEP)):
                    raise FormatError(f"inflates to more than {INFLATION} times its size")
                piece = member.unused_data if member.eof else member.unconsumed_tail
                if not piece and len(got) < _INFLATED:
                    break
    except zlib.error:
        raise FormatError(f"its {coding} encoding is damaged") from None
    if data and not member.eof:
        raise FormatError(f"its {coding} encoding is cut short")
    return bytes(out)
