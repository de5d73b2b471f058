"""Report files, whose suffix selects the format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flarecli.errors import UsageError
from flarecli.report.findings_html import findings_page
from flarecli.report.junit import junit_xml
from flarecli.report.result import Result, result_json
from flarecli.storage import locate

__all__ = ["check_report", "write_report"]

_FORMATS: Mapping[str, Callable[[Result], str]] = {
    ".xml": junit_xml,
    ".json": result_json,
    ".html": findings_page,
}


def check_report(address: str) -> str:
    """Return the suffix of a report file. Raises UsageError for an unknown suffix."""
    for suffix in _FORMATS:
        if address.lower().endswith(suffix):
            return suffix
    raise UsageError(
        f"unknown suffix for a report: {address!r}",
        hint="Use a file name with the suffix .xml (JUnit), .json or .html.",
    )


def write_report(address: str, result: Result) -> None:
    """Write a report atomically. Raises UsageError for an unknown suffix."""
    text = _FORMATS[check_report(address)](result)
    locate(address).write([text.encode()])
