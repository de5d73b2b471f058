"""The result of a verification, and its reports: JSON, JUnit XML, HTML and GitHub annotations.

All text from data is escaped. Times and host names are omitted, so equal results produce equal
files.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from flarecli import redact
from flarecli.errors import UsageError, format_place
from flarecli.model import Finding
from flarecli.names import is_url
from flarecli.storage import locate
from flarecli.units import format_count, format_size

__all__ = [
    "Result",
    "annotation",
    "byte_range",
    "check_report",
    "finding_fields",
    "html_text",
    "one_line",
    "write_report",
]

_NOT_IN_XML = re.compile("[\ufffe\uffff]")
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_PAGE_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: light-dark(#b3261e, #ff8a80); --good: light-dark(#1b6e3c, #7ddc9f) }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem } .bad { color: var(--bad) } .good { color: var(--good) }
.of, .counts, .hint { opacity: .75 } .of, td.where { overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .45rem .9rem .45rem 0; border-bottom: 1px solid var(--line) }
td.where { font-family: ui-monospace, monospace; font-size: .85rem; width: 38% } .hint { display: block; font-size: .9rem }
""".replace("\n", " ")


@dataclass(frozen=True)
class Result:
    """The result of a verification.

    sources      addresses that the user specified
    findings     findings to report; `counts["findings"]` is the total
    counts       number of files, shards, rows, bytes and findings
    unprotected  notes about files that could not be checked completely, such as files without
                 checksums
    extra        names of files in the dataset's folder that no index or playlist lists
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


def junit_xml(result: Result) -> str:
    """Return the result as JUnit XML, for GitLab, Jenkins and GitHub Actions.

    The report has one suite: a failed test case for each file with findings, and one passed test
    case for all other files. Notes about unprotected files are in `system-out`. Source: the schema
    of the Jenkins xUnit plugin, which also specifies the order of the elements.
    """
    return "".join(f"{line}\n" for line in _junit_lines(result))


def _junit_lines(result: Result) -> Iterator[str]:
    files: dict[str, list[Finding]] = {}
    for finding in result.findings:
        files.setdefault(finding.address, []).append(finding)
    whole = max(0, result.counts["files"] - len(files))
    counts = f'tests="{len(files) + 1}" failures="{len(files)}" errors="0"'
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<testsuites name="flare verify" {counts}>'
    yield f'  <testsuite name={_xml_attribute(" ".join(result.sources))} {counts} skipped="0" time="0">'
    for file, findings in files.items():
        yield f'    <testcase classname="flare.verify" name={_xml_attribute(file)} time="0">'
        yield f"      {_junit_failure(findings)}"
        yield "    </testcase>"
    yield f'    <testcase classname="flare.verify" name={_xml_attribute(f"{whole} files have no findings")} time="0"/>'
    if result.unprotected:
        notes = "\n".join(escape(one_line(text)) for text in result.unprotected)
        yield f"    <system-out>{notes}</system-out>"
    yield "  </testsuite>"
    yield "</testsuites>"


def _junit_failure(findings: list[Finding]) -> str:
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
    return f"<failure type={_xml_attribute(first.kind)} message={_xml_attribute(message)}>{text}</failure>"


def _xml_attribute(text: str) -> str:
    return quoteattr(one_line(text))


def findings_page(result: Result) -> str:
    """Return the result as a static HTML page without scripts."""
    total, counts = result.counts["findings"], result.counts
    verdict, style = (format_count(total, "finding"), "bad") if total else ("whole", "good")
    checked = [format_count(counts[f"{name}s"], name) for name in ("file", "shard", "row")]
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_PAGE_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>flare verify: {verdict}</title><style>{_PAGE_STYLE}</style></head><body>",
        f'<h1 class="{style}">{verdict}</h1>',
        f'<div class="of">{html_text(" ".join(result.sources))}</div>',
        f'<div class="counts">{", ".join(checked)}, {format_size(counts["bytes"])}</div>',
    ]
    if result.findings:
        heads = "".join(
            f'<th scope="col">{name}</th>' for name in ("place", "bytes", "kind", "message")
        )
        lines.append(f"<h2>Findings</h2><table><tr>{heads}</tr>")
        for finding in result.findings:
            hint = f'<span class="hint">{html_text(finding.hint)}</span>' if finding.hint else ""
            lines.append(
                f'<tr><td class="where">{html_text(finding.where)}</td>'
                f"<td>{byte_range(finding).rpartition(' ')[2]}</td><td>{html_text(finding.kind)}</td>"
                f"<td>{html_text(finding.message)}{hint}</td></tr>"
            )
        lines.append("</table>")
    lines += _html_list("Files without checksums", result.unprotected)
    lines += _html_list("Not listed, not checked", result.extra)
    return "\n".join([*lines, "</body></html>", ""])


def _html_list(title: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{html_text(text)}</li>" for text in texts)
        yield "</ul>"


def annotation(finding: Finding) -> str:
    """Return a finding as a GitHub workflow command, which annotates the file.

        ::error file=PATH,line=N,title=TITLE::MESSAGE

    In messages and properties, `one_line` escapes line ends, and `%` becomes %25. In properties,
    `:` and `,` become %3A and %2C (source: actions/toolkit). Paths below the current folder are
    relative, as GitHub expects.
    """
    file = finding.address
    properties = [f"file={_github_property(_relative_path(file))}"]
    if finding.line is not None:
        properties.append(f"line={finding.line}")
    properties.append(f"title={_github_property(f'flare verify, {finding.kind}')}")
    place = finding.where
    if not is_url(file):
        place = format_place(os.path.basename(file), finding.row, item=finding.item)
    text = f"{place}: {finding.message}"
    if span := byte_range(finding):
        text += f" ({span})"
    if finding.hint:
        text += f" ({finding.hint})"
    return f"::error {','.join(properties)}::{_github_message(text)}"


def _relative_path(file: str) -> str:
    if is_url(file):
        return file
    path = os.path.relpath(file)
    return file if path.startswith("..") else path


def _github_message(text: str) -> str:
    return one_line(text).replace("%", "%25")


def _github_property(text: str) -> str:
    return _github_message(text).replace(":", "%3A").replace(",", "%2C")


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
