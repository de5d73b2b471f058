"""`flare inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, ClassVar

from flarecli.arguments import Address, Conflict, Option, address_text, option
from flarecli.cli import rows as output
from flarecli.cli.options import SOURCES, Argument, CommandLine
from flarecli.cli.printer import Printer, binary_stdout
from flarecli.cli.progress import ProgressBar
from flarecli.commands.options import InspectOptions
from flarecli.errors import MissingError, UsageError
from flarecli.suggest import choose
from flarecli.units import format_count, format_size, format_time

if TYPE_CHECKING:
    from flarecli.commands import Inspection, StreamInfo

_PAGE_ROWS = 60  # default number of rows on an HTML page
_MAX_GAPS = 8  # maximum number of gaps to print
_MISSING_HINT = (
    "Download the shards again, or pack again with `flare pack … --overwrite`; "
    "`flare verify --quick` lists all missing shards."
)


@dataclass(frozen=True, eq=False, repr=False)
class Line(InspectOptions, CommandLine):
    """Command line of `flare inspect`."""

    arguments: ClassVar[Mapping[str, Argument]] = {
        "sources": replace(
            SOURCES,
            help=f"{SOURCES.help} Without SOURCE, list the files in the cache (--cache).",
            is_required=False,
        )
    }
    conflicts = (
        Conflict("html", "field", hint="Omit --html or --field."),
        *(
            # Without --json, --urls prints only the addresses of the shards. With --json, --urls
            # adds the addresses to the JSON object.
            Conflict("urls", name, hint=f"Omit --urls or --{name}.", unless="as_json")
            for name in (
                *("field", "html", "shards", "stats", "sample"),
                *("columns", "rows", "where", "limit"),
            )
        ),
    )

    field: str | None = option(
        None,
        Option(
            group="Output",
            metavar="NAME",
            help="Print one field of the --json output, such as rows.",
            is_everyday=True,
        ),
    )
    html: str | None = option(
        None,
        Option(
            group="Output",
            metavar="FILE",
            help="Write an HTML page with plots and the --sample rows; use - for stdout.",
            is_everyday=True,
        ),
    )


def command(line: Line) -> int:
    """Describe a dataset: format, rows, shards, bytes, columns, checksums.

    Also prints missing shards and the program that wrote the dataset. Reads only headers, except
    with --stats, --sample, --where and --html.

    Without SOURCE, `--cache DIR` lists the files in a cache.

    Example: flare inspect https://host/train/playlist.yaml --field rows
    """
    from flarecli import commands

    printer = line.printer()
    if not line.sources:
        _print_cache(printer, line.cache)
        return 0
    options: dict[str, Any] = line.keywords(InspectOptions)
    if line.html is not None:
        options["shards"] = True
        options["sample"] = _PAGE_ROWS if line.sample is None else line.sample
    with ProgressBar(printer, "inspect") as bar:
        found = commands.inspect(line.sources, progress=bar, **options)
    sampled = sum(batch.num_rows for batch in found.sample)
    if found.asked > sampled:
        printer.note(
            f"the sample has {sampled:,} of {format_count(found.asked, 'requested row')}; `flare cat` prints more rows"
        )
    if line.html is not None:
        _write_page(printer, found, line.html)
    elif line.field is not None:
        _print_field(printer, found.as_json(), line.field)
    elif line.as_json:
        printer.json(found.as_json())
    elif line.urls:
        urls = [url for stream in found.streams for url in stream.urls or ()]
        if urls:
            printer.text("\n".join(urls))
    else:
        selected = (
            "" if found.selected is None else f"; {format_count(found.selected, 'row')} selected"
        )
        printer.line(f"{found.address}: {found.format}, {_totals(found)}{selected}")
        if not line.quiet:
            for stream in found.streams:
                _print_stream(printer, stream, len(found.streams) > 1)
            if found.sample:
                printer.line("")
                output.write(found.sample, printer, "table")
    if found.missing:  # the result is printed without the missing shards, and the command fails
        count = format_count(len(found.missing), "shard")
        raise MissingError(
            f"shard is missing; {count} of the dataset could not be read",
            where=found.missing[0],
            hint=_MISSING_HINT,
        )
    return 0


def _totals(of: Inspection | StreamInfo) -> str:
    return f"{format_count(of.rows, 'row')}, {format_count(of.shards, 'shard')}, {format_size(of.bytes)}"


def _write_page(printer: Printer, found: Inspection, address: str) -> None:
    """Write the HTML page and print its address."""
    from flarecli.report import dataset_page
    from flarecli.storage import locate

    data = dataset_page(found).encode()
    if address == "-":
        binary_stdout().write(data)
        return
    locate(address).write([data])
    if printer.as_json:
        printer.json({"html": address, "bytes": len(data)})
    else:
        printer.line(address)


def _print_cache(printer: Printer, folder: Address | None) -> None:
    """Print the files in a cache, sorted by address."""
    if not folder:
        raise UsageError(
            "missing argument 'SOURCE...'", hint="Specify a dataset, or a cache with --cache."
        )
    from flarecli.cache import list_copies

    folder = address_text(folder)
    copies = sorted(list_copies(folder))
    size = sum(copy.size for copy in copies)
    if printer.as_json:
        listed = [
            {
                "address": copy.address,
                "part": copy.part,
                "bytes": copy.size,
                "idle_s": round(copy.idle_s, 1),
            }
            for copy in copies
        ]
        printer.json({"cache": folder, "bytes": size, "copies": listed})
        return
    printer.line(f"{folder}: {format_count(len(copies), 'copy', 'copies')}, {format_size(size)}")
    if copies and not printer.quiet:
        printer.line("")
        printer.table(
            ("address", "part", "bytes", "unused for"),
            (
                (copy.address, copy.part, str(copy.size), format_time(copy.idle_s))
                for copy in copies
            ),
        )


def _print_field(printer: Printer, fields: dict[str, Any], name: str) -> None:
    """Print one field: integers and text unchanged, other values as JSON."""
    if name not in fields:
        raise UsageError(f"unknown field {name!r}", hint=choose(name, fields, "The fields are"))
    value = fields[name]
    if isinstance(value, (dict, list, float)) or value is None or printer.as_json:
        printer.json(value)
    else:
        printer.line(str(value))


def _print_stream(printer: Printer, stream: StreamInfo, is_one_of_several: bool) -> None:
    """Print the properties, columns, statistics and shards of a stream."""
    printer.line("")
    if is_one_of_several:
        printer.line(f"{stream.name}: {stream.format}, {_totals(stream)}")
    sizes = [
        format_size(size)
        for size in (stream.smallest, stream.median, stream.largest)
        if size is not None
    ]
    gaps = list(stream.holes[:_MAX_GAPS]) or ["none"]
    if len(stream.holes) > _MAX_GAPS:
        gaps.append(f"and {len(stream.holes) - _MAX_GAPS} more")
    facts = [
        ("compression", stream.compression or "none"),
        ("checksums", ", ".join(stream.hashes) or "none"),
        ("writer", stream.writer or "unknown"),
        (
            "shard sizes",
            f"{' / '.join(sizes)} (smallest, median, largest)" if sizes else "unknown",
        ),
        ("gaps", gaps[0]),
        *(("", gap) for gap in gaps[1:]),
    ]
    for name, text in facts:
        printer.line(f"{name:12}{text}")
    types = stream.types()
    printer.table(
        ("column", "encoding", "type"),
        ((column.name, column.encoding, types[column.name]) for column in stream.columns or ()),
    )
    if stream.stats:
        from flarecli import commands

        names, rows = commands.stats_table(stream.stats)
        printer.table(
            ("column", *names),
            ([column, *texts] for column, texts in zip(stream.stats, rows, strict=True)),
        )
    if stream.shard_list is not None:
        firsts = accumulate((rows for _, rows, _ in stream.shard_list), initial=0)
        more: Iterable[Mapping[str, int | str]] = stream.shard_facts or repeat({})
        names = list(stream.shard_facts[0]) if stream.shard_facts else []
        printer.table(
            ("shard", "rows", "bytes", "first row", *names),
            (
                [*map(str, shard), str(first), *(str(own[name]) for name in names)]
                for shard, first, own in zip(stream.shard_list, firsts, more, strict=False)
            ),
        )
