"""The `pack` command: write rows as shards.

index -> where, limit, shuffle -> keys -> links fetched ahead, in order -> typed columns -> Writer
-> playlist
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from flarecli.arguments import address_text, address_texts, from_options, name_list
from flarecli.commands.options import PackOptions
from flarecli.commands.packing.media import Intake
from flarecli.commands.packing.parts import packed_in_parts
from flarecli.commands.packing.run import Packed, Request, packed
from flarecli.errors import UsageError
from flarecli.formats import Format, find, with_option
from flarecli.media import Resize
from flarecli.model import Settings
from flarecli.progress import Progress
from flarecli.write import engines

__all__ = ["Packed", "pack"]


@from_options(PackOptions)
def pack(options: PackOptions) -> Packed:
    """Pack the rows of an index, or of a dataset, into shards, and return what was packed.

    `rows` selects rows of a dataset first; `where` and `limit` then keep some of those. A row
    that is larger than `shard_size` is a shard of its own; None stands for 4 GiB. Errors are
    UsageError, ReachError, FormatError and UnsafeError, each with its exit code.
    """
    out, newline = address_text(options.out), options.newline
    sources = address_texts(options.sources)
    form = find(options.format)
    if out == "-":
        raise UsageError(
            "shards are written to a folder or a bucket, not to stdout",
            hint="Name a folder; `./-` is one of that name.",
        )
    if newline != "\n" and "newline" not in form.options:
        raise UsageError(
            f"{form.name} shards have no lines",
            hint=f"Those that have are {_and(with_option('newline'))}.",
        )
    settings = Settings(
        options.compress or None,
        tuple(sorted(name_list(options.hash))),
        cast("int | None", options.shard_size) or None,
        options.shard_rows,
        newline,
        _separator(form, options.separator),
    )
    request = Request(
        tuple(sources),
        out,
        options.format,
        tuple(name_list(options.fetch)),
        options.key or None,
        None if options.columns is None else tuple(name_list(options.columns)),
        dict(options.encode or {}),
        options.where,
        options.limit,
        None,
        options.shuffle,
        settings,
        options.on_error,
        options.on_duplicate,
        options.dry_run,
        options.resume,
        options.overwrite,
        options.allow_empty,
        options.allow_missing,
        options.from0,
        options.guard(sources),
        options.limits(),
        Intake(
            Resize(
                options.resize,
                options.resize_mode,
                options.quality,
                options.min_size,
                options.max_aspect,
            ),
            options.media_info,
            options.strict,
        ),
        streams=tuple(name_list(options.streams)),
        spec=options.rows,
    )
    engines.check(options.engine)
    progress = options.progress or Progress()
    if options.part_rows is not None:
        return packed_in_parts(request, options.part_rows, options.engine, progress)
    if options.engine != "local":
        raise UsageError(
            f"--engine {options.engine} packs parts",
            hint="Give --part-rows, such as --part-rows 100000.",
        )
    return packed(request, progress)


def _separator(form: Format, given: str | None) -> str:
    if "separator" not in form.options:
        if given is None:
            return ","
        raise UsageError(
            f"{form.name} shards have no separator",
            hint=f"Those that have one are {_and(with_option('separator'))}.",
        )
    if form.separator is not None:
        if given in (None, form.separator):
            return form.separator
        raise UsageError(
            f"{form.name} has the separator {form.separator!r}, not {given!r}",
            hint="Give -f xsv to choose one.",
        )
    if not given:
        raise UsageError(
            f"{form.name} shards want a separator",
            hint="Give --separator, such as --separator ';'.",
        )
    return given


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
