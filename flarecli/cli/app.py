"""The commands as a Typer application."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Collection
from functools import partial
from typing import Annotated, Any

import typer
import typer.core

from flarecli.arguments import GROUPS, declared
from flarecli.cli import printer
from flarecli.cli.options import callback
from flarecli.errors import UsageError
from flarecli.suggest import choose, nearest

__all__ = ["COMMANDS", "HELP_END", "execute"]

# Command -> first line of its help. Each command is a module of this package; the module is
# imported when the command is called.
COMMANDS = {
    "pack": "Pack rows as shards, and download linked files.",
    "unpack": "Write rows as files, or download the files that a table links to.",
    "inspect": "Describe a dataset: format, rows, shards, bytes, columns, checksums.",
    "verify": "Check that a dataset is complete and undamaged.",
    "playlist": "Write a YAML playlist of datasets.",
    "cat": "Print rows.",
    "drop": "Remove rows or a column from a dataset.",
    "compact": "Join small consecutive shards of a dataset.",
    "log": "List the versions of a dataset, the oldest first.",
    "prune": "Remove old versions of a dataset, and the files that only these versions list.",
}
_SYNONYMS = {  # names of similar commands in other programs
    "convert": "pack",
    "create": "pack",
    "write": "pack",
    "extract": "unpack",
    "info": "inspect",
    "show": "inspect",
    "stat": "inspect",
    "ls": "inspect",
    "check": "verify",
    "validate": "verify",
    "list": "playlist",
    "head": "cat",
    "read": "cat",
    "print": "cat",
}
_MIN_COLUMNS = 60  # on narrower terminals, `get_help` uses another layout
_HELP = "Pack, unpack, inspect, verify, list and print sharded datasets, local or remote."
HELP_END = """Example: flare pack photos.parquet out/ --fetch data_url --key data_id && flare verify out/

Run flare COMMAND -h to list the everyday options of a command, and flare COMMAND --help to list all options.

Environment variables set the defaults of options: FLARE_SHARD_SIZE for --shard-size, and so on.

Exit codes: 0 success, 1 problems were found, 2 invalid command line, 3 cannot read or write, 4 invalid data, 5 refused for
safety, 6 missing library, 130 interrupted, 143 terminated, 129 hung up."""
# text that `flare` prints if it is called without arguments
_FIRST_STEPS = """\
flare pack photos.parquet out/ --fetch data_url:image   pack a table, and download linked files
flare inspect out/                                      describe a dataset: rows, bytes, columns
flare cat out/ --limit 3                                print rows
flare verify out/                                       check that a dataset is complete
flare COMMAND -h                                        list the everyday options of a command
flare --help                                            list all commands
"""
_SETTINGS: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
_HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
_COMMAND_SETTINGS = {"help_option_names": ["--help"], "max_content_width": 100}


class _Wrapped(Exception):
    """Wrapper for an exception that Typer must not handle. `__cause__` is the wrapped exception.

    Typer handles broken pipes, interrupts and EOF itself unless they are wrapped.
    """


class _Base:
    """Base class of the application and its commands.

    It changes completion, the handling of write errors while help is printed, and the layout of
    help on narrow terminals.
    """

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return completions without descriptions.

        To print descriptions, Typer would import rich.
        """
        items = super().shell_complete(ctx, incomplete)  # type: ignore[misc]
        for item in items:
            item.help = None
        return items

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)  # type: ignore[misc]
        except OSError as error:
            error.filename = error.filename or "stdout"
            raise _Wrapped from error

    def get_help(self, ctx: Any) -> str:
        """Return the help. On a narrow terminal, the text for an option is below its name."""
        columns = shutil.get_terminal_size().columns
        if columns >= _MIN_COLUMNS:
            return str(super().get_help(ctx))  # type: ignore[misc]
        formatter = ctx.make_formatter()
        # without a width, the formatter would use 50 columns even on narrower terminals
        formatter.width = max(columns - 2, 20)
        formatter.write_dl = partial(formatter.write_dl, col_max=4)
        self.format_help(ctx, formatter)  # type: ignore[attr-defined]
        return str(formatter.getvalue()).rstrip("\n")


class _Command(_Base, typer.core.TyperCommand):
    """A command whose `-h` shows only some options, and whose `--help` shows all options.

    everyday  names of the options that `-h` shows
    """

    everyday: Collection[str] = ()
    _is_short = False

    def short_help_page(self, ctx: Any) -> str:
        """Return the help for `-h`."""
        self._is_short = True
        try:
            return self.get_help(ctx)
        finally:
            self._is_short = False

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help for the options, by group."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *GROUPS)}
        parameters: list[Any] = self.get_params(ctx)
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if record and parameter.name == "help":
                groups["Output"].append((record[0], "Show all options and exit."))
            elif record and parameter.param_type_name == "argument":
                groups["Arguments"].append(record)
            elif record and not (self._is_short and parameter.name not in self.everyday):
                groups[parameter.rich_help_panel or "Output"].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def _variables() -> set[str]:
    """Return the environment variables of the options of all commands."""
    modules = (importlib.import_module(f"flarecli.cli.{name}") for name in COMMANDS)
    return {one.variable for module in modules for one in declared(module.Line)}


class _Commands(_Base, typer.core.TyperGroup):
    """Group of the commands. The module of a command is imported when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            app = typer.Typer(add_completion=False, **_SETTINGS)
            module = importlib.import_module(f"flarecli.cli.{cmd_name}")
            app.command(
                cmd_name,
                cls=_Command,
                short_help=COMMANDS[cmd_name],
                context_settings=_COMMAND_SETTINGS,
            )(callback(module.Line, module.command, _variables))
            command: Any = typer.main.get_command(app)
            command.everyday = {one.name for one in declared(module.Line) if one.option.is_everyday}
            self.commands[cmd_name] = command
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command by the first argument. Raises UsageError for an unknown command."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        hint = "Run `flare --help`, or `flare COMMAND --help`."
        if name != "help":
            hint = choose(name, COMMANDS, synonyms=_SYNONYMS)
        raise UsageError(f"unknown command {name!r}", hint=hint)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.TyperException, typer.Exit, _Wrapped):
            raise
        except BaseException as error:
            raise _Wrapped from error


def _print_version(is_set: bool) -> None:
    if is_set:
        from flarecli import __version__

        printer.Printer().line(f"flare {__version__}")
        raise typer.Exit


def _application() -> Any:
    app = typer.Typer(
        cls=_Commands, help=_HELP, epilog=HELP_END, context_settings=_HELP_FLAGS, **_SETTINGS
    )

    @app.callback()
    def flare(
        version: Annotated[
            bool,
            typer.Option(
                "--version", help="Print the version.", callback=_print_version, is_eager=True
            ),
        ] = False,
    ) -> None:
        pass

    return typer.main.get_command(app)


def execute(args: list[str]) -> Any:
    """Run one command line and return its exit code.

    Raises UsageError for an invalid command line.
    """
    if not args and "_FLARE_COMPLETE" not in os.environ:  # set if the shell requests completions
        printer.write_text(_FIRST_STEPS)
        return 0
    try:
        return _application().main(args=args, prog_name="flare", standalone_mode=False)
    except typer.TyperException as error:
        raise _usage_error(error, args) from error
    except _Wrapped as wrapped:
        cause = wrapped.__cause__ or wrapped
    raise cause


def _usage_error(error: Any, args: list[str]) -> UsageError:
    """Convert a Typer error to a UsageError.

    Error classes are compared by name, because Typer bundles Click and exports few of its classes.
    """
    command = f"flare {args[0]}" if args and args[0] in COMMANDS else "flare"
    hint = f"Run `{command} --help`."
    if type(error).__name__ == "NoSuchOption":
        guess = nearest(error.option_name, error.possibilities or ())
        hint = f"Did you mean {guess}? {hint}" if guess else hint
        return UsageError(f"no such option: {error.option_name}", hint=hint)
    message = error.format_message().strip().rstrip(".")
    # Typer would assign a single argument to OUT and report only SOURCE as missing.
    if (
        command in ("flare pack", "flare unpack")
        and type(error).__name__ == "MissingParameter"
        and error.param.param_type_name == "argument"
    ):
        message = "missing argument: both SOURCE and OUT are required"
    # In `xargs`, --null is a switch for names that end with NUL. In flare, it has a value, so Typer
    # uses the next argument as the value.
    is_null = type(error).__name__ == "BadOptionUsage" and error.option_name == "--null"
    if is_null or (type(error).__name__ == "MissingParameter" and "--null" in args):
        hint = "Use -0 or --from0 for addresses on stdin that end with NUL."
    return UsageError(message[:1].lower() + message[1:], hint=hint)
