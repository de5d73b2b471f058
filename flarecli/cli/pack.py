"""`flare pack`."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from flarecli.cli import params
from flarecli.cli.bar import Bar
from flarecli.cli.params import completes, option
from flarecli.cli.show import Printer
from flarecli.formats import DEFAULT, names
from flarecli.units import format_count, format_size

_FORMAT = f"The format to write: {', '.join(names(writable=True))}."
_COMPRESS = f"Compress shards: {', '.join(params.COMPRESSIONS)}."


def command(
    sources: params.Sources,
    out: params.Target,
    format: Annotated[
        str,
        option(
            "--format",
            "-f",
            metavar="NAME",
            help=_FORMAT,
            autocompletion=params.completes_format(writable=True),
        ),
    ] = DEFAULT,
    fetch: params.Fetch = None,
    key: params.Key = None,
    stream: params.Streams = None,
    columns: params.Columns = None,
    rows: params.Rows = None,
    encode: Annotated[
        list[str] | None,
        option(
            "--encode", metavar="COL=ENC", help="A column's encoding, else inferred; repeatable."
        ),
    ] = None,
    where: params.Where = None,
    limit: params.Limit = None,
    shuffle: Annotated[
        int | None,
        option("--shuffle", metavar="SEED", min=0, help="Pack the rows in a shuffled order."),
    ] = None,
    shard_size: params.Size = 1 << 26,
    shard_rows: Annotated[
        int | None, option("--shard-rows", metavar="N", min=1, help="Rows of a shard, at most.")
    ] = None,
    compress: Annotated[
        str | None,
        option(
            "--compress",
            "-z",
            metavar="NAME[:LEVEL]",
            help=_COMPRESS,
            autocompletion=completes(*params.COMPRESSIONS),
        ),
    ] = None,
    hash: Annotated[
        list[str] | None,
        option(
            "--hash",
            metavar="NAME",
            help="The format's own sums; repeatable. The playlist always has xxh3_128.",
        ),
    ] = None,
    separator: Annotated[
        str | None,
        option("--separator", metavar="TEXT", help="Between values of csv, tsv and xsv shards."),
    ] = None,
    newline: Annotated[
        str,
        option(
            "--newline", metavar="TEXT", help="After each line of json, csv, tsv and xsv shards."
        ),
    ] = "\\n",
    on_error: params.OnError = "fail",
    on_duplicate: Annotated[
        str,
        option(
            "--on-duplicate",
            metavar="error|first|keep",
            help="What a repeated key does.",
            autocompletion=completes("error", "first", "keep"),
        ),
    ] = "error",
    resize: Annotated[
        Any,
        option(
            "--resize", help="Bring pictures into a square of N pixels, or a box.", **params.PIXELS
        ),
    ] = None,
    resize_mode: Annotated[
        str,
        option(
            "--resize-mode",
            metavar="fit|crop|stretch",
            help="How they fill it.",
            autocompletion=completes("fit", "crop", "stretch"),
        ),
    ] = "fit",
    quality: Annotated[
        int | None,
        option("--quality", metavar="N", min=1, max=100, help="Of pictures that are encoded anew."),
    ] = None,
    min_size: Annotated[
        int,
        option(
            "--min-size",
            metavar="N",
            min=0,
            help="Pictures whose shorter side has fewer pixels fail.",
        ),
    ] = 0,
    max_aspect: Annotated[
        float | None, option("--max-aspect", metavar="X", min=1, help="Longer pictures fail.")
    ] = None,
    media_info: Annotated[
        bool, option("--media-info", help="Add columns width, height, frames and duration.")
    ] = False,
    strict: Annotated[
        bool,
        option(
            "--strict", help="Content that contradicts its extension fails, else a note counts it."
        ),
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Do everything but writing.")] = False,
    part_rows: Annotated[
        int | None,
        option(
            "--part-rows",
            metavar="N",
            min=1,
            help="Pack parts of N rows, each a dataset in 00000/, 00001/ …, and join them.",
        ),
    ] = None,
    engine: params.Engine = "local",
    resume: params.Resume = False,
    overwrite: params.Overwrite = False,
    allow_empty: Annotated[
        bool, option("--allow-empty", help="Take links to nothing at all.")
    ] = False,
    allow_missing: Annotated[
        bool,
        option("--allow-missing", help="Columns that some files of an index lack are null there."),
    ] = False,
    null_separated: Annotated[
        bool,
        option(
            "--null",
            "-0",
            help="Addresses at standard input end with NUL, as `find -print0` writes them.",
        ),
    ] = False,
    cache: params.CacheFolder = None,
    cache_limit: params.CacheLimit = 10 * 10**9,
    jobs: params.Jobs = None,
    retries: params.Retries = 8,
    timeout: params.Timeout = 30.0,
    deadline: params.Deadline = 600.0,
    max_object: params.MaxObject = 10**9,
    allow_private: params.AllowPrivate = False,
    allow_host: params.AllowHost = None,
    allow_local: params.AllowLocal = False,
    as_json: params.AsJson = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = False,
    debug: params.Debug = False,
) -> None:
    """Put rows into shards, and fetch what they link to.

    SOURCE is an index (.parquet, .csv, .json, .txt …), a folder, - or any dataset. Prints the address of the playlist, which is written last.

    Example: flare pack photos.parquet out/ --fetch data_url:image --key data_id
    """
    from flarecli import verbs

    _spare_memory()
    printer = Printer(as_json, quiet, verbose)
    guard = params.guard(
        allow_private,
        allow_host,
        allow_local,
        jobs,
        retries,
        timeout,
        deadline,
        max_object,
        keeper=params.keeper(printer, cache, cache_limit),
    )
    bar = Bar(printer)
    try:
        packed = verbs.pack(
            sources,
            out,
            format=format,
            fetch=fetch or (),
            key=key,
            columns=params.names(columns),
            encode=params.pairs(encode or (), "COL=ENC"),
            where=where,
            limit=limit,
            streams=stream or (),
            rows=rows,
            shuffle=shuffle,
            shard_bytes=shard_size,
            shard_rows=shard_rows,
            compress=compress,
            hashes=hash or (),
            separator=None if separator is None else params.unescaped(separator),
            newline=params.unescaped(newline),
            on_error=on_error,
            on_duplicate=on_duplicate,
            dry_run=dry_run,
            resume=resume,
            overwrite=overwrite,
            allow_empty=allow_empty,
            allow_missing=allow_missing,
            null_separated=null_separated,
            resize=resize,
            resize_mode=resize_mode,
            quality=quality,
            min_size=min_size,
            max_aspect=max_aspect,
            media_info=media_info,
            strict=strict,
            part_rows=part_rows,
            engine=engine,
            guard=guard,
            limits=guard.limits,
            progress=bar,
        )
    finally:
        bar.close()
    bar.counts(packed.reasons)
    counted = f"{format_count(packed.rows, 'row')} in {format_count(packed.shards, 'shard')}, {format_size(packed.bytes)}"
    if as_json:
        printer.json(packed.as_json())
    elif dry_run:
        printer.line(counted)
        if not quiet:
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
    raise typer.Exit(1 if packed.failed else 0)


def _spare_memory() -> None:
    """Have Arrow give back what was freed: its default allocator keeps pages, 40 MB more of them after a million rows."""
    import pyarrow as pa

    with contextlib.suppress(NotImplementedError):  # not every build has it
        pa.set_memory_pool(pa.jemalloc_memory_pool())
