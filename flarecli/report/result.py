"""The result of a verification, its JSON report, and text functions for all report formats."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flarecli import redact
from flarecli.model import Finding

__all__ = ["Result", "byte_range", "finding_fields", "html_text", "one_line", "result_json"]

_NOT_IN_XML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True)
class Result:
    """The result of a verification.

    sources      addresses that the user specified
    findings     findings to report; `counts["findings"]` is the total
    counts       number of files, shards, rows, bytes and findings
    unprotected  one sentence for each file without checksums
    extra        names of files that no list contains
    """

    sources: Sequence[str]
    findings: Sequence[Finding]
    counts: Mapping[str, int]
    unprotected: Sequence[str] = ()
    extra: Sequence[str] = ()


def byte_range(finding: Finding) -> str:
    """Return the byte range of a finding as text, or an empty string if the range is unknown."""
    if finding.start is None or finding.stop is None:
        return ""
    if finding.stop - finding.start <= 1:
        return f"byte {finding.start}"
    return f"bytes {finding.start}-{finding.stop - 1}"


def one_line(text: str) -> str:
    """Return the text of `redact.one_line`, with characters that are invalid in XML replaced."""
    return _NOT_IN_XML.sub("?", redact.one_line(text))


def html_text(text: str) -> str:
    """Return text as one line, escaped for HTML."""
    return html.escape(one_line(text))


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Return the JSON object for a finding."""
    span = None if finding.start is None else [finding.start, finding.stop]
    return {
        "where": finding.where,
        "file": finding.address,
        "row": finding.row,
        "column": finding.column,
        "line": finding.line,
        "kind": finding.kind,
        "message": finding.message,
        "hint": finding.hint,
        "bytes": span,
    }


def result_json(result: Result) -> str:
    """Return the JSON report: the keys of `verify --json`, and each finding with file and line."""
    findings = [
        {
            name: one_line(value) if isinstance(value, str) else value
            for name, value in finding_fields(finding).items()
        }
        for finding in result.findings
    ]
    report = {
        "sources": [one_line(source) for source in result.sources],
        "whole": not result.counts["findings"],
        **result.counts,
        "found": findings,
        "unprotected": [one_line(text) for text in result.unprotected],
        "extra": [one_line(name) for name in result.extra],
    }
    return json.dumps(report, indent=1) + "\n"
