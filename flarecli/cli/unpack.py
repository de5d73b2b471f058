"""`flare unpack`."""

from __future__ import annotations

from typing import Annotated

import typer

from flarecli.cli import params
from flarecli.cli.bar import Bar
from flarecli.cli.params import completes, option
from flarecli.cli.show import Printer, binary, refuse_terminal
from flarecli.units import format_count, format_size

_INDEXES = ("jsonl", "csv", "parquet", "none")


def command(
    sources: params.Sources,
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT", help="The folder to write, or - for a tar on stdout.", show_default=False
        ),
    ],
    format: params.ReadFormat = None,
    stream: params.Streams = None,
    columns: params.Columns = None,
    rows: params.Rows = None,
    where: params.Where = None,
    limit: params.Limit = None,
    key: params.Key = None,
    fetch: params.Fetch = None,
    name: Annotated[
        str | None,
        option("--name", metavar="PATTERN", help="Names of files, such as '{key}.{ext}'."),
    ] = None,
    index: Annotated[
        str,
        option(
            "--index",
            metavar="jsonl|csv|parquet|none",
            help="The table of the small columns.",
            autocompletion=completes(*_INDEXES),
        ),
    ] = "jsonl",
    resume: params.Resume = False,
    overwrite: params.Overwrite = False,
    on_error: params.OnError = "fail",
    cache: params.CacheFolder = None,
    cache_limit: params.CacheLimit = 10 * 10**9,
    jobs: params.Jobs = None,
    retries: params.Retries = 8,
    timeout: params.Timeout = 30.0,
    deadline: params.Deadline = 600.0,
    max_object: params.MaxObject = 10**9,
    allow_private: params.AllowPrivate = False,
    allow_host: params.AllowHost = None,
    allow_local: params.AllowLocal = False,
    as_json: params.AsJson = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = False,
    debug: params.Debug = False,
) -> None:
    """Turn shards back into files, or download what an index links to.

    Prints the address of the index that lists the files with the small columns of their rows.

    Example: flare unpack out/playlist.yaml files/
    """
    from flarecli import verbs

    to_stdout = out == "-"
    if to_stdout:
        refuse_terminal("a tar")
    printer = Printer(as_json, quiet, verbose)
    guard = params.guard(
        allow_private,
        allow_host,
        allow_local,
        jobs,
        retries,
        timeout,
        deadline,
        max_object,
        keeper=params.keeper(printer, cache, cache_limit),
    )
    bar = Bar(printer)
    try:
        unpacked = verbs.unpack(
            sources,
            out,
            format=format,
            streams=stream or (),
            columns=params.names(columns),
            rows=rows,
            where=where,
            limit=limit,
            key=key,
            fetch=fetch or (),
            name=name,
            index=index,
            resume=resume,
            overwrite=overwrite,
            on_error=on_error,
            guard=guard,
            limits=guard.limits,
            progress=bar,
            stream=binary() if to_stdout else None,
        )
    finally:
        bar.close()
    bar.counts(unpacked.reasons)
    bar.sum_up(
        f"unpacked {format_count(unpacked.rows, 'row')} into {format_count(unpacked.files, 'file')}, {format_size(unpacked.bytes)}"
    )
    if not to_stdout:
        if as_json:
            printer.json(unpacked.as_json())
        else:
            printer.line(unpacked.index or out)
    raise typer.Exit(1 if unpacked.failed else 0)
