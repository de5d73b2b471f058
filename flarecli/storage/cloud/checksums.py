"""Checksums that S3 stores for an object, read by one HEAD request.

    x-amz-checksum-sha256: base64      also -sha1, -crc32, -crc32c, -crc64nvme; big-endian
    x-amz-checksum-type: FULL_OBJECT   COMPOSITE: a checksum of the checksums of the parts, not of
                                       the bytes

obstore cannot read them, so the request is signed here with AWS Signature Version 4 (source: API
reference of Amazon S3, "Authenticating Requests"). Credentials from a role are known to obstore
alone; no request is sent then.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import random
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from flarecli.storage.base import Location
from flarecli.storage.cloud.store import ObjectStore
from flarecli.storage.http.response import Answer, refused
from flarecli.storage.http.transfer import certificates

__all__ = ["Kept", "kept_sums", "signed"]

_PREFIX, _MODE = "x-amz-checksum-", {"x-amz-checksum-mode": "ENABLED"}
# bytes of each checksum
_SIZES = {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}
_CONNECT_S = 10
_RETRIES, _WAIT_S = 4, 0.25  # delays are random below _WAIT_S * 2**n
_HEAD_BYTES = 1 << 16  # maximum size of the response headers
_OWN = threading.local()
_inherited: list[Any] = []


class Kept(NamedTuple):
    """Checksums of an object, name -> lowercase hex, and why there are none, or empty."""

    hashes: Mapping[str, str] = {}
    why_not: str = ""


def kept_sums(at: Location) -> Kept:
    """Return the checksums that S3 stores for an object; none for other stores. Never raises."""
    store = at.store
    if not isinstance(store, ObjectStore) or store.scheme != "s3":
        return Kept()
    config = store.settings
    if not config.get("skip_signature") and "access_key_id" not in config:
        return Kept(why_not="only the role of this machine may ask for them")
    url = f"{config.get('endpoint') or 'https://s3.{}.amazonaws.com'.format(config['region'])}/{store.bucket}/{quote(at.path, safe='/-_.~')}"
    headers = (
        dict(_MODE)
        if config.get("skip_signature")
        else signed("HEAD", url, _MODE, config, datetime.now(UTC))
    )
    limits = store.guard.limits
    for attempt in range(min(limits.retries, _RETRIES) + 1):
        if attempt:
            time.sleep(random.random() * _WAIT_S * 2**attempt)
        answer = _asked(url, headers, limits.timeout_s)
        if answer is not None and not refused(answer, b"").passing:
            break
    if answer is None or answer.status != 200:
        return Kept(
            why_not="it does not answer" if answer is None else f"it answers {answer.status}"
        )
    return _read(answer)


def _read(answer: Answer) -> Kept:
    found: dict[str, str] = {}
    for name, size in _SIZES.items():
        text = answer.get(_PREFIX + name)
        try:
            value = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            value = b""  # a composite checksum ends with the number of parts
        if len(value) == size:
            found[name] = value.hex()
        elif text:
            return Kept(why_not="they are sums of the parts of an upload")
    if found and answer.get(f"{_PREFIX}type").upper() == "COMPOSITE":
        return Kept(why_not="they are sums of the parts of an upload")
    return Kept(found)


def signed(
    method: str, url: str, headers: Mapping[str, str], config: Mapping[str, Any], now: datetime
) -> dict[str, str]:
    """Return the headers of a signed request without a body.

    url      escaped, without a query
    config   access_key_id, secret_access_key, region; session_token if there is one
    """
    parts, day = urlsplit(url), f"{now:%Y%m%d}"
    payload = "UNSIGNED-PAYLOAD"
    all_of = {
        **headers,
        "host": parts.netloc,
        "x-amz-content-sha256": payload,
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
    }
    all_of |= (
        {"x-amz-security-token": config["session_token"]} if config.get("session_token") else {}
    )
    names = ";".join(sorted(all_of))
    canonical = "".join(f"{name}:{all_of[name]}\n" for name in sorted(all_of))
    scope = f"{day}/{config['region']}/s3/aws4_request"
    request = hashlib.sha256(
        f"{method}\n{parts.path}\n\n{canonical}\n{names}\n{payload}".encode()
    ).hexdigest()
    key = f"AWS4{config['secret_access_key']}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    proof = hmac.digest(
        key, f"AWS4-HMAC-SHA256\n{all_of['x-amz-date']}\n{scope}\n{request}".encode(), "sha256"
    ).hex()
    credential = f"{config['access_key_id']}/{scope}"
    return {
        **all_of,
        "authorization": f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={proof}",
    }


def _asked(url: str, headers: Mapping[str, str], timeout_s: float) -> Answer | None:
    """Send a HEAD request on this thread's connection; return None without a response."""
    import pycurl

    held: tuple[int, Any] = getattr(_OWN, "held", (0, None))
    pid, easy = held
    if pid != os.getpid():  # a forked child must neither use nor close the connection of its parent
        _inherited.append(easy)
        easy = pycurl.Curl()
        _OWN.held = os.getpid(), easy
    lines: list[bytes] = []

    def take(line: bytes) -> int:
        lines.append(line)
        return len(line) if sum(map(len, lines)) <= _HEAD_BYTES else -1

    easy.reset()
    for option, value in (
        (pycurl.NOSIGNAL, 1),
        (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
        (pycurl.URL, url),
        (pycurl.NOBODY, 1),
        (pycurl.PATH_AS_IS, 1),
        (pycurl.CONNECTTIMEOUT, _CONNECT_S),
        (pycurl.TIMEOUT_MS, int(1000 * timeout_s)),
        (pycurl.HTTPHEADER, [f"{name}: {value}" for name, value in headers.items()]),
        (pycurl.HEADERFUNCTION, take),
        *([(pycurl.CAINFO, certificates())] if certificates() else []),
    ):
        easy.setopt(option, value)
    try:
        easy.perform()
    except pycurl.error:
        return None
    return Answer(lines)
