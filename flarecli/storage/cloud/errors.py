"""What an object store's refusal means. Its own text is never shown: it may hold keys, tokens and signed addresses."""

from __future__ import annotations

import re
from http import HTTPStatus

from flarecli.errors import (
    CredentialsError,
    FlareError,
    FormatError,
    MissingError,
    ReachError,
    UsageError,
)
from flarecli.storage.versions import changed

__all__ = [
    "ANONYMOUS",
    "answered",
    "denied",
    "is_denied",
    "is_overload",
    "is_refusal",
    "is_unreachable",
    "outrun",
    "past_the_end",
    "translate",
    "unsupported",
]

_STATUS = re.compile(r"status(?: code)?:? (\d{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
_NAMES = re.compile(
    r'path: "(?:[^"\\]|\\.)*"|https?://[^\s,]+'
)  # what is asked for, not what is answered: `status 403` may be a key
_CREDENTIALS = {
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
_HINTS = {
    "ExpiredToken": "Get new credentials, then run the same command again.",
    "TokenRefreshRequired": "Get new credentials, then run the same command again.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
    "RequestExpired": "Set this machine's clock.",
    "InvalidObjectState": "The object is archived: restore it first.",
}
_ACCESS = "Check the credentials, and that they may do this; some stores also answer so for what is not there."
ANONYMOUS = "Data from the network reads other buckets without credentials; save it to a local file if you trust it."
_NO_CONNECTION = ("ConnectionRefused", "dns error", "failed to lookup", "kind: Connect")
_REGION = "Set AWS_REGION to the bucket's region."
_CUT = "The file was cut short; fetch or pack it again."


def _read(error: Exception) -> tuple[int, str, str]:
    """Give the status, the store's own word for it, and the text to look for other signs in."""
    said, between, detail = str(error).partition("\n\nDebug source:")
    text = _NAMES.sub("", said.rpartition("Error performing ")[2] + between + detail)
    status, code = _STATUS.search(text), _CODE.search(text)
    return int(status[1]) if status else 0, code[1] if code else "", text


def _denied(error: Exception, status: int, code: str) -> bool:
    kind = type(error).__name__
    return kind in ("PermissionDeniedError", "UnauthenticatedError") or is_refusal(status, code)


def is_denied(error: Exception) -> bool:
    """Whether other credentials could help."""
    status, code, _ = _read(error)
    return _denied(error, status, code)


def past_the_end(error: Exception) -> bool:
    """Whether a range begins behind the object's end."""
    status, code, text = _read(error)
    return (
        status == 416 or code == "InvalidRange" or "StartTooLarge" in text
    )  # Azure gives the last byte where nothing is left


def is_unreachable(error: Exception) -> bool:
    """Whether no connection could be opened."""
    status, _, text = _read(error)
    return not status and any(sign in text for sign in _NO_CONNECTION)


def answered(error: Exception) -> bool:
    """Whether the store answered at all."""
    return isinstance(error, FileNotFoundError) or bool(_read(error)[0])


def is_overload(error: Exception) -> bool:
    """Whether the store asks for fewer requests."""
    status, code, _ = _read(error)
    return status in (429, 503) or code in ("SlowDown", "Throttling", "ThrottlingException")


def outrun(error: Exception) -> bool:
    """Whether another writer was there first: the condition of a write does not hold."""
    status, _, _ = _read(error)
    return type(error).__name__ in ("AlreadyExistsError", "PreconditionError") or status in (
        409,
        412,
    )


def unsupported(error: Exception) -> bool:
    """Whether the store does not know the request, such as a write on condition."""
    status, code, _ = _read(error)
    return (
        status in (501, 405)
        or code == "NotImplemented"
        or type(error).__name__ == "NotSupportedError"
    )


def translate(error: Exception, where: str, tried: str, at: str) -> FlareError:
    """Make the error to raise.

    tried  the ways to be let in that were refused, in words
    at     the endpoint, if it is not the usual one
    """
    kind = type(error).__name__
    status, code, text = _read(error)
    at = f" at {at}" if at else ""
    if isinstance(error, FlareError):
        return error
    if _denied(error, status, code):
        return denied(status, code, where, f"{tried}{at}")
    if kind == "PreconditionError":
        return changed(where)
    if kind == "AlreadyExistsError":
        return UsageError("something is there already", where=where)
    if isinstance(error, FileNotFoundError) or status == 404:
        return MissingError(
            "no such bucket"
            if code in ("NoSuchBucket", "ContainerNotFound")
            else "nothing is there",
            where=where,
        )
    if kind == "InvalidPathError" or "Could not parse path" in text:
        return FormatError(
            "holds a key with an empty part, `.`, `..` or a control character, which cannot be read",
            where=where,
        )
    if "without LOCATION" in text or code in (
        "AuthorizationHeaderMalformed",
        "PermanentRedirect",
        "IllegalLocationConstraintException",
    ):
        return ReachError(
            f"{_phrase(status or 301, code)}: the bucket is in another region{at}",
            where=where,
            hint=_REGION,
        )
    if (
        status == 400 and not code
    ):  # to a question without a body, also stores that do not know the one who asks answer so
        return ReachError(f"{_phrase(status, code)}, tried {tried}{at}", where=where, hint=_ACCESS)
    if status:
        return ReachError(_phrase(status, code) + at, where=where, hint=_HINTS.get(code, ""))
    return ReachError(_cause(text) + at, where=where)


def denied(status: int, code: str, where: str, tried: str) -> FlareError:
    """Make the error of a refusal: one that ends the run where no other request would fare better.

    code   the store's own word for it, or empty
    tried  the ways to be let in that were refused, and where, in words
    """
    error_class = CredentialsError if code in _CREDENTIALS else ReachError
    return error_class(
        f"{_phrase(status or 403, code)}, tried {tried}",
        where=where,
        hint=_HINTS.get(code, _ACCESS),
    )


def is_refusal(status: int, code: str) -> bool:
    """Whether an answer refuses the one who asks."""
    return status in (401, 403) or code in _CREDENTIALS


def _phrase(status: int, code: str) -> str:
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = f"status {status}"
    return f"{phrase} ({code})" if code else phrase


def _cause(text: str) -> str:
    """Find out why there was no answer at all; what a library says of it is for programmers."""
    signs = (
        ("ConnectionRefused", "the connection is refused"),
        ("dns error", "the host cannot be found"),
        ("failed to lookup", "the host cannot be found"),
        ("certificate", "its certificate is not trusted"),
        ("InvalidCertificate", "its certificate is not trusted"),
        ("TimedOut", "no answer in time"),
        ("timed out", "no answer in time"),
        ("IncompleteMessage", "the connection broke off"),
        ("ConnectionReset", "the connection broke off"),
        ("BrokenPipe", "the connection broke off"),
        ("UnexpectedEof", "the connection broke off"),
        ("ContentRange", "the answer is not the range that was asked for"),
        ("NotPartial", "the answer is not the range that was asked for"),
        ("Content-Range", "the answer is not the range that was asked for"),
        ("UnexpectedRange", "the answer is not the range that was asked for"),
        ("kind: Body", "the connection broke off"),
        ("kind: Decode", "the connection broke off"),
        ("kind: Connect", "no connection"),
        ("BadScheme", "plain http is not allowed"),
        ("redential", "no credentials can be had"),
        ("token", "no credentials can be had"),
    )
    return next(
        (words for sign, words in signs if sign in text),
        "the store gave no answer that can be understood",
    )
