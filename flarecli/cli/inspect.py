"""`flare inspect`."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flarecli.cli import params
from flarecli.cli import rows as output
from flarecli.cli.bar import Bar
from flarecli.cli.params import option
from flarecli.cli.show import Printer, binary
from flarecli.errors import MissingError, UsageError
from flarecli.guesses import choose
from flarecli.units import format_count, format_size, format_time

if TYPE_CHECKING:
    from flarecli.verbs import Inspection, StreamInfo

_GALLERY = 60  # rows on a page, where nobody says how many
_HOLES = 8  # lines of what is missing
_GONE = "Fetch it again, or pack again with `flare pack … --overwrite`; `flare verify --quick` names each."


def command(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help=f"{params.ADDRESSES}; none to see --cache.",
            show_default=False,
        ),
    ] = None,
    format: params.ReadFormat = None,
    stream: params.Streams = None,
    shards: Annotated[bool, option("--shards", help="List the shards.")] = False,
    field: Annotated[
        str | None,
        option(
            "--field", metavar="NAME", help="Print one field of what --json prints, such as rows."
        ),
    ] = None,
    stats: Annotated[
        bool,
        option("--stats", help="Read the columns: least, most, nulls, lengths, sizes of pictures."),
    ] = False,
    sample: Annotated[
        str | None, option("--sample", metavar="N|P%", help="Show a few rows.")
    ] = None,
    seed: Annotated[
        int, option("--seed", metavar="N", min=0, help="Another chance for --sample.")
    ] = 0,
    html: Annotated[
        str | None,
        option(
            "--html",
            metavar="FILE",
            help="Write one page with plots and a gallery of rows, - to stdout; --sample says how many.",
        ),
    ] = None,
    retries: params.Retries = 8,
    timeout: params.Timeout = 30.0,
    deadline: params.Deadline = 600.0,
    cache: params.CacheFolder = None,
    cache_limit: params.CacheLimit = 10 * 10**9,
    jobs: params.Jobs = None,
    allow_private: params.AllowPrivate = False,
    allow_host: params.AllowHost = None,
    allow_local: params.AllowLocal = False,
    as_json: params.AsJson = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = False,
    debug: params.Debug = False,
) -> None:
    """Say what a dataset is: format, rows, shards, bytes, columns, sums.

    Also who wrote it, and which shards are missing. Reads headers only, unless --stats, --sample or --html asks for more.

    Without SOURCE, `--cache DIR` shows what is kept there.

    Example: flare inspect https://host/train/playlist.yaml --field rows
    """
    from flarecli import verbs

    if html is not None and field is not None:
        raise UsageError(
            "--html writes a page, --field prints a field", hint="Give one of the two."
        )
    printer = Printer(as_json, quiet, verbose)
    if not sources:
        _print_kept(printer, cache)
        raise typer.Exit
    guard = params.guard(
        allow_private,
        allow_host,
        allow_local,
        jobs,
        retries,
        timeout,
        deadline,
        keeper=params.keeper(printer, cache, cache_limit),
    )
    found = verbs.inspect(
        sources,
        format=format,
        streams=stream or (),
        shards=shards or html is not None,
        sample=_GALLERY if html is not None and sample is None else params.share(sample),
        stats=stats,
        seed=seed,
        guard=guard,
        limits=guard.limits,
        progress=Bar(printer),
    )
    shown = sum(batch.num_rows for batch in found.sample)
    if found.asked > shown:
        printer.note(
            f"the sample is {format_count(shown, 'row')} of the {found.asked} asked for: `flare cat` gives any number"
        )
    if html is not None:
        _write_page(printer, found, html)
    elif field is not None:
        _print_field(printer, found.as_json(), field)
    elif as_json:
        printer.json(found.as_json())
    else:
        counted = f"{format_count(found.rows, 'row')}, {format_count(found.shards, 'shard')}, {format_size(found.bytes)}"
        printer.line(f"{found.address}: {found.format}, {counted}")
        if not quiet:
            for one in found.streams:
                _print_stream(printer, one, len(found.streams) > 1)
            if found.sample:
                printer.line("")
                output.write(found.sample, printer, "table")
    if found.missing:  # what is there was told, and is not all
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
    raise typer.Exit


def _write_page(printer: Printer, found: Inspection, address: str) -> None:
    """Write the page, and print where it is."""
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


def _print_kept(printer: Printer, folder: str | None) -> None:
    """Show what a cache holds, by address."""
    if not folder:
        raise UsageError(
            "missing argument 'SOURCE...'", hint="Name what to look at, or a cache with --cache."
        )
    from flarecli.cache import kept

    found = sorted(kept(folder))
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
        raise UsageError(f"there is no field {name!r}", hint=choose(name, fields, "The fields are"))
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
