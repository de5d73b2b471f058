"""`flare inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from flarecli.arguments import Address, Option, address_text, option
from flarecli.cli import rows as output
from flarecli.cli.options import SOURCES, Argument
from flarecli.cli.options import Line as BaseLine
from flarecli.cli.printer import Printer, binary
from flarecli.cli.progress import Bar
from flarecli.commands.options import InspectOptions
from flarecli.errors import MissingError, UsageError
from flarecli.suggest import choose
from flarecli.units import format_count, format_size, format_time

if TYPE_CHECKING:
    from flarecli.commands import Inspection, StreamInfo

_GALLERY = 60  # default number of rows on a page
_HOLES = 8  # maximum lines about missing shards
_GONE = "Fetch it again, or pack again with `flare pack … --overwrite`; `flare verify --quick` names each."


@dataclass(frozen=True)
class Line(InspectOptions, BaseLine):
    """The command line."""

    arguments: ClassVar[Mapping[str, Argument]] = {
        "sources": replace(
            SOURCES, help=f"{SOURCES.help} Without SOURCE, --cache is described.", is_required=False
        )
    }

    field: str | None = option(
        None,
        Option(
            group="Output",
            metavar="NAME",
            help="Print one field of the output of --json, such as rows.",
        ),
    )
    html: str | None = option(
        None,
        Option(
            group="Output",
            metavar="FILE",
            help="Write a page with plots and --sample rows, - to stdout.",
        ),
    )


def command(line: Line) -> int:
    """Describe a dataset: format, rows, shards, bytes, columns, checksums.

    Also its writer, and missing shards. Reads only headers, except with --stats, --sample and
    --html.

    Without SOURCE, `--cache DIR` lists the files in a cache.

    Example: flare inspect https://host/train/playlist.yaml --field rows
    """
    from flarecli import commands

    if line.html is not None and line.field is not None:
        raise UsageError("--html writes a page, --field prints a field", hint="Use one of the two.")
    printer = Printer(line.as_json, line.quiet, line.verbose)
    if not line.sources:
        _print_kept(printer, line.cache)
        return 0
    options: dict[str, Any] = line.keywords(InspectOptions)
    if line.html is not None:
        options["shards"] = True
        options["sample"] = _GALLERY if line.sample is None else line.sample
    found = commands.inspect(line.sources, progress=Bar(printer), **options)
    shown = sum(batch.num_rows for batch in found.sample)
    if found.asked > shown:
        printer.note(
            f"the sample is {format_count(shown, 'row')} of the {found.asked} asked for: `flare cat` gives any number"
        )
    if line.html is not None:
        _write_page(printer, found, line.html)
    elif line.field is not None:
        _print_field(printer, found.as_json(), line.field)
    elif line.as_json:
        printer.json(found.as_json())
    else:
        counted = f"{format_count(found.rows, 'row')}, {format_count(found.shards, 'shard')}, {format_size(found.bytes)}"
        printer.line(f"{found.address}: {found.format}, {counted}")
        if not line.quiet:
            for one in found.streams:
                _print_stream(printer, one, len(found.streams) > 1)
            if found.sample:
                printer.line("")
                output.write(found.sample, printer, "table")
    if found.missing:  # the result is printed, but it is incomplete
        others = len(found.missing) - 1
        more = (
            f", nor {'is' if others == 1 else 'are'} {format_count(others, 'other')}"
            if others
            else ""
        )
        raise MissingError(
            f"not there{more}: rows were read from the other shards",
            where=found.missing[0],
            hint=_GONE,
        )
    return 0


def _write_page(printer: Printer, found: Inspection, address: str) -> None:
    """Write the page and print its address."""
    from flarecli.report import dataset_page
    from flarecli.storage import locate

    data = dataset_page(found).encode()
    if address == "-":
        binary().write(data)
        return
    locate(address).write([data])
    if printer.as_json:
        printer.json({"html": address, "bytes": len(data)})
    else:
        printer.line(address)


def _print_kept(printer: Printer, folder: Address | None) -> None:
    """List the files in a cache, by address."""
    if not folder:
        raise UsageError(
            "missing argument 'SOURCE...'", hint="Name a dataset, or a cache with --cache."
        )
    from flarecli.cache import list_copies

    folder = address_text(folder)
    found = sorted(list_copies(folder))
    size = sum(one.size for one in found)
    if printer.as_json:
        copies = [
            {
                "address": one.address,
                "part": one.part,
                "bytes": one.size,
                "idle_s": round(one.idle_s, 1),
            }
            for one in found
        ]
        printer.json({"cache": folder, "bytes": size, "copies": copies})
        return
    printer.line(f"{folder}: {format_count(len(found), 'copy', 'copies')}, {format_size(size)}")
    if found and not printer.quiet:
        printer.line("")
        printer.table(
            ("address", "part", "bytes", "unused for"),
            ((one.address, one.part, str(one.size), format_time(one.idle_s)) for one in found),
        )


def _print_field(printer: Printer, fields: dict[str, Any], name: str) -> None:
    if name not in fields:
        raise UsageError(f"unknown field {name!r}", hint=choose(name, fields, "The fields are"))
    value = fields[name]
    if isinstance(value, (dict, list, float)) or value is None or printer.as_json:
        printer.json(value)
    else:
        printer.line(str(value))


def _print_stream(printer: Printer, one: StreamInfo, several: bool) -> None:
    printer.line("")
    if several:
        counted = f"{format_count(one.rows, 'row')}, {format_count(one.shards, 'shard')}, {format_size(one.bytes)}"
        printer.line(f"{one.name}: {one.format}, {counted}")
    sizes = [
        format_size(size) for size in (one.smallest, one.median, one.largest) if size is not None
    ]
    known = [
        ("compression", one.compression or "none"),
        ("sums", ", ".join(one.hashes) or "none"),
        ("writer", one.writer or "not said"),
        (
            "shard sizes",
            " / ".join(sizes) + " (smallest, median, largest)" if sizes else "not known",
        ),
        *(("holes" if i == 0 else "", hole) for i, hole in enumerate(one.holes[:_HOLES])),
        *([("", f"and {len(one.holes) - _HOLES} more")] if len(one.holes) > _HOLES else []),
        *([] if one.holes else [("holes", "none")]),
    ]
    for name, text in known:
        printer.line(f"{name:12}{text}")
    types = one.types()
    printer.table(
        ("column", "encoding", "type"),
        ((column.name, column.encoding, types[column.name]) for column in one.columns or ()),
    )
    if one.stats:
        from flarecli.report import facts_table

        names, told = facts_table(one.stats)
        printer.table(
            ("column", *names),
            ([column, *texts] for column, texts in zip(one.stats, told, strict=True)),
        )
    if one.shard_list is not None:
        firsts = accumulate((rows for _, rows, _ in one.shard_list), initial=0)
        shards = zip(one.shard_list, firsts, strict=False)
        printer.table(
            ("shard", "rows", "bytes", "first row"),
            ([*map(str, shard), str(first)] for shard, first in shards),
        )
