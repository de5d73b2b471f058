"""`flare compact`."""

from __future__ import annotations

from dataclasses import dataclass

from flarecli.cli.options import ChangeLine
from flarecli.cli.progress import ProgressBar
from flarecli.commands.options import CompactOptions
from flarecli.units import format_count, format_size


@dataclass(frozen=True, eq=False, repr=False)
class Line(CompactOptions, ChangeLine):
    """Command line of `flare compact`."""


def command(line: Line) -> int:
    """Join small consecutive shards of a dataset.

    Rows and their order do not change. The files of earlier versions remain until `flare prune`
    removes them.

    Example: flare compact out/ --below 16MB
    """
    from flarecli import commands

    printer = line.printer()
    with ProgressBar(printer, "compact") as bar:
        changed = commands.compact(line.out, progress=bar, **line.keywords(CompactOptions))
    if line.as_json:
        printer.json(changed.as_json())
        return 0
    shards = f"{format_count(changed.shards, 'shard')}, {format_size(changed.bytes)}"
    if changed.dry_run:
        printer.line(f"would join {shards}")
    elif changed.version is not None:
        printer.line(f"joined {shards}: version {changed.version}")
    return 0
