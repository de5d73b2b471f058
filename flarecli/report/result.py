"""What a check came to, as every report tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flarecli.model import Finding
from flarecli.names import escape
from flarecli.redact import redact_text

__all__ = ["Result", "bytes_of", "shown"]

_NO_TEXT = re.compile("[\ufffe\uffff]")  # what XML cannot hold, beside what no terminal should see


@dataclass(frozen=True)
class Result:
    """What was checked, what was found, and what nothing protects.

    sources      addresses as they were given
    findings     those that were told; `counts["findings"]` is how many there are
    counts       files, shards, rows, bytes, findings
    unprotected  what carries no sum, one sentence each
    extra        files that no list names
    """

    sources: Sequence[str]
    findings: Sequence[Finding]
    counts: Mapping[str, int]
    unprotected: Sequence[str] = ()
    extra: Sequence[str] = ()


def bytes_of(one: Finding) -> str:
    """Say which bytes a finding is about, the last one included; empty where that is not known."""
    if one.start is None or one.stop is None:
        return ""
    is_one = one.stop - one.start <= 1
    return f"byte {one.start}" if is_one else f"bytes {one.start}-{one.stop - 1}"


def shown(text: str) -> str:
    """Make text from data fit for any page: no secrets of addresses, nothing that acts, one line."""
    return _NO_TEXT.sub("?", escape(redact_text(text)))
