"""What `flare verify` does with its options: findings as they come, reports, one line at the end. Nothing here knows Typer."""

from __future__ import annotations

from collections.abc import Sequence

from flarecli.cli.bar import Bar
from flarecli.cli.show import Printer, finish
from flarecli.cli.values import guard as guard_of
from flarecli.cli.values import part as part_of
from flarecli.cli.values import share
from flarecli.units import format_count, format_size

__all__ = ["check"]

NOTES_SHOWN, HINTS_SHOWN = 20, 10


def check(
    sources: Sequence[str],
    format: str | None = None,
    stream: Sequence[str] | None = None,
    quick: bool = False,
    decode: bool = False,
    sample: str | None = None,
    part: str | None = None,
    seed: int = 0,
    state: str | None = None,
    against: str | None = None,
    duplicates: bool = False,
    report: Sequence[str] | None = None,
    github: bool = False,
    max_findings: int = 100,
    engine: str = "local",
    jobs: int | None = None,
    retries: int = 8,
    timeout: float = 30.0,
    deadline: float = 600.0,
    allow_private: bool = False,
    allow_host: Sequence[str] | None = None,
    allow_local: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    debug: bool = False,
) -> int:
    """Check and print; give the exit code. The arguments are the options of `flare verify`, by name."""
    from flarecli import verbs

    for path in report or ():
        from flarecli.report import check_report

        check_report(path)
    printer = Printer(as_json, quiet, verbose)
    guard = guard_of(allow_private, allow_host, allow_local, jobs, retries, timeout, deadline)
    bar = Bar(printer)
    try:
        found = verbs.verify(
            sources,
            format=format,
            streams=stream or (),
            quick=quick,
            decode=decode,
            sample=share(sample, "shards"),
            part=part_of(part),
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
            elif not quiet:
                hint = f" ({finding.hint})" if verbose and finding.hint else ""
                printer.line(
                    f"{finding.where}: {finding.message}{f' ({place})' if (place := bytes_of(finding)) else ''}{hint}"
                )
                if (
                    not (verbose or github)
                    and finding.hint not in hints
                    and len(hints) < HINTS_SHOWN
                ):  # each once, below the first that needs it
                    finish()
                    printer.note(f"hint: {finding.hint}")
                    hints.add(finding.hint)
            if github:
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
    for path in report or ():
        from flarecli.report import Result, write_report

        write_report(path, Result(sources, kept, counts, found.unprotected, found.extra))
    if as_json:
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
        less = ", sizes and headers only" * quick + (
            f", {format_count(found.left, 'shard')} left out" if found.left else ""
        )
        printer.line(f"{verdict}: {checked}, {format_size(found.bytes)}{less}")
    return 1 if found.findings else 0
