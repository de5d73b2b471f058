"""`flare cat`."""

from __future__ import annotations

from typing import Annotated

import typer

from flarecli.cli import params
from flarecli.cli import rows as output
from flarecli.cli.bar import Bar
from flarecli.cli.params import completes, option
from flarecli.cli.show import Printer
from flarecli.errors import UsageError


def command(
    sources: params.Sources,
    format: params.ReadFormat = None,
    stream: params.Streams = None,
    columns: params.Columns = None,
    rows: params.Rows = None,
    where: params.Where = None,
    limit: params.Limit = None,
    head: Annotated[
        int | None, option("--head", metavar="N", min=0, help="The first N rows.")
    ] = None,
    tail: Annotated[
        int | None, option("--tail", metavar="N", min=0, help="The last N rows.")
    ] = None,
    sample: Annotated[
        str | None,
        option("--sample", metavar="N|P%", help="So many rows, or such a share, by chance."),
    ] = None,
    seed: Annotated[
        int, option("--seed", metavar="N", min=0, help="Of whatever is by chance.")
    ] = 0,
    shuffle: Annotated[
        int | None,
        option("--shuffle", metavar="SEED", min=0, help="Rows in the order of a shuffled run."),
    ] = None,
    epoch: Annotated[int, option("--epoch", metavar="E", min=0, help="The epoch of that run.")] = 0,
    rank: Annotated[
        str | None, option("--rank", metavar="R/N", help="The rows of rank R of N.")
    ] = None,
    to: Annotated[
        str,
        option(
            "--to",
            metavar="FORM",
            help=f"One of {', '.join(output.FORMS)}.",
            autocompletion=completes(*output.FORMS),
        ),
    ] = "jsonl",
    raw: Annotated[
        str | None,
        option("--raw", metavar="COLUMN", help="One column's stored bytes, and nothing else."),
    ] = None,
    bytes_as: Annotated[
        str,
        option(
            "--bytes",
            metavar="sha256|base64",
            help="Bytes as size and SHA-256, or whole.",
            autocompletion=completes(*output.BYTES),
        ),
    ] = "sha256",
    csv_safe: Annotated[
        bool,
        option("--csv-safe", help="In CSV and TSV, put ' before text that begins as a formula."),
    ] = False,
    retries: params.Retries = 8,
    timeout: params.Timeout = 30.0,
    deadline: params.Deadline = 600.0,
    cache: params.CacheFolder = None,
    cache_limit: params.CacheLimit = 10 * 10**9,
    jobs: params.Jobs = None,
    allow_pickle: params.AllowPickle = False,
    allow_private: params.AllowPrivate = False,
    allow_host: params.AllowHost = None,
    allow_local: params.AllowLocal = False,
    as_json: params.AsJson = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = False,
    debug: params.Debug = False,
) -> None:
    """Print rows.

    JSON lines unless --to says otherwise: bytes as {"bytes": n, "sha256": …}, NaN and infinity as null, pickles not decoded
    unless --allow-pickle is given. CSV and TSV hold each value as it is; a terminal gets them escaped. --raw, Arrow and Parquet
    refuse a terminal. - is a tar at standard input.

    Example: flare cat out/ --where "score > 0.5" -c id,score --head 10
    """
    from flarecli import verbs

    printer = Printer(as_json, quiet, verbose)
    guard = params.guard(
        allow_private,
        allow_host,
        allow_local,
        jobs,
        retries,
        timeout,
        deadline,
        keeper=params.keeper(printer, cache, cache_limit),
    )
    output.check(to, raw, bytes_as, csv_safe)
    if raw is not None and (columns is not None or to != "jsonl"):
        raise UsageError(
            "--raw prints the bytes of one column alone", hint="Leave --columns and --to out."
        )
    batches = verbs.cat(
        sources,
        format=format,
        streams=stream or (),
        columns=params.names(columns) if raw is None else [raw],
        rows=rows,
        where=where,
        limit=limit,
        head=head,
        tail=tail,
        sample=params.share(sample),
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        rank=params.rank(rank),
        exact=raw is not None or to not in ("arrow", "parquet"),
        guard=guard,
        limits=guard.limits,
        progress=Bar(printer),
    )
    look = output.Look(bytes_as == "base64", allow_pickle, csv_safe)
    output.write(batches, printer, to, raw, look)
    raise typer.Exit
