"""What a check came to, as every report tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flarecli.model import Finding
from flarecli.names import escape, redact_text

__all__ = ["Result", "bytes_of", "place", "shown"]

_PLACE = re.compile(r"(.+?)(?:\[(\d+)\]|:(\d+):\d+)", re.DOTALL)
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


def place(where: str) -> tuple[str, int | None, int | None]:
    """Split where a finding is: the file, the row of a shard, the line of a text."""
    found = _PLACE.fullmatch(where)
    if not found:
        return where, None, None
    return found[1], int(found[2]) if found[2] else None, int(found[3]) if found[3] else None


def bytes_of(one: Finding) -> str:
    """Say which bytes a finding is about, the last one included; empty where that is not known."""
    if one.span is None:
        return ""
    start, stop = one.span
    return f"bytes {start}-{stop - 1}" if stop - start > 1 else f"byte {start}"


def shown(text: str) -> str:
    """Make text from data fit for any page: no secrets of addresses, nothing that acts, one line."""
    return _NO_TEXT.sub("?", escape(redact_text(text)))
