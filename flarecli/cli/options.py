"""The command line of one command, built from its declared options: Typer's parameters and their
values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import typer

from flarecli.arguments import Declared, Option, Options, declared, option
from flarecli.errors import UsageError

__all__ = ["OUT", "SOURCES", "Argument", "Line", "callback"]

L = TypeVar("L", bound="Line")
_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")
_LISTS = ("rows", "columns")  # one text with several values


@dataclass(frozen=True)
class Argument:
    """A positional argument, as the help shows it."""

    metavar: str
    help: str
    is_list: bool = False
    is_required: bool = True


_ADDRESSES = "paths, file://, http(s)://, s3://, gs://, az://, hf://, with globs and braces."
SOURCES = Argument("SOURCE...", f"Addresses: {_ADDRESSES}", is_list=True)
OUT = Argument("OUT", "Folder or bucket to write.")


@dataclass(frozen=True, kw_only=True)
class Line(Options):
    """Base of the command lines: the options of output, and the positional arguments."""

    arguments: ClassVar[Mapping[str, Argument]] = {"sources": SOURCES}

    as_json: bool = option(
        False, Option(group="Output", flags=("--json",), help="Print JSON, and errors as JSON.")
    )
    quiet: bool = option(
        False, Option(group="Output", flags=("-q",), help="Print only the result line.")
    )
    verbose: bool = option(
        False,
        Option(
            group="Output",
            flags=("-v",),
            help="Report what was detected, chosen and fetched too.",
        ),
    )
    debug: bool = option(False, Option(group="Output", help="Show tracebacks."))

    def changed(self, names: tuple[str, ...]) -> list[str]:
        """Return the flags of those options that do not have their default."""
        known = {one.name: one for one in declared(type(self))}
        return [
            known[name].flags[0] for name in names if getattr(self, name) != known[name].default
        ]


def callback(
    line: type[L], command: Callable[[L], int], environment: Mapping[str, str]
) -> Callable[..., None]:
    """Return the function that Typer calls for a command.

    line         the class of its options
    command      runs it and returns the exit code; its docstring is the help
    environment  the variables with defaults
    """

    def run(**given: Any) -> None:
        values: dict[str, Any] = {
            name: () if given[name] is None else given[name] for name in line.arguments
        }
        for one in declared(line):
            texts = _texts(one, given[one.name], environment)
            if texts is not None:
                values[one.name] = texts if isinstance(texts, bool) else one.parse(texts)
        raise typer.Exit(command(line(**values)))

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **_argument(argument))
        for name, argument in line.arguments.items()
    ]
    parameters += [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, **_option(one))
        for one in declared(line)
    ]
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__doc__ = command.__doc__
    return run


def _argument(argument: Argument) -> dict[str, Any]:
    kind: Any = list[str] if argument.is_list else str
    about = typer.Argument(metavar=argument.metavar, help=argument.help, show_default=False)
    if argument.is_required:
        return {"annotation": Annotated[kind, about]}
    return {"annotation": Annotated[kind | None, about], "default": None}


def _option(one: Declared) -> dict[str, Any]:
    """Return annotation and default of a parameter.

    An option with a value is a list, to detect repeats.
    """
    group = one.option.group if one.option else None
    if one.is_switch:
        about = typer.Option(*one.flags, help=one.help, rich_help_panel=group, show_default=False)
        return {"annotation": Annotated[bool, about], "default": False}
    default = f"  [default: {one.shown_default}]" if one.shown_default else ""
    about = typer.Option(
        *one.flags,
        help=one.help + default,
        metavar=one.metavar,
        show_default=False,
        rich_help_panel=group,
        autocompletion=one.complete,
    )
    return {"annotation": Annotated[list[str] | None, about], "default": None}


def _texts(one: Declared, given: Any, environment: Mapping[str, str]) -> list[str] | bool | None:
    """Return the texts of an option from the command line, else the environment; None if neither
    sets it.
    """
    if one.is_switch:
        is_given = bool(given) or _is_set(one, environment)
        return not one.default if is_given else None
    is_repeatable = one.option is not None and one.option.is_repeatable
    if given:
        if len(given) > 1 and not is_repeatable:
            hint = "Give it once."
            if one.name in _LISTS:
                hint = "Separate values by commas, such as 3,1,4 or id,score."
            raise UsageError(f"{one.flags[0]} is given twice", hint=hint)
        return list(given)
    text = environment.get(one.variable)
    if not text:
        return None
    return text.split() if is_repeatable else [text]


def _is_set(one: Declared, environment: Mapping[str, str]) -> bool:
    text = environment.get(one.variable, "").strip().lower()
    if text and text not in (*_TRUE, *_FALSE):
        raise UsageError(f"{one.variable}: expected true or false, got {text!r:.60}")
    return text in _TRUE
