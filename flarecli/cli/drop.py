"""`flare drop`."""

from __future__ import annotations

from dataclasses import dataclass

from flarecli.cli.options import ChangeLine
from flarecli.cli.progress import ProgressBar
from flarecli.commands.options import DropOptions
from flarecli.units import format_count, format_size


@dataclass(frozen=True, eq=False, repr=False)
class Line(DropOptions, ChangeLine):
    """Command line of `flare drop`."""


def command(line: Line) -> int:
    """Remove rows or a column from a dataset.

    The shards that contain the rows or the column are rewritten without them. The files of earlier
    versions remain until `flare prune` removes them.

    Example: flare drop out/ --where "user_id = 42"
    """
    from flarecli import commands

    printer = line.printer()
    with ProgressBar(printer, "drop") as bar:
        changed = commands.drop(line.out, progress=bar, **line.keywords(DropOptions))
    if line.as_json:
        printer.json(changed.as_json())
        return 0
    shards = f"{format_count(changed.shards, 'shard')}, {format_size(changed.bytes)}"
    rows = format_count(changed.rows, "row")
    if line.drop_column is not None:
        rows = f"column {line.drop_column!r}"
    if changed.dry_run:
        printer.line(f"would remove {rows}, and rewrite {shards}")
    elif changed.version is not None:
        printer.line(f"removed {rows}, rewrote {shards}: version {changed.version}")
    return 0
