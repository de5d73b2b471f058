"""A result as JUnit XML, for GitLab, Jenkins and GitHub Actions.

One suite has a failed test case for each file with findings, and a passed one for all other files.
Notes about unprotected files are in `system-out`. Times and host names are omitted, so that equal
results are equal files. Source: the schema of the Jenkins xUnit plugin, which also sets the order
of the elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from flarecli.model import Finding
from flarecli.report.result import Result, bytes_of, shown

__all__ = ["junit"]


def junit(result: Result) -> str:
    """Return the result as XML."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: Result) -> Iterator[str]:
    files: dict[str, list[Finding]] = {}
    for one in result.findings:
        files.setdefault(one.address, []).append(one)
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
        yield (
            "    <system-out>"
            + "\n".join(escape(shown(text)) for text in result.unprotected)
            + "</system-out>"
        )
    yield "  </testsuite>"
    yield "</testsuites>"


def _failure(findings: list[Finding]) -> str:
    """Return one element for all findings of a file, since readers show only the first of several."""
    first, more = findings[0], len(findings) - 1
    message = first.message + (f" (and {more} more)" if more else "")
    told = "\n".join(
        f"{one.where}: {one.message}{_bytes(one)}" + (f"\n{one.hint}" if one.hint else "")
        for one in findings
    )
    return f"<failure type={_attribute(first.kind)} message={_attribute(message)}>{_lines_of(told)}</failure>"


def _bytes(one: Finding) -> str:
    return f" ({told})" if (told := bytes_of(one)) else ""


def _attribute(text: str) -> str:
    return quoteattr(shown(text))


def _lines_of(text: str) -> str:
    return "\n".join(escape(shown(line)) for line in text.split("\n"))
