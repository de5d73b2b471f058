"""The six commands as a Typer application."""

from __future__ import annotations

import importlib
import os
import shutil
from functools import partial
from typing import Annotated, Any

import typer
import typer.core

from flarecli.arguments import GROUPS
from flarecli.cli import printer
from flarecli.cli.options import callback
from flarecli.errors import UsageError
from flarecli.suggest import choose, nearest

__all__ = ["COMMANDS", "answer"]

# Each command is a module of this package, loaded when it is called; the text is the first line of
# its help.
COMMANDS = {
    "pack": "Pack rows as shards, and download what they link to.",
    "unpack": "Write rows as files, or download what an index links to.",
    "inspect": "Describe a dataset: format, rows, shards, bytes, columns, checksums.",
    "verify": "Check that a dataset is complete and undamaged.",
    "playlist": "Write the playlist of datasets: addresses to YAML.",
    "cat": "Print rows.",
}
_MEANT = {
    "convert": "pack",
    "create": "pack",
    "write": "pack",
    "extract": "unpack",
    "info": "inspect",
    "show": "inspect",
    "stat": "inspect",
}
_MEANT |= {
    "ls": "inspect",
    "check": "verify",
    "validate": "verify",
    "list": "playlist",
    "head": "cat",
    "read": "cat",
    "print": "cat",
}
_NARROW = 60  # columns; Click wraps at 50 on any narrower terminal
_HELP = "Pack, unpack, inspect, verify, list and print sharded datasets, local or remote."
_EPILOG = """Example: flare pack photos.parquet out/ --fetch data_url --key data_id && flare verify out/

The options of a command: flare COMMAND --help.

Environment variables set defaults of options: FLARE_SHARD_SIZE for --shard-size, and so on.

Exit codes: 0 success, 1 problems were found, 2 invalid command line, 3 cannot read or write, 4 invalid data, 5 refused for
safety, 6 missing library, 130 interrupted, 143 terminated, 129 hung up."""
_WRONG_LINE: Any = typer.BadParameter.__mro__[
    2
]  # ClickException of the Click that this Typer bundles


class _Helped:
    """Base of the program and its commands: help on narrow terminals, and completion."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete without descriptions: Typer imports rich to print those in zsh and fish."""
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
            raise _Carried from error

    def get_help(self, ctx: Any) -> str:
        """Return the help; on a narrow terminal each option has its own line, with its text below."""
        columns = shutil.get_terminal_size().columns
        if columns >= _NARROW:
            return str(super().get_help(ctx))  # type: ignore[misc]
        formatter = ctx.make_formatter()
        formatter.width = max(columns - 2, 20)
        formatter.write_dl = partial(formatter.write_dl, col_max=4)
        self.format_help(ctx, formatter)  # type: ignore[attr-defined]
        return str(formatter.getvalue()).rstrip("\n")


class _Command(_Helped, typer.core.TyperCommand):
    """One of the six commands."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by group."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        groups |= {name: [] for name in GROUPS}
        parameters: list[Any] = self.get_params(ctx)
        for one in parameters:
            if record := one.get_help_record(ctx):
                is_argument = one.param_type_name == "argument"
                groups["Arguments" if is_argument else one.rich_help_panel or "Output"].append(
                    record
                )
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class _Commands(_Helped, typer.core.TyperGroup):
    """The six commands; each is loaded when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            one = typer.Typer(
                add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
            )
            module = importlib.import_module(f"flarecli.cli.{cmd_name}")
            one.command(
                cmd_name,
                cls=_Command,
                short_help=COMMANDS[cmd_name],
                context_settings={"help_option_names": ["-h", "--help"]},
            )(callback(module.Line, module.command, os.environ))
            self.commands[cmd_name] = typer.main.get_command(one)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = (
                "Run `flare --help`, or `flare COMMAND --help`."
                if args[0] == "help"
                else choose(args[0], COMMANDS, meant=_MEANT)
            )
            raise UsageError(f"there is no command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            printer.finish()
            return result
        except (_WRONG_LINE, typer.Exit, _Carried):
            raise
        except BaseException as error:
            raise _Carried from error


class _Carried(Exception):
    """Carry an exception through Typer, which would handle broken pipes, interrupts and EOF itself."""


def _version(wanted: bool) -> None:
    if wanted:
        from flarecli import __version__

        printer.line(f"flare {__version__}")
        raise typer.Exit


def _app() -> Any:
    app = typer.Typer(
        cls=_Commands,
        help=_HELP,
        epilog=_EPILOG,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def flare(
        version: Annotated[
            bool,
            typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
        ] = False,
    ) -> None:
        pass

    return typer.main.get_command(app)


def answer(args: list[str]) -> Any:
    """Run one command line and return its exit code. Raises UsageError for an invalid command line."""
    try:
        return _app().main(args=args or ["--help"], prog_name="flare", standalone_mode=False)
    except _WRONG_LINE as error:
        raise _wrong_line(error, args) from error
    except _Carried as carried:
        cause = carried.__cause__ or carried
    raise cause


def _missing(error: Any, args: list[str]) -> str:
    """Report both missing arguments: Click assigns a single argument to OUT and reports SOURCE
    only.
    """
    both = (
        bool(args) and args[0] in ("pack", "unpack") and type(error).__name__ == "MissingParameter"
    )
    return (
        "missing argument: both SOURCE and OUT are required"
        if both and error.param.param_type_name == "argument"
        else ""
    )


def _no_option(error: Any, command: str) -> UsageError:
    """Return the error for an unknown option, with a suggestion."""
    guess = nearest(error.option_name, error.possibilities or ())
    return UsageError(
        f"no such option: {error.option_name}",
        hint=(f"Did you mean {guess}? " if guess else "") + f"Run `{command} --help`.",
    )


def _wrong_line(error: Any, args: list[str]) -> UsageError:
    """Return the error of flare for an error of Click."""
    command = f"flare {args[0]}" if args and args[0] in COMMANDS else "flare"
    message = _missing(error, args) or error.format_message().strip().rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        return _no_option(error, command)
    return UsageError(message[:1].lower() + message[1:], hint=f"Run `{command} --help`.")
