"""`flare playlist`."""

from __future__ import annotations

from typing import Annotated

import typer

from flarecli.cli import params
from flarecli.cli.params import option
from flarecli.cli.show import Printer
from flarecli.errors import UsageError


def command(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]SOURCE...",
            help="Addresses; NAME= names the stream.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write it there instead of printing it; - prints it.",
        ),
    ] = None,
    format: params.ReadFormat = None,
    base: Annotated[
        str | None, option("--base", metavar="URL", help="Make addresses below URL relative.")
    ] = None,
    rebase: Annotated[
        list[str] | None,
        option("--rebase", metavar="OLD=NEW", help="Replace the start of addresses; repeatable."),
    ] = None,
    hash: Annotated[
        list[str] | None,
        option("--hash", metavar="NAME", help="Sums to list, else xxh3_128; repeatable."),
    ] = None,
    header: Annotated[
        list[str] | None,
        option("--header", metavar="K=V", help="A header of every stream; repeatable."),
    ] = None,
    no_open: Annotated[
        bool, option("--no-open", help="List addresses only: open no shard.")
    ] = False,
    check: Annotated[
        str | None, option("--check", metavar="FILE", help="Say what is wrong with a playlist.")
    ] = None,
    diff: Annotated[
        str | None,
        option("--diff", metavar="OTHER", help="List chunks that OTHER adds, removes or changes."),
    ] = None,
    reindex: Annotated[
        bool,
        option(
            "--reindex",
            help="Write the lost index.json of a folder of MDS shards, out of the shards.",
        ),
    ] = False,
    cache: params.CacheFolder = None,
    cache_limit: params.CacheLimit = 10 * 10**9,
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
    """Write the playlist of datasets: addresses to YAML.

    Example: flare playlist images=imgs/ labels=lab/ --base https://cdn.host/set > set.yaml
    """
    from flarecli import verbs

    out = None if out == "-" else out
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
    modes = [
        name
        for name, is_given in (
            ("--check", check is not None),
            ("--diff", diff is not None),
            ("--reindex", reindex),
        )
        if is_given
    ]
    of_a_playlist = {
        "--out": out,
        "--base": base,
        "--rebase": rebase,
        "--hash": hash,
        "--header": header,
        "--no-open": no_open or None,
    }
    if others := modes and (
        modes[1:] or [name for name, value in of_a_playlist.items() if value is not None]
    ):
        raise UsageError(
            f"{modes[0]} makes no playlist, so {others[0]} says nothing to it",
            hint=f"Leave {others[0]} out.",
        )
    if check is not None:
        if sources:
            raise UsageError(
                "--check looks at the one playlist that it names", hint="Leave the others out."
            )
        findings = verbs.check_playlist(check, guard)
        for finding in findings:
            if as_json:
                printer.json(
                    {
                        "where": finding.where,
                        "kind": finding.kind,
                        "message": finding.message,
                        "hint": finding.hint,
                    }
                )
            else:
                printer.line(f"{finding.where}: {finding.message}")
        raise typer.Exit(1 if findings else 0)
    if not sources:
        raise UsageError("no source is named", hint="Run `flare playlist --help`.")
    if reindex:
        for source in sources:
            index = verbs.reindex(source, guard=guard)
            if as_json:
                printer.json({"index": index})
            else:
                printer.line(index)
        raise typer.Exit
    if diff is not None:
        if len(sources) != 1:
            raise UsageError("--diff compares one playlist with another")
        changes = verbs.diff_playlists(sources[0], diff, guard)
        if as_json:
            printer.json(
                {
                    "added": list(changes.added),
                    "removed": list(changes.removed),
                    "changed": list(changes.changed),
                }
            )
        else:
            for mark, urls in (
                ("+", changes.added),
                ("-", changes.removed),
                ("~", changes.changed),
            ):
                for url in urls:
                    printer.line(f"{mark} {url}")
        raise typer.Exit
    text = verbs.playlist(
        sources,
        out=out,
        format=format,
        base=base,
        rebase=tuple(params.pairs(rebase or (), "OLD=NEW").items()),
        hashes=hash or ("xxh3_128",),
        headers=tuple(params.pairs(header or (), "K=V").items()),
        open=not no_open,
        guard=guard,
        limits=guard.limits,
    )
    if as_json:
        printer.json({"playlist": out, "text": text} if out is None else {"playlist": out})
    elif out is not None:
        printer.line(out)
    else:
        printer.text(text)
    raise typer.Exit
