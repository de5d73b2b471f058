"""A report goes to a file; what its name ends with says what it is."""

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
    """Give the kind of report that a name asks for. Raises UsageError for a name that asks for none."""
    kind = next((one for one in KINDS if address.lower().endswith(one)), None)
    if kind is None:
        raise UsageError(
            f"{address!r} does not say which report it is",
            hint="Name a file that ends with .xml (JUnit), .json or .html.",
        )
    return kind


def write_report(address: str, result: Result) -> None:
    """Write a report, whole or not at all. Raises UsageError, ReachError."""
    locate(address).write([KINDS[check_report(address)](result).encode()])
