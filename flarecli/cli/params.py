"""Options that mean the same in every command, each spelt once."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from flarecli.errors import FlareError, UsageError
from flarecli.units import parse_box, parse_size, parse_time

if TYPE_CHECKING:
    from flarecli.cli.show import Printer
    from flarecli.storage import Guard, Keeper

FORMATS = ("mds", "json", "csv", "tsv", "xsv", "ffrecord", "granular", "granular-refs", "webdataset")  # what can be written
READ_FORMATS = (*FORMATS, "files")
COMPRESSIONS = ("zstd", "gz", "br", "bz2", "snappy")
_OF = re.compile(r"(\d{1,18})/(\d{1,18})", re.ASCII)
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\\\": "\\"}


def option(*names: str, help: str, **more: Any) -> Any:
    """Make an option whose default can be set in the environment: `--shard-size` as FLARE_SHARD_SIZE."""
    variable = "FLARE_" + names[0].lstrip("-").upper().replace("-", "_")
    return typer.Option(*names, help=help, envvar=variable, show_envvar=False, **more)


def reading(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a parser of flare's fit for Typer, which loses the message of a ValueError."""

    def parser(text: str) -> Any:
        try:
            return parse(text) if isinstance(text, str) else text
        except FlareError as error:
            raise typer.BadParameter(f"{error.message}. {error.hint}" if error.hint else error.message) from None

    return parser


def pairs(items: Iterable[str], what: str) -> dict[str, str]:
    """Read options of the form NAME=VALUE. Raises UsageError for one that is not, or a name given twice."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals):
            raise UsageError(f"{item!r} is not {what}", hint=f"Write it like {what}.")
        if name in found:
            raise UsageError(f"{name!r} is given twice in {what}")
        found[name] = value
    return found


def names(text: str | None) -> list[str] | None:
    """Read a list with commas. Raises UsageError for an empty name."""
    if text is None:
        return None
    found = text.split(",")
    if not all(found):
        raise UsageError(f"{text!r} holds an empty name", hint="Write names with single commas between, such as id,score.")
    return found


def unescaped(text: str) -> str:
    """Read `\\t`, `\\n`, `\\r` and `\\\\` as the one character each stands for: shells make those hard to type."""
    return re.sub(r"\\[tnr\\]", lambda match: _ESCAPES[match[0]], text)


def guard(
    allow_private: bool,
    allow_local: bool,
    jobs: int | None,
    retries: int,
    timeout: float,
    deadline: float,
    max_object: int = 10**9,
    keeper: Keeper | None = None,
) -> Guard:
    """Put the safety switches and the limits of transfers together."""
    from flarecli.storage import Guard, Limits

    given = {} if jobs is None else {"jobs": jobs}
    limits = Limits(retries=retries, timeout_s=timeout, deadline_s=deadline, max_bytes=max_object, **given)
    return Guard(allow_private=allow_private, allow_local=allow_local, limits=limits, keeper=keeper)


def keeper(printer: Printer, folder: str | None, limit: int) -> Keeper | None:
    """Make what keeps copies of what is fetched, if a folder is named; one that cannot be used is a note, never an error."""
    if not folder:
        return None
    from flarecli.cache import Cache, CacheWarning

    others: Any = warnings.showwarning

    def shown(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, CacheWarning):
            printer.note(str(message))
        else:
            others(message, category, *place)

    warnings.simplefilter("always", CacheWarning)  # the cache itself says it once
    warnings.showwarning = cast("Any", shown)
    return Cache(folder, limit)


def share(text: str | None, what: str = "rows") -> int | float | None:
    """Read `10` as so many rows, `1%` as a share: 0.01. Raises UsageError for anything else."""
    if text is None:
        return None
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        found = float(number) / 100 if percent else int(number)
    except ValueError:
        found = -1
    if not 0 <= found < (1.0000001 if percent else 1 << 63):
        raise UsageError(f"{text!r:.60} is neither a number of {what} nor a share", hint="Write it like 100 or 1%.")
    return found


def rank(text: str | None) -> tuple[int, int] | None:
    """Read `0/8` as rank 0 of 8. Raises UsageError for anything else."""
    if text is None:
        return None
    found = _OF.fullmatch(text)
    if found is None or not int(found[1]) < int(found[2]):
        raise UsageError(f"{text!r:.60} is no rank", hint="Write it like 0/8: the first of eight.")
    return int(found[1]), int(found[2])


def part(text: str | None) -> tuple[int, int] | None:
    """Read `3/7` as the third of seven: (2, 7). Raises UsageError for anything else."""
    if text is None:
        return None
    found = _OF.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"{text!r:.60} is no part", hint="Write it like 3/7: the third of seven.")
    return int(found[1]) - 1, int(found[2])


def completes(*values: str) -> Callable[[str], list[str]]:
    """Complete an option's value from a list."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def _default(help: str, shown: str) -> dict[str, Any]:
    """Say a default in the help as it is written; Click itself would put a text in parentheses."""
    return {"help": f"{help}  [default: {shown}]", "show_default": False}


PIXELS = {"parser": reading(parse_box), "metavar": "N[xM]"}
_SIZE = {"parser": reading(parse_size), "metavar": "SIZE"}
_TIME = {"parser": reading(parse_time), "metavar": "TIME"}

ADDRESSES = "Addresses: paths, file://, http(s)://, s3://, gs://, az://, hf://, with globs and braces"

Sources: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help=f"{ADDRESSES}.", show_default=False),
]
Target: TypeAlias = Annotated[str, typer.Argument(metavar="OUT", help="The folder or bucket to write.", show_default=False)]
_READ = f"One of {', '.join(READ_FORMATS)}; else it is told by looking."
ReadFormat: TypeAlias = Annotated[str | None, option("--format", "-f", metavar="NAME", help=_READ, autocompletion=completes(*READ_FORMATS))]
Streams: TypeAlias = Annotated[list[str] | None, option("--stream", "-s", metavar="NAME", help="Only this stream; repeatable.")]
Columns: TypeAlias = Annotated[str | None, option("--columns", "-c", metavar="A,B", help="Only these columns are read and fetched.")]
Rows: TypeAlias = Annotated[str | None, option("--rows", "-r", metavar="SPEC", help="Rows such as 5, 10:20, -5:, ::100 or 3,1,4.")]
Where: TypeAlias = Annotated[str | None, option("--where", metavar="SQL", help="Keep rows: a condition such as \"aes > 4 and lang = 'en'\".")]
Limit: TypeAlias = Annotated[int | None, option("--limit", metavar="N", min=0, help="Keep the first N rows.")]
Key: TypeAlias = Annotated[str | None, option("--key", metavar="COLUMN", help="The column that names a row.")]
Fetch: TypeAlias = Annotated[list[str] | None, option("--fetch", metavar="COL[:NAME]", help="Take what links in COL point at, as NAME; repeatable.")]
Jobs: TypeAlias = Annotated[int | None, option("--jobs", "-j", metavar="N", min=1, help="Work at once; else by cores, and 32 transfers.")]
Engine: TypeAlias = Annotated[
    str, option("--engine", metavar="local|ray", help="Where the parts, or shards, are worked on.", autocompletion=completes("local", "ray"))
]
Retries: TypeAlias = Annotated[int, option("--retries", metavar="N", min=0, help="Tries after a passing fault.")]
Timeout: TypeAlias = Annotated[float, option("--timeout", **_default("Give up when no byte came for so long.", "30s"), **_TIME)]
Deadline: TypeAlias = Annotated[float, option("--deadline", **_default("Give up when one object took so long.", "10m"), **_TIME)]
MaxObject: TypeAlias = Annotated[int, option("--max-object", **_default("Links to more bytes fail.", "1GB"), **_SIZE)]
CacheFolder: TypeAlias = Annotated[str | None, option("--cache", metavar="DIR", help="Keep what is fetched in this folder, and read it from there.")]
CacheLimit: TypeAlias = Annotated[int, option("--cache-limit", **_default("Bytes of that folder; the coldest leave first.", "10GB"), **_SIZE)]
Size: TypeAlias = Annotated[int, option("--shard-size", **_default("Bytes of a shard, at most.", "64MiB"), **_SIZE)]
OnError: TypeAlias = Annotated[
    str, option("--on-error", metavar="fail|skip", help="What a row that fails does.", autocompletion=completes("fail", "skip"))
]
Resume: TypeAlias = Annotated[bool, option("--resume", help="Go on where an interrupted run ended; the bytes are those of an unbroken one.")]
Overwrite: TypeAlias = Annotated[bool, option("--overwrite", help="Replace what is in OUT.")]
AllowPickle: TypeAlias = Annotated[bool, option("--allow-pickle", help="Decode pickles, which runs code that the data brings.")]
AllowPrivate: TypeAlias = Annotated[bool, option("--allow-private", help="Data may name private and loopback addresses.")]
AllowLocal: TypeAlias = Annotated[bool, option("--allow-local", help="Data may name file://, paths outside its folder and symbolic links.")]
AsJson: TypeAlias = Annotated[bool, option("--json", help="Print JSON, and errors as JSON on stderr.")]
Quiet: TypeAlias = Annotated[bool, option("--quiet", "-q", help="Print the one useful line only.")]
Verbose: TypeAlias = Annotated[bool, option("--verbose", "-v", help="Say what was sniffed, chosen and fetched.")]
Debug: TypeAlias = Annotated[bool, option("--debug", help="Show tracebacks.")]
