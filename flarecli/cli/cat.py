"""`flare cat`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flarecli.arguments import Conflict, Option, option
from flarecli.cli import rows as output
from flarecli.cli.options import CommandLine
from flarecli.cli.printer import is_terminal
from flarecli.cli.progress import ProgressBar
from flarecli.commands.options import CatOptions
from flarecli.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False, repr=False)
class Line(CatOptions, CommandLine):
    """Command line of `flare cat`."""

    conflicts = (
        Conflict("raw", "columns", "--raw prints the bytes of one column", "Omit --columns."),
        Conflict("raw", "to", "--raw prints the bytes of one column", "Omit --to."),
    )

    to: str = option(
        "jsonl",
        Option(
            group="Output",
            metavar="FORM",
            choices=output.FORMS,
            help="Output format: {choices}.",
            is_everyday=True,
        ),
    )
    raw: str | None = option(
        None,
        Option(
            group="Output",
            metavar="COLUMN",
            help="Print only the stored bytes of a column.",
            is_everyday=True,
        ),
    )
    bytes_as: str = option(
        "sha256",
        Option(
            group="Output",
            flags=("--bytes",),
            choices=output.BYTES,
            help="Print bytes as size and SHA-256, or as base64.",
        ),
    )
    csv_safe: bool = option(
        False,
        Option(group="Output", help="In CSV and TSV, put ' before text that looks like a formula."),
    )
    allow_pickle: bool = option(
        False, Option(group="Safety", help="Decode pickles, which runs code from the data.")
    )


def command(line: Line) -> int:
    """Print rows.

    The default output is JSON lines, with bytes as {"bytes": n, "sha256": …} and NaN and infinity
    as null. Pickles are not decoded unless --allow-pickle is set. CSV and TSV contain unchanged
    values; on a terminal, control characters are escaped. --raw, --to arrow and --to parquet do not
    print to a terminal. If SOURCE is -, a table or a tar is read from stdin.

    Example: flare cat out/ --where "score > 0.5" -c id,score --limit 10
    """
    from flarecli import commands

    printer = line.printer()
    if line.csv_safe and line.to not in output.DELIMITERS:
        raise UsageError("--csv-safe has an effect only on CSV and TSV", hint="Add --to csv.")
    output.check_terminal(line.to, line.raw)
    options: dict[str, Any] = line.keywords(CatOptions)
    if line.raw is not None:
        options |= {"columns": [line.raw], "stored": True}
    exact = line.to not in ("arrow", "parquet")
    style = output.ValueStyle(line.bytes_as == "base64", line.allow_pickle, line.csv_safe)
    with ProgressBar(printer, "cat") as bar:
        batches = commands.cat(line.sources, exact=exact, progress=bar, **options)
        if is_terminal():
            batches = _without_bar(batches, bar)
        output.write(batches, printer, line.to, line.raw, style)
    return 0


def _without_bar(batches: Iterator[pa.RecordBatch], bar: ProgressBar) -> Iterator[pa.RecordBatch]:
    """Yield the batches. Remove the progress bar first, because rows use the same terminal."""
    for batch in batches:
        bar.end()
        yield batch
