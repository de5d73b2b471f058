"""A verification result as JUnit XML, for GitLab, Jenkins and GitHub Actions.

The report has one suite: a failed test case for each file with findings, and one passed test case
for all other files. Notes about unprotected files are in `system-out`. Times and host names are
omitted, so equal results produce equal files. Source: the schema of the Jenkins xUnit plugin, which
also specifies the order of the elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from flarecli.model import Finding
from flarecli.report.result import Result, byte_range, one_line

__all__ = ["junit_xml"]


def junit_xml(result: Result) -> str:
    """Return the result as XML."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: Result) -> Iterator[str]:
    files: dict[str, list[Finding]] = {}
    for finding in result.findings:
        files.setdefault(finding.address, []).append(finding)
    whole = max(0, result.counts["files"] - len(files))
    counts = f'tests="{len(files) + 1}" failures="{len(files)}" errors="0"'
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<testsuites name="flare verify" {counts}>'
    yield f'  <testsuite name={_attribute(" ".join(result.sources))} {counts} skipped="0" time="0">'
    for file, findings in files.items():
        yield f'    <testcase classname="flare.verify" name={_attribute(file)} time="0">'
        yield f"      {_failure(findings)}"
        yield "    </testcase>"
    yield f'    <testcase classname="flare.verify" name={_attribute(f"{whole} files have no findings")} time="0"/>'
    if result.unprotected:
        notes = "\n".join(escape(one_line(text)) for text in result.unprotected)
        yield f"    <system-out>{notes}</system-out>"
    yield "  </testsuite>"
    yield "</testsuites>"


def _failure(findings: list[Finding]) -> str:
    """Return one element for all findings in a file; CI systems show only the first element."""
    first, more = findings[0], len(findings) - 1
    message = first.message + (f" (and {more} more)" if more else "")
    lines = []
    for finding in findings:
        span = byte_range(finding)
        lines.append(f"{finding.where}: {finding.message}" + (f" ({span})" if span else ""))
        lines += [finding.hint] if finding.hint else []
    # Line breaks inside a message or a hint are kept.
    text = "\n".join(escape(one_line(line)) for line in "\n".join(lines).split("\n"))
    return f"<failure type={_attribute(first.kind)} message={_attribute(message)}>{text}</failure>"


def _attribute(text: str) -> str:
    return quoteattr(one_line(text))
