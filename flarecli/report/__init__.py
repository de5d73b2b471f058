"""Reports of findings: JUnit and JSON for CI, HTML pages, and GitHub annotations."""

from __future__ import annotations

from flarecli.report.facts import facts_table
from flarecli.report.files import KINDS, check_report, write_report
from flarecli.report.github import annotation
from flarecli.report.html.page import dataset_page
from flarecli.report.result import Result, bytes_of

__all__ = [
    "KINDS",
    "Result",
    "annotation",
    "bytes_of",
    "check_report",
    "dataset_page",
    "facts_table",
    "write_report",
]
