"""`flare verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from flarecli.cli import params
from flarecli.cli.checking import check
from flarecli.cli.params import option


def command(
    sources: params.Sources,
    format: params.ReadFormat = None,
    stream: params.Streams = None,
    quick: Annotated[bool, option("--quick", help="Check sizes and headers only.")] = False,
    decode: Annotated[bool, option("--decode", help="Also decode every value.")] = False,
    sample: Annotated[
        str | None,
        option("--sample", metavar="N|P%", help="Only so many shards, or that share, by chance."),
    ] = None,
    part: Annotated[
        str | None,
        option(
            "--part",
            metavar="K/N",
            help="Only the K-th of N parts of the shards; 1/N to N/N are all.",
        ),
    ] = None,
    seed: Annotated[
        int, option("--seed", metavar="N", min=0, help="Another chance for --sample.")
    ] = 0,
    state: Annotated[
        str | None,
        option(
            "--state",
            metavar="FILE",
            help="Keep what was checked there; go on with it if interrupted.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "--against",
            metavar="PLAYLIST",
            help="Hold it against another playlist: shards, sizes, sums.",
        ),
    ] = None,
    duplicates: Annotated[
        bool, option("--duplicates", help="Also find rows that hold the same bytes.")
    ] = False,
    report: Annotated[
        list[str] | None,
        option(
            "--report", metavar="FILE", help="Write .xml (JUnit), .json or .html too; repeatable."
        ),
    ] = None,
    github: Annotated[
        bool, option("--github", help="Also print findings as GitHub's annotations, on stderr.")
    ] = False,
    max_findings: Annotated[
        int,
        option(
            "--max-findings",
            metavar="N",
            min=1,
            help="Print so many findings; the rest is counted.",
        ),
    ] = 100,
    engine: params.Engine = "local",
    jobs: params.Jobs = None,
    retries: params.Retries = 8,
    timeout: params.Timeout = 30.0,
    deadline: params.Deadline = 600.0,
    allow_private: params.AllowPrivate = False,
    allow_host: params.AllowHost = None,
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
    raise typer.Exit(check(**locals()))
