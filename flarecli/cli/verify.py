"""`flare verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from flarecli.cli import params
from flarecli.cli.bar import Bar
from flarecli.cli.params import option
from flarecli.cli.show import Printer, finish
from flarecli.units import format_count, format_size

NOTES_SHOWN = 20


def command(
    sources: params.Sources,
    format: params.ReadFormat = None,
    stream: params.Streams = None,
    quick: Annotated[bool, option("--quick", help="Check sizes and headers only.")] = False,
    decode: Annotated[bool, option("--decode", help="Also decode every value.")] = False,
    max_findings: Annotated[int, option("--max-findings", metavar="N", min=1, help="Stop after so many findings.")] = 100,
    jobs: params.Jobs = None,
    retries: params.Retries = 4,
    timeout: params.Timeout = 30.0,
    deadline: params.Deadline = 600.0,
    allow_private: params.AllowPrivate = False,
    allow_local: params.AllowLocal = False,
    as_json: params.AsJson = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = False,
    debug: params.Debug = False,
) -> None:
    """Check that a dataset is whole.

    Reads every byte and checks structure and sums. Findings are printed as they come; the last line sums up. Exit 1 if anything is wrong.

    Example: flare verify out/ && echo whole
    """
    from flarecli import verbs

    printer = Printer(as_json, quiet, verbose)
    guard = params.guard(allow_private, allow_local, jobs, retries, timeout, deadline)
    bar = Bar(printer)
    try:
        found = verbs.verify(
            sources,
            format=format,
            streams=stream or (),
            quick=quick,
            decode=decode,
            max_findings=max_findings,
            jobs=jobs,
            guard=guard,
            limits=guard.limits,
            progress=bar,
        )
        for finding in found:
            bar.hide()
            if as_json:
                printer.json({"where": finding.where, "kind": finding.kind, "message": finding.message, "hint": finding.hint})
            elif not quiet:
                hint = f" ({finding.hint})" if verbose and finding.hint else ""
                printer.line(f"{finding.where}: {finding.message}{hint}")
            finish()
    finally:
        bar.close()
    if as_json:
        counts = {"files": found.files, "shards": found.shards, "rows": found.rows, "bytes": found.bytes, "findings": found.findings}
        printer.json({**counts, "unprotected": found.unprotected, "extra": found.extra})
    else:
        for text in found.unprotected[:NOTES_SHOWN]:
            printer.note(text)
        if len(found.unprotected) > NOTES_SHOWN:
            printer.note(f"and {len(found.unprotected) - NOTES_SHOWN:,} more without sums; --json lists them")
        for name in found.extra:
            printer.note(f"{name}: not listed, not checked", verbose=True)
        verdict = format_count(found.findings, "finding") if found.findings else "whole"
        checked = f"{format_count(found.files, 'file')}, {format_count(found.shards, 'shard')}, {format_count(found.rows, 'row')}"
        printer.line(f"{verdict}: {checked}, {format_size(found.bytes)}{', sizes and headers only' if quick else ''}")
    raise typer.Exit(1 if found.findings else 0)
