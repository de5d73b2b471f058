"""`flare log`."""

from __future__ import annotations

from dataclasses import dataclass

from flarecli.cli.options import ChangeLine
from flarecli.commands.options import LogOptions


@dataclass(frozen=True, eq=False, repr=False)
class Line(LogOptions, ChangeLine):
    """Command line of `flare log`."""


def command(line: Line) -> int:
    """List the versions of a dataset, the oldest first.

    With --pin, the current version is pinned first; with --restore, an earlier version is restored
    first.

    Example: flare log out/ --pin before-cleanup
    """
    from flarecli import commands

    printer = line.printer()
    found = commands.log(line.out, **line.keywords(LogOptions))
    if line.as_json:
        printer.json({"versions": [one.as_json() for one in found]})
    elif line.quiet:
        printer.line(str(found[-1].number))
    else:
        printer.table(
            ("version", "change", "rows", "added", "removed", "pin"),
            (
                (
                    str(one.number),
                    one.verb,
                    f"{one.rows:,}",
                    f"{one.added:,}",
                    f"{one.removed:,}",
                    one.pin or "",
                )
                for one in found
            ),
        )
    return 0
