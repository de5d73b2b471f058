"""Options of the commands, each declared once: name, type, default, check, help and group."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import IO, TYPE_CHECKING, TypeAlias, cast

from flarecli import formats
from flarecli.access import CacheOptions, NetworkOptions
from flarecli.arguments import Address, Addresses, Conflict, Option, Options, option, shown
from flarecli.errors import UsageError
from flarecli.formats import TableOptions
from flarecli.hashes import DEFAULT
from flarecli.units import format_count, parse_box, parse_size

if TYPE_CHECKING:
    from flarecli.storage import Limits

__all__ = [
    "CatOptions",
    "DEFAULT_SHARD_SIZE",
    "InspectOptions",
    "NetworkOptions",
    "PackOptions",
    "Pairs",
    "PlaylistOptions",
    "UnpackOptions",
    "VerifyOptions",
    "sample_size",
]

Pairs: TypeAlias = "Mapping[str, str] | Sequence[tuple[str, str]]"

DEFAULT_SHARD_SIZE = "64MiB"
MAX_OBJECT_BYTES = 10**9  # default of --max-object
_MIN_UNITLESS_SIZE = 1024  # a smaller shard size without a unit is probably a number of megabytes
_FRACTION = r"(?a)(\d{1,18})/(\d{1,18})"
_PARTS_HINT = "Specify another folder, or remove the folder and pack all parts again."
_OTHER_JOBS = "OUT contains the parts of other jobs"
_PART_ROWS_HINT = "Omit --part-rows, because N of --part K/N determines the size of a part."
_ENGINE_HINT = "Use --part-rows with --engine ray."
_ONE_RUN_HINT = "Omit one of these options; --duplicates reads every row in a single run."
_ONE_COLUMN = "--add-column adds one column"
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\\\": "\\"}


def _pairs(items: Iterable[str], form: str) -> dict[str, str]:
    """Parse texts of the form NAME=VALUE. Raises UsageError for any other text.

    form  the form as shown in the help of the option, for messages
    """
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals):
            raise UsageError(f"expected {form}, got {item!r:.60}")
        if name in pairs:
            raise UsageError(f"duplicate name {name!r:.60}")
        pairs[name] = value
    return pairs


def _names(text: str) -> list[str]:
    """Parse names separated by commas. Raises UsageError for an empty name."""
    names = text.split(",")
    if not all(names):
        hint = "Separate names by single commas, such as id,score."
        raise UsageError(f"empty name in {text!r:.60}", hint=hint)
    return names


def _unescaped(text: str) -> str:
    """Replace the escapes `\\t`, `\\n`, `\\r` and `\\\\` with their characters."""
    return re.sub(r"\\[tnr\\]", lambda match: _ESCAPES[match[0]], text)


def _sample(text: str) -> int | float:
    """Parse `10` as the count 10, and `1%` as the share 0.01.

    raises  UsageError for any other text
    """
    number, is_share = text.removesuffix("%"), text.endswith("%")
    try:
        sample = float(number) / 100 if is_share else int(number)
    except ValueError:
        sample = -1
    if not 0 <= sample < (1.0000001 if is_share else 1 << 63):
        raise UsageError(f"expected a count or a share such as 100 or 1%, got {text!r:.60}")
    return sample


def sample_size(
    sample: int | float, count: int, round_share: Callable[[float], int] = round
) -> int:
    """Return how many of `count` items to sample. Raises UsageError for a share above 1.

    sample       number of items as an int, or a share of the items as a float
    round_share  function that rounds the number of items in a share
    """
    if hasattr(sample, "__index__"):
        return operator.index(sample)
    if sample > 1:
        raise UsageError(
            f"invalid sample {sample}: expected a whole number, or a share of at most 1.0",
            hint="Use 5 for five items, or 0.05 for 5%.",
        )
    return round_share(sample * count)


def _fraction(text: str, first: int, expected: str, hint: str) -> tuple[int, int]:
    """Parse a number and a count, such as `0/8`. Return the number, counted from 0, and the count.

    first     smallest valid number in the text
    expected  description of a valid text
    raises    UsageError for an invalid text
    """
    match = re.fullmatch(_FRACTION, text)
    if match is None or not first <= int(match[1]) < int(match[2]) + first:
        raise UsageError(f"expected {expected}, got {text!r:.60}", hint=hint)
    return int(match[1]) - first, int(match[2])


_rank = partial(
    _fraction,
    first=0,
    expected="R/N with R below N",
    hint="Ranks are numbered from 0, so 0/8 is the first of eight.",
)
_part = partial(
    _fraction,
    first=1,
    expected="K/N with K from 1 to N",
    hint="Parts are numbered from 1, so 3/7 is the third of seven.",
)


def _shard_size(text: str) -> int:
    """Parse the size of a shard.

    Raises UsageError for a small number without a unit, such as 64.
    """
    size, number = parse_size(text), text.strip()
    if size < _MIN_UNITLESS_SIZE and number[-1].isdigit() and number.strip("0."):
        raise UsageError(
            f"{number!r:.60} without a unit means {format_count(size, 'byte')}",
            hint=f"Use {number:.60}MB; for {format_count(size, 'byte')}, use {size}B.",
        )
    return size


def _user_agent(text: str) -> str:
    """Return a User-Agent. Raises UsageError unless the text is printable ASCII."""
    if not (text.isascii() and text.isprintable() and text.strip()):
        raise UsageError(
            f"expected printable ASCII characters, got {shown(text)}",
            hint="Name your program and a contact, such as 'mybot/1.0 (+https://example.com/bot)'.",
        )
    return text


def _compressions() -> tuple[str, ...]:
    from flarecli.compress import SUFFIXES

    return SUFFIXES


# declarations that several classes share
_RESUME = Option(
    group="Run",
    help="Continue an interrupted run; the result is the same as without the interruption.",
    is_everyday=True,
)
_MAX_OBJECT = Option(
    group="Network and cache",
    metavar="SIZE",
    parse=parse_size,
    takes_text=True,
    minimum=0,
    shown="1GB",
    help="Maximum size of one value, downloaded or read from the source.",
)
_SOURCE_FORMAT = Option(
    group="Rows",
    flags=("-f",),
    metavar="NAME",
    suggest=formats.names,
    complete=formats.all_names,
    help="Format of SOURCE (default: detected): {choices}.",
    is_everyday=True,
)


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class _ValueOptions(CacheOptions):
    """The network and cache options, and the limit on the size of a value."""

    max_object: int | str = option(MAX_OBJECT_BYTES, _MAX_OBJECT)

    def limits(self) -> Limits:
        return replace(super().limits(), max_bytes=cast(int, self.max_object))


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class _DownloadOptions(_ValueOptions):
    """Options of the commands that download linked files."""

    per_host: int | None = option(
        None,
        Option(
            group="Links",
            metavar="N",
            minimum=1,
            help="Maximum number of parallel downloads from one host (default: value of --jobs).",
        ),
    )
    user_agent: str | None = option(
        None,
        Option(
            group="Links",
            metavar="TEXT",
            parse=_user_agent,
            takes_text=True,
            shown="flare/VERSION",
            help="User-Agent of HTTP requests.",
        ),
    )
    ignore_robots_tag: bool = option(
        False,
        Option(
            group="Links",
            help="Also download objects whose X-Robots-Tag, such as noai, disallows their use.",
        ),
    )

    def limits(self) -> Limits:
        return replace(
            super().limits(),
            per_host=self.per_host,
            user_agent=self.user_agent or "",
        )


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class _StreamOptions(Options):
    """The option that selects streams."""

    streams: Sequence[str] = option(
        (),
        Option(
            group="Rows",
            flags=("--stream", "-s"),
            metavar="NAME",
            is_repeatable=True,
            help="Read only this stream; repeatable.",
        ),
    )


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class _FormatOptions(_StreamOptions):
    """Options of the commands that read datasets."""

    format: str | None = option(None, _SOURCE_FORMAT)


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class _RowOptions(Options):
    """Options that select rows and columns."""

    columns: Sequence[str] | None = option(
        None,
        Option(
            group="Rows",
            flags=("-c",),
            metavar="A,B",
            takes_columns=True,
            parse=_names,
            help="Read and fetch only these columns.",
            is_everyday=True,
        ),
    )
    rows: str | None = option(
        None,
        Option(
            group="Rows",
            flags=("-r",),
            metavar="SPEC",
            help="Select rows by number, such as 5, 10:20, -5:, ::100 or 3,1,4.",
        ),
    )
    where: str | None = option(
        None,
        Option(
            group="Rows",
            metavar="SQL",
            help="Keep rows that match a condition, such as \"aes > 4 and lang = 'en'\".",
            is_everyday=True,
        ),
    )
    limit: int | None = option(
        None,
        Option(
            group="Rows",
            metavar="N",
            minimum=0,
            help="Keep the first N matching rows.",
            is_everyday=True,
        ),
    )


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class _WriteOptions(_RowOptions):
    """Options of `pack` and `unpack`."""

    key: str | None = option(
        None,
        Option(
            group="Rows",
            metavar="COLUMN",
            takes_columns=True,
            help="Column whose value identifies a row.",
            is_everyday=True,
        ),
    )
    fetch: Sequence[str] = option(
        (),
        Option(
            group="Links",
            metavar="COL[:NAME]",
            takes_columns=True,
            is_repeatable=True,
            help="Download files linked in COL into column NAME (default: COL); repeatable.",
            is_everyday=True,
        ),
    )
    on_error: str = option(
        "fail",
        Option(
            group="Run",
            choices=("fail", "skip"),
            help="What to do when a row fails.",
            is_everyday=True,
        ),
    )
    resume: bool = option(False, _RESUME)
    overwrite: bool = option(
        False, Option(group="Run", help="Replace earlier output in OUT.", is_everyday=True)
    )


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class _SeedOptions(Options):
    """The option for the random seed of --sample."""

    seed: int = option(
        0, Option(group="Rows", metavar="N", minimum=0, help="Random seed for --sample.")
    )


@dataclass(frozen=True, eq=False, repr=False)
class PackOptions(_DownloadOptions, TableOptions, _WriteOptions, _StreamOptions):
    """Options of `pack`."""

    conflicts = (
        Conflict(
            "part",
            "join",
            hint="Pack all parts with --part first, then run the same command with --join instead.",
        ),
        Conflict("overwrite", "part", _OTHER_JOBS, _PARTS_HINT),
        Conflict("overwrite", "join", _OTHER_JOBS, _PARTS_HINT),
        Conflict("part_rows", "part", hint=_PART_ROWS_HINT),
        Conflict("part_rows", "join", hint=_PART_ROWS_HINT),
        Conflict("engine", "part", hint=_ENGINE_HINT),
        Conflict("engine", "join", hint=_ENGINE_HINT),
        Conflict(
            "shuffle",
            "part_rows",
            "a shuffle needs the rows of all parts",
            "Shuffle when reading the dataset, or omit --part-rows.",
        ),
        Conflict("append", "add_column"),
        *(
            Conflict(change, name)
            for change, names in (
                ("append", ("overwrite", "part", "join")),
                ("add_column", ("overwrite", "part_rows", "part", "join", "engine")),
            )
            for name in names
        ),
        Conflict("add_column", "on_error", "every row of the dataset needs a value"),
        Conflict("add_column", "on_duplicate", "every row of the dataset needs a value"),
        Conflict("add_column", "shuffle", "the values need the order of the dataset's rows"),
        Conflict("add_column", "columns", _ONE_COLUMN),
        Conflict("add_column", "media_info", _ONE_COLUMN),
    )

    sources: Addresses
    out: Address
    _: KW_ONLY
    format: str = option(
        formats.DEFAULT,
        Option(
            group="Shards",
            flags=("-f",),
            metavar="NAME",
            suggest=partial(formats.names, writable=True),
            complete=partial(formats.all_names, writable=True),
            help="Format of the shards: {choices}.",
            is_everyday=True,
        ),
    )
    encode: Mapping[str, str] | None = option(
        None,
        Option(
            group="Rows",
            metavar="COL=ENC",
            takes_columns=True,
            is_repeatable=True,
            parse=partial(_pairs, form="COL=ENC"),
            help="Encoding of a column (default: inferred); repeatable.",
            is_everyday=True,
        ),
    )
    shuffle: int | None = option(
        None,
        Option(
            group="Rows",
            metavar="SEED",
            minimum=0,
            help="Pack the rows in shuffled order.",
            is_everyday=True,
        ),
    )
    on_duplicate: str = option(
        "error",
        Option(
            group="Rows",
            metavar="ACTION",
            choices=("error", "first", "keep", "replace"),
            help="What to do with rows that repeat a key: {choices}; `replace` needs --append, and removes the earlier rows.",
        ),
    )
    allow_missing: bool = option(
        False,
        Option(
            group="Rows",
            help="Use null for a column that a table or appended rows lack, or a file that a folder lacks.",
        ),
    )
    folder_column: str | None = option(
        None,
        Option(
            group="Rows",
            metavar="NAME",
            help="Add a column that contains the name of the first folder in each path, such as a class name.",
        ),
    )
    allow_empty: bool = option(False, Option(group="Links", help="Accept downloads of 0 bytes."))
    null: Sequence[str] = option(
        (),
        Option(
            group="Rows",
            metavar="COL=VALUE|fill|fail",
            takes_columns=True,
            is_repeatable=True,
            help="Replace nulls with VALUE; `fill` uses a default value for each type, and `fail` reports each null as a failed row; repeatable.",
        ),
    )
    from0: bool = option(
        False,
        Option(
            group="Rows",
            flags=("--from0", "-0"),
            help="Expect a NUL after each address on stdin, as in the output of `find -print0`.",
        ),
    )
    shard_size: int | str | None = option(
        parse_size(DEFAULT_SHARD_SIZE),
        Option(
            group="Shards",
            metavar="SIZE",
            parse=_shard_size,
            takes_text=True,
            minimum=0,
            shown=DEFAULT_SHARD_SIZE,
            help="Maximum size of a shard.",
            is_everyday=True,
        ),
    )
    shard_rows: int | None = option(
        None,
        Option(group="Shards", metavar="N", minimum=1, help="Maximum number of rows per shard."),
    )
    compress: str | None = option(
        None,
        Option(
            group="Shards",
            flags=("-z",),
            metavar="NAME[:LEVEL]",
            suggest=_compressions,
            help="Compression of the shards: {choices}.",
            is_everyday=True,
        ),
    )
    hash: Sequence[str] = option(
        (),
        Option(
            group="Shards",
            metavar="NAME",
            is_repeatable=True,
            help="Checksum to store in the format's own index; repeatable. Playlists always list xxh3_128.",
        ),
    )
    separator: str | None = option(
        None,
        Option(
            group="Shards",
            metavar="TEXT",
            parse=_unescaped,
            help="Separator between values in xsv shards.",
        ),
    )
    newline: str = option(
        "\n",
        Option(
            group="Shards",
            metavar="TEXT",
            parse=_unescaped,
            shown="\\n",
            help="End of line in json, csv, tsv and xsv shards.",
        ),
    )
    part_rows: int | None = option(
        None,
        Option(
            group="Shards",
            metavar="N",
            minimum=1,
            help="Pack parts of N rows as separate datasets (00000/, 00001/, …), and join them.",
        ),
    )
    part: tuple[int, int] | str | None = option(
        None,
        Option(
            group="Shards",
            metavar="K/N",
            parse=_part,
            takes_text=True,
            help="Pack only the K-th of N parts, in an independent job; --join joins the parts.",
        ),
    )
    join: bool = option(
        False,
        Option(group="Shards", help="Join the parts that were packed with --part."),
    )
    resize: int | tuple[int, int] | None = option(
        None,
        Option(
            group="Pictures and media",
            metavar="N[xM]",
            parse=parse_box,
            help="Resize images to a box of N by N or N by M pixels.",
            is_everyday=True,
        ),
    )
    resize_mode: str = option(
        "fit",
        Option(
            group="Pictures and media",
            choices=("fit", "crop", "stretch"),
            help="How to resize images to the box of --resize.",
        ),
    )
    quality: int | None = option(
        None,
        Option(
            group="Pictures and media",
            metavar="N",
            minimum=1,
            maximum=100,
            help="Quality of re-encoded images, from 1 to 100.",
        ),
    )
    min_size: int = option(
        0,
        Option(
            group="Pictures and media",
            metavar="N",
            minimum=0,
            help="Reject images whose shorter side has fewer than N pixels.",
        ),
    )
    max_aspect: float | None = option(
        None,
        Option(
            group="Pictures and media",
            metavar="X",
            minimum=1,
            help="Reject images with an aspect ratio above X.",
        ),
    )
    media_info: bool = option(
        False,
        Option(
            group="Pictures and media",
            help="Add the columns width, height, frames and duration (seconds).",
        ),
    )
    strict: bool = option(
        False,
        Option(
            group="Pictures and media",
            help="Treat a row as failed if the content of a file does not match its extension.",
        ),
    )
    append: bool = option(
        False,
        Option(
            group="Run",
            help="Add the rows to the dataset in OUT as a new version.",
            is_everyday=True,
        ),
    )
    add_column: str | None = option(
        None,
        Option(
            group="Run",
            metavar="NAME",
            help="Add a column of SOURCE to the dataset in OUT; match rows by position, or by --key.",
        ),
    )
    replace: bool = option(
        False,
        Option(
            group="Run",
            help="With --add-column, replace a column that an earlier --add-column added.",
        ),
    )
    dry_run: bool = option(
        False,
        Option(
            group="Run",
            flags=("-n",),
            help="Show what would be packed, and test the first links; write nothing.",
            is_everyday=True,
        ),
    )
    engine: str = option(
        "local",
        Option(
            group="Run",
            metavar="local|ray",
            suggest=lambda: ("local", "ray"),
            help="Where to pack parts: in this process or on a Ray cluster.",
        ),
    )


@dataclass(frozen=True, eq=False, repr=False)
class UnpackOptions(_DownloadOptions, TableOptions, _WriteOptions, _FormatOptions):
    """Options of `unpack`."""

    sources: Addresses
    out: Address
    _: KW_ONLY
    name: str | None = option(
        None,
        Option(
            group="Output",
            metavar="PATTERN",
            help="Pattern for file names, such as '{key}.{ext}'.",
            is_everyday=True,
        ),
    )
    index: str = option(
        "jsonl",
        Option(
            group="Output",
            choices=("jsonl", "csv", "parquet", "none"),
            help="Format of the index, which contains the file names and the columns that are not written as files.",
            is_everyday=True,
        ),
    )
    stream: IO[bytes] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class VerifyOptions(NetworkOptions, TableOptions, _FormatOptions, _SeedOptions):
    """Options of `verify`."""

    conflicts = (
        Conflict("duplicates", "quick", hint=_ONE_RUN_HINT),
        Conflict("duplicates", "state", hint=_ONE_RUN_HINT),
        Conflict(
            "decode",
            "quick",
            hint="Omit one of these options: --quick reads only headers, but --decode reads every value.",
        ),
    )

    sources: Addresses
    _: KW_ONLY
    quick: bool = option(
        False, Option(group="Run", help="Check only sizes and headers.", is_everyday=True)
    )
    decode: bool = option(
        False, Option(group="Run", help="Also decode every value.", is_everyday=True)
    )
    duplicates: bool = option(
        False, Option(group="Run", help="Also report rows with identical bytes within a stream.")
    )
    max_object: int | str = option(
        MAX_OBJECT_BYTES,
        replace(_MAX_OBJECT, help="Maximum size of one value to decode, with --decode."),
    )
    sample: int | float | None = option(
        None,
        Option(
            group="Rows",
            metavar="N|P%",
            parse=_sample,
            minimum=0,
            help="Check only N random shards of each stream, or P percent of the shards.",
            is_everyday=True,
        ),
    )
    part: tuple[int, int] | None = option(
        None,
        Option(
            group="Rows",
            metavar="K/N",
            parse=_part,
            help="Divide the shards into N parts, and check only part K; in Python: (K - 1, N).",
        ),
    )
    against: Address | None = option(
        None,
        Option(
            group="Run",
            metavar="PLAYLIST",
            help="Also compare the shards, their sizes and their checksums with PLAYLIST.",
            is_everyday=True,
        ),
    )
    state: Address | None = option(
        None,
        Option(
            group="Run",
            metavar="FILE",
            help="File that records the checked files, so that an interrupted check can continue.",
            is_everyday=True,
        ),
    )
    max_findings: int = option(
        100,
        Option(
            group="Output",
            metavar="N",
            minimum=1,
            help="Maximum number of findings to print; further findings are only counted.",
        ),
    )
    engine: str = option(
        "local",
        Option(
            group="Run",
            metavar="local|ray",
            suggest=lambda: ("local", "ray"),
            help="Where to check shards: in this process or on a Ray cluster.",
        ),
    )


@dataclass(frozen=True, eq=False, repr=False)
class CatOptions(_ValueOptions, TableOptions, _RowOptions, _FormatOptions, _SeedOptions):
    """Options of `cat`."""

    sources: Addresses
    _: KW_ONLY
    head: int | None = option(
        None,
        Option(group="Rows", metavar="N", minimum=0, is_hidden=True, help="Alias of --limit."),
    )
    tail: int | None = option(
        None,
        Option(
            group="Rows", metavar="N", minimum=0, help="Keep the last N rows.", is_everyday=True
        ),
    )
    sample: int | float | None = option(
        None,
        Option(
            group="Rows",
            metavar="N|P%",
            parse=_sample,
            minimum=0,
            help="Select N random rows, or P percent of the rows.",
            is_everyday=True,
        ),
    )
    shuffle: int | None = option(
        None,
        Option(
            group="Rows",
            metavar="SEED",
            minimum=0,
            help="Read the rows in the order of a shuffled epoch.",
            is_everyday=True,
        ),
    )
    epoch: int = option(
        0, Option(group="Rows", metavar="E", minimum=0, help="Epoch number for --shuffle.")
    )
    rank: tuple[int, int] | None = option(
        None,
        Option(
            group="Rows",
            metavar="R/N",
            parse=_rank,
            help="Select the rows of rank R of N; the first rank is 0.",
        ),
    )
    exact: bool = False
    stored: bool = False
    stdin: IO[bytes] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class InspectOptions(_ValueOptions, TableOptions, _RowOptions, _FormatOptions, _SeedOptions):
    """Options of `inspect`."""

    sources: Addresses
    _: KW_ONLY
    shards: bool = option(False, Option(group="Output", help="List the shards.", is_everyday=True))
    urls: bool = option(
        False,
        Option(group="Output", help="Print only the addresses of the shards.", is_everyday=True),
    )
    stats: bool = option(
        False,
        Option(
            group="Output",
            help="Show column statistics: ranges, nulls, lengths, image sizes.",
            is_everyday=True,
        ),
    )
    sample: int | float | None = option(
        None,
        Option(
            group="Rows",
            metavar="N|P%",
            parse=_sample,
            minimum=0,
            help="Show N random rows, or P percent of the rows.",
            is_everyday=True,
        ),
    )


@dataclass(frozen=True, eq=False, repr=False)
class PlaylistOptions(CacheOptions, TableOptions):
    """Options of `playlist`."""

    sources: Addresses
    _: KW_ONLY
    out: Address | None = option(
        None,
        Option(
            group="Output",
            flags=("-o",),
            metavar="FILE",
            help="File to write (default: stdout).",
            is_everyday=True,
        ),
    )
    format: str | None = option(None, _SOURCE_FORMAT)
    base: str | None = option(
        None,
        Option(
            group="Output",
            metavar="URL",
            help="URL of the playlist's folder; addresses below this URL become relative.",
            is_everyday=True,
        ),
    )
    rebase: Pairs = option(
        (),
        Option(
            group="Output",
            metavar="OLD=NEW",
            is_repeatable=True,
            parse=partial(_pairs, form="OLD=NEW"),
            help="Replace the prefix OLD of addresses with NEW; repeatable.",
            is_everyday=True,
        ),
    )
    hash: Sequence[str] = option(
        (DEFAULT,),
        Option(
            group="Output",
            metavar="NAME",
            is_repeatable=True,
            shown=DEFAULT,
            help="Checksum to list for each shard; repeatable.",
        ),
    )
    header: Pairs = option(
        (),
        Option(
            group="Output",
            metavar="K=V",
            is_repeatable=True,
            parse=partial(_pairs, form="K=V"),
            help="Add an entry to the `headers` of every stream in the playlist; repeatable.",
        ),
    )
    overwrite: bool = option(
        False, Option(group="Run", help="Replace FILE even if it is not a playlist.")
    )
    open: bool = option(
        True,
        Option(
            group="Run",
            flags=("--no-open",),
            help="Do not open shards; list only their addresses.",
        ),
    )


@dataclass(frozen=True, eq=False, repr=False)
class LogOptions(NetworkOptions):
    """Options of `log`."""

    out: Address
    _: KW_ONLY
    pin: str | None = option(
        None,
        Option(
            group="Run",
            metavar="NAME",
            help="Pin the current version under NAME, so that `flare prune` keeps its files.",
            is_everyday=True,
        ),
    )
    restore: int | None = option(
        None,
        Option(
            group="Run",
            metavar="N",
            minimum=1,
            help="Restore version N: create a new version with the same shards.",
            is_everyday=True,
        ),
    )


@dataclass(frozen=True, eq=False, repr=False)
class PruneOptions(NetworkOptions):
    """Options of `prune`."""

    out: Address
    _: KW_ONLY
    keep: int | None = option(
        None,
        Option(
            group="Run",
            metavar="N",
            minimum=1,
            help="Number of newest versions to keep.",
            is_everyday=True,
        ),
    )
    dry_run: bool = option(
        False,
        Option(
            group="Run",
            flags=("-n",),
            help="Show what would be removed; remove nothing.",
            is_everyday=True,
        ),
    )


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class _ChangeOptions(NetworkOptions):
    """Options of `drop` and `compact`."""

    resume: bool = option(False, _RESUME)
    dry_run: bool = option(
        False,
        Option(
            group="Run",
            flags=("-n",),
            help="Show the shards and bytes that would be rewritten; write nothing.",
            is_everyday=True,
        ),
    )


@dataclass(frozen=True, eq=False, repr=False)
class DropOptions(_ChangeOptions):
    """Options of `drop`."""

    out: Address
    _: KW_ONLY
    where: str | None = option(
        None,
        Option(
            group="Rows",
            metavar="SQL",
            help='Remove rows that match a condition, such as "user_id = 42".',
            is_everyday=True,
        ),
    )
    rows: str | None = option(
        None,
        Option(
            group="Rows",
            flags=("-r",),
            metavar="SPEC",
            help="Remove rows by number, such as 5, 10:20 or -5:.",
            is_everyday=True,
        ),
    )
    keys: Address | None = option(
        None,
        Option(
            group="Rows",
            metavar="FILE",
            help="Remove rows whose key is in FILE: a table with the --key column, or a text file (- for standard input) with one key per line.",
            is_everyday=True,
        ),
    )
    key: str | None = option(
        None,
        Option(
            group="Rows",
            metavar="COLUMN",
            takes_columns=True,
            help="Column to compare with the keys in --keys. With --erase, keys that are erased from this column cannot be appended again.",
            is_everyday=True,
        ),
    )
    drop_column: str | None = option(
        None,
        Option(
            group="Rows",
            metavar="COLUMN",
            takes_columns=True,
            help="Remove a column instead of rows.",
            is_everyday=True,
        ),
    )
    erase: bool = option(
        False,
        Option(
            group="Run",
            help="Also delete the files that contain the removed rows, and the versions that list them.",
            is_everyday=True,
        ),
    )
    break_pins: bool = option(
        False,
        Option(group="Run", help="With --erase, also delete the pins that list the erased files."),
    )


@dataclass(frozen=True, eq=False, repr=False)
class CompactOptions(_ChangeOptions):
    """Options of `compact`."""

    out: Address
    _: KW_ONLY
    below: int | str = option(
        16_000_000,
        Option(
            group="Shards",
            metavar="SIZE",
            parse=parse_size,
            takes_text=True,
            minimum=0,
            shown="16MB",
            help="Join consecutive shards that are smaller than SIZE.",
            is_everyday=True,
        ),
    )
    shard_size: int | str = option(
        parse_size(DEFAULT_SHARD_SIZE),
        Option(
            group="Shards",
            metavar="SIZE",
            parse=_shard_size,
            takes_text=True,
            minimum=1,
            shown=DEFAULT_SHARD_SIZE,
            help="Maximum size of a new shard.",
            is_everyday=True,
        ),
    )
