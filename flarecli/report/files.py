"""Write reports to files; the suffix selects the kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flarecli.errors import UsageError
from flarecli.report.html.findings import findings_page
from flarecli.report.json import listed
from flarecli.report.junit import junit
from flarecli.report.result import Result
from flarecli.storage import locate

__all__ = ["KINDS", "check_report", "write_report"]

KINDS: Mapping[str, Callable[[Result], str]] = {
    ".xml": junit,
    ".json": listed,
    ".html": findings_page,
}


def check_report(address: str) -> str:
    """Return the kind of report for a file name. Raises UsageError for an unknown suffix."""
    kind = next((one for one in KINDS if address.lower().endswith(one)), None)
    if kind is None:
        raise UsageError(
            f"{address!r} has no known report suffix",
            hint="Use a file name with the suffix .xml (JUnit), .json or .html.",
        )
    return kind


def write_report(address: str, result: Result) -> None:
    """Write a report atomically. Raises UsageError and ReachError."""
    locate(address).write([KINDS[check_report(address)](result).encode()])
