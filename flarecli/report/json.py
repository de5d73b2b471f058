"""A result as one JSON object: the keys of `verify --json`, and file, row, line and bytes of each
finding.
"""

from __future__ import annotations

import json
from typing import Any

from flarecli.model import Finding
from flarecli.report.result import Result, shown

__all__ = ["listed"]


def listed(result: Result) -> str:
    """Return the result as JSON."""
    told = {
        "sources": [shown(one) for one in result.sources],
        "whole": not result.counts["findings"],
        **result.counts,
        "found": [_finding(one) for one in result.findings],
        "unprotected": [shown(one) for one in result.unprotected],
        "extra": [shown(one) for one in result.extra],
    }
    return json.dumps(told, indent=1) + "\n"


def _finding(one: Finding) -> dict[str, Any]:
    told = {
        "where": one.where,
        "file": one.address,
        "row": one.row,
        "column": one.column,
        "line": one.line,
        "kind": one.kind,
        "message": one.message,
        "hint": one.hint,
    }
    return {
        name: shown(value) if isinstance(value, str) else value for name, value in told.items()
    } | {"bytes": None if one.start is None else [one.start, one.stop]}
