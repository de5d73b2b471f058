"""Read the checksums that S3 stores for an object, with one HEAD request.

    x-amz-checksum-sha256: base64      also -sha1, -crc32, -crc32c, -crc64nvme; big-endian
    x-amz-checksum-type: FULL_OBJECT   or COMPOSITE, which is a checksum of the checksums of the
                                       parts of an upload, and which flare cannot use

obstore cannot read these headers, so the request is signed here with AWS Signature Version 4
(source: Amazon S3 API reference, "Authenticating Requests"). If only the role of the machine grants
access, no request is sent, because flare cannot read the credentials of the role.
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
from flarecli.storage.http.response import Response, status_fault
from flarecli.storage.http.transfer import certificates

__all__ = ["signed", "stored_checksums"]

_PREFIX, _MODE = "x-amz-checksum-", {"x-amz-checksum-mode": "ENABLED"}
# Algorithm -> size of the checksum in bytes.
_SIZES = {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}
_CONNECT_S = 10
_RETRIES, _WAIT_S = 4, 0.25  # delay before retry n: random in [0, _WAIT_S * 2**n]
_HEAD_BYTES = 1 << 16  # maximum size of the response headers
_thread = threading.local()
_inherited: list[Any] = []


class StoredChecksums(NamedTuple):
    """The checksums of an object.

    hashes       algorithm -> lowercase hexadecimal checksum
    unavailable  reason why the checksums could not be read, or empty
    """

    hashes: Mapping[str, str] = {}
    unavailable: str = ""


def stored_checksums(at: Location) -> StoredChecksums:
    """Return the checksums that S3 stores for an object, or no checksums for other stores.

    A failed request raises no error; `unavailable` then contains the reason.
    """
    store = at.store
    if not isinstance(store, ObjectStore) or store.scheme != "s3":
        return StoredChecksums()
    config = store.settings
    if not config.get("skip_signature") and "access_key_id" not in config:
        return StoredChecksums(unavailable="only the role of this machine can read them")
    endpoint = config.get("endpoint") or f"https://s3.{config['region']}.amazonaws.com"
    url = f"{endpoint}/{store.bucket}/{quote(at.path, safe='/-_.~')}"
    headers = dict(_MODE)
    if not config.get("skip_signature"):
        headers = signed("HEAD", url, _MODE, config, datetime.now(UTC))
    limits = store.guard.limits
    for attempt in range(min(limits.retries, _RETRIES) + 1):
        if attempt:
            time.sleep(random.random() * _WAIT_S * 2**attempt)
        response = _head(url, headers, limits.timeout_s)
        if response is not None and not status_fault(response, b"").is_transient:
            break
    if response is None:
        return StoredChecksums(unavailable="no response")
    if response.status != 200:
        return StoredChecksums(unavailable=f"the response has status {response.status}")
    return _parsed(response)


def _parsed(response: Response) -> StoredChecksums:
    found: dict[str, str] = {}
    for name, size in _SIZES.items():
        text = response.get(_PREFIX + name)
        try:
            value = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            value = b""  # a composite checksum ends with `-` and the number of parts
        if len(value) == size:
            found[name] = value.hex()
        elif text:
            return StoredChecksums(unavailable="they are checksums of the parts of an upload")
    if found and response.get(f"{_PREFIX}type").upper() == "COMPOSITE":
        return StoredChecksums(unavailable="they are checksums of the parts of an upload")
    return StoredChecksums(found)


def signed(
    method: str, url: str, headers: Mapping[str, str], config: Mapping[str, Any], now: datetime
) -> dict[str, str]:
    """Return the headers of a signed request without a body.

    url      percent-encoded URL without a query
    headers  headers to sign in addition to the required headers
    config   access_key_id, secret_access_key, region, and optionally session_token
    now      time of the signature in UTC
    """
    parts, day = urlsplit(url), f"{now:%Y%m%d}"
    payload = "UNSIGNED-PAYLOAD"
    signed_headers = {
        **headers,
        "host": parts.netloc,
        "x-amz-content-sha256": payload,
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
    }
    if config.get("session_token"):
        signed_headers["x-amz-security-token"] = config["session_token"]
    names = ";".join(sorted(signed_headers))
    canonical = "".join(f"{name}:{signed_headers[name]}\n" for name in sorted(signed_headers))
    scope = f"{day}/{config['region']}/s3/aws4_request"
    request = hashlib.sha256(
        f"{method}\n{parts.path}\n\n{canonical}\n{names}\n{payload}".encode()
    ).hexdigest()
    key = f"AWS4{config['secret_access_key']}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(
        key,
        f"AWS4-HMAC-SHA256\n{signed_headers['x-amz-date']}\n{scope}\n{request}".encode(),
        "sha256",
    ).hex()
    credential = f"{config['access_key_id']}/{scope}"
    return {
        **signed_headers,
        "authorization": f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}",
    }


def _head(url: str, headers: Mapping[str, str], timeout_s: float) -> Response | None:
    """Send a HEAD request on this thread's connection; return None if there is no response."""
    import pycurl

    connection: tuple[int, Any] = getattr(_thread, "connection", (0, None))
    pid, easy = connection
    if pid != os.getpid():  # a forked child must not use or close the connection of its parent
        _inherited.append(easy)
        easy = pycurl.Curl()
        _thread.connection = os.getpid(), easy
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
    return Response(lines)
