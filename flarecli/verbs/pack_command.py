"""pack: rows in, shards out.

index -> where, limit, shuffle -> keys -> links fetched ahead, in order -> typed columns -> Writer -> playlist
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flarecli.errors import UsageError
from flarecli.formats import DEFAULT, Format, find, with_option
from flarecli.given import Address, Addresses, address_text, address_texts, checked, name_list
from flarecli.guesses import choose
from flarecli.media import Resize
from flarecli.model import Settings
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits
from flarecli.units import parse_size
from flarecli.verbs.intake import Intake
from flarecli.verbs.packing import Packed, Request, packed
from flarecli.verbs.parts import packed_in_parts
from flarecli.verbs.reach import bounded
from flarecli.write import engines

__all__ = ["Packed", "pack"]


@checked
def pack(
    sources: Addresses,
    out: Address,
    *,
    format: str = DEFAULT,
    fetch: Sequence[str] = (),
    key: str | None = None,
    columns: Sequence[str] | None = None,
    encode: Mapping[str, str] | None = None,
    where: str | None = None,
    limit: int | None = None,
    streams: Sequence[str] = (),
    rows: str | None = None,
    shuffle: int | None = None,
    shard_bytes: int | str | None = 1 << 26,
    shard_rows: int | None = None,
    compress: str | None = None,
    hashes: Sequence[str] = (),
    separator: str | None = None,
    newline: str = "\n",
    on_error: str = "fail",
    on_duplicate: str = "error",
    dry_run: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    allow_empty: bool = False,
    allow_missing: bool = False,
    null_separated: bool = False,
    resize: int | tuple[int, int] | None = None,
    resize_mode: str = "fit",
    quality: int | None = None,
    min_size: int = 0,
    max_aspect: float | None = None,
    media_info: bool = False,
    strict: bool = False,
    part_rows: int | None = None,
    engine: str = "local",
    guard: Guard | None = None,
    allow_host: str | Sequence[str] = (),
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Packed:
    """Pack the rows of an index, or of a dataset, into shards.

    fetch         `COLUMN` or `COLUMN:NAME`: pack what the column's addresses point at, as NAME
    key           the column that names rows in reports; its values must differ (`on_duplicate`: error, first, keep)
    columns       names of the columns to pack; None: all
    encode        column -> encoding, where the inferred one is not wanted
    where         SQL condition over the columns, or a whole `SELECT … FROM dataframe …`
    streams       names of a dataset's streams; none: all
    rows          such as `5`, `10:20`, `-5:`, `::100`, `3,1,4`, of a dataset; where and limit then keep some of those
    limit         keep the first rows that `where` leaves; `shuffle` then orders those by its seed
    separator     between the values of a line in `csv` (`,`), `tsv` (a tab) and `xsv` shards; `newline` ends lines there and in `json`
    shard_bytes   size of a shard at most, such as 64_000_000 or `64MB`, None: 4 GiB; a row larger than that gets one of its own
    on_error      `fail` ends with the first row that fails; `skip` leaves it out and lists it in `failed.jsonl`
    dry_run       say what would be packed, from the first rows, and write nothing
    resume        go on with an unfinished pack of the same source and options: the same bytes as an unbroken one
    overwrite     replace the dataset that is there, once the new one is whole
    allow_missing columns that some files of an index lack are null there; `null_separated`: addresses at `-` end with NUL, not a newline
    resize        pictures are brought into a square of so many pixels, or a box of (width, height), by `resize_mode`: `fit`, `crop`, `stretch`
    quality       1 to 100, of pictures in lossy formats that are encoded anew
    min_size      pictures whose shorter side has fewer pixels fail; `max_aspect`: those of which one side is so many times the other
    media_info    width, height, frames and duration (seconds) of files become columns; 0 is not known
    strict        content that contradicts the extension of its name is a failed row, not a note
    part_rows     cut the source into parts of so many rows, each a dataset in `00000/`, `00001/` …, joined by one index and one playlist
    allow_host    private hosts and networks that data may name, such as `10.0.0.7:8080` or `10.1.0.0/16`
    engine        where the parts are packed: `local`, one after another, or `ray`, on a cluster
    raises        UsageError, ReachError, FormatError, UnsafeError and what is below them, each with its exit code
    """
    limits, typed = limits or Limits(), address_texts(sources)
    for name, value in (("limit", limit), ("shuffle", shuffle), ("shard-size", shard_bytes)):
        if isinstance(value, int) and value < 0:
            raise UsageError(f"--{name} is {value}, below 0")
    form = find(format)
    if address_text(out) == "-":
        raise UsageError(
            "shards are written to a folder or a bucket, not to stdout",
            hint="Name a folder; `./-` is one of that name.",
        )
    if newline != "\n" and "newline" not in form.options:
        raise UsageError(
            f"{format} shards have no lines",
            hint=f"Those that have are {_and(with_option('newline'))}.",
        )
    most = parse_size(shard_bytes) if isinstance(shard_bytes, str) else shard_bytes
    settings = Settings(
        compress or None,
        tuple(sorted(name_list(hashes))),
        most or None,
        shard_rows,
        newline,
        _separator(form, separator),
    )
    request = Request(
        tuple(typed),
        address_text(out),
        format,
        tuple(name_list(fetch)),
        key or None,
        None if columns is None else tuple(name_list(columns)),
        dict(encode or {}),
        where,
        limit,
        None,
        shuffle,
        settings,
        _one_of("--on-error", on_error, ("fail", "skip")),
        _one_of("--on-duplicate", on_duplicate, ("error", "first", "keep")),
        dry_run,
        resume,
        overwrite,
        allow_empty,
        allow_missing,
        null_separated,
        bounded(guard, limits, allow_host, typed),
        limits,
        Intake(Resize(resize, resize_mode, quality, min_size, max_aspect), media_info, strict),
        streams=tuple(name_list(streams)),
        spec=rows,
    )
    engines.check(engine)
    if part_rows is not None:
        return packed_in_parts(request, part_rows, engine, progress or Progress())
    if engine != "local":
        raise UsageError(
            f"--engine {engine} packs parts", hint="Give --part-rows, such as --part-rows 100000."
        )
    return packed(request, progress or Progress())


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


def _one_of(what: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError(f"{what} is {value!r}", hint=choose(value, choices))
    return value
