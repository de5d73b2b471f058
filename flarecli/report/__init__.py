"""What was found, for those who do not read terminals: JUnit and JSON for a CI, a page for people, annotations for GitHub."""

from __future__ import annotations

from flarecli.report.annotations import annotation
from flarecli.report.page import dataset_page
from flarecli.report.result import Result
from flarecli.report.written import KINDS, check_report, write_report

__all__ = ["KINDS", "Result", "annotation", "check_report", "dataset_page", "write_report"]
