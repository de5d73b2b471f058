"""Findings as GitHub workflow commands, which GitHub shows as annotations on the file.

    ::error file=PATH,line=N,title=TITLE::MESSAGE

In messages and properties, `%`, CR and LF are escaped as %25, %0D and %0A. In properties, `:` and
`,` are also escaped, as %3A and %2C (source: actions/toolkit).
"""

from __future__ import annotations

import os

from flarecli.errors import format_place
from flarecli.model import Finding
from flarecli.names import is_url
from flarecli.report.result import byte_range, one_line

__all__ = ["annotation"]


def annotation(finding: Finding) -> str:
    """Return the annotation for a finding.

    Paths below the current folder are relative, as GitHub expects.
    """
    file = finding.address
    properties = [f"file={_property(_relative(file))}"]
    if finding.line is not None:
        properties.append(f"line={finding.line}")
    properties.append(f"title={_property(f'flare verify, {finding.kind}')}")
    place = finding.where
    if not is_url(file):
        place = format_place(os.path.basename(file), finding.row, item=finding.item)
    text = f"{place}: {finding.message}"
    if span := byte_range(finding):
        text += f" ({span})"
    if finding.hint:
        text += f" ({finding.hint})"
    return f"::error {','.join(properties)}::{_message(text)}"


def _relative(file: str) -> str:
    if is_url(file):
        return file
    path = os.path.relpath(file)
    return file if path.startswith("..") else path


def _message(text: str) -> str:
    return one_line(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
