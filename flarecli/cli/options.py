"""Conversion of declared options to Typer parameters, and of command-line values to options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, cast

import typer

from flarecli.arguments import Declared, Option, Options, declared, option
from flarecli.cli.printer import Printer
from flarecli.errors import UsageError
from flarecli.suggest import nearest

__all__ = ["OUT", "SOURCES", "Argument", "ChangeLine", "CommandLine", "callback"]

L = TypeVar("L", bound="CommandLine")
_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")
_PREFIX = "FLARE_"
_LISTS = ("rows", "columns")  # options that accept several values, separated by commas


@dataclass(frozen=True)
class Argument:
    """A positional argument, with its placeholder and its help text."""

    metavar: str
    help: str
    is_list: bool = False
    is_required: bool = True


SOURCES = Argument(
    "SOURCE...",
    "Paths, file://, http(s)://, s3://, gs://, az://, hf://; globs and braces.",
    is_list=True,
)
OUT = Argument("OUT", "Folder or bucket to write to.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CommandLine(Options):
    """Base class of all command lines, with the output options and the positional arguments."""

    arguments: ClassVar[Mapping[str, Argument]] = {"sources": SOURCES}

    as_json: bool = option(
        False,
        Option(
            group="Output",
            flags=("--json",),
            help="Print results and errors as JSON.",
            is_everyday=True,
        ),
    )
    quiet: bool = option(
        False,
        Option(group="Output", flags=("-q",), help="Print only the result line.", is_everyday=True),
    )
    verbose: bool = option(
        False,
        Option(
            group="Output",
            flags=("-v",),
            help="Print more notes, such as detected formats and downloaded files.",
        ),
    )
    debug: bool = option(False, Option(group="Output", help="Print tracebacks of errors."))

    def printer(self) -> Printer:
        """Return a printer with the output options of this command."""
        return Printer(self.as_json, self.quiet, self.verbose)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ChangeLine(CommandLine):
    """Base class of the command lines that list or change the versions of one dataset."""

    arguments: ClassVar[Mapping[str, Argument]] = {
        "out": Argument("OUT", "Folder or bucket of the dataset to change.")
    }


def callback(
    line: type[L], command: Callable[[L], int], variables: Callable[[], Collection[str]]
) -> Callable[..., None]:
    """Return the function that Typer calls for a command.

    line       class of the command's options; environment variables set their defaults
    command    function that runs the command and returns the exit code; its docstring is the help
    variables  function that returns the environment variables of the options of all commands
    """

    def run(**typed: Any) -> None:
        values: dict[str, Any] = {
            name: () if typed[name] is None else typed[name] for name in line.arguments
        }
        for declaration in declared(line):
            if declaration.is_switch:
                if typed[declaration.name] or _is_set(declaration):
                    values[declaration.name] = not declaration.default
            elif texts := _texts(declaration, typed[declaration.name]):
                values[declaration.name] = declaration.parse(texts)
        options = line(**values)
        options.check_conflicts()
        for note in _notes_on_variables(line, variables):
            options.printer().note(note)
        raise typer.Exit(command(options))

    parameters = [_argument(name, argument) for name, argument in line.arguments.items()]
    parameters += [_option(declaration) for declaration in declared(line)]
    parameters.append(_SHORT_HELP)
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__doc__ = command.__doc__
    return run


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _print_short_help(context: typer.Context, is_set: bool) -> None:
    if is_set and not context.resilient_parsing:  # no help during completion
        typer.echo(cast(Any, context.command).short_help_page(context))
        raise typer.Exit


_SHORT_HELP = _parameter(
    "short_help",
    Annotated[
        bool,
        typer.Option(
            "-h",
            help="Show the everyday options and exit.",
            rich_help_panel="Output",
            show_default=False,
            is_eager=True,
            callback=_print_short_help,
        ),
    ],
    False,
)


def _argument(name: str, argument: Argument) -> inspect.Parameter:
    """Return the Typer parameter for a positional argument."""
    kind: Any = list[str] if argument.is_list else str
    about = typer.Argument(metavar=argument.metavar, help=argument.help, show_default=False)
    if argument.is_required:
        return _parameter(name, Annotated[kind, about], inspect.Parameter.empty)
    return _parameter(name, Annotated[kind | None, about], None)


def _option(declaration: Declared) -> inspect.Parameter:
    """Return the Typer parameter for an option: a bool for a switch, otherwise a list of texts."""
    option = declaration.option
    if declaration.is_switch:
        about = typer.Option(
            *declaration.flags,
            help=declaration.help,
            rich_help_panel=option.group,
            show_default=False,
            hidden=option.is_hidden,
        )
        return _parameter(declaration.name, Annotated[bool, about], False)
    default = f"  [default: {declaration.shown_default}]" if declaration.shown_default else ""
    about = typer.Option(
        *declaration.flags,
        help=declaration.help + default,
        metavar=declaration.metavar,
        show_default=False,
        rich_help_panel=option.group,
        autocompletion=_complete_columns if option.takes_columns else declaration.complete,
        hidden=option.is_hidden,
    )
    return _parameter(declaration.name, Annotated[list[str] | None, about], None)


def _complete_columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the column names of the local dataset or table on the command line.

    Addresses on a network are not read, because completion must be quick and must not fail.
    """
    from flarecli import read
    from flarecli.names import is_url

    before, comma, start = incomplete.rpartition(",")
    for address in ctx.args:  # during completion, Typer does not assign the arguments to parameters
        if not os.path.exists(address):
            continue
        try:
            playlists = read.resolve(address)
            streams = [one for playlist in playlists for one in playlist.streams]
            if not all(one.at.is_local and not any(map(is_url, one.urls)) for one in streams):
                return []
            with read.Dataset(read.select_streams(playlists), playlists) as data:
                names = data.column_names
        except Exception:  # a traceback would be printed into the line that the user types
            return []
        return [before + comma + name for name in names if name.startswith(start)]
    return []


def _texts(declaration: Declared, typed: list[str] | None) -> list[str]:
    """Return the values of an option as text, from the command line or else the environment."""
    if typed:
        if len(typed) > 1 and not declaration.option.is_repeatable:
            hint = "Use the option only once."
            if declaration.name in _LISTS:
                hint = "Separate values by commas, such as 3,1,4 or id,score."
            raise UsageError(f"{declaration.flags[0]} is set twice", hint=hint)
        return list(typed)
    text = os.environ.get(declaration.variable, "")
    if declaration.option.is_repeatable:
        return text.split()
    return [text] if text else []


def _notes_on_variables(
    line: type[CommandLine], variables: Callable[[], Collection[str]]
) -> list[str]:
    """Return a note for each unknown variable whose name resembles the variable of an option."""
    own = {declaration.variable for declaration in declared(line)}
    names = sorted(name for name in os.environ if name.startswith(_PREFIX) and name not in own)
    # call `variables` only if necessary, because it imports the modules of all commands
    known = variables() if names else ()
    notes = []
    for name in names:
        similar = nearest(name.removeprefix(_PREFIX), [one.removeprefix(_PREFIX) for one in known])
        if name not in known and similar is not None:
            notes.append(f"unknown variable {name} is ignored; did you mean {_PREFIX}{similar}?")
    return notes


def _is_set(declaration: Declared) -> bool:
    """Return whether the environment variable for a switch is true."""
    text = os.environ.get(declaration.variable, "").strip().lower()
    if text and text not in (*_TRUE, *_FALSE):
        raise UsageError(f"{declaration.variable}: expected true or false, got {text!r:.60}")
    return text in _TRUE
