"""`flare verify`: prints findings as they are found, then one line with the counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flarecli.arguments import Option, address_texts, option
from flarecli.cli.options import Line as BaseLine
from flarecli.cli.printer import Printer, finish
from flarecli.cli.progress import Bar
from flarecli.commands.options import VerifyOptions
from flarecli.units import format_count, format_size

NOTES_SHOWN, HINTS_SHOWN = 20, 10


@dataclass(frozen=True)
class Line(VerifyOptions, BaseLine):
    """The command line."""

    report: Sequence[str] = option(
        (),
        Option(
            group="Output",
            metavar="FILE",
            is_repeatable=True,
            help="Write a report: .xml (JUnit), .json or .html; repeatable.",
        ),
    )
    github: bool = option(
        False, Option(group="Output", help="Print findings as GitHub annotations on stderr too.")
    )


def command(line: Line) -> int:
    """Check that a dataset is complete and undamaged.

    Reads every byte and checks structure and checksums. Findings are printed as they are found; the
    last line is a summary. Exit code 1 if there are findings.

    Example: flare verify out/ && echo whole
    """
    from flarecli import commands

    for path in line.report:
        from flarecli.report import check_report

        check_report(path)
    printer = Printer(line.as_json, line.quiet, line.verbose)
    bar = Bar(printer)
    try:
        found = commands.verify(line.sources, progress=bar, **line.keywords(VerifyOptions))
        kept, hints = [], {""}
        for finding in found:
            from flarecli.report import annotation, bytes_of

            bar.hide()
            kept += [finding] if line.report else []
            if line.as_json:
                told = {
                    "where": finding.where,
                    "row": finding.row,
                    "column": finding.column,
                    "kind": finding.kind,
                    "message": finding.message,
                    "hint": finding.hint,
                }
                span = None if finding.start is None else [finding.start, finding.stop]
                printer.json({**told, "bytes": span})
            elif not line.quiet:
                hint = f" ({finding.hint})" if line.verbose and finding.hint else ""
                printer.line(
                    f"{finding.where}: {finding.message}{f' ({place})' if (place := bytes_of(finding)) else ''}{hint}"
                )
                if (
                    not (line.verbose or line.github)
                    and finding.hint not in hints
                    and len(hints) < HINTS_SHOWN
                ):  # each hint once, below its first finding
                    finish()
                    printer.note(f"hint: {finding.hint}")
                    hints.add(finding.hint)
            if line.github:
                printer.told(annotation(finding))
            finish()
    finally:
        bar.close()
    counts = {
        "files": found.files,
        "shards": found.shards,
        "rows": found.rows,
        "bytes": found.bytes,
        "findings": found.findings,
    }
    for path in line.report:
        from flarecli.report import Result, write_report

        write_report(
            path, Result(address_texts(line.sources), kept, counts, found.unprotected, found.extra)
        )
    if line.as_json:
        printer.json(
            {**counts, "unprotected": found.unprotected, "extra": found.extra, "left": found.left}
        )
    else:
        for text in found.unprotected[:NOTES_SHOWN]:
            printer.note(text)
        if len(found.unprotected) > NOTES_SHOWN:
            printer.note(
                f"and {len(found.unprotected) - NOTES_SHOWN:,} more without sums; --json lists them"
            )
        for name in found.extra:
            printer.note(f"{name}: not listed, not checked", verbose=True)
        verdict = format_count(found.findings, "finding") if found.findings else "whole"
        checked = f"{format_count(found.files, 'file')}, {format_count(found.shards, 'shard')}, {format_count(found.rows, 'row')}"
        less = ", sizes and headers only" * line.quick + (
            f", {format_count(found.left, 'shard')} left out" if found.left else ""
        )
        printer.line(f"{verdict}: {checked}, {format_size(found.bytes)}{less}")
    return 1 if found.findings else 0
