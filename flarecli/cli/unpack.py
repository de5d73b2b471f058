"""`flare unpack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flarecli.cli.options import SOURCES, Argument, CommandLine
from flarecli.cli.printer import binary_stdout, refuse_terminal
from flarecli.cli.progress import ProgressBar
from flarecli.commands.options import UnpackOptions
from flarecli.units import format_count, format_size


@dataclass(frozen=True, eq=False, repr=False)
class Line(UnpackOptions, CommandLine):
    """Command line of `flare unpack`."""

    arguments: ClassVar[Mapping[str, Argument]] = {
        "sources": SOURCES,
        "out": Argument("OUT", "Folder to write to, or - for a tar on stdout."),
    }


def command(line: Line) -> int:
    """Write rows as files, or download the files that a table links to.

    Prints the address of the index, which is a table of the file names and the other columns.

    Example: flare unpack out/playlist.yaml files/
    """
    from flarecli import commands

    to_stdout = line.out == "-"
    if to_stdout:
        refuse_terminal("a tar")
    printer = line.printer()
    with ProgressBar(printer, "unpack") as bar:
        unpacked = commands.unpack(
            line.sources,
            line.out,
            progress=bar,
            stream=binary_stdout() if to_stdout else None,
            **line.keywords(UnpackOptions),
        )
    bar.print_failures(unpacked.reasons)
    bar.print_summary(
        f"unpacked {format_count(unpacked.rows, 'row')} into {format_count(unpacked.files, 'file')}, {format_size(unpacked.bytes)}"
    )
    if line.as_json and not to_stdout:
        printer.json(unpacked.as_json())
    elif not to_stdout:
        printer.line(unpacked.index or str(line.out))
    return 1 if unpacked.failed else 0
