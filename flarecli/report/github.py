"""Findings as GitHub workflow commands, which the runner shows as annotations of the file.

    ::error file=PATH,line=N,title=TITLE::MESSAGE

In a message, `%`, CR and LF are escaped as %25, %0D and %0A; in a property, also `:` and `,` as %3A
and %2C (source: actions/toolkit).
"""

from __future__ import annotations

import os

from flarecli.errors import format_place
from flarecli.model import Finding
from flarecli.names import is_url
from flarecli.report.result import bytes_of, shown

__all__ = ["annotation"]

_PARTS = {":": "%3A", ",": "%2C"}


def annotation(finding: Finding) -> str:
    """Return the annotation of a finding.

    Paths below the current folder are relative, as GitHub expects.
    """
    file, row, line = finding.address, finding.row, finding.line
    marks = [
        f"file={_part(_relative(file))}",
        *([f"line={line}"] if line is not None else []),
        f"title={_part(f'flare verify, {finding.kind}')}",
    ]
    name = os.path.basename(file)
    place = finding.where if is_url(file) else format_place(name, row, item=finding.item)
    text = f"{place}: {finding.message}"
    text += f" ({told})" if (told := bytes_of(finding)) else ""
    return (
        f"::error {','.join(marks)}::{_text(text + (f' ({finding.hint})' if finding.hint else ''))}"
    )


def _relative(file: str) -> str:
    if is_url(file):
        return file
    inside = os.path.relpath(file)
    return file if inside.startswith("..") else inside


def _text(text: str) -> str:
    return shown(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _part(text: str) -> str:
    text = _text(text)
    for sign, code in _PARTS.items():
        text = text.replace(sign, code)
    return text
