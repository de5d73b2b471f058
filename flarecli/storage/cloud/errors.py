"""Classify and convert object store errors.

Original messages are never shown, because they may contain secrets.
"""

from __future__ import annotations

import re

from flarecli.errors import (
    CredentialsError,
    FlareError,
    FormatError,
    MissingBucketError,
    MissingError,
    ReachError,
    UsageError,
)
from flarecli.storage.http.response import OVERLOAD, OVERLOAD_CODES, status_phrase
from flarecli.storage.versions import changed

__all__ = [
    "ANONYMOUS_HINT",
    "access_denied",
    "converted",
    "has_response",
    "is_access_error",
    "is_conflict",
    "is_denied",
    "is_overload",
    "is_past_end",
    "is_unreachable",
    "is_unsupported",
]

_STATUS = re.compile(r"status(?: code)?:? (\d{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
# Parts of an error message that quote the request. They are removed, because an object key such as
# `status 403` would match _STATUS.
_REQUEST = re.compile(r'path: "(?:[^"\\]|\\.)*"|https?://[^\s,]+')
_CREDENTIAL_CODES = {
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "AuthenticationFailed",
    "AuthorizationFailure",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "InvalidSecurity",
    "RequestExpired",
}
_REGION_CODES = (
    "AuthorizationHeaderMalformed",
    "PermanentRedirect",
    "IllegalLocationConstraintException",
)
_NEW_CREDENTIALS = "Renew the credentials, then run the same command again."
_HINTS = {
    "ExpiredToken": _NEW_CREDENTIALS,
    "TokenRefreshRequired": _NEW_CREDENTIALS,
    "RequestTimeTooSkewed": "Correct the clock of this machine.",
    "RequestExpired": "Correct the clock of this machine.",
    "InvalidObjectState": "Restore the archived object first.",
}
_ACCESS_HINT = "Check the credentials and their permissions; some stores also deny access to objects that do not exist."
ANONYMOUS_HINT = "Links from network data to other buckets are read without credentials; if you trust the data, save it locally."
_NO_CONNECTION = ("ConnectionRefused", "dns error", "failed to lookup", "kind: Connect")
# For a library error that contains no HTTP status: substring of the error -> message.
_CAUSES = (
    ("ConnectionRefused", "connection refused"),
    ("dns error", "cannot resolve the host name"),
    ("failed to lookup", "cannot resolve the host name"),
    ("certificate", "the TLS certificate is not trusted"),
    ("InvalidCertificate", "the TLS certificate is not trusted"),
    ("TimedOut", "timed out"),
    ("timed out", "timed out"),
    ("IncompleteMessage", "connection lost"),
    ("ConnectionReset", "connection lost"),
    ("BrokenPipe", "connection lost"),
    ("UnexpectedEof", "connection lost"),
    ("ContentRange", "the response is not the requested range"),
    ("NotPartial", "the response is not the requested range"),
    ("Content-Range", "the response is not the requested range"),
    ("UnexpectedRange", "the response is not the requested range"),
    ("kind: Body", "connection lost"),
    ("kind: Decode", "connection lost"),
    ("kind: Connect", "cannot connect"),
    ("BadScheme", "plain http is not allowed"),
    ("redential", "cannot get credentials"),
    ("token", "cannot get credentials"),
)


def _parsed(error: Exception) -> tuple[int, str, str]:
    """Return the status, the error code, and the message without the parts that quote the request.

    return  status 0 and an empty code if there was no response
    """
    message, separator, detail = str(error).partition("\n\nDebug source:")
    text = _REQUEST.sub("", message.rpartition("Error performing ")[2] + separator + detail)
    status, code = _STATUS.search(text), _CODE.search(text)
    return int(status[1]) if status else 0, code[1] if code else "", text


def is_denied(error: Exception) -> bool:
    """Return whether access was denied; in this case, different credentials may succeed."""
    status, code, _ = _parsed(error)
    name = type(error).__name__
    return name in ("PermissionDeniedError", "UnauthenticatedError") or is_access_error(
        status, code
    )


def is_past_end(error: Exception) -> bool:
    """Return whether the requested range starts at or after the end of the object."""
    status, code, text = _parsed(error)
    return status == 416 or code == "InvalidRange" or "StartTooLarge" in text


def is_unreachable(error: Exception) -> bool:
    """Return whether the connection to the store failed."""
    status, _, text = _parsed(error)
    return not status and any(part in text for part in _NO_CONNECTION)


def has_response(error: Exception) -> bool:
    """Return whether the store responded."""
    return isinstance(error, FileNotFoundError) or bool(_parsed(error)[0])


def is_overload(error: Exception) -> bool:
    """Return whether the store is overloaded and needs a lower request rate."""
    status, code, _ = _parsed(error)
    return status in OVERLOAD or code in OVERLOAD_CODES


def is_conflict(error: Exception) -> bool:
    """Return whether a conditional write failed because another process has written the object."""
    status, _, _ = _parsed(error)
    name = type(error).__name__
    return name in ("AlreadyExistsError", "PreconditionError") or status in (409, 412)


def is_unsupported(error: Exception) -> bool:
    """Return whether the store does not support a request, such as a conditional write."""
    status, code, _ = _parsed(error)
    name = type(error).__name__
    return status in (501, 405) or code == "NotImplemented" or name == "NotSupportedError"


def converted(error: Exception, where: str, tried: str, endpoint: str) -> FlareError:
    """Convert an exception of the library to a FlareError.

    tried     names of the credential sources that were tried
    endpoint  URL of the service; empty for the default endpoint
    """
    if isinstance(error, FlareError):
        return error
    name = type(error).__name__
    status, code, text = _parsed(error)
    at = f" at {endpoint}" if endpoint else ""
    if is_denied(error):
        return access_denied(status, code, where, f"{tried}{at}")
    if name == "PreconditionError":
        return changed(where)
    if name == "AlreadyExistsError":
        return UsageError("already exists", where=where)
    if isinstance(error, FileNotFoundError) or status == 404:
        if code in ("NoSuchBucket", "ContainerNotFound"):
            return MissingBucketError("no such bucket", where=where)
        return MissingError("not found", where=where)
    if name == "InvalidPathError" or "Could not parse path" in text:
        return FormatError(
            "cannot read a key that contains `//`, a component `.` or `..`, or a control character",
            where=where,
        )
    if "without LOCATION" in text or code in _REGION_CODES:
        return ReachError(
            f"{status_phrase(status or 301, code)}: the bucket is in a different region{at}",
            where=where,
            hint="Set AWS_REGION to the bucket's region.",
        )
    # Some stores respond with status 400 to a HEAD request with unknown credentials.
    if status == 400 and not code:
        message = f"{status_phrase(status, code)}, tried {tried}{at}"
        return ReachError(message, where=where, hint=_ACCESS_HINT)
    if status:
        return ReachError(status_phrase(status, code) + at, where=where, hint=_HINTS.get(code, ""))
    cause = next((message for part, message in _CAUSES if part in text), "invalid response")
    return ReachError(cause + at, where=where)


def access_denied(status: int, code: str, where: str, tried: str) -> FlareError:
    """Return the error for denied access: a CredentialsError if all other requests would also fail.

    code   error code from the store, or empty
    tried  names of the credential sources that were tried, and the endpoint
    """
    error_class = CredentialsError if code in _CREDENTIAL_CODES else ReachError
    message = f"{status_phrase(status or 403, code)}, tried {tried}"
    return error_class(message, where=where, hint=_HINTS.get(code, _ACCESS_HINT))


def is_access_error(status: int, code: str) -> bool:
    """Return whether a response denies access."""
    return status in (401, 403) or code in _CREDENTIAL_CODES
