"""The command `flare verify`, which prints findings as they are found, then a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flarecli.arguments import Option, address_texts, option
from flarecli.cli.options import CommandLine
from flarecli.cli.printer import Printer, finish
from flarecli.cli.progress import ProgressBar
from flarecli.commands.options import VerifyOptions
from flarecli.units import format_count, format_size

if TYPE_CHECKING:
    from flarecli.commands import Verification
    from flarecli.model import Finding

MAX_NOTES, MAX_HINTS = 20, 10


@dataclass(frozen=True, eq=False, repr=False)
class Line(VerifyOptions, CommandLine):
    """Command line of `flare verify`."""

    report: Sequence[str] = option(
        (),
        Option(
            group="Output",
            metavar="FILE",
            is_repeatable=True,
            help="Write a report: .xml (JUnit), .json or .html; repeatable.",
            is_everyday=True,
        ),
    )
    github: bool = option(
        False, Option(group="Output", help="Also print findings as GitHub annotations on stderr.")
    )


def command(line: Line) -> int:
    """Check that a dataset is complete and undamaged.

    Reads every byte and checks structure and checksums. Findings are printed as they are found; the
    last line is a summary. The exit code is 1 if there are findings.

    Example: flare verify out/ && echo whole
    """
    from flarecli import commands

    if line.report:
        from flarecli.report import Result, check_report, write_report

        for path in line.report:
            check_report(path)
    printer = line.printer()
    findings: list[Finding] = []
    hints, result = {""}, None
    with ProgressBar(printer, "verify") as bar:
        try:
            result = commands.verify(line.sources, progress=bar, **line.keywords(VerifyOptions))
            for finding in result:
                if line.report:
                    findings.append(finding)
                with bar.hidden():
                    _print_finding(printer, finding, line.github, hints)
                    finish()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("" if result is None else result.resume_hint) from None
    counts = {
        "files": result.files,
        "shards": result.shards,
        "rows": result.rows,
        "bytes": result.bytes,
        "findings": result.findings,
    }
    if line.report:
        sources = address_texts(line.sources)
        report = Result(sources, findings, counts, result.unprotected, result.extra)
        for path in line.report:
            write_report(path, report)
    if line.as_json:
        notes = {"unprotected": result.unprotected, "extra": result.extra, "left": result.left}
        printer.json({**counts, **notes})
    else:
        _print_summary(printer, result, line.quick)
    return 1 if result.findings else 0


def _print_finding(printer: Printer, finding: Finding, github: bool, hints: set[str]) -> None:
    """Print a finding, and its hint unless the hint was already printed.

    hints  hints that were printed so far; updated
    """
    from flarecli.report import annotation, byte_range, finding_fields

    if printer.as_json:
        fields = finding_fields(finding)
        del fields["file"], fields["line"]
        printer.json(fields)
    elif not printer.quiet:
        text = f"{finding.where}: {finding.message}"
        if span := byte_range(finding):
            text += f" ({span})"
        if printer.verbose and finding.hint:
            text += f" ({finding.hint})"
        printer.line(text)
        is_hint_shown = printer.verbose or github or finding.hint in hints
        if not is_hint_shown and len(hints) < MAX_HINTS:
            finish()
            printer.note(f"hint: {finding.hint}")
            hints.add(finding.hint)
    if github:
        printer.stderr_line(annotation(finding))


def _print_summary(printer: Printer, result: Verification, is_quick: bool) -> None:
    """Print notes about files that were not checked completely, then the line with the counts."""
    for text in result.unprotected[:MAX_NOTES]:
        printer.note(text)
    if len(result.unprotected) > MAX_NOTES:
        more = len(result.unprotected) - MAX_NOTES
        printer.note(f"and {format_count(more, 'more note')}; --json lists all notes")
    for name in result.extra:
        printer.note(
            f"{name}: not checked, because no playlist or index lists this file", verbose=True
        )
    parts = [
        format_count(result.files, "file"),
        format_count(result.shards, "shard"),
        format_count(result.rows, "row"),
        format_size(result.bytes),
    ]
    if is_quick:
        parts.append("sizes and headers only")
    if result.left:
        parts.append(f"{format_count(result.left, 'shard')} left out")
    verdict = format_count(result.findings, "finding") if result.findings else "whole"
    printer.line(f"{verdict}: {', '.join(parts)}")
