"""Reports: findings as JUnit XML, JSON, HTML and GitHub annotations; a dataset as an HTML page."""

from __future__ import annotations

from flarecli.report.dataset_html import dataset_page
from flarecli.report.result import (
    Result,
    annotation,
    byte_range,
    check_report,
    finding_fields,
    write_report,
)

__all__ = [
    "Result",
    "annotation",
    "byte_range",
    "check_report",
    "dataset_page",
    "finding_fields",
    "write_report",
]
