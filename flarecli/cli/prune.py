"""`flare prune`."""

from __future__ import annotations

from dataclasses import dataclass

from flarecli.cli.options import ChangeLine
from flarecli.commands.options import PruneOptions
from flarecli.units import format_count, format_size


@dataclass(frozen=True, eq=False, repr=False)
class Line(PruneOptions, ChangeLine):
    """Command line of `flare prune`."""


def command(line: Line) -> int:
    """Remove old versions of a dataset, and the files that only these versions list.

    Pinned versions keep their files.

    Example: flare prune out/ --keep 10 --dry-run
    """
    from flarecli import commands

    printer = line.printer()
    pruned = commands.prune(line.out, **line.keywords(PruneOptions))
    if line.as_json:
        printer.json(pruned.as_json())
    else:
        verb = "would remove" if pruned.dry_run else "removed"
        printer.line(
            f"{verb} {format_count(len(pruned.versions), 'version')} and "
            f"{format_count(pruned.files, 'file')}, {format_size(pruned.bytes)}"
        )
    for name in pruned.busy:
        printer.note(f"{name}: kept, because another process is writing this fragment")
    return 0
