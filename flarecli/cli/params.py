"""Options that mean the same in every command, each spelt once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from flarecli import formats
from flarecli.cli.values import guard as guard
from flarecli.cli.values import keeper as keeper
from flarecli.cli.values import names as names
from flarecli.cli.values import pairs as pairs
from flarecli.cli.values import part as part
from flarecli.cli.values import rank as rank
from flarecli.cli.values import share as share
from flarecli.cli.values import unescaped as unescaped
from flarecli.errors import FlareError
from flarecli.units import parse_box, parse_size, parse_time

COMPRESSIONS = ("zstd", "gz", "br", "bz2", "snappy")


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
            raise typer.BadParameter(
                f"{error.message}. {error.hint}" if error.hint else error.message
            ) from None

    return parser


def completes(*values: str) -> Callable[[str], list[str]]:
    """Complete an option's value from a list."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def completes_format(writable: bool = False) -> Callable[[str], list[str]]:
    """Complete the name of a format, third-party ones included."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in formats.all_names(writable) if name.startswith(incomplete)]

    return complete


def _default(help: str, shown: str) -> dict[str, Any]:
    """Say a default in the help as it is written; Click itself would put a text in parentheses."""
    return {"help": f"{help}  [default: {shown}]", "show_default": False}


PIXELS = {"parser": reading(parse_box), "metavar": "N[xM]"}
_SIZE = {"parser": reading(parse_size), "metavar": "SIZE"}
_TIME = {"parser": reading(parse_time), "metavar": "TIME"}

ADDRESSES = (
    "Addresses: paths, file://, http(s)://, s3://, gs://, az://, hf://, with globs and braces"
)

Sources: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help=f"{ADDRESSES}.", show_default=False),
]
Target: TypeAlias = Annotated[
    str, typer.Argument(metavar="OUT", help="The folder or bucket to write.", show_default=False)
]
_READ = f"One of {', '.join(formats.names())}; else it is told by looking."
ReadFormat: TypeAlias = Annotated[
    str | None,
    option("--format", "-f", metavar="NAME", help=_READ, autocompletion=completes_format()),
]
Streams: TypeAlias = Annotated[
    list[str] | None, option("--stream", "-s", metavar="NAME", help="Only this stream; repeatable.")
]
Columns: TypeAlias = Annotated[
    str | None,
    option("--columns", "-c", metavar="A,B", help="Only these columns are read and fetched."),
]
Rows: TypeAlias = Annotated[
    str | None,
    option("--rows", "-r", metavar="SPEC", help="Rows such as 5, 10:20, -5:, ::100 or 3,1,4."),
]
Where: TypeAlias = Annotated[
    str | None,
    option(
        "--where", metavar="SQL", help="Keep rows: a condition such as \"aes > 4 and lang = 'en'\"."
    ),
]
Limit: TypeAlias = Annotated[
    int | None, option("--limit", metavar="N", min=0, help="Keep the first N rows.")
]
Key: TypeAlias = Annotated[
    str | None, option("--key", metavar="COLUMN", help="The column that names a row.")
]
Fetch: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--fetch",
        metavar="COL[:NAME]",
        help="Take what links in COL point at, as NAME; repeatable.",
    ),
]
Jobs: TypeAlias = Annotated[
    int | None,
    option(
        "--jobs", "-j", metavar="N", min=1, help="Work at once; else by cores, and 32 transfers."
    ),
]
Engine: TypeAlias = Annotated[
    str,
    option(
        "--engine",
        metavar="local|ray",
        help="Where the parts, or shards, are worked on.",
        autocompletion=completes("local", "ray"),
    ),
]
Retries: TypeAlias = Annotated[
    int,
    option("--retries", metavar="N", min=0, help="Retries of transient errors, for each object."),
]
Timeout: TypeAlias = Annotated[
    float, option("--timeout", **_default("Give up when no byte came for so long.", "30s"), **_TIME)
]
Deadline: TypeAlias = Annotated[
    float, option("--deadline", **_default("Give up when one object took so long.", "10m"), **_TIME)
]
MaxObject: TypeAlias = Annotated[
    int, option("--max-object", **_default("Maximum size of one value.", "1GB"), **_SIZE)
]
CacheFolder: TypeAlias = Annotated[
    str | None,
    option(
        "--cache",
        metavar="DIR",
        help="Keep what is fetched in this folder, and read it from there.",
    ),
]
CacheLimit: TypeAlias = Annotated[
    int,
    option(
        "--cache-limit",
        **_default("Bytes of that folder; the coldest leave first.", "10GB"),
        **_SIZE,
    ),
]
Size: TypeAlias = Annotated[
    int, option("--shard-size", **_default("Bytes of a shard, at most.", "64MiB"), **_SIZE)
]
OnError: TypeAlias = Annotated[
    str,
    option(
        "--on-error",
        metavar="fail|skip",
        help="What a row that fails does.",
        autocompletion=completes("fail", "skip"),
    ),
]
Resume: TypeAlias = Annotated[
    bool,
    option(
        "--resume",
        help="Go on where an interrupted run ended; the bytes are those of an unbroken one.",
    ),
]
Overwrite: TypeAlias = Annotated[bool, option("--overwrite", help="Replace what is in OUT.")]
AllowPickle: TypeAlias = Annotated[
    bool, option("--allow-pickle", help="Decode pickles, which runs code that the data brings.")
]
AllowPrivate: TypeAlias = Annotated[
    bool, option("--allow-private", help="Data may name private and loopback addresses.")
]
AllowHost: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--allow-host",
        metavar="HOST[:PORT]",
        help="Data may name this private host or network, such as 10.1.0.0/16; repeatable.",
    ),
]
AllowLocal: TypeAlias = Annotated[
    bool,
    option(
        "--allow-local", help="Data may name file://, paths outside its folder and symbolic links."
    ),
]
AsJson: TypeAlias = Annotated[
    bool, option("--json", help="Print JSON, and errors as JSON on stderr.")
]
Quiet: TypeAlias = Annotated[bool, option("--quiet", "-q", help="Print the one useful line only.")]
Verbose: TypeAlias = Annotated[
    bool, option("--verbose", "-v", help="Say what was sniffed, chosen and fetched.")
]
Debug: TypeAlias = Annotated[bool, option("--debug", help="Show tracebacks.")]
