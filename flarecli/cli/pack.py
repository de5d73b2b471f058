"""`flare pack`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flarecli.cli.options import OUT, SOURCES, Argument, CommandLine
from flarecli.cli.progress import ProgressBar
from flarecli.commands.options import PackOptions
from flarecli.units import format_count, format_size

if TYPE_CHECKING:
    from flarecli.commands import Packed

# Delay after which jemalloc releases freed memory. With 0 ms, each allocation would cause page
# faults.
_DECAY_MS = 10


@dataclass(frozen=True, eq=False, repr=False)
class Line(PackOptions, CommandLine):
    """Command line of `flare pack`."""

    arguments: ClassVar[Mapping[str, Argument]] = {"sources": SOURCES, "out": OUT}


def command(line: Line) -> int:
    """Pack rows as shards, and download linked files.

    SOURCE is a table, list of tables, folder, dataset, or - (stdin). Prints the playlist's address.

    Example: flare pack photos.parquet out/ --fetch data_url:image --key data_id
    """
    from flarecli import commands

    _release_freed_memory()
    printer = line.printer()
    with ProgressBar(printer, "pack") as bar:
        packed = commands.pack(line.sources, line.out, progress=bar, **line.keywords(PackOptions))
    bar.print_failures(packed.reasons)
    about = "about " if packed.estimated else ""
    counts = f"{format_count(packed.rows, 'row')} in {about}{format_count(packed.shards, 'shard')}, {about}{format_size(packed.bytes)}"
    if line.as_json:
        printer.json(packed.as_json())
    elif line.dry_run:
        counts += " before compression" if line.compress else ""
        printer.line(f"{counts}; would replace {_replaced(packed)}" if packed.replaced else counts)
        if not line.quiet:
            printer.table(
                ("column", "encoding"),
                ((column.name, column.encoding) for column in packed.columns),
            )
    else:
        if packed.version is not None:
            counts += f" as version {packed.version}"
        if packed.resumed_rows and not line.join:
            counts += f" ({format_count(packed.resumed_rows, 'row')} in an earlier run)"
        if packed.replaced:
            counts += f", replaced {_replaced(packed)}"
        # A resumed pack prints no rate: `bytes` includes the shards of earlier runs, but the time
        # of those runs is unknown.
        size = 0 if packed.resumed_rows else packed.bytes
        bar.print_summary(f"{'joined' if line.join else 'packed'} {counts}", size)
        if packed.playlist:  # a part without rows has no playlist
            printer.line(packed.playlist)
    return 1 if packed.failed else 0


def _replaced(packed: Packed) -> str:
    rewritten = format_size(packed.rewritten_bytes)
    return f"{format_count(packed.replaced, 'row')} in shards of {rewritten}"


def _release_freed_memory() -> None:
    """Use jemalloc for Arrow, because Arrow's default allocator keeps freed memory.

    By default, jemalloc also keeps freed memory, but only for a second. A fast pack may free the
    rows of several shards within a second, so a shorter delay is set.
    """
    import pyarrow as pa

    with contextlib.suppress(NotImplementedError):  # some Arrow builds do not include jemalloc
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(_DECAY_MS)
