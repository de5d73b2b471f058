"""The result of a check, as reports use it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flarecli.model import Finding
from flarecli.names import escape
from flarecli.redact import redact_text

__all__ = ["Result", "bytes_of", "shown"]

_NO_TEXT = re.compile("[\ufffe\uffff]")  # not allowed in XML


@dataclass(frozen=True)
class Result:
    """The result of a check.

    sources      addresses, as typed
    findings     printed findings; `counts["findings"]` is the total
    counts       files, shards, rows, bytes, findings
    unprotected  files without checksums, one sentence each
    extra        files that no list names
    """

    sources: Sequence[str]
    findings: Sequence[Finding]
    counts: Mapping[str, int]
    unprotected: Sequence[str] = ()
    extra: Sequence[str] = ()


def bytes_of(one: Finding) -> str:
    """Return the byte range of a finding as text, the last byte included; empty if it is not known."""
    if one.start is None or one.stop is None:
        return ""
    is_one = one.stop - one.start <= 1
    return f"byte {one.start}" if is_one else f"bytes {one.start}-{one.stop - 1}"


def shown(text: str) -> str:
    """Return text as one line, without secrets of addresses and with control characters escaped."""
    return _NO_TEXT.sub("?", escape(redact_text(text)))
