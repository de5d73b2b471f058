"""`flare pack`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flarecli.cli.options import OUT, SOURCES, Argument
from flarecli.cli.options import Line as BaseLine
from flarecli.cli.printer import Printer
from flarecli.cli.progress import Bar
from flarecli.commands.options import PackOptions
from flarecli.units import format_count, format_size


@dataclass(frozen=True)
class Line(PackOptions, BaseLine):
    """The command line."""

    arguments: ClassVar[Mapping[str, Argument]] = {"sources": SOURCES, "out": OUT}


def command(line: Line) -> int:
    """Pack rows as shards, and download what they link to.

    SOURCE is an index (.parquet, .csv, .json, .txt …), a folder, - or any dataset. Prints the
    address of the playlist, which is written last.

    Example: flare pack photos.parquet out/ --fetch data_url:image --key data_id
    """
    from flarecli import commands

    _release_freed_memory()
    printer = Printer(line.as_json, line.quiet, line.verbose)
    bar = Bar(printer)
    try:
        packed = commands.pack(line.sources, line.out, progress=bar, **line.keywords(PackOptions))
    finally:
        bar.close()
    bar.counts(packed.reasons)
    counted = f"{format_count(packed.rows, 'row')} in {format_count(packed.shards, 'shard')}, {format_size(packed.bytes)}"
    if line.as_json:
        printer.json(packed.as_json())
    elif line.dry_run:
        printer.line(counted)
        if not line.quiet:
            printer.table(
                ("column", "encoding"),
                ((column.name, column.encoding) for column in packed.columns),
            )
    else:
        bar.sum_up(
            f"packed {counted}"
            + (f", {packed.resumed_rows:,} of them before" if packed.resumed_rows else "")
        )
        printer.line(packed.playlist)
    return 1 if packed.failed else 0


def _release_freed_memory() -> None:
    """Use an allocator that returns freed pages: Arrow's default one keeps 40 MB more after a
    million rows.
    """
    import pyarrow as pa

    with contextlib.suppress(NotImplementedError):  # not in every build of Arrow
        pa.set_memory_pool(pa.jemalloc_memory_pool())
