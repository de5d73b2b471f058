"""`flare prune`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flarecli.cli.options import DATASET, Argument, CommandLine
from flarecli.commands.options import PruneOptions
from flarecli.units import format_count, format_size


@dataclass(frozen=True, eq=False, repr=False)
class Line(PruneOptions, CommandLine):
    """Command line of `flare prune`."""

    arguments: ClassVar[Mapping[str, Argument]] = {"out": DATASET}


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
