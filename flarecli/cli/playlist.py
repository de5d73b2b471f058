"""`flare playlist`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flarecli.arguments import Option, address_texts, option
from flarecli.cli.options import Argument, CommandLine
from flarecli.cli.printer import Printer
from flarecli.cli.progress import ProgressBar
from flarecli.commands.options import PlaylistOptions
from flarecli.errors import UsageError


@dataclass(frozen=True, eq=False, repr=False)
class Line(PlaylistOptions, CommandLine):
    """Command line of `flare playlist`."""

    arguments: ClassVar[Mapping[str, Argument]] = {
        "sources": Argument(
            "[NAME=]SOURCE...",
            "Addresses; NAME= sets the name of the stream.",
            is_list=True,
            is_required=False,
        )
    }

    check: str | None = option(
        None,
        Option(
            group="Run",
            metavar="FILE",
            help="Check the playlist FILE, and print the findings.",
            is_everyday=True,
        ),
    )
    diff: str | None = option(
        None,
        Option(
            group="Run",
            metavar="OTHER",
            help="List the chunks that are added, removed or changed in OTHER; exit with code 1 if there are any.",
            is_everyday=True,
        ),
    )
    reindex: bool = option(
        False,
        Option(
            group="Run",
            help="Rebuild a lost index.json from the MDS, JSON, CSV, TSV or XSV shards in a folder.",
            is_everyday=True,
        ),
    )


def command(line: Line) -> int:
    """Write a YAML playlist of datasets.

    Example: flare playlist images=imgs/ labels=lab/ --base https://cdn.host/set > set.yaml
    """
    from flarecli import commands

    printer = line.printer()
    sources = address_texts(line.sources)
    modes = line.changed(("check", "diff", "reindex"))
    unused = modes[1:] or line.changed(
        ("out", "base", "rebase", "hash", "header", "open", "overwrite")
    )
    if modes and unused:
        raise UsageError(
            f"{modes[0]} does not write a playlist; {unused[0]} has no effect",
            hint=f"Omit {unused[0]}.",
        )
    if line.check is not None:
        if sources:
            raise UsageError("--check accepts one playlist", hint="Remove the other addresses.")
        return _check(printer, line, line.check)
    if not sources:
        raise UsageError("missing argument 'SOURCE...'", hint="Run `flare playlist --help`.")
    if line.reindex:
        for source in sources:
            index = commands.reindex(source, allow_local=line.allow_local)
            if line.as_json:
                printer.json({"index": index})
            else:
                printer.line(index)
        return 0
    if line.diff is not None:
        if len(sources) != 1:
            raise UsageError(
                f"--diff: expected one SOURCE, got {len(sources)}", hint="Specify one SOURCE."
            )
        return _print_diff(printer, line, sources[0], line.diff)
    out = None if line.out == "-" else line.out
    options = {**line.keywords(PlaylistOptions), "out": out}
    with ProgressBar(printer, "playlist") as bar:
        text = commands.playlist(sources, progress=bar, **options)
    if line.as_json:
        printer.json({"playlist": out, "text": text} if out is None else {"playlist": out})
    elif out is None:
        printer.text(text)
    else:
        printer.line(str(out))
    return 0


def _check(printer: Printer, line: Line, path: str) -> int:
    """Print the findings for a playlist and return the exit code."""
    from flarecli import commands

    findings = commands.check_playlist(path, line.guard(()))
    for finding in findings:
        if line.as_json:
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
    return 1 if findings else 0


def _print_diff(printer: Printer, line: Line, old: str, new: str) -> int:
    """Print the chunks that are added, removed or changed from playlist `old` to `new`.

    return  exit code: 1 if the playlists differ
    """
    from flarecli import commands

    changes = commands.diff_playlists(old, new, line.guard(()))
    if line.as_json:
        printer.json(
            {
                "added": list(changes.added),
                "removed": list(changes.removed),
                "changed": list(changes.changed),
            }
        )
    else:
        for mark, urls in (("+", changes.added), ("-", changes.removed), ("~", changes.changed)):
            for url in urls:
                printer.line(f"{mark} {url}")
    return int(any((changes.added, changes.removed, changes.changed)))
