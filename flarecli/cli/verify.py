"""`flare verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from flarecli.cli import params
from flarecli.cli.bar import Bar
from flarecli.cli.params import option
from flarecli.cli.show import Printer, finish
from flarecli.units import format_count, format_size

NOTES_SHOWN, HINTS_SHOWN = 20, 10


def command(
    sources: params.Sources,
    format: params.ReadFormat = None,
    stream: params.Streams = None,
    quick: Annotated[bool, option("--quick", help="Check sizes and headers only.")] = False,
    decode: Annotated[bool, option("--decode", help="Also decode every value.")] = False,
    sample: Annotated[str | None, option("--sample", metavar="N|P%", help="Only so many shards, or that share, by chance.")] = None,
    part: Annotated[str | None, option("--part", metavar="K/N", help="Only the K-th of N parts of the shards; 1/N to N/N are all.")] = None,
    seed: Annotated[int, option("--seed", metavar="N", min=0, help="Another chance for --sample.")] = 0,
    state: Annotated[str | None, option("--state", metavar="FILE", help="Keep what was checked there; go on with it if interrupted.")] = None,
    against: Annotated[str | None, option("--against", metavar="PLAYLIST", help="Hold it against another playlist: shards, sizes, sums.")] = None,
    duplicates: Annotated[bool, option("--duplicates", help="Also find rows that hold the same bytes.")] = False,
    report: Annotated[list[str] | None, option("--report", metavar="FILE", help="Write .xml (JUnit), .json or .html too; repeatable.")] = None,
    github: Annotated[bool, option("--github", help="Also print findings as GitHub's annotations, on stderr.")] = False,
    max_findings: Annotated[int, option("--max-findings", metavar="N", min=1, help="Print so many findings; the rest is counted.")] = 100,
    engine: params.Engine = "local",
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

    for path in report or ():
        from flarecli.report import check_report

        check_report(path)
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
            sample=params.share(sample, "shards"),
            part=params.part(part),
            seed=seed,
            against=against,
            state=state,
            duplicates=duplicates,
            max_findings=max_findings,
            jobs=jobs,
            engine=engine,
            guard=guard,
            limits=guard.limits,
            progress=bar,
        )
        kept, hints = [], {""}
        for finding in found:
            from flarecli.report import annotation, bytes_of

            bar.hide()
            kept += [finding] if report else []
            if as_json:
                told = {"where": finding.where, "kind": finding.kind, "message": finding.message, "hint": finding.hint}
                printer.json({**told, "bytes": finding.span})
            elif not quiet:
                hint = f" ({finding.hint})" if verbose and finding.hint else ""
                printer.line(f"{finding.where}: {finding.message}{f' ({bytes_of(finding)})' if finding.span else ''}{hint}")
                if not (verbose or github) and finding.hint not in hints and len(hints) < HINTS_SHOWN:  # each once, below the first that needs it
                    finish()
                    printer.note(f"hint: {finding.hint}")
                    hints.add(finding.hint)
            if github:
                printer.told(annotation(finding))
            finish()
    finally:
        bar.close()
    counts = {"files": found.files, "shards": found.shards, "rows": found.rows, "bytes": found.bytes, "findings": found.findings}
    for path in report or ():
        from flarecli.report import Result, write_report

        write_report(path, Result(sources, kept, counts, found.unprotected, found.extra))
    if as_json:
        printer.json({**counts, "unprotected": found.unprotected, "extra": found.extra, "left": found.left})
    else:
        for text in found.unprotected[:NOTES_SHOWN]:
            printer.note(text)
        if len(found.unprotected) > NOTES_SHOWN:
            printer.note(f"and {len(found.unprotected) - NOTES_SHOWN:,} more without sums; --json lists them")
        for name in found.extra:
            printer.note(f"{name}: not listed, not checked", verbose=True)
        verdict = format_count(found.findings, "finding") if found.findings else "whole"
        checked = f"{format_count(found.files, 'file')}, {format_count(found.shards, 'shard')}, {format_count(found.rows, 'row')}"
        less = ", sizes and headers only" * quick + (f", {format_count(found.left, 'shard')} left out" if found.left else "")
        printer.line(f"{verdict}: {checked}, {format_size(found.bytes)}{less}")
    raise typer.Exit(1 if found.findings else 0)
